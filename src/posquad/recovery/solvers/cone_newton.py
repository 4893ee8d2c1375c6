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

    f(P) - f(S) = <Y + F, P - S> + |P - S|_H^2 / 2
               >= <F, P - S> + |P - S|_H^2 / 2 >= -F'H^{-1}F / 2.

The gap `F'H^{-1}F / 2` is quadratic in the residual of the equation, so that rounding hardly shows
in it. It also is the merit function of the line search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.linalg import symmetric_part
from posquad.core.ranges import tiny
from posquad.core.rotations import symmetric_eigen
from posquad.core.symmetric import svec, symmetric_congruence, symmetric_matrix

__all__ = ["PositiveQuadratics", "minimise_positive"]

# Gap at which a problem is solved, as a share of f(S). Derived: F is then zero to its root, 1e-10,
# which is `cone.OPTIMAL`.
_RELATIVE = 1e-20
# Gap that is rounding, as a share of the squared size of F. Derived: (45 eps)^2.
_ROUNDING = 1e-28
# Most Newton steps. A choice: two to four are usual, and the path follows where they do not
# converge.
_STEPS = 20
# Steps on the central path. Derived: a step of 0.95 to a tenth of mu leaves 0.145 of it, and
# 0.145^25 = 1e-21 is below `_RELATIVE`.
_PATH_STEPS = 25
# Factor on mu in a step on the path. A choice: less leads to the boundary, more takes more steps.
_CENTRE = 0.1
# Share of the way to the boundary that a step on the path takes. A choice: the rest keeps both
# matrices positive definite despite rounding.
_NEAR = 0.95
# So many Newton steps must bring the gap to this share of it. A choice: they converge
# quadratically, or else not at all.
_PATIENCE = 4
_PROGRESS = 0.3
# Most halvings of a step. A choice: half and double do as well.
_HALVINGS = 6
# Factor on the gap that a step has to reach; a shortened one, its part of that. A choice: half and
# double do as well.
_DECREASE = 0.9


@dataclass(frozen=True, eq=False)
class PositiveQuadratics:
    """The minimisers of a batch of quadratics over the positive semidefinite matrices."""

    entries: Tensor  # [B, D]  svec of S
    values: Tensor  # [B, d]  eigenvalues of S, ascending, exactly zero on the boundary
    vectors: Tensor  # [B, d, d]  its eigenvectors
    excess: Tensor  # [B]  f(S), what positivity adds to half the sum of squares
    gap: Tensor  # [B]  no positive semidefinite matrix has a value below f(S) - gap
    steps: Tensor  # [B]  Newton steps
    solved: Tensor  # [B]  whether the gap is at rounding


def minimise_positive(H: Tensor, c: Tensor) -> PositiveQuadratics:
    """Minimise `(s - c)'H(s - c)/2` over positive semidefinite S, for `c[B, D]` and D = d(d+1)/2.

    `H[D, D]` is shared, or `H[B, D, D]` belongs to each problem. The fewest steps are needed in
    coordinates in which H is near a multiple of the identity. A batch costs one eigendecomposition
    per problem, and where `c` is not positive semidefinite a few Newton steps, each of which is an
    eigendecomposition and a Cholesky factorization. If H is so ill-conditioned that they do not
    converge, they begin again near the end of the central path.

    >>> H, c = torch.eye(3).double(), torch.tensor([[1.0, 0.0, -2.0]]).double()
    >>> found = minimise_positive(H, c)  # the distance to diag(1, -2)
    >>> found.entries.tolist(), found.excess.tolist(), found.solved.tolist()
    ([[1.0, 0.0, 0.0]], [2.0], [True])
    """
    values, vectors = symmetric_eigen(symmetric_matrix(c, _dimension(c)))
    zero = c.new_zeros(len(c))
    found = PositiveQuadratics(
        entries=c.clone(),
        values=values,
        vectors=vectors,
        excess=zero,
        gap=zero.clone(),
        steps=torch.zeros_like(zero, dtype=torch.int64),
        solved=torch.ones_like(zero, dtype=torch.bool),
    )
    outside = (values[:, 0] < 0).nonzero()[:, 0]
    if not len(outside):
        return found
    form = _Form.scaled(_own(H, outside), c[outside])
    # The first Z is c, whose positive part is the first S.
    point, steps = _newton(form, form.at(form.c, (values[outside], vectors[outside])))
    open = (~form.is_solved(point)).nonzero()[:, 0]
    if len(open):
        part = form.select(open)
        better, more = _newton(part, part.at(_follow_path(part)))
        point.put(open, better)
        steps[open] += _PATH_STEPS + more
    found.entries[outside] = point.S
    found.values[outside] = point.values.clamp_min(0.0)
    found.vectors[outside] = point.vectors
    found.excess[outside] = point.excess * form.scale
    found.gap[outside] = point.gap * form.scale
    found.steps[outside] = steps
    found.solved[outside] = form.is_solved(point)
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

    def put(self, index: Tensor, other: _Point) -> None:
        """Replace the points at these indices."""
        for name, value in vars(other).items():
            getattr(self, name)[index] = value


