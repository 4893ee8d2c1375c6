"""The two ends of the effective spectrum of least squares at an interpolating factor, to a few %.

An eigenvalue to ten digits needs its eigenvector, which is expensive where the spectrum is dense.
An eigenvalue to 10% needs two bounds that are 20% apart: the Rayleigh quotient of a direction, and
a value below which the Lanczos method from independent random starts excludes every eigenvalue
(see `eigen.py`). The starts share each pass over X, and so do the two ends. That three random
starts all have a component of less than c along a missed eigenvector has the probability of one
start to the third power, so that each takes fewer steps than one alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.curvature.eigen import FAILURE, Preconditioner, Subspace
from posquad.curvature.lanczos import Lanczos
from posquad.curvature.matrix_free import MatrixFree
from posquad.curvature.unseen import Point
from posquad.geometry.frames import Frame, frame
from posquad.problems.measurements import RankOne

_STARTS = 3  # independent starts at the small end, and columns of the first estimate
_ROUGH = 10  # steps of the first estimate
_ATTEMPTS = 3  # estimates that may turn out to be wrong
_STEPS = 150  # Lanczos steps of an attempt
_VISIBLE = 1e-6  # least curvature relative to the population, as a share of the largest one
_ROUNDING = 1e4  # the same in units of rounding of the operator


class Ends(NamedTuple):
    """The smallest and the largest effective eigenvalue of a batch of problems."""

    low: Tensor  # [...]
    high: Tensor  # [...]
    known: Tensor  # [...]  whether both are accurate; else they mean nothing


def spectrum_ends(operator: RankOne, U: Tensor, accuracy: float, seed: int = 0) -> Ends:
    """The ends of the effective spectrum at `U[..., d, r]`, which fits its responses exactly.

    Both have a relative error of at most `accuracy`, except with a probability of 1e-4 each. They
    are not `known` where the smallest is too close to rounding or takes too many steps. Products
    with X are made in the precision of the operator.
    """
    run = _Bounds(operator, U, accuracy, seed)
    for _ in range(_ATTEMPTS):
        if bool((run.known | (run.estimate <= 0)).all()):
            break
        run.attempt()
    return Ends(run.low, run.high, run.known)


class _Bounds:
    """Bounds on both ends: those proved so far, and estimates of the others."""

    def __init__(self, operator: RankOne, U: Tensor, accuracy: float, seed: int) -> None:
        self.point = _gauss_newton_point(operator, U)
        self.run = MatrixFree(self.point, seed, 1, accuracy, 0)
        self.factor = 1 + 0.99 * accuracy  # the rest is for rounding
        self.generator = torch.Generator().manual_seed(seed)
        eps = torch.finfo(operator.dtype or U.dtype).eps
        self.least = max(_VISIBLE, _ROUNDING * eps)
        # A component of a random unit vector in R^p is below c with probability < c (2p/pi)^(1/2).
        self.spread = math.log(2 * self.point.p / math.pi) / 2
        none = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
        self.known, self.high_known = none, none
        self.low = self.high = torch.full(none.shape, torch.nan, dtype=U.dtype, device=U.device)
        self.space, self.estimate = self._first_estimate()

    def attempt(self) -> None:
        """Try to exclude values below the estimate, and improve it."""
        # The value reported is then at least 0.95 times the estimate for an accuracy of 0.1.
        target = self.estimate / self.factor**1.5
        hopeless = target <= 0  # there may be a kernel
        small = Lanczos(self._hessian, self.run._coordinates, self._random(_STARTS))
        large = Lanczos(self._hessian, self.run._horizontal, self._random(1))
        shift = target[..., None, None]
        excluded = self.known
        for _ in range(_STEPS):
            v = self.run._lift(small.next)
            both = [v] if bool(self.high_known.all()) else [v, large.next]
            products = self._hessian(torch.cat(both))
            small.take(self.run._lift_transpose(products[:_STARTS] - shift * v))
            if len(both) == 2:
                large.take(products[_STARTS:])
                self._bound_above(large)
            excess = small.growth.amin(0) - self.spread
            excluded = excluded | (excess >= -math.log(FAILURE) / _STARTS)
            refuted = ~excluded & ~hopeless & (small.pivot <= 0).any(0)
            if bool(refuted.any()) or bool((excluded & self.high_known | hopeless).all()):
                break
        values = small.values()
        seen = values[..., 0].amin(0) > self.least * values[..., -1].amax(0)
        self._improve(small)
        theta = self._smallest_quotient()
        # Every value from target to theta is within the accuracy of the one reported.
        close = theta <= self.factor**2 * target
        proved = excluded & ~hopeless & seen & close & self.high_known & ~self.known
        self.low = torch.where(proved, torch.minimum(theta, self.factor * target), self.low)
        self.known = self.known | proved
        # Another attempt would not see more.
        self.estimate = torch.where(excluded & close & ~seen, 0.0, theta)

    def _first_estimate(self) -> tuple[Subspace, Tensor]:
        """A subspace for the small end, and an estimate of the smallest value from its growth."""
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
        gap = (second - space.theta[..., 0]).clamp_min(torch.finfo(residual.dtype).tiny)
        off = torch.minimum(residual, residual.square() / gap) * space.unit[..., 0, 0]
        return space, torch.maximum(last - (half - last) / (2**1.5 - 1), last - off)

    def _improve(self, chain: Lanczos) -> None:
        """Add the lowest directions of the search to the subspace."""
        lowest = self.run._lift(chain.lowest(1)).squeeze(-1).movedim(0, -1)
        size = torch.linalg.vector_norm(lowest, dim=-2, keepdim=True)
        self.space.append(lowest / size, max_products=10**9)

    def _smallest_quotient(self) -> Tensor:
        return self.space.theta[..., 0] * self.space.unit[..., 0, 0]

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


def _gauss_newton_point(operator: RankOne, U: Tensor) -> Point:
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
