"""Preconditioned conjugate gradients for systems whose unknowns are directions of a factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock, iterate, steps_exhausted
from posquad.geometry.frames import Frame
from posquad.geometry.population import population_solve
from posquad.problems.measurements import Measurements
from posquad.recovery.solvers.fit import inner

# Maximum number of steps for one Gauss-Newton step. Measured: at n = 4p 5 to 30 are needed.
_STEPS = 60


@dataclass(frozen=True)
class CGState(State):
    """Conjugate gradient iterations on a batch of systems."""

    D: Tensor  # [..., d, r]  solution so far
    R: Tensor  # [..., d, r]  residual
    direction: Tensor  # [..., d, r]
    product: Tensor  # [...]  <R, P^{-1} R>
    least: Tensor  # [...]  value of `product` at which to stop


class ConjugateGradients(Method[CGState]):
    """The system `H D = right` for a positive semidefinite H, preconditioned by a metric P."""

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        metric: Callable[[Tensor], Tensor],
        steps: int = _STEPS,
    ) -> None:
        """Take the maps `D -> H D` and `R -> P^-1 R` of `[..., d, r]`, and the most steps."""
        self.product, self.metric, self.steps = product, metric, steps

    def solve(self, right: Tensor, accuracy: Tensor) -> tuple[Tensor, Tensor]:
        """Return the solution, to a relative accuracy `[...]` in the norm of P^-1, and the steps.

        >>> right = torch.tensor([[1.0], [2.0]])
        >>> twice = ConjugateGradients(lambda D: 2 * D, lambda R: R)
        >>> twice.solve(right, torch.tensor(1e-6))
        (tensor([[0.5000],
                [1.0000]]), tensor(1))
        """
        V = self.metric(right)
        product = inner(right, V)
        state = CGState(
            **clock(product),
            D=torch.zeros_like(right),
            R=right,
            direction=V,
            product=product,
            least=accuracy.square() * product,
        )
        rules: list[Rule[CGState]] = [
            (Status.CONVERGED, lambda s: s.product <= s.least),
            steps_exhausted(self.steps),
        ]
        state = iterate(self, state, rules)
        return state.D, state.steps

    def advance(self, state: CGState) -> CGState:
        V = state.direction
        curved = self.product(V)
        bend = inner(V, curved)
        good = bend > 0  # otherwise H does not determine this direction: stop here
        t = torch.where(good, state.product / torch.where(good, bend, 1.0), 0.0)[..., None, None]
        R = state.R - t * curved
        S = self.metric(R)
        product = torch.where(good, inner(R, S), 0.0)
        ratio = product / torch.where(state.product > 0, state.product, 1.0)
        direction = S + ratio[..., None, None] * V
        return state.stepped(D=state.D + t * V, R=R, direction=direction, product=product)


def normal_equations(operator: Measurements, Z: Tensor, basis: Frame) -> ConjugateGradients:
    """Return the system `J'J D / 2 = right` over horizontal D at U, for `Z = project(U)`.

    The metric is that of the Gaussian population; `J'J` keeps directions horizontal, because U'
    times its products is symmetric. `basis` is the frame of U.
    """
    return ConjugateGradients(
        operator.gauss_newton_product(Z), lambda right: population_solve(basis, right)
    )