@dataclass(frozen=True, eq=False)
class _Form:
    """The quadratic forms of a batch, scaled so that the mean diagonal entry of H is 1."""

    H: Tensor  # [D, D] or [B, D, D]
    inverse: Tensor  # of H
    c: Tensor  # [B, D]
    scale: Tensor  # [] or [B]  what H was divided by

    @classmethod
    def scaled(cls, H: Tensor, c: Tensor) -> _Form:
        scale = H.diagonal(dim1=-2, dim2=-1).mean(-1)
        H = H / scale[..., None, None]
        return cls(H, torch.cholesky_inverse(torch.linalg.cholesky_ex(H)[0]), c, scale)

    def select(self, index: Tensor) -> _Form:
        scale = self.scale if self.H.ndim == 2 else self.scale[index]
        return _Form(_own(self.H, index), _own(self.inverse, index), self.c[index], scale)

    def at(self, Z: Tensor, eigen: tuple[Tensor, Tensor] | None = None) -> _Point:
        """Evaluate the equation at Z, whose eigenvalues and eigenvectors may be known."""
        values, vectors = eigen or symmetric_eigen(symmetric_matrix(Z, _dimension(Z)))
        half = vectors * values.clamp_min(0.0).sqrt()[..., None, :]
        S = svec(half @ half.mT)
        slope = _times(self.H, S - self.c)
        F = slope - S + Z
        gap = (F * _times(self.inverse, F)).sum(-1) / 2
        excess = ((S - self.c) * slope).sum(-1) / 2
        return _Point(Z.clone(), values, vectors, S, F, gap, excess)

    def is_solved(self, point: _Point) -> Tensor:
        """Whether the gap is at rounding, `[B]`.

        Rounding errors of F are those of Hc, and `F'H^{-1}F` weighs them with the inverse.
        """
        size = _times(self.H, self.c).square().sum(-1)
        size = size * self.inverse.diagonal(dim1=-2, dim2=-1).mean(-1)
        return point.gap <= _RELATIVE * point.excess + _ROUNDING * size


def _dimension(entries: Tensor) -> int:
    """The d of `D = d(d+1)/2` entries."""
    return (math.isqrt(8 * entries.shape[-1] + 1) - 1) // 2


def _own(H: Tensor, index: Tensor) -> Tensor:
    """The matrices of the problems at these indices; a shared one is returned as it is."""
    return H if H.ndim == 2 else H[index]


def _times(H: Tensor, s: Tensor) -> Tensor:
    """`Hs` for one shared symmetric matrix or one for each problem."""
    return s @ H if H.ndim == 2 else (H @ s[..., None])[..., 0]


def _newton(form: _Form, begin: _Point) -> tuple[_Point, Tensor]:
    """Take Newton steps until each problem is solved or stalls; return the points and the steps."""
    whole = begin.select(torch.arange(len(begin.Z), device=begin.Z.device))
    index, point = torch.arange(len(begin.Z), device=begin.Z.device), begin
    steps, mark = torch.zeros_like(index), begin.gap
    for step in range(_STEPS + 1):
        ended = form.is_solved(point)
        if step and step % _PATIENCE == 0:
            ended = ended | ~(point.gap <= _PROGRESS * mark)
            mark = point.gap
        if step == _STEPS or bool(ended.all()):
            whole.put(index, point)
            steps[index] = step
            break
        if bool(ended.any()):
            done, left = ended.nonzero()[:, 0], (~ended).nonzero()[:, 0]
            whole.put(index[done], point.select(done))
            steps[index[done]] = step
            form, index, mark = form.select(left), index[left], mark[left]
            point = point.select(left)
        point = _step(form, point)
    return whole, steps


def _step(form: _Form, point: _Point) -> _Point:
    """Take one Newton step, shortened where it does not lower the gap."""
    move = _newton_direction(form, point)
    move = torch.where(torch.isfinite(move).all(-1, keepdim=True), move, 0.0)  # it broke down
    new = form.at(point.Z + move)
    share, bad = 1.0, (~(new.gap <= _DECREASE * point.gap)).nonzero()[:, 0]
    for _ in range(_HALVINGS):
        if not len(bad):
            break
        share /= 2
        old = point.select(bad)
        tried = form.select(bad).at(old.Z + share * move[bad])
        new.put(bad, tried)
        bad = bad[~(tried.gap <= (1 - share * (1 - _DECREASE)) * old.gap)]
    return new


