"""Entropy projections to full precision, with a bound on the error of every coordinate.

`q = q0 exp(B'lam / d)` solves `Bq = y` when `F(lam) = y - Bq(lam)` vanishes. A small residual does
not make q accurate: with `G = B diag(q/d) B'`, a residual F moves log q by `(1/d) B'G^-1 F`, which
is large where the columns of B have different sizes. So F is computed in double-double arithmetic,
and the error is bounded through the factor R of `G = R'R`, from a QR decomposition of
`diag(q/d)^1/2 B'` (forming G would square the condition number).

The bound. Put `nu = ||R^-T F||` and let A be the largest row norm of `(1/d) B'R^-1`. A move of lam
of length r in the metric of G changes no logarithm by more than `A r`, hence G by no more than the
factor `exp(A r)`. F is the gradient of a concave function with Hessian -G, so it vanishes within
r if `nu exp(A r) < r`, and `r = 2 nu` does if `2 A nu <= log 2`. Then log q is within `2 A nu` of
the solution in every coordinate. This also proves that a solution q > 0 exists.

Where double precision already gives a bound that is small enough, its result is kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import per_element
from posquad.core.ranges import tiny
from posquad.core.twofold import (
    UNIT,
    Twofold,
    exponential,
    from_doubles,
    power_of_two,
    scale_by_power,
)

_EPS = 2.0**-52
_MAX_STEPS = 40  # maximum number of Newton steps; one to four are usual
_SUFFICIENT = 1e-11  # bound on the error of log q at which double precision suffices
_MAX_BLUR = 3e-13  # largest rounding of log q with which a bound in double precision is accepted
_SAFETY = 2.0  # factor for the rounding of R and of solves with it, see `_trusted`
_ENTRIES = 2**21  # maximum number of entries of a tensor of products


class Refined(NamedTuple):
    """Projection, its logarithm, the dual vector, and a bound on the error of log q."""

    q: Tensor  # [b, m]
    log_q: Tensor  # [b, m]
    lam: Tensor  # [b, n]
    error: Tensor  # [b]  infinite where nothing is proved
    steps: int


def refine(
    B: Tensor, y: Tensor, d: Tensor, q0: Tensor, L: Tensor, lam: Tensor, *, max_steps: int
) -> Refined:
    """Bound the error of `q = exp(L)`; where the bound is not small, continue Newton's method.

    `L = log q0 + B'lam / d` up to rounding. `B[n, m]` has independent rows of norms near one;
    `y[b, n]`, `d[m]`, `q0[b, m]`, `L[b, m]` and `lam[b, n]` are float64 and taken as exact.
    """
    if y.numel() == 0:  # empty batch, or no constraints
        return Refined(q0, q0.log(), lam, q0.new_zeros(len(q0)), 0)
    size = max(1, _ENTRIES // max(1, B.numel()))
    parts = []
    for k in range(0, len(q0), size):
        part = slice(k, k + size)
        problem = _Problem(B, y[part], d, q0[part])
        error = problem.bound(L[part], lam[part])
        given = Refined(L[part].exp(), L[part], lam[part], error, 0)
        if bool((error > _SUFFICIENT).any()):
            better = _refine(problem, lam[part], max_steps)
            given = _select(error > _SUFFICIENT, better, given)
        parts.append(given)
    tensors = (torch.cat(column) for column in zip(*(part[:4] for part in parts), strict=True))
    return Refined(*tensors, steps=max(part.steps for part in parts))


def _refine(problem: _Problem, lam: Tensor, max_steps: int) -> Refined:
    # Replace a start that is not finite by zero, which belongs to q0 itself.
    known = torch.isfinite(lam).all(-1, keepdim=True)
    at = problem.evaluate(from_doubles(torch.where(known, lam, 0.0)))
    steps = 0
    unsolved = at.error > 4 * _EPS
    while bool(unsolved.any()) and steps < min(max_steps, _MAX_STEPS):
        trial = problem.evaluate(
            at.lam + from_doubles(torch.where(unsolved[:, None], at.move, 0.0))
        )
        steps += 1
        # Take the step if nothing was proved before, or if the bound shrinks.
        better = torch.isinf(at.error) | (trial.error < at.error)
        taken = unsolved & better
        unsolved = taken & (trial.error > 4 * _EPS) & ~(trial.error > at.error / 2)
        unsolved = unsolved & (trial.change > 1e-18)
        at = _merge(taken, trial, at)
    return Refined(at.q, at.log_q, at.lam.high, at.error, steps)


class _Point(NamedTuple):
    lam: Twofold  # [b, n]
    q: Tensor  # [b, m]
    log_q: Tensor  # [b, m]
    error: Tensor  # [b]
    move: Tensor  # [b, n]  damped Newton step
    change: Tensor  # [b]  largest change of log q by the full step


class _Problem:
    """The system `Bq = y` with `q = q0 exp(B'lam / d)`, in units of the largest response."""

    def __init__(self, B: Tensor, y: Tensor, d: Tensor, q0: Tensor) -> None:
        self.B, self.d, self.log_start = B, d, q0.log()
        self.mantissa, exponent = torch.frexp(q0)
        largest = torch.maximum(y.abs().amax(-1), q0.amax(-1) * (y == 0).all(-1))
        self.unit = torch.frexp(largest).exponent.to(q0.dtype)[:, None]  # [b, 1]
        self.exponent = exponent.to(q0.dtype)
        self.y = scale_by_power(y, -self.unit)

    def bound(self, L: Tensor, lam: Tensor) -> Tensor:
        """Bound on the error of L from double precision, `[b]`."""
        size = self.B.abs()
        terms = self.log_start.abs() + (lam.abs() @ size) / self.d
        drift = (L - self.log_start - lam @ self.B / self.d).abs()
        blur = drift + (len(self.B) + 4) * _EPS * (1 + terms)  # relative, of q
        point = (L - self.unit * math.log(2)).exp()
        residual = (from_doubles(self.y) + -_apply(self.B, from_doubles(point))).high
        rounding = UNIT * (point @ size.mT + self.y.abs())
        blurred = blur.amax(-1)
        error = self._bound_and_step(point, residual, rounding, blur)[0] + blurred
        return torch.where(blurred <= _MAX_BLUR, torch.nan_to_num(error, nan=torch.inf), torch.inf)

    def evaluate(self, lam: Twofold) -> _Point:
        B, d = self.B, self.d
        turn = _adjoint(B, lam).over(d.expand(len(lam.high), -1))  # log(q / q0)
        growth, power = exponential(turn)
        factor = growth.times(self.mantissa)
        power = power + self.exponent
        q = scale_by_power(factor.high, power)
        here = (power - self.unit).clamp(-1000, 1000)
        point = factor.scaled(power_of_two(here))  # q in the unit of the problem
        residual = (from_doubles(self.y) + -_apply(B, point)).high
        size = B.abs()
        blur = UNIT * (1 + (lam.high.abs() @ size) / d)  # relative, of q
        # Numbers below 2^-1000 in this unit lose digits.
        rounding = UNIT * (point.high @ size.mT + self.y.abs()) + 2.0**-990
        error, delta = self._bound_and_step(point.high, residual, rounding, blur)
        error = error + blur.amax(-1)
        change = (delta @ B / d).abs().amax(-1, keepdim=True).clamp_min(tiny())
        # Damped so that the dual never decreases: its third derivative is bounded by its second.
        move = delta * (torch.log1p(change) / change)
        normal = (q >= tiny(q)) & torch.isfinite(q)
        log_q = torch.where(normal, torch.where(normal, q, 1.0).log(), self.log_start + turn.high)
        move = torch.where(torch.isfinite(move), move, 0.0)
        return _Point(lam, q, log_q, error, move, change[:, 0])

    def _bound_and_step(
        self, q: Tensor, residual: Tensor, rounding: Tensor, blur: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bound on the error of log q, `[b]`, and the Newton step, `[b, n]`.

        The residual is known up to the `rounding` of the sums and up to `B diag(q) k` with `|k| <=
        blur`, for which `||R^-T B diag(q) k|| <= ||diag(qd)^1/2 k||` at any conditioning.
        """
        m, n = self.B.shape[1], self.B.shape[0]
        root = (q / self.d).sqrt()[:, :, None] * self.B.mT  # [b, m, n]
        norms = torch.linalg.vector_norm(root, dim=1)  # [b, n]
        usable = torch.isfinite(norms).all(-1) & (norms > 0).all(-1)
        norms = torch.where(usable[:, None], norms, 1.0)
        root = torch.where(usable[:, None, None], root / norms[:, None, :], self.B.mT)
        R = torch.linalg.qr(root, mode="r").R
        smallest = torch.linalg.svdvals(R)[:, -1]
        right = (residual / norms)[:, :, None]
        z = torch.linalg.solve_triangular(R.mT, right, upper=False)
        delta = torch.linalg.solve_triangular(R, z, upper=True)[..., 0] / norms
        rows = torch.linalg.solve_triangular(
            R, self.B.mT / norms[:, None, :], upper=True, left=False
        )
        reach = (torch.linalg.vector_norm(rows, dim=-1) / self.d).amax(-1)
        doubt = torch.linalg.vector_norm(rounding / norms, dim=-1) / smallest
        doubt = doubt + torch.linalg.vector_norm((q * self.d).sqrt() * blur, dim=-1)
        nu = torch.linalg.vector_norm(z[..., 0], dim=-1) + doubt
        bound = 2 * _SAFETY * reach * nu
        proved = usable & (bound <= math.log(2)) & _trusted(smallest, m, n)
        return torch.where(proved, bound, torch.inf), delta


