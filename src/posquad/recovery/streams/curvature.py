"""The expected curvature of all rows, given those in memory: the metric of the passes.

With a share f of the rows in memory, the curvature of all rows is `f H + (1 - f) P` up to the
fluctuation of the others, where H is the Gauss-Newton curvature of the rows in memory and P that of
a Gaussian population.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from posquad.geometry.population import population_product
from posquad.recovery.solvers.conjugate_gradients import ConjugateGradients
from posquad.recovery.solvers.fit import population_metric

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


def expected_solve(V: Tensor, metric: Tensor, known: Known | None) -> Callable[[Tensor], Tensor]:
    """Return the map `g -> (f H + (1 - f) P)^-1 g` of horizontal parts at `V[d, r]`.

    Without known rows it is `P^-1`. The conjugate gradients are preconditioned by P, and need no
    row beyond those in memory. `metric[d, d]` whitens the rows.
    """
    population = population_metric(V)
    if known is None or known.share < _SHARE:
        return population
    Z, S, f = known.X @ (metric @ V), V.mT @ V, known.share

    def curved(D: Tensor) -> Tensor:
        a = (Z * (known.X @ (metric @ D))).sum(-1)
        a = a if known.weights is None else known.weights * a
        seen = metric.mT @ (known.X.mT @ (a[:, None] * Z))
        return (4 / len(known.X)) * f * seen + (1 - f) * population_product(V, S, D)

    system, accuracy = ConjugateGradients(curved, population, _STEPS), V.new_tensor(_ACCURACY)
    return lambda g: system.solve(g, accuracy)[0]
