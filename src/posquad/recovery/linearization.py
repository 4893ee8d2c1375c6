"""The responses linearized at a factor that fits them: one system, factorized once.

At `V = U + D` the errors are `e(V) = J D + A(DD')`, exactly, with the Jacobian J at U. So a step
`-(J'J)^+ J' e(V)` leaves `-(J'J)^+ J' A(DD')` of D: steps with the system of U converge to U
quadratically, although J is never computed at V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.curvature.lanczos import Lanczos
from posquad.recovery.problem import Problem

# Probability up to which an end of the spectrum may be less accurate than required. A choice: that
# of `posquad.curvature.ends`.
_FAILURE = 1e-4


@dataclass(frozen=True, eq=False)
class Linearization:
    """`J'J` at `U[..., d, r]`, positive definite by a multiple of the projector on the gauge.

    J is zero on the gauge, the directions UA with skew A. The multiple is the mean of the other
    eigenvalues of `J'J`, so that both ends of the spectrum are those of the effective curvature.
    """

    problem: Problem
    U: Tensor  # [..., d, r]
    Z: Tensor  # [..., k, r]  project(U)
    system: Tensor  # [..., d r, d r]
    root: Tensor  # [..., d r, d r]  its Cholesky factor
    definite: Tensor  # [...]  whether there is one

    @classmethod
    def at(cls, problem: Problem, U: Tensor) -> Linearization:
        """Linearize the responses of a problem at U."""
        Z = problem.operator.project(U)
        system, _ = problem.operator.normal_equations(Z, torch.zeros_like(problem.y))
        gauge = _gauge(U)
        trace = system.diagonal(dim1=-2, dim2=-1).sum(-1)
        mean = trace / (system.shape[-1] - gauge.shape[-1])
        system = system + mean[..., None, None] * (gauge @ gauge.mT)
        root, failed = torch.linalg.cholesky_ex(system)
        return cls(problem, U, Z, system, root, failed == 0)

    def ends(self, accuracy: float) -> tuple[Tensor, Tensor]:
        """Return both ends of the effective spectrum of `J'J / n`, NaN where it is not definite.

        After k steps of the Lanczos method from a random vector of length m, the relative error
        exceeds `accuracy` with a probability of at most `1.648 m^(1/2) exp(-accuracy^(1/2) (2k -
        1))` (Kuczynski and Wozniakowski, SIAM J. Matrix Anal. Appl. 13, 1992, 1094-1122).
        """
        m = self.system.shape[-1]
        steps = (math.log(1.648 * m**0.5 / _FAILURE) / accuracy**0.5 + 1) / 2
        generator = torch.Generator().manual_seed(m)
        start = torch.randn(m, 1, generator=generator, dtype=torch.float64).to(self.system)
        start = start.expand(*self.system.shape[:-1], 1)
        low = Lanczos(lambda v: torch.cholesky_solve(v, self.root), lambda v: v, start)
        high = Lanczos(lambda v: self.system @ v, lambda v: v, start)
        for _ in range(min(math.ceil(steps), m)):
            low.step()
            high.step()
        ends = 1 / low.values()[..., -1], high.values()[..., -1]
        first, last = (torch.where(self.definite, end / self.problem.n, torch.nan) for end in ends)
        return first, last

    def step(self, V: Tensor) -> Tensor:
        """Return the factors `V[S, ..., d, r]`, turned towards U, after one step."""
        left, _, right = torch.linalg.svd(V.mT @ self.U)
        V = V @ (left @ right)
        operator = self.problem.operator
        e = self.problem.residual(operator.project(V))
        slope = 2 * operator.weighted_adjoint(e, self.Z).flatten(-2)  # J'e
        step = torch.cholesky_solve(slope.movedim(0, -1), self.root).movedim(-1, 0)
        return V - step.unflatten(-1, V.shape[-2:])


def _gauge(U: Tensor) -> Tensor:
    """Return an orthonormal basis `[..., d r, r (r - 1) / 2]` of the directions UA with skew A."""
    W, s, Pt = torch.linalg.svd(U, full_matrices=False)
    r = U.shape[-1]
    i, j = torch.tril_indices(r, r, -1, device=U.device)
    left, right = (s[..., None, :] * W).mT, Pt  # rows s_i w_i and p_i
    basis = left[..., i, :, None] * right[..., j, None, :]
    basis = basis - left[..., j, :, None] * right[..., i, None, :]
    size = (s[..., i].square() + s[..., j].square()).sqrt()
    return (basis / size[..., None, None]).flatten(-2).mT
