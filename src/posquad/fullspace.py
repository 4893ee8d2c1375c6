"""The normal operator on all symmetric matrices: its bounds and its deviation (section 3.3).

The paper's guarantees control `T_n` on the whole of S^d. These functions measure what the theorems
assume: the constants m, M of `eq:abstract-operator-bounds` and the norm `||T_n - T||_op` of
`thm:full-space-operator-concentration`. Matrix-free: a product costs one apply and one adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad._arrays import positive_integer, positive_number
from posquad._eigen import (
    accuracy_status,
    converged,
    extreme_eigenpairs,
    flatten_block,
    unflatten_block,
)
from posquad._linalg import symmetric_part
from posquad._results import Result
from posquad.measurements import GaussianPopulation, Measurements, require_measurements
from posquad.status import Status

__all__ = ["OperatorBounds", "operator_bounds", "operator_deviation"]


@dataclass(frozen=True, eq=False, repr=False)
class OperatorBounds(Result):
    """Extreme eigenvalues of a self-adjoint operator on symmetric matrices.

    Numbers for one operator, tensors `[...]` for a batch; NaN where not converged.
    """

    smallest: Any
    largest: Any
    norm: Any  # the larger of the two in absolute value
    status: Status  # CONVERGED (to the tolerance, or to rounding of the norm) or NOT_CONVERGED


def operator_bounds(
    measurements: Measurements, *, tolerance: float = 1e-8, max_products: int = 5000, seed: int = 0
) -> OperatorBounds:
    """The best m and M with `m ||H||^2 <= <H, T_n(H)> <= M ||H||^2` on S^d.

    `eq:abstract-operator-bounds`; m = 0 whenever there are fewer than d(d+1)/2 independent
    measurements. The population has m = 2, M = d + 2 (`lem:gaussian-population-operator`).

    >>> bounds = operator_bounds(GaussianPopulation(3))
    >>> round(bounds.smallest, 9), round(bounds.largest, 9)
    (2.0, 5.0)
    """
    require_measurements(measurements)
    return _extremes(measurements, measurements._normal, tolerance, max_products, seed)


def operator_deviation(
    measurements: Measurements, *, tolerance: float = 1e-8, max_products: int = 5000, seed: int = 0
) -> OperatorBounds:
    """Extreme eigenvalues of `T_n - T`; `.norm` is `||T_n - T||_op`.

    The quantity that `thm:full-space-operator-concentration` bounds in probability.

    >>> operator_deviation(GaussianPopulation(3)).norm
    0.0
    """
    require_measurements(measurements)
    population = GaussianPopulation(measurements.d)

    def deviation(H: Tensor) -> Tensor:
        return measurements._normal(H) - population._normal(H)

    return _extremes(measurements, deviation, tolerance, max_products, seed)


def _extremes(
    measurements: Measurements,
    product: Callable[[Tensor], Tensor],
    tolerance: float,
    max_products: int,
    seed: int,
) -> OperatorBounds:
    tolerance = positive_number("tolerance", tolerance)
    positive_integer("max_products", max_products)
    d, batch = measurements.d, measurements.batch_shape
    dtype = measurements.dtype or torch.float64
    size = d * (d + 1) // 2

    def project(block: Tensor) -> Tensor:
        return flatten_block(symmetric_part(unflatten_block(block, (d, d))))

    def invert_population(block: Tensor) -> Tensor:
        # 2H + tr(H) I = R has H = (R - tr(R)/(d+2) I) / 2.
        R = unflatten_block(block, (d, d))
        trace = R.diagonal(dim1=-2, dim2=-1).sum(-1) / (d + 2)
        return flatten_block((R - trace[..., None, None] * torch.eye(d).to(R)) / 2)

    generator = torch.Generator().manual_seed(positive_integer("seed", seed, zero=True))
    start = torch.randn(min(3, size), *batch, d, d, dtype=dtype, generator=generator)
    ends, words = [], []
    with torch.no_grad():
        for largest in (False, True):
            pairs = extreme_eigenpairs(
                lambda block: flatten_block(product(unflatten_block(block, (d, d)))),
                (lambda block: block) if largest else invert_population,
                project,
                project(flatten_block(start.to(measurements.device or "cpu"))),
                k=1,
                largest=largest,
                dimension=size,
                tolerance=tolerance,
                max_products=max_products,
            )
            good = converged(pairs.values, pairs.residuals, pairs.scale, tolerance)
            ends.append(torch.where(good, pairs.values, torch.nan)[..., 0])
            words.append(accuracy_status(pairs.values, pairs.residuals, pairs.scale, tolerance))
    norm = torch.maximum(ends[0].abs(), ends[1].abs())
    low, high, norm = (x if batch else float(x) for x in (*ends, norm))
    worst = Status.NOT_CONVERGED if Status.NOT_CONVERGED in words else Status.CONVERGED
    return OperatorBounds(smallest=low, largest=high, norm=norm, status=worst)
