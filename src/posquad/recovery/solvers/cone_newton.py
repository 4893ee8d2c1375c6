"""Many small positive least-squares problems at once, by Newton's method, each with its gap.

A problem is the quadratic form that least squares over symmetric matrices leaves of the data:

    minimise f(S) = (s - c)'H(s - c) / 2 over S >= 0,   s = svec(S),

with H positive definite and c the unconstrained minimiser. S is optimal if its gradient
`G = H(s - c)` is positive semidefinite and `<G, S> = 0`. Both matrices are then the parts of one
symmetric matrix `Z = S - G`, so that the conditions are one equation without inequalities,

    F(Z) = H(Z_+ - c) - (Z_+ - Z) = 0,   S = Z_+.

The projection `Z_+` onto the cone is strongly semismooth, and Newton's method on F converges
quadratically (Sun and Sun, Math. Oper. Res. 27, 2002). In the eigenbasis of Z the derivative of
`Z_+` multiplies entry (i, j) by `w_ij = (max(z_i, 0) - max(z_j, 0)) / (z_i - z_j)`, 1 or 0 where
both eigenvalues have one sign. A step therefore solves one positive definite system.

Every Z bounds how far S is from the optimum. `Y = Z_+ - Z` is positive semidefinite with
`<Y, S> = 0`, and the gradient at S is `Y + F`. So for every positive semidefinite P

    f(P) - f(S) = <Y + F, P - S> + |P - S|_H^2 / 2 >= <F, P - S> + |P - S|_H^2 / 2 >= -F'H^{-1}F / 2.

The gap `F'H^{-1}F / 2` is quadratic in the residual of the equation, so that rounding hardly shows
in it. It also is the merit function of the line search.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.symmetric import svec, symmetric_congruence, symmetric_matrix

__all__ = ["PositiveQuadratics", "minimise_positive"]

_RELATIVE = 1e-20  # gap at which a problem is solved, as a share of f(S), and ...
_ROUNDING = 1e-28  # ... of c'Hc: F is then zero to 1e-10 and to 1e-14, relative to what it is made of
_STEPS = 40  # most steps; three to six are usual
_HALVINGS = 6  # most halvings of a step
_DECREASE = 0.9  # factor on the gap that a shortened step has to reach


@dataclass(frozen=True, eq=False)
class PositiveQuadratics:
    """The minimisers of a batch of quadratics over the positive semidefinite matrices."""

    entries: Tensor  # [B, D]  svec of S
    values: Tensor  # [B, d]  eigenvalues of S, ascending, exactly zero on the boundary
    vectors: Tensor  # [B, d, d]  its eigenvectors
    excess: Tensor  # [B]  f(S), what positivity adds to half the sum of squares
    gap: Tensor  # [B]  no positive semidefinite matrix has a value below f(S) - gap
    steps: Tensor  # [B]  Newton steps; 0 where c itself is positive semidefinite
    solved: Tensor  # [B]  whether the gap is at rounding


def minimise_positive(H: Tensor, c: Tensor) -> PositiveQuadratics:
    """Minimise `(s - c)'H(s - c)/2` over positive semidefinite S, for `c[B, D]` and D = d(d+1)/2.

    `H[D, D]` is shared, or `H[B, D, D]` belongs to each problem. In `svec` coordinates in which H
    is near a multiple of the identity the fewest steps are needed. A batch costs one
    eigendecomposition per problem, and for those whose `c` is not positive semidefinite a few
    Newton steps of an eigendecomposition and a Cholesky factorization each.

    >>> H, c = torch.eye(3).double(), torch.tensor([[1.0, 0.0, -2.0]]).double()
    >>> found = minimise_positive(H, c)  # the distance to diag(1, -2)
    >>> found.entries.tolist(), found.excess.tolist(), found.solved.tolist()
    ([[1.0, 0.0, 0.0]], [2.0], [True])
    """
    D = c.shape[-1]
    d = int((8 * D + 1) ** 0.5 - 1) // 2
    values, vectors = torch.linalg.eigh(symmetric_matrix(c, d))
    found = PositiveQuadratics(
        entries=c.clone(),
        values=values,
        vectors=vectors,
        excess=c.new_zeros(len(c)),
        gap=c.new_zeros(len(c)),
        steps=torch.zeros(len(c), dtype=torch.int64, device=c.device),
        solved=torch.ones(len(c), dtype=torch.bool, device=c.device),
    )
    outside = (values[:, 0] < 0).nonzero()[:, 0]
    if len(outside):
        _minimise_outside(_Part.begin(H, c, outside, values, vectors), found)
    return found


@dataclass(frozen=True, eq=False)
class _Point:
    """A matrix Z of each problem, and the equation there."""

    Z: Tensor  # [B, D]
    values: Tensor  # [B, d]
    vectors: Tensor  # [B, d, d]
    S: Tensor  # [B, D]  svec of Z_+
    F: Tensor  # [B, D]
    gap: Tensor  # [B]
    excess: Tensor  # [B]

    def select(self, index: Tensor) -> _Point:
        return _Point(*(value[index] for value in vars(self).values()))


@dataclass(frozen=True, eq=False)
class _Part:
    """Problems that are not solved yet, scaled so that the mean eigenvalue of H is 1."""

    H: Tensor  # [D, D] or [B, D, D]
    inverse: Tensor  # of H
    c: Tensor  # [B, D]
    scale: Tensor  # [] or [B]  what H was divided by
    index: Tensor  # [B]  positions in the whole batch
    point: _Point

    @classmethod
    def begin(cls, H: Tensor, c: Tensor, index: Tensor, values: Tensor, vectors: Tensor) -> _Part:
        if H.ndim == 3:
            H = H[index]
        c = c[index]
        scale = H.diagonal(dim1=-2, dim2=-1).mean(-1)
        H = H / scale[..., None, None]
        inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(H)[0])
        # The first Z has c's positive part as S, and the gradient's part along c's negative one.
        point = _evaluate(H, inverse, c, c, (values[index], vectors[index]))
        return cls(H, inverse, c, scale, index, point)

    def select(self, kept: Tensor) -> _Part:
        shared = self.H.ndim == 2
        return _Part(
            H=self.H if shared else self.H[kept],
            inverse=self.inverse if shared else self.inverse[kept],
            c=self.c[kept],
            scale=self.scale if shared else self.scale[kept],
            index=self.index[kept],
            point=self.point.select(kept),
        )

    def at(self, Z: Tensor) -> _Point:
        return _evaluate(self.H, self.inverse, self.c, Z)

    @property
    def level(self) -> Tensor:
        """Gap at which a problem is solved, `[B]`."""
        size = (self.c * _times(self.H, self.c)).sum(-1)
        return _RELATIVE * self.point.excess + _ROUNDING * size


def _times(H: Tensor, s: Tensor) -> Tensor:
    """`Hs` for one shared symmetric matrix or one for each problem."""
    return s @ H if H.ndim == 2 else (H @ s[..., None])[..., 0]


def _evaluate(
    H: Tensor,
    inverse: Tensor,
    c: Tensor,
    Z: Tensor,
    eigen: tuple[Tensor, Tensor] | None = None,
) -> _Point:
    """Evaluate the equation at Z, whose eigenvalues and eigenvectors may be known."""
    values, vectors = eigen or torch.linalg.eigh(symmetric_matrix(Z, _dimension(Z)))
    # The eigenvalues of fewer kinds are summed, because the projection keeps the others exactly.
    half = vectors * values.clamp_min(0.0).sqrt()[..., None, :]
    S = svec(half @ half.mT)
    slope = _times(H, S - c)
    F = slope - S + Z
    gap = (F * _times(inverse, F)).sum(-1) / 2
    excess = ((S - c) * slope).sum(-1) / 2
    return _Point(Z, values, vectors, S, F, gap, excess)


def _dimension(Z: Tensor) -> int:
    return int((8 * Z.shape[-1] + 1) ** 0.5 - 1) // 2


def _minimise_outside(part: _Part, found: PositiveQuadratics) -> None:
    """Take Newton steps until every problem of a part is solved; write the answers to `found`."""
    steps = 0
    while True:
        solved = part.point.gap <= part.level
        if steps == _STEPS:
            _keep(part, found, steps, solved)
            return
        if bool(solved.any()):
            done = part.select(solved.nonzero()[:, 0])
            _keep(done, found, steps, torch.ones_like(done.index, dtype=torch.bool))
            if bool(solved.all()):
                return
            part = part.select((~solved).nonzero()[:, 0])
        part = _step(part)
        steps += 1


def _keep(part: _Part, found: PositiveQuadratics, steps: int, solved: Tensor) -> None:
    """Write the current points of a part to `found`."""
    point, index = part.point, part.index
    found.entries[index] = point.S
    found.values[index] = point.values.clamp_min(0.0)
    found.vectors[index] = point.vectors
    found.excess[index] = point.excess * part.scale
    found.gap[index] = point.gap * part.scale
    found.steps[index] = steps
    found.solved[index] = solved


def _step(part: _Part) -> _Part:
    """Take one Newton step, shortened where it does not lower the gap."""
    point = part.point
    move = _newton_direction(part)
    new = part.at(point.Z + move)
    worse = ~(new.gap <= _DECREASE * point.gap)
    if bool(worse.any()):
        new = _shortened(part, move, new, worse)
    return _Part(part.H, part.inverse, part.c, part.scale, part.index, new)


def _newton_direction(part: _Part) -> Tensor:
    """Solve `F + F'(Z) dZ = 0` in the eigenbasis of Z.

    With the multipliers w and dS = w dZ the equation is `(1 - w) dZ + H dS = -F`. Its unknown is
    `v = w^(1/2) dZ`: the matrix `diag(1 - w) + w^(1/2) H w^(1/2)` is positive definite.
    """
    point = part.point
    d = point.values.shape[-1]
    positive = point.values.clamp_min(0.0)
    i, j = torch.triu_indices(d, d, device=point.Z.device)
    rise = positive[:, i] - positive[:, j]
    run = point.values[:, i] - point.values[:, j]
    same = (point.values[:, i] > 0).to(run)
    mixed = (point.values[:, i] > 0) != (point.values[:, j] > 0)
    w = torch.where(mixed, rise / torch.where(mixed, run, 1.0), same)  # [B, D]
    root = w.sqrt()
    C = symmetric_congruence(point.vectors)  # svec of the eigenbasis to svec
    turned = C.mT @ (part.H @ C)
    F = (C.mT @ point.F[..., None])[..., 0]
    M = root[..., :, None] * turned * root[..., None, :]
    M.diagonal(dim1=-2, dim2=-1).add_(1 - w)
    factor, _ = torch.linalg.cholesky_ex(M)
    v = torch.cholesky_solve((-root * F)[..., None], factor)[..., 0]
    dS = root * v
    dZ = dS - F - (turned @ dS[..., None])[..., 0]
    return (C @ dZ[..., None])[..., 0]


def _shortened(part: _Part, move: Tensor, new: _Point, worse: Tensor) -> _Point:
    """Halve the steps that do not lower the gap; the shortest one is taken in any case."""
    whole = _Point(*(value.clone() for value in vars(new).values()))
    share = 1.0
    index = worse.nonzero()[:, 0]
    for _ in range(_HALVINGS):
        share /= 2
        few = part.select(index)
        tried = few.at(few.point.Z + share * move[index])
        for name, value in vars(tried).items():
            getattr(whole, name)[index] = value
        bad = ~(tried.gap <= (1 - share * (1 - _DECREASE)) * few.point.gap)
        index = index[bad]
        if not len(index):
            break
    return whole
