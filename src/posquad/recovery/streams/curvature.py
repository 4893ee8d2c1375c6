"""The expected curvature of all rows, given those in memory: the metric of the passes.

With a share f of the rows in memory, the curvature of all rows is `f H + (1 - f) P` up to the
fluctuation of the others, where H is the Gauss-Newton curvature of the rows in memory and P that of
a Gaussian population.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.geometry.frames import Frame
from posquad.geometry.horizontal import horizontal_part
from posquad.geometry.population import population_product, population_solve
from posquad.recovery.solvers.fit import inner

# Share of the rows in memory below which they say little about all of them. A choice: their
# curvature then enters with a weight of 5% at most, and its products are not worth it.
_SHARE = 0.05
# Most steps of conjugate gradients. Derived: they gain a factor of about 1.4 each at a condition
# number of 30, and 12 of them reach `_ACCURACY`.
_STEPS = 12
# Relative error of a solution, in the norm of P. A choice: the metric itself is an expectation.
_ACCURACY = 0.03


class Known(NamedTuple):
    """Rows in memory, `X[m, d]`, and their weights, of n rows in all."""

    X: Tensor
    weights: Tensor | None
    n: int

    @property
    def share(self) -> float:
        """The share of the rows that is in memory."""
        return len(self.X) / self.n


def expected_solve(
    V: Tensor, g: Tensor, basis: Frame, metric: Tensor, known: Known | None
) -> Tensor:
    """Solve `(f H + (1 - f) P) D = g` for horizontal `D[d, r]` at V; without known rows `P D = g`.

    The conjugate gradients are preconditioned by P, and need no row beyond those in memory.
    """

    def population(right: Tensor) -> Tensor:
        return population_solve(basis, horizontal_part(V, right, basis))

    D = population(g)
    if known is None or known.share < _SHARE:
        return D
    Z, S, f = known.X @ (metric @ V), V.mT @ V, known.share

    def curved(D: Tensor) -> Tensor:
        a = (Z * (known.X @ (metric @ D))).sum(-1)
        a = a if known.weights is None else known.weights * a
        seen = metric.mT @ (known.X.mT @ (a[:, None] * Z))
        return (4 / len(known.X)) * f * seen + (1 - f) * population_product(V, S, D)

    solution, rest, step = torch.zeros_like(g), g, D
    size = first = float(inner(rest, step))
    for _ in range(_STEPS):
        image = curved(step)
        bend = float(inner(step, image))
        if not (size > 0 and bend > 0):
            break
        length = size / bend
        solution, rest = solution + length * step, rest - length * image
        lifted = population(rest)
        before, size = size, float(inner(rest, lifted))
        if math.sqrt(max(size, 0.0)) <= _ACCURACY * math.sqrt(first):
            break
        step = lifted + (size / before) * step
    return solution
