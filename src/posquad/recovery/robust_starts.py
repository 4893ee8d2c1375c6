"""Starts for a loss that gives outliers no weight: its minima from many factors at once.

Such a loss has many minima, most of them near matrices that fit outliers. The starts are random
factors, and fits of random halves of the samples. From each, least-squares fits of the half with
the least errors follow, a few times (the concentration steps of Rousseeuw and Van Driessen, Data
Mining and Knowledge Discovery 12, 2006), and then steps of the loss. If its scale is given, these
begin at a larger scale, at which there are fewer minima (Blake and Zisserman, Visual
Reconstruction, 1987). A fit takes a few damped Gauss-Newton steps only, and large problems are
sampled: the ends are no minima yet, but close to them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from posquad.geometry import dimension
from posquad.problems.measurements import Measurements, RankOne
from posquad.recovery.budget import Budget, History
from posquad.recovery.losses import Robust, typical_size
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.small import StopRule, run_small

__all__ = ["nearest_half", "robust_factors"]

# Starts. Measured on problems with 30% of outliers, of which `benchmarks/adversarial.py outliers`
# has 400: the best minimum was reached from 8% of the starts or more, and 64 starts miss that with
# probability 0.005. Where it is rarely reached, a worse one is that of nearly all starts, so that
# few starts that agree say little.
_STARTS = 64
# Trimmed fits of a start, and steps of each. Measured on these problems: half of either reach the
# best minimum from fewer starts.
_TRIMMED, _TRIMMED_STEPS = 4, 4
# Fits of the loss that follow, and steps of each. A choice: most starts end before so many.
_REWEIGHTED, _REWEIGHTED_STEPS = 40, 2
# Steps of the fit of a random half. A choice: those of two trimmed fits.
_HALF_STEPS = 8
# Factor by which the scale falls from one fit to the next. Measured on these problems: 1.25 finds
# as many best minima as 1.5, in more fits, and 2 finds fewer.
_FALL = 1.5
# Root mean square change of the means, over the scale, at which a start ends. A choice: accurate
# fits follow.
_CHANGE = 1e-2
# The same distance of means of one minimum. A choice: ten times the change, because steps are short
# where they converge slowly.
_SAME = 0.1
# Distinct ends that are returned. A choice: accurate fits may change the order of losses that are
# nearly equal.
_KEPT = 4
# Rows that are looked at, per unknown. A choice: minima of a sample of this size are near those of
# all rows.
_ROWS = 20
# Largest number of starts times n (d r)^2, and the least number of starts worth trying. Derived:
# some 100 steps take 2^32 operations, about a second.
_OPERATIONS = 2**24
_LEAST = 8


def robust_factors(
    operator: Measurements,
    y: Tensor,
    w: Tensor,
    rank: int,
    loss: Robust,
    level: float,
    seed: int,
    budget: Budget,
) -> Tensor:
    """Return factors `[k, d, rank]` near minima of a robust loss, that of least loss first.

    Args:
        operator, y, w: measurements, responses and weights `[n]`.
        rank: rank of the factors.
        loss: the loss, with its scale or without.
        level: relative residual at which responses count as reproduced.
        seed: seed of the random factors, and of the rows that are looked at.
        budget: steps are counted in it, and end when it is spent.

    There are none where the problem is too large for many starts, and for other measurements than
    rows.

    >>> generator = torch.Generator().manual_seed(0)
    >>> X = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    >>> y = X[:, 0] ** 2
    >>> y[:12] += 50
    >>> loss, budget = Robust("geman-mcclure", 0.1), Budget(max_steps=1000)
    >>> U = robust_factors(RankOne(X), y, torch.ones(40), 1, loss, 1e-10, 0, budget)
    >>> bool((U[0] @ U[0].T - torch.diag(torch.tensor([1.0, 0.0]))).abs().max() < 1e-3)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    d = operator.d
    if not isinstance(operator, RankOne):
        return y.new_empty((0, d, rank))
    X = operator.X
    rows = (w > 0).nonzero()[:, 0].cpu()
    most = _ROWS * dimension(d, rank)
    if len(rows) > most:
        rows = rows[torch.randperm(len(rows), generator=generator)[:most]]
    count = min(_STARTS, _OPERATIONS // (len(rows) * (d * rank) ** 2))
    X, y, w = (t.cpu().double()[rows] for t in (X, y, w))
    unit, w = typical_size(y, w), w / w.max()
    # In these coordinates units do not matter, and random factors have forms of equal size.
    left, s, turn = torch.linalg.svd(w.sqrt()[:, None] * X, full_matrices=False)
    kept = s > len(X) * torch.finfo(s.dtype).eps * s[:1]
    if count < _LEAST or not kept.any() or not unit > 0:
        return X.new_empty((0, d, rank))
    T = left[:, kept] * (w.sum() / w).sqrt()[:, None]  # [n, k]
    back = turn[kept].T / s[kept] * (w.sum() * unit).sqrt()  # [d, k]
    if loss.given_scale is not None:
        loss = replace(loss, given_scale=loss.given_scale / float(unit))
    run = _Starts(T, y / unit, w, loss, level, budget)
    V = torch.randn((count, T.shape[1], rank), generator=generator, dtype=torch.float64)
    V /= math.sqrt(V[0].numel())
    halves = torch.rand(count // 2, len(y), generator=generator, dtype=torch.float64)
    V[1::2] = run.fit(nearest_half(halves, w), V[1::2], _HALF_STEPS)
    return back @ run.distinct(run.ends(V))


def nearest_half(errors: Tensor, w: Tensor) -> Tensor:
    """Return weights `[..., n]`: w for the samples of least error, and zero for the others.

    Their sum is at least half of all.

    >>> nearest_half(torch.tensor([3.0, 0.5, 2.0, 9.0]), torch.ones(4))
    tensor([0., 1., 1., 0.])
    """
    order = errors.argsort(-1)
    ordered = w[order]
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < w.sum() / 2, ordered, 0.0)
    return torch.zeros_like(kept).scatter(-1, order, kept)


class _Starts:
    """Runs from many factors `V[k, d, r]` of one problem, in coordinates with covariance I."""

    def __init__(
        self, T: Tensor, y: Tensor, w: Tensor, loss: Robust, level: float, budget: Budget
    ) -> None:
        self.T, self.y, self.w = T, y, w
        self.loss, self.level = loss, level
        self.history = History(budget)

    def ends(self, V: Tensor) -> Tensor:
        """Return where trimmed fits, and then steps of the loss, lead from these factors."""
        for _ in range(_TRIMMED):
            half = nearest_half((self._means(V) - self.y).abs(), self.w)
            V = self.fit(half, V, _TRIMMED_STEPS)
        ends, moving = V.clone(), torch.arange(len(V))
        mean, estimated = self._means(V), self.loss.given_scale is None
        scale = self._scale(mean, replace(self.loss, given_scale=None))
        for _ in range(_REWEIGHTED):
            least = self._scale(mean)
            scale = least if estimated else torch.maximum(scale, least)
            weights = self.w * self.loss.squares(self.y.expand(mean.shape), mean, scale)[0]
            V = self.fit(weights, V, _REWEIGHTED_STEPS)
            last, mean = mean, self._means(V)
            ends[moving] = V
            left = (self._distance(mean, last) > _CHANGE * scale) | (scale > least)
            if not bool(left.any()) or self.history.budget.spent:
                break
            V, mean, scale, moving = V[left], mean[left], scale[left] / _FALL, moving[left]
        return ends

    def distinct(self, V: Tensor) -> Tensor:
        """Return the factors of least loss, without those that have nearly the same means.

        The losses are compared at one scale, the smallest of those at the factors.
        """
        mean = self._means(V)
        scale = self._scale(mean).amin()
        at = scale.expand(len(V))
        total = (self.w * self.loss.values(self.y.expand(mean.shape), mean, at)).sum(-1)
        left, chosen = total.nan_to_num(torch.inf).argsort(), []
        while len(left) and len(chosen) < _KEPT:
            first, left = left[0], left[1:]
            chosen.append(first)
            left = left[self._distance(mean[left], mean[first]) > _SAME * scale]
        return V[torch.stack(chosen)]

    def fit(self, weights: Tensor, V: Tensor, steps: int) -> Tensor:
        """Take steps of least squares with these weights `[k, n]`."""
        root = (weights / weights.amax(-1, keepdim=True)).sqrt()
        problem = Problem(RankOne(root.sqrt()[..., None] * self.T), root * self.y)
        return run_small(problem, V[None], StopRule(steps), self.history).U[0]

    def _means(self, V: Tensor) -> Tensor:
        return (self.T @ V).square().sum(-1)  # [k, n]

    def _scale(self, mean: Tensor, loss: Robust | None = None) -> Tensor:
        """Return the scale of the loss at these means, `[k]`; that of another one if given."""
        return (loss or self.loss).scale(self.y.expand(mean.shape), mean, self.w, self.level)

    def _distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the root mean square difference of means, `[k]`."""
        return (self.w * (a - b).square()).sum(-1).div(self.w.sum()).sqrt()
