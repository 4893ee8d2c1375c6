"""All adversarial suites, by name."""

from __future__ import annotations

from adversarial import (
    Family,
    certificates,
    cone,
    curvature,
    dense,
    estimator,
    flows,
    outliers,
    projection,
    recovery,
    returned,
    tensors,
    trace,
)

SUITES: dict[str, dict[str, Family]] = {
    "trace": trace.FAMILIES,
    "projection": projection.FAMILIES,
    "flows": flows.FAMILIES,
    "curvature": curvature.FAMILIES,
    "certificates": certificates.FAMILIES,
    "cone": cone.FAMILIES,
    "recovery": recovery.FAMILIES,
    "dense": dense.FAMILIES,
    "returned": returned.FAMILIES,
    "estimator": estimator.FAMILIES,
    "tensors": tensors.FAMILIES,
    "outliers": outliers.FAMILIES,
}
