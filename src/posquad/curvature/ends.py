"""The two ends of the effective spectrum of least squares at an interpolating factor, to a few %.

An eigenvalue to ten digits needs its eigenvector, which is expensive where the spectrum is dense.
An eigenvalue to 10% needs two bounds that are 20% apart: the Rayleigh quotient of a direction, and
a value below which the Lanczos method from independent random starts excludes every eigenvalue
(see `eigen.py`). The method is applied to `L'(H - tI)L`, where `LL'` is the inverse curvature of
the population and t is below an estimate of the smallest eigenvalue; both bounds come from the same
steps, which end when the bounds are close. The starts share each pass over X, and so do the two
ends. That three random starts all have a component of less than c along a missed eigenvector has
the probability of one start to the third power, so that each takes fewer steps than one alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.ranges import tiny
from posquad.curvature.eigen import FAILURE, Preconditioner, Subspace
from posquad.curvature.lanczos import Lanczos
from posquad.curvature.matrix_free import MatrixFree
from posquad.curvature.unseen import Point
from posquad.geometry.frames import Frame, frame
from posquad.problems.measurements import Measurements

_STARTS = 3  # independent starts at the small end, and columns of the first estimate
_ROUGH = 6  # steps of the first estimate
_SHIFT = 0.8  # share of the estimate below which values are sought
_LOWER = 0.9  # share of a Rayleigh quotient that is the next estimate
_CLOSE = 1.5  # a power of 1 + accuracy: at 2, the value reported is almost that much too low
_LEVELS = 50  # levels, as shares of the smallest Ritz value, at which a bound is tried
_LOWEST = 8  # Ritz vectors of a start that bound the smallest value from above
_ATTEMPTS = 3  # estimates that may turn out to be wrong
_STEPS = 150  # Lanczos steps of an attempt
_VISIBLE = 1e-6  # least curvature relative to the population, as a share of the largest one
_ROUNDING = 1e4  # the same in units of rounding of the operator


class Ends(NamedTuple):
    """The smallest and the largest effective eigenvalue of a batch of problems."""

    low: Tensor  # [...]
    high: Tensor  # [...]
    known: Tensor  # [...]  whether both are accurate; else they mean nothing


def spectrum_ends(
    operator: Measurements,
    U: Tensor,
    accuracy: float,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> Ends:
    """The ends of the effective spectrum at `U[..., d, r]`, which fits its responses exactly.

    Both have a relative error of at most `accuracy`, except with a probability of 1e-4 each. They
    are not `known` where the smallest is too close to rounding or takes too many steps, and after
    `stopped()`. Products with X are made in the precision of the operator.
    """
    run = _Bounds(operator, U, accuracy, seed, stopped)
    for _ in range(_ATTEMPTS):
        if stopped() or bool((run.known | (run.estimate <= 0)).all()):
            break
        run.attempt()
    return Ends(run.low, run.high, run.known)


class _Bounds:
    """Bounds on both ends: those proved so far, and estimates of the others."""

    def __init__(
        self,
        operator: Measurements,
        U: Tensor,
        accuracy: float,
        seed: int,
        stopped: Callable[[], bool],
    ) -> None:
        self.stopped = stopped
        self.point = _gauss_newton_point(operator, U)
        self.run = MatrixFree(self.point, seed, 1, accuracy, 0)
        self.factor = 1 + 0.99 * accuracy  # the rest is for rounding
        self.ratio = self.factor**_CLOSE  # of bounds that are close
        self.generator = torch.Generator().manual_seed(seed)
        eps = torch.finfo(operator.dtype or U.dtype).eps
        self.least = max(_VISIBLE, _ROUNDING * eps)
        # A component of a random unit vector in R^p is below c with probability < c (2p/pi)^(1/2).
        self.spread = math.log(2 * self.point.p / math.pi) / 2
        none = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
        self.known, self.high_known = none, none
        self.low = self.high = torch.full(none.shape, torch.nan, dtype=U.dtype, device=U.device)
        self.weakest = 4 * self.point.basis.s[..., -1].square()
        self.above, self.estimate = self._first_estimate()

    def attempt(self) -> None:
        """Bound the smallest value from both sides until the bounds are close."""
        shift = _SHIFT * self.estimate
        hopeless = shift <= 0  # there may be a kernel
        small = Lanczos(self._hessian, self.run._coordinates, self._random(_STARTS))
        large = Lanczos(self._hessian, self.run._horizontal, self._random(1))
        below = torch.full_like(shift, -torch.inf)
        close, values = self.known, below
        for _ in range(min(_STEPS, self.point.p)):
            if self.stopped():
                return
            v = self.run._lift(small.next)
            both = [v] if bool(self.high_known.all()) else [v, large.next]
            products = self._hessian(torch.cat(both))
            small.take(self.run._lift_transpose(products[:_STARTS] - shift[..., None, None] * v))
            if len(both) == 2:
                large.take(products[_STARTS:])
                self._bound_above(large)
            values = small.values()
            below = torch.maximum(below, self._bound_from_below(small, values, shift))
            if self._is_worth_bounding(values, shift, below):
                self._lower(small, values, shift)
            # Every value between the bounds is within the accuracy of the one reported.
            close = (self.above <= self.ratio * below) & (self.above >= below)
            least = values[..., 0].amin(0)
            # The shift is too high, or so low that the bound cannot become close.
            wrong = (least <= 0) | (below >= shift + 0.97 * self.weakest * least)
            wrong = wrong & ~(close | hopeless | self.known)
            if bool(wrong.any()) or bool((close & self.high_known | hopeless | self.known).all()):
                break
        self._lower(small, values, shift)
        seen = values[..., 0].amin(0) > self.least * values[..., -1].amax(0)
        proved = close & ~hopeless & seen & self.high_known & ~self.known
        self.low = torch.where(proved, torch.minimum(self.above, self.factor * below), self.low)
        self.known = self.known | proved
        # Another attempt would not see more where the bounds are close.
        self.estimate = torch.where(close & ~seen, 0.0, _LOWER * self.above)

    def _first_estimate(self) -> tuple[Tensor, Tensor]:
        """A Rayleigh quotient, and an estimate of the smallest value from its convergence."""
        run = self.run
        population = Preconditioner(run._lift, run._lift_transpose, run._coordinates)
        count = min(_STARTS, self.point.p)
        start = self._random(count).squeeze(-1).movedim(0, -1)
        space = Subspace(
            run._hessian,
            population,
            run._horizontal,
            run._lift(run._coordinates(start)),
            1,
            self.point.p,
            largest=False,
        )
        quotients = []
        for _ in range(_ROUGH):
            space.append(run._lift(run._lift_transpose(space.R)), max_products=10**9)
            quotients.append(space.theta[..., 0] * space.unit[..., 0, 0])
        # Quotients exceed the end of a dense spectrum by a multiple of 1 / steps^(3/2), measured on
        # Gaussian rows from 1.8 to 8 samples per unknown. An eigenvalue that stands alone has
        # converged: it is as close as the residual, and as its square over the gap to the next.
        last, half = quotients[-1], quotients[_ROUGH // 2 - 1]
        residual = torch.linalg.vector_norm(space.R[..., 0], dim=-1)
        second = space.theta[..., min(1, space.theta.shape[-1] - 1)]
        gap = (second - space.theta[..., 0]).clamp_min(tiny(residual))
        off = torch.minimum(residual, residual.square() / gap) * space.unit[..., 0, 0]
        return last, torch.maximum(last - (half - last) / (2**1.5 - 1), last - off)

    def _bound_from_below(self, chain: Lanczos, values: Tensor, shift: Tensor) -> Tensor:
        """The largest value below which all are excluded, or minus infinity, `[...]`.

        Where `L'(H - tI)L` has no value below v, neither has H below `t + 4 s_r^2 v`, because the
        curvature of the population, `(LL')^{-1}`, is at least `4 s_r^2`.
        """
        least = values[..., 0].amin(0)
        shares = torch.linspace(0, 0.98, _LEVELS, dtype=least.dtype, device=least.device)
        levels = shares.view(-1, *[1] * least.ndim) * least  # [shares, ...]
        growth = chain.growth_at(levels[:, None], values[None])  # [shares, starts, ...]
        # A value is missed only if every start has almost no component along its vector. That does
        # not depend on the step or the level, so that trying many of them makes it no likelier.
        evidence = growth.amin(1) - self.spread
        enough = (evidence >= -math.log(FAILURE) / _STARTS) & (least > 0)
        level = torch.where(enough, levels, -torch.inf).amax(0)
        return shift + self.weakest * level

    def _is_worth_bounding(self, values: Tensor, shift: Tensor, below: Tensor) -> bool:
        """Whether Rayleigh quotients may end the search: they may be below those of the rest."""
        enough = self.ratio * below
        least = shift + self.weakest * values[..., 0].amin(0)  # no quotient is lower
        return bool(((least <= enough) & (self.above > enough)).any())

    def _lower(self, chain: Lanczos, values: Tensor, shift: Tensor) -> None:
        """Lower the bound from above to the least Rayleigh quotient of the lowest directions."""
        count = min(_LOWEST, values.shape[-1])
        lifted = self.run._lift(chain.lowest(count))  # [starts, ..., dr, count]
        first = values[..., 0]
        size = torch.linalg.vector_norm(lifted[..., 0], dim=-1)
        single = first / size.square()
        # With V = LY and Y'L'(H - tI)LY = I, the least quotient of H - tI is 1 / ||V||^2.
        scaled = lifted / values[..., None, :count].clamp_min(tiny(values)).sqrt()
        all_of_them = torch.linalg.matrix_norm(scaled, 2).square().reciprocal()
        quotient = shift + torch.where(first > 0, all_of_them, single).amin(0)
        self.above = torch.fmin(self.above, quotient)

    def _bound_above(self, chain: Lanczos) -> None:
        """Accept the largest value where all that are larger by the factor are excluded."""
        values = chain.values()[0]
        top = values[..., -1]
        growth = chain.growth_at((self.factor * top)[None], values[None])[0]
        enough = (growth - self.spread >= -math.log(FAILURE)) & (top > 0) & ~self.high_known
        self.high = torch.where(enough, top, self.high)
        self.high_known = self.high_known | enough

    def _hessian(self, blocks: Tensor) -> Tensor:
        """The Hessian times directions `[m, ..., dr, 1]`, all in one pass over X."""
        directions = blocks.squeeze(-1).unflatten(-1, self.point.u.shape[-2:])
        return self.point.hessian(directions).flatten(-2)[..., None]

    def _random(self, count: int) -> Tensor:
        u = self.point.u
        shape = (count, *u.shape[:-2], u.shape[-2:].numel(), 1)
        return torch.randn(shape, generator=self.generator, dtype=u.dtype).to(u.device)


def _gauss_newton_point(operator: Measurements, U: Tensor) -> Point:
    """The point U with the Hessian for the responses that U has, in the operator's precision."""
    W, s, P = frame("U", U)
    u = U @ P
    dtype = operator.dtype or u.dtype
    narrow = u.to(dtype)
    product = operator.gauss_newton_product(operator.project(narrow))

    def hessian(V: Tensor) -> Tensor:
        image = product(V.to(dtype)).to(u.dtype) * (2 / operator.n)
        # An overflow becomes a direction without curvature, which is never accepted.
        finite = torch.isfinite(image).all(-1, keepdim=True).all(-2, keepdim=True)
        return torch.where(finite, image, 0.0)

    eye = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device).expand(P.shape)
    sure = torch.ones(s.shape[:-1], dtype=torch.bool, device=s.device)
    return Point(Frame(W, s, eye), u, hessian, sure, None, None)
