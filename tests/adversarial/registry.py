"""The adversarial suites of all rooms, by name."""

from __future__ import annotations

from adversarial import Family, certificates, curvature

SUITES: dict[str, dict[str, Family]] = {
    "certificates": certificates.FAMILIES,
    "curvature": curvature.FAMILIES,
}
