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
from posquad._eigen import extreme_eigenpairs
from posquad.errors import DtypeError
from posquad.measurements import GaussianPopulation, Measurements
from posquad.status import Status

__all__ = ["OperatorBounds", "operator_bounds", "operator_deviation"]


@dataclass(frozen=True)
class OperatorBounds:
    """Extreme eigenvalues of a self-adjoint operator on symmetric matrices."""

    smallest: Any  # [...]  NaN if not converged
    largest: Any  # [...]
    status: Status

    @property
    def norm(self) -> Any:
        """Operator norm, the larger of the two in absolute value."""
        return torch.maximum(self.smallest.abs(), self.largest.abs())


def operator_bounds(
    measurements: Measurements, *, tolerance: float = 1e-8, max_products: int = 5000
) -> OperatorBounds:
    """The best m and M with `m ||H||^2 <= <H, T_n(H)> <= M ||H||^2` on S^d.

    `eq:abstract-operator-bounds`; m = 0 whenever there are fewer than d(d+1)/2 independent
    measurements. The population has m = 2, M = d + 2 (`lem:gaussian-population-operator`).

    >>> bounds = operator_bounds(GaussianPopulation(3))
    >>> round(float(bounds.smallest), 9), round(float(bounds.largest), 9)
    (2.0, 5.0)
    """
    _require_measurements(measurements)
    return _extremes(measurements, measurements._normal, tolerance, max_products)


def operator_deviation(
    measurements: Measurements, *, tolerance: float = 1e-8, max_products: int = 5000
) -> OperatorBounds:
    """Extreme eigenvalues of `T_n - T`; `.norm` is `||T_n - T||_op`.

    The quantity that `thm:full-space-operator-concentration` bounds in probability.

    >>> float(operator_deviation(GaussianPopulation(3)).norm)
    0.0
    """
    _require_measurements(measurements)
    population = GaussianPopulation(measurements.d)

    def deviation(H: Tensor) -> Tensor:
        return measurements._normal(H) - population._normal(H)

    return _extremes(measurements, deviation, tolerance, max_products)


def _extremes(
    measurements: Measurements,
    product: Callable[[Tensor], Tensor],
    tolerance: float,
    max_products: int,
) -> OperatorBounds:
    tolerance = positive_number("tolerance", tolerance)
    positive_integer("max_products", max_products)
    d, batch = measurements.d, measurements.batch_shape
    dtype = measurements.dtype or torch.float64
    size = d * (d + 1) // 2

    def columns(H: Tensor) -> Tensor:  # [m, ..., d, d] -> [..., d^2, m]
        return H.flatten(-2).movedim(0, -1)

    def matrices(block: Tensor) -> Tensor:
        return block.movedim(-1, 0).unflatten(-1, (d, d))

    def project(block: Tensor) -> Tensor:
        H = matrices(block)
        return columns((H + H.mT) / 2)

    def invert_population(block: Tensor) -> Tensor:
        # 2H + tr(H) I = R has H = (R - tr(R)/(d+2) I) / 2.
        R = matrices(block)
        trace = R.diagonal(dim1=-2, dim2=-1).sum(-1) / (d + 2)
        return columns((R - trace[..., None, None] * torch.eye(d).to(R)) / 2)

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(min(3, size), *batch, d, d, dtype=dtype, generator=generator)
    ends = []
    converged = True
    with torch.no_grad():
        for largest in (False, True):
            pairs = extreme_eigenpairs(
                lambda block: columns(product(matrices(block))),
                (lambda block: block) if largest else invert_population,
                project,
                project(columns(start.to(measurements.device or "cpu"))),
                k=1,
                largest=largest,
                dimension=size,
                tolerance=tolerance,
                max_products=max_products,
            )
            rounding = 10 * size * torch.finfo(dtype).eps * pairs.scale[..., None]
            good = pairs.residuals <= torch.maximum(tolerance * pairs.values.abs(), rounding)
            converged = converged and bool(good.all())
            ends.append(torch.where(good, pairs.values, torch.nan)[..., 0])
    status = Status.CONVERGED if converged else Status.NOT_CONVERGED
    return OperatorBounds(smallest=ends[0], largest=ends[1], status=status)


def _require_measurements(measurements: Measurements) -> None:
    if not isinstance(measurements, Measurements):
        raise DtypeError(
            "measurements",
            expected="a Measurements operator such as RankOne(X)",
            got=type(measurements).__name__,
        )
