"""Other losses by iteratively reweighted least squares, on the solvers of least squares.

A search by least squares with bounded weights gives the first means. Then the weights of the loss
at the current means and a least-squares fit with these weights alternate, each fit from the last
one, until the means no longer change. A full search with the final weights says whether its best
fit is the same. If it is not, the loop goes on from there, as long as that lowers the loss.

A fit maps the means of its weights to new means, and the answer is a fixed point of that map. The
iteration is accelerated (Anderson 1965), because it converges slowly with many outliers.

A loss that gives outliers no weight has many minima. There the loop begins at several means: those
near minima that `posquad.recovery.robust_starts` found, or, where there are none, those of trimmed
fits from Huber's answer and from random halves of the samples. The fixed point of least loss is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.recovery.losses import Loss, Robust
from posquad.recovery.robust_starts import nearest_half

__all__ = [
    "Begin",
    "Reweighted",
    "Squares",
    "WeightedFit",
    "fit_by_reweighting",
    "relative_residual",
]

# Full searches after the first one. A choice: every one of them lowers the loss, and a call that
# needs more ends as STALLED.
_ROUNDS = 6
# Fits of a round, each with new weights. A choice: the acceleration takes some tens, and a call
# that needs more ends as STALLED.
_FITS = 300
# Relative change of the means at which they are fixed, which is what BEST_FIT asserts. A
# definition: the default tolerance of `recover`.
_SAME = 1e-10
# Relative difference of the means of two searches that found the same. A definition: that of
# `Acceptance.sure`.
_FOUND_AGAIN = 1e-6
# Fits that the acceleration combines. A choice: Anderson's method with about five is usual, and
# more are nearly dependent.
_MEMORY = 5
# Growth of the squared change after which a step is half of a plain one. A choice: four times the
# change, which the iteration without acceleration does not reach.
_FAR = 16.0
# Relative difference of losses that does not count. Derived: sums of n terms are rounded by sqrt(n)
# eps, which is 2e-13 at n = 1e6.
_ROUNDING = 1e-12
# Relative singular values that the acceleration leaves out. Derived: sqrt(eps) = 1.5e-8, below
# which differences of means are rounding.
_CUTOFF = 1e-8

# Fits of a start that is compared with others before it is accurate: Huber's answer, trimmed fits,
# and the loss itself. A choice: twice as many trimmed fits or fits of the loss find no better ones.
_HUBER_FITS = 10
_TRIMMED_FITS = 2
_ROUGH_FITS = 5
# Factor by which the scale falls from one fit to the next, until it is the given one. A choice: 1.5
# takes more fits and finds no better ones.
_FALL = 2.0
# Relative change of the means at which these fits end. A choice: accurate fits follow.
_ROUGH = 1e-3
# Random halves of the samples that are tried, and starts that must lead to the best fixed point so
# that no more are tried. A choice: all starts together take two to three times the fits of one.
_HALVES = 8
_AGREEING = 3
# Relative distance of means that lead to the same fixed point. A choice: ten times `_ROUGH`.
_AGREED = 1e-2

_A = TypeVar("_A")


class Squares(NamedTuple):
    """A least-squares problem: weights and responses, `[n]` each."""

    weights: Tensor
    responses: Tensor


class WeightedFit(Protocol[_A]):
    """A fit by least squares; returns the answer and its means `[n]`."""

    def __call__(self, squares: Squares, start: _A | None, *, full: bool) -> tuple[_A, Tensor]:
        """Fit these responses; `full` searches from all starts, otherwise from `start` alone."""
        ...


class Begin(NamedTuple, Generic[_A]):
    """An answer and its means, at which a reweighting begins."""

    answer: _A
    mean: Tensor  # [n]


@dataclass(frozen=True)
class Reweighted(Generic[_A]):
    """The end of a reweighting."""

    answer: _A
    mean: Tensor  # [n]
    squares: Squares  # of the last fit
    scale: Tensor  # []
    reproduced: bool = False  # whether the responses are, so that the loss does not matter
    fixed: bool = False  # whether the means are those of their own weights
    settled: bool = False  # whether, besides, no search with these weights led to a lower loss

    def status(self, found: Status | list, *, interrupted: bool) -> Status:
        """Return the status for this loss, from that of the last weighted fit."""
        assert isinstance(found, Status), "one problem has one status"
        kept = (Status.NOT_IDENTIFIED, Status.UNDETERMINED, Status.NO_MINIMUM)
        if self.reproduced or found in kept:
            return found
        if self.settled:
            return Status.BEST_FIT
        return Status.INTERRUPTED if interrupted else Status.STALLED


def fit_by_reweighting(
    fit: WeightedFit[_A],
    loss: Loss,
    y: Tensor,
    w: Tensor,
    level: float,
    is_spent: Callable[[], bool] = lambda: False,
    note: Callable[[Reweighted[_A]], None] = lambda _: None,
    starts: Callable[[Robust, _A], Sequence[Begin[_A]]] = lambda loss, first: (),
    seed: int = 0,
) -> Reweighted[_A]:
    """Return a stationary point of `sum_i w_i l(y_i, m_i)` by least-squares fits with new weights.

    Args:
        fit: the fit by least squares.
        loss: the loss l.
        y, w: responses and weights `[n]`.
        level: relative residual at which responses count as reproduced.
        is_spent: whether nothing more may be computed.
        note: called with every fit that is the best so far.
        starts: for a loss with many minima, returns starts near some of them, from the answer of
            the first fit; none if they are to be found by fits.
        seed: seed of the random halves by which they are found.

    >>> def weighted_mean(squares, start, *, full):
    ...     mean = (squares.weights * squares.responses).sum() / squares.weights.sum()
    ...     return mean, mean.expand(5)
    >>> y = torch.tensor([1.0, 2.0, 3.0, 4.0, 1000.0], dtype=torch.float64)
    >>> end = fit_by_reweighting(weighted_mean, Robust("huber"), y, torch.ones_like(y), 1e-10)
    >>> end.settled, round(float(end.answer), 3)
    (True, 3.0)
    """
    squares = Squares(w * loss.first_weights(y, w), y)
    answer, mean = fit(squares, None, full=True)
    end = Reweighted(answer, mean, squares, loss.scale(y, mean, w, level))
    note(end)
    if float(relative_residual(y, mean, w)) <= level:
        return replace(end, reproduced=True, fixed=True, settled=True)
    if is_spent():
        return end
    run = _Reweighting(fit, loss, y, w, level, is_spent)
    begins: Iterable[Begin[_A]] = [Begin(answer, mean)]
    if isinstance(loss, Robust) and loss.redescends:
        begins = starts(loss, answer) or run.begins(loss, Begin(answer, mean), seed)
    best = run.best_of(begins, note)
    for _ in range(_ROUNDS):
        if not best.fixed or is_spent():
            return best
        answer, mean = fit(best.squares, best.answer, full=True)
        if float(_distance(mean, best.mean)) <= _FOUND_AGAIN:
            return replace(best, answer=answer, mean=mean, settled=True)
        end = run.fixed_point(Begin(answer, mean))
        if not end.fixed or is_spent():
            return best
        if not run.is_lower(end.mean, best):
            return replace(best, settled=True)
        best = end
        note(best)
    return best


class _Reweighting(Generic[_A]):
    """The loop for one loss of one problem."""

    def __init__(
        self,
        fit: WeightedFit[_A],
        loss: Loss,
        y: Tensor,
        w: Tensor,
        level: float,
        is_spent: Callable[[], bool],
    ) -> None:
        self.fit, self.loss, self.y, self.w = fit, loss, y, w
        self.level, self.is_spent = level, is_spent

    def best_of(
        self, begins: Iterable[Begin[_A]], note: Callable[[Reweighted[_A]], None]
    ) -> Reweighted[_A]:
        """Return the fixed point of least loss from one or more starts.

        `note` is called with the fits of the first one, and with the better fixed points.
        """
        best, agreeing = None, 0
        for begin in begins:
            if best is not None and self.is_spent():
                break
            if best is not None and not self.is_lower(begin.mean, best):
                agreeing += bool(_distance(begin.mean, best.mean) <= _AGREED)
                if agreeing >= _AGREEING:
                    break
                continue
            # The fits of a later start are better only if its fixed point has a lower loss.
            end = self.fixed_point(begin, note if best is None else lambda _: None)
            if best is None or (end.fixed and self.is_lower(end.mean, best)):
                best, agreeing = end, 0
                note(best)
        assert best is not None, "there is at least one start"
        return best

    def begins(self, loss: Robust, first: Begin[_A], seed: int) -> Iterator[Begin[_A]]:
        """Yield the first means, and those near other minima, found by fits."""
        yield first
        huber = _Reweighting(
            self.fit, replace(loss, name="huber"), self.y, self.w, self.level, self.is_spent
        )
        end = huber.fixed_point(first, same=_ROUGH, fits=_HUBER_FITS)
        yield self._trimmed(loss, Begin(end.answer, end.mean))
        generator = torch.Generator().manual_seed(seed)
        for _ in range(_HALVES):
            errors = torch.rand(len(self.y), generator=generator).to(self.y)
            yield self._trimmed(loss, self._fit_half(errors, first.answer))

    def _trimmed(self, loss: Robust, begin: Begin[_A]) -> Begin[_A]:
        """Return where trimmed fits, and then some fits of the loss, lead from these means."""
        for _ in range(_TRIMMED_FITS):
            if self.is_spent():
                return begin
            begin = self._fit_half((self.y - begin.mean).abs(), begin.answer)
        if loss.given_scale is not None:
            # At a larger scale the loss has fewer minima; the given one is reached from above.
            estimated = replace(loss, given_scale=None)
            scale = estimated.scale(self.y, begin.mean, self.w, self.level)
            while float(scale) > loss.given_scale and not self.is_spent():
                v, z = loss.squares(self.y, begin.mean, scale)
                begin = Begin(*self.fit(Squares(self.w * v, z), begin.answer, full=False))
                scale = scale / _FALL
        end = self.fixed_point(begin, same=_ROUGH, fits=_ROUGH_FITS)
        return Begin(end.answer, end.mean)

    def _fit_half(self, errors: Tensor, start: _A) -> Begin[_A]:
        """Fit the samples of least error by least squares, up to half of all weights."""
        half = Squares(nearest_half(errors, self.w), self.y)
        return Begin(*self.fit(half, start, full=False))

    def fixed_point(
        self,
        begin: Begin[_A],
        note: Callable[[Reweighted[_A]], None] = lambda _: None,
        *,
        same: float = _SAME,
        fits: int = _FITS,
    ) -> Reweighted[_A]:
        """Return the fixed point of the reweighting that begins at these means."""
        loss, y, w = self.loss, self.y, self.w
        answer, mean = begin
        mixing, end = Mixing(), None
        origin = loss.bounded(mean, y, mean)  # the means of the weights
        for _ in range(fits):
            if end is not None and self.is_spent():
                break
            scale = loss.scale(y, origin, w, self.level)
            v, z = loss.squares(y, origin, scale)
            squares = Squares(w * v, z)
            answer, mean = self.fit(squares, answer, full=False)
            fixed = bool(_distance(mean, origin) <= same)
            end = Reweighted(answer, mean, squares, scale, fixed=fixed)
            note(end)
            if fixed:
                break
            mixed = loss.bounded(mixing.next(origin, mean, squares.weights), origin, mean)
            lower = self._total(mixed, scale), self._total(mean, scale)
            plain = bool(lower[0] > lower[1] + _ROUNDING * lower[1].abs())
            origin = loss.bounded(mean, origin, mean) if plain else mixed
        assert end is not None, "at least one fit is made"
        return end

    def _total(self, mean: Tensor, scale: Tensor) -> Tensor:
        return (self.w * self.loss.values(self.y, mean, scale)).sum()

    def is_lower(self, mean: Tensor, old: Reweighted[_A]) -> bool:
        """Tell whether these means have a lower loss, at the smaller of the two scales."""
        scale = torch.minimum(self.loss.scale(self.y, mean, self.w, self.level), old.scale)
        new, before = self._total(mean, scale), self._total(old.mean, scale)
        return bool(new < before - _SAME * before.abs())


class Mixing:
    """Anderson's acceleration of a fixed-point iteration.

    With origins o_j and images g_j, the next origin is the combination of the last g_j, with
    coefficients of sum 1, for which the same combination of the changes `g_j - o_j` is least.
    """

    def __init__(self) -> None:
        self.origins: list[Tensor] = []
        self.images: list[Tensor] = []
        self.least = torch.inf  # smallest squared change so far

    def next(self, origin: Tensor, image: Tensor, weights: Tensor) -> Tensor:
        """Return the next origin `[n]`; changes are measured with these weights."""
        change = float((weights * (image - origin).square()).sum())
        far, self.least = change > _FAR * self.least, min(change, self.least)
        self.origins = [*self.origins[1 - _MEMORY :], origin]
        self.images = [*self.images[1 - _MEMORY :], image]
        if far:
            return (origin + image) / 2
        if len(self.origins) == 1:
            return image
        root, images = weights.sqrt(), torch.stack(self.images, -1)
        changes = images - torch.stack(self.origins, -1)
        inverse = torch.linalg.pinv(root[:, None] * changes.diff(dim=-1), rtol=_CUTOFF)
        return image - images.diff(dim=-1) @ (inverse @ (root * changes[:, -1]))


def relative_residual(y: Tensor, mean: Tensor, w: Tensor) -> Tensor:
    """Return `||m - y|| / ||y||` with the weights w.

    >>> relative_residual(torch.tensor([3.0, 4.0]), torch.zeros(2), torch.ones(2)).item()
    1.0
    """
    size = (w * y.square()).sum()
    return ((w * (y - mean).square()).sum() / torch.where(size > 0, size, 1.0)).sqrt()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Return `||a - b|| / ||b||`."""
    size = torch.linalg.vector_norm(b)
    return torch.linalg.vector_norm(a - b) / torch.where(size > 0, size, 1.0)
