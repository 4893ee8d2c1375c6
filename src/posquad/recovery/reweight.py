"""Other losses by iteratively reweighted least squares, on the solvers of least squares.

A search by least squares with bounded weights gives the first means. Then the weights of the loss
at the current means and a least-squares fit with these weights alternate, each fit from the last
one, until the means no longer change. A full search with the final weights says whether its best
fit is the same. If it is not, the loop goes on from there, as long as that lowers the loss.

A fit maps the means of its weights to new means, and the answer is a fixed point of that map. The
iteration is accelerated (Anderson 1965), because it converges slowly with many outliers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.recovery.losses import Loss, Robust

__all__ = ["Reweighted", "Squares", "WeightedFit", "relative_residual", "reweight"]

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


def reweight(
    fit: WeightedFit[_A],
    loss: Loss,
    y: Tensor,
    w: Tensor,
    level: float,
    is_spent: Callable[[], bool] = lambda: False,
    note: Callable[[Reweighted[_A]], None] = lambda _: None,
) -> Reweighted[_A]:
    """Return a stationary point of `sum_i w_i l(y_i, m_i)` by least-squares fits with new weights.

    Args:
        fit: the fit by least squares.
        loss: the loss l.
        y, w: responses and weights `[n]`.
        level: relative residual at which responses count as reproduced.
        is_spent: whether nothing more may be computed.
        note: called with every fit that is the best so far.

    >>> def weighted_mean(squares, start, *, full):
    ...     mean = (squares.weights * squares.responses).sum() / squares.weights.sum()
    ...     return mean, mean.expand(5)
    >>> y = torch.tensor([1.0, 2.0, 3.0, 4.0, 1000.0], dtype=torch.float64)
    >>> end = reweight(weighted_mean, Robust("huber"), y, torch.ones_like(y), 1e-10)
    >>> end.settled, round(float(end.answer), 3)
    (True, 3.0)
    """
    squares = Squares(w * loss.first_weights(y, w), y)
    answer, mean = fit(squares, None, full=True)
    end = Reweighted(answer, mean, squares, loss.scale(y, mean, w, level))
    note(end)
    if float(relative_residual(y, mean, w)) <= level:
        return replace(end, reproduced=True, fixed=True, settled=True)
    best = None
    for _ in range(_ROUNDS):
        # The means of a later round are better only if its fixed point has a lower loss.
        each = note if best is None else lambda _: None
        end = _fixed_point(fit, loss, y, w, level, end, is_spent, each)
        if not end.fixed or is_spent():
            return best or end
        if best is not None and not _is_lower(loss, y, w, end, best):
            return replace(best, settled=True)
        best = end
        note(best)
        answer, mean = fit(end.squares, end.answer, full=True)
        end = replace(end, answer=answer, mean=mean)
        if float(_distance(mean, best.mean)) <= _FOUND_AGAIN:
            return replace(end, settled=True)
    return best or end


def _fixed_point(
    fit: WeightedFit[_A],
    loss: Loss,
    y: Tensor,
    w: Tensor,
    level: float,
    begin: Reweighted[_A],
    is_spent: Callable[[], bool],
    note: Callable[[Reweighted[_A]], None],
) -> Reweighted[_A]:
    """Return the fixed point of the reweighting that begins at these means."""
    answer, mean, squares, scale = begin.answer, begin.mean, begin.squares, begin.scale
    mixing, fixed = Mixing(), False
    origin = loss.bounded(mean, y, mean)  # the means of the weights
    for _ in range(_FITS):
        if is_spent():
            break
        scale = loss.scale(y, origin, w, level)
        v, z = loss.squares(y, origin, scale)
        squares = Squares(w * v, z)
        answer, mean = fit(squares, answer, full=False)
        note(Reweighted(answer, mean, squares, scale))
        fixed = bool(_distance(mean, origin) <= _SAME)
        if fixed:
            break
        mixed = loss.bounded(mixing.next(origin, mean, squares.weights), origin, mean)
        lower = _total(loss, y, w, mixed, scale), _total(loss, y, w, mean, scale)
        plain = bool(lower[0] > lower[1] + _ROUNDING * lower[1].abs())
        origin = loss.bounded(mean, origin, mean) if plain else mixed
    return Reweighted(answer, mean, squares, scale, fixed=fixed)


def _total(loss: Loss, y: Tensor, w: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (w * loss.values(y, mean, scale)).sum()


def _is_lower(loss: Loss, y: Tensor, w: Tensor, new: Reweighted[_A], old: Reweighted[_A]) -> bool:
    """Tell whether the loss fell; estimated scales are compared with it."""
    a, b = (_total(loss, y, w, end.mean, old.scale) for end in (new, old))
    if isinstance(loss, Robust) and loss.given_scale is None:
        # The smaller loss may belong to the larger scale; each is judged by its own.
        a = torch.where(new.scale < old.scale, b - 1, a)
    return bool(a < b - _SAME * b.abs())


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
