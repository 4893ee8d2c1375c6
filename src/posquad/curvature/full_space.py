"""Bounds and deviation of the normal operator on all symmetric matrices (section 3.3).

The paper's guarantees control `T_n` on the whole of S^d. These functions compute the quantities in
their assumptions: the constants m, M of `eq:abstract-operator-bounds` and the norm `||T_n - T||_op`
of Theorem 3.2 (`thm:full-space-operator-concentration`). They are matrix-free; a product costs one
`apply` and one `adjoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.linalg import symmetric_part
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.curvature.eigen import (
    Preconditioner,
    accuracy_status,
    converged,
    extreme_eigenpairs,
    flatten_block,
    no_preconditioner,
    unflatten_block,
)
from posquad.geometry.population import population_root
from posquad.problems.measurements import GaussianPopulation, Measurements
from posquad.problems.operator import require_measurements

__all__ = ["OperatorBounds", "operator_bounds", "operator_deviation"]


@dataclass(frozen=True, eq=False, repr=False)
class OperatorBounds(Result):
    """Extreme eigenvalues of a self-adjoint operator on symmetric matrices.

    Values are numbers for one operator and tensors `[...]` for a batch, NaN where not converged. A
    value has converged when its residual is within the tolerance and a search from an independent
    random start found no more extreme one.
    """

    smallest: Any
    largest: Any
    norm: Any  # the larger of the two in absolute value
    status: Status  # CONVERGED (to the tolerance, or to rounding of the norm) or NOT_CONVERGED


def operator_bounds(
    measurements: Measurements, *, tolerance: float = 1e-8, max_products: int = 5000, seed: int = 0
) -> OperatorBounds:
    """Largest m and smallest M with `m ||H||^2 <= <H, T_n(H)> <= M ||H||^2` on S^d.

    `eq:abstract-operator-bounds`; m = 0 whenever there are fewer than d(d+1)/2 independent
    measurements. The population has m = 2, M = d + 2 (Lemma 3.1,
    `lem:gaussian-population-operator`).

    >>> bounds = operator_bounds(GaussianPopulation(3))
    >>> round(bounds.smallest, 9), round(bounds.largest, 9)
    (2.0, 5.0)
    """
    require_measurements(measurements)
    # A*A/n is positive semidefinite, so no eigenvalue lies below zero.
    return _extremes(measurements, measurements.normal_kernel, 0.0, tolerance, max_products, seed)


def operator_deviation(
    measurements: Measurements, *, tolerance: float = 1e-8, max_products: int = 5000, seed: int = 0
) -> OperatorBounds:
    """Extreme eigenvalues of `T_n - T`; `.norm` is `||T_n - T||_op`.

    Theorem 3.2 (`thm:full-space-operator-concentration`) bounds this norm in probability.

    >>> operator_deviation(GaussianPopulation(3)).norm
    0.0
    """
    require_measurements(measurements)
    population = GaussianPopulation(measurements.d)

    def deviation(H: Tensor) -> Tensor:
        return measurements.normal_kernel(H) - population.normal_kernel(H)

    return _extremes(measurements, deviation, None, tolerance, max_products, seed)


def _extremes(
    measurements: Measurements,
    product: Callable[[Tensor], Tensor],
    floor: float | None,
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

    def root(block: Tensor) -> Tensor:
        return flatten_block(population_root(unflatten_block(block, (d, d))))

    generator = torch.Generator().manual_seed(positive_integer("seed", seed, zero=True))
    start = torch.randn(min(3, size), *batch, d, d, dtype=dtype, generator=generator)
    ends, words = [], []
    with torch.no_grad():
        for largest in (False, True):
            pairs = extreme_eigenpairs(
                lambda block: flatten_block(product(unflatten_block(block, (d, d)))),
                no_preconditioner(project) if largest else Preconditioner(root, root, project),
                project,
                project(flatten_block(start.to(measurements.device or "cpu"))),
                k=1,
                largest=largest,
                dimension=size,
                tolerance=tolerance,
                max_products=max_products,
                floor=None if largest else floor,
                seed=seed,
            )
            good = converged(pairs, tolerance)
            ends.append(torch.where(good, pairs.values, torch.nan)[..., 0])
            words.append(accuracy_status(pairs, good, tolerance))
    norm = torch.maximum(ends[0].abs(), ends[1].abs())
    low, high, norm = (x if batch else float(x) for x in (*ends, norm))
    worst = Status.NOT_CONVERGED if Status.NOT_CONVERGED in words else Status.CONVERGED
    return OperatorBounds(smallest=low, largest=high, norm=norm, status=worst)