def _trusted(smallest: Tensor, m: int, n: int) -> Tensor:
    """Whether R, of unit columns, is far enough from singular for `_SAFETY` to cover its rounding.

    The error of QR is a multiple of `eps sqrt(mn)` in each column, that of triangular solves `eps
    n` times the condition number; both are below 1/8 here.
    """
    return smallest > 8 * 8 * _EPS * (n + math.sqrt(m * n))


def _apply(B: Tensor, x: Twofold) -> Twofold:
    """`Bx` for `x[b, m]`."""
    return Twofold(x.high[:, None, :], x.low[:, None, :]).times(B).sum(-1)


def _adjoint(B: Tensor, x: Twofold) -> Twofold:
    """`B'x` for `x[b, n]`."""
    return Twofold(x.high[:, :, None], x.low[:, :, None]).times(B).sum(1)


def _merge(take: Tensor, new: _Point, old: _Point) -> _Point:
    """The new point where `take` holds, the old one elsewhere."""
    lam = Twofold(*(_where(take, a, b) for a, b in zip(new.lam, old.lam, strict=True)))
    return _Point(lam, *(_where(take, a, b) for a, b in zip(new[1:], old[1:], strict=True)))


def _select(take: Tensor, new: Refined, old: Refined) -> Refined:
    """The new result where `take` holds, the old one elsewhere."""
    both = zip(new[:4], old[:4], strict=True)
    return Refined(*(_where(take, a, b) for a, b in both), steps=new.steps)


def _where(take: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Elements of the batch from a where `take` holds, from b elsewhere."""
    return torch.where(per_element(take, a), a, b)