def _newton_direction(form: _Form, point: _Point) -> Tensor:
    """Solve `F + F'(Z) dZ = 0` in the eigenbasis of Z.

    With the multipliers w and dS = w dZ the equation is `(1 - w) dZ + H dS = -F`. Its unknown is
    `v = w^(1/2) dZ`: the matrix `diag(1 - w) + w^(1/2) H w^(1/2)` is positive definite.
    """
    i, j = torch.triu_indices(*point.vectors.shape[-2:], device=point.Z.device)
    first, second = point.values[:, i], point.values[:, j]
    mixed = (first > 0) != (second > 0)
    rise = first.clamp_min(0.0) - second.clamp_min(0.0)
    w = torch.where(mixed, rise / torch.where(mixed, first - second, 1.0), (first > 0).to(rise))
    root = w.sqrt()
    C = symmetric_congruence(point.vectors)  # from svec in the eigenbasis to svec
    H = C.mT @ (form.H @ C)
    F = (C.mT @ point.F[..., None])[..., 0]
    M = root[..., :, None] * H * root[..., None, :]
    M.diagonal(dim1=-2, dim2=-1).add_(1 - w)
    factor, _ = torch.linalg.cholesky_ex(M)
    dS = root * torch.cholesky_solve((-root * F)[..., None], factor)[..., 0]
    dZ = dS - F - (H @ dS[..., None])[..., 0]
    return (C @ dZ[..., None])[..., 0]


def _follow_path(form: _Form) -> Tensor:
    """Follow the central path `SY = mu I`, `Y = H(s - c)`; return `Z = S - Y` near its end.

    It leads to the optimum whatever the condition of H is, but in more steps than Newton's method
    from a good start. The steps are those of Nesterov and Todd: a factor G brings S and Y to one
    diagonal matrix, `S = G diag(s) G'` and `Y = G^{-T} diag(s) G^{-1}`, and a step solves
    `(C'HC + I) dS = (mu / s - s) - C'(H(s - c) - y)` with the congruence C by G.
    """
    d = _dimension(form.c)
    eye = torch.eye(d, dtype=form.c.dtype, device=form.c.device)
    rise = torch.linalg.vector_norm(_times(form.H, form.c), dim=-1)[:, None, None]
    S, Y = torch.linalg.vector_norm(form.c, dim=-1)[:, None, None] * eye, rise * eye
    L, K = S.sqrt(), Y.sqrt()  # Cholesky factors of multiples of the identity
    for _ in range(_PATH_STEPS):
        dS, dY = _path_step(form, S, Y, L, K)
        (new_L, bad), (new_K, worse) = (torch.linalg.cholesky_ex(M) for M in (S + dS, Y + dY))
        taken = ((bad == 0) & (worse == 0))[:, None, None]  # rounding can end a path early
        S, Y = torch.where(taken, S + dS, S), torch.where(taken, Y + dY, Y)
        L, K = torch.where(taken, new_L, L), torch.where(taken, new_K, K)
    return svec(S - Y)


def _path_step(form: _Form, S: Tensor, Y: Tensor, L: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """Changes of S and Y in one step; L and K are their Cholesky factors."""
    d = S.shape[-1]
    _, s, Vt = torch.linalg.svd(K.mT @ L)
    s = s.clamp_min(tiny(s))
    G = L @ (Vt.mT * s.rsqrt()[:, None, :])
    C = symmetric_congruence(G)
    off = _times(form.H, svec(S) - form.c) - svec(Y)
    aim = svec(torch.diag_embed(_CENTRE * s.square().mean(-1, keepdim=True) / s - s))
    system = C.mT @ (form.H @ C)
    system.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, _ = torch.linalg.cholesky_ex(system)
    dS = torch.cholesky_solve((aim - (C.mT @ off[..., None])[..., 0])[..., None], factor)[..., 0]
    dS = torch.where(torch.isfinite(dS).all(-1, keepdim=True), dS, 0.0)
    moves = torch.stack([symmetric_matrix(dS, d), symmetric_matrix(aim - dS, d)])
    root = s.rsqrt()
    down = -torch.linalg.eigvalsh(root[:, :, None] * moves * root[:, None, :])[..., 0].amin(0)
    share = (_NEAR / down.clamp_min(_NEAR))[:, None, None]
    back = torch.linalg.solve_triangular(L.mT, Vt.mT * s.sqrt()[:, None, :], upper=True)  # G^{-T}
    return (
        share * symmetric_part(G @ moves[0] @ G.mT),
        share * symmetric_part(back @ moves[1] @ back.mT),
    )
