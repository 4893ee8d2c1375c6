"""The adversarial suites of all rooms, by name."""

from __future__ import annotations

from adversarial import Family, certificates, flows, projection, trace

SUITES: dict[str, dict[str, Family]] = {
    "certificates": certificates.FAMILIES,
    "flows": flows.FAMILIES,
    "projection": projection.FAMILIES,
    "trace": trace.FAMILIES,
}
