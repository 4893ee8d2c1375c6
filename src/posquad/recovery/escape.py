"""Whether the squared error falls as coefficients grow without bound, so that it has no minimum.

If the square of a direction v can be expressed by other terms (`(v'x)^2` is constant, or linear
because v'x takes two values), then

    (sqrt(s) v'x + w'x / sqrt(s))^2 = s (v'x)^2 + 2 (v'x)(w'x) + (w'x)^2 / s,

and for large s one column of the factor gives any product of v'x with a linear function, while the
first term is cancelled by the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from posquad.recovery.damped import Endpoint, SquaredErrors
from posquad.recovery.second_factor import leading_factor, rotated_factor, widened

# Size of a form, over that of the responses, that other terms cancel. A choice: six digits.
_UNBOUNDED_SIZE = 1e6
# The same for a descent that did not end at a stationary point. A choice: three digits.
_SUSPECT_SIZE = 1e3
# Cosine between errors and slopes at which it did. A choice: far above rounding.
_STATIONARY = 1e-8
# Size of a form at which the errors are rounding errors. A choice: nine digits are lost.
_ROUNDING_SIZE = 1e9
# Sizes, in decades, that are tried for a factor far out. A choice: beyond them, rounding hides the
# error.
_DECADES = 8
# Relative difference of losses that does not count. A choice: that of the searches.
_SAME = 1e-9
# Share by which a descent from far out must fall below the limit for a minimum there. A choice.
_BELOW = 1e-6


def escape(
    problem: SquaredErrors,
    directions: Iterable[np.ndarray],
    rank: int,
    best: Endpoint,
    descend: Callable[[SquaredErrors, np.ndarray], Endpoint],
    seed: int,
    *,
    spent: bool,
) -> tuple[Endpoint, bool]:
    """Return a factor far out and True if the error has no minimum, else the best one and False.

    Args:
        problem: the squared errors.
        directions: those `v[k]` whose squares the other terms express.
        rank, best: the rank of factors, and the best one that was found.
        descend: a descent of these and of other squared errors.
        seed: seed of random numbers.
        spent: whether a limit ended the search, so that its end says nothing.
    """
    limits = []
    for v in directions:
        far, best = _limit_along(problem, v, rank, best, descend, seed)
        limits += [] if far is None else [far]
    if limits:
        return min(limits, key=lambda end: end.loss), True
    size = problem.form_size(best.V)
    moving = size > _SUSPECT_SIZE and best.cosine > _STATIONARY and not spent
    return best, size > _UNBOUNDED_SIZE or moving


def _limit_along(
    problem: SquaredErrors,
    v: np.ndarray,
    rank: int,
    best: Endpoint,
    descend: Callable[[SquaredErrors, np.ndarray], Endpoint],
    seed: int,
) -> tuple[Endpoint | None, Endpoint]:
    """Return a factor of nearly the least error with one column far out along v, and the best one.

    The first is None if that limit is not better than the `best` factor of this rank. A descent
    from far out may come back: then there is a minimum after all, the second.
    """
    inner, basis, coefficients = problem.without(v)
    k = len(v)
    W, rest = np.zeros((k - 1, 0)), min(rank - 1, k - 1)
    if rest:  # the other columns need no part along v, because all products with v'x are free
        rng = np.random.default_rng(seed)
        spectral = inner.correlation(np.zeros((k - 1, 1)))
        starts = [inner.scaled(leading_factor(spectral, rest, rng))]
        if best.V.size:
            starts.append(widened(rotated_factor(basis.T @ best.V)[:, :rest], rest, rng))
        W = min((descend(inner, V) for V in starts), key=lambda end: end.loss).V
    least = inner.loss(W)
    if least >= best.loss * (1 - _SAME) or inner.form_size(W) > _ROUNDING_SIZE:
        return None, best
    w = coefficients(W) / 2
    unit = float(np.linalg.norm(w)) or 1.0
    factors = [
        np.column_stack([np.sqrt(s) * v + w / np.sqrt(s), basis @ W])
        for s in unit * 10.0 ** np.arange(_DECADES)
    ]
    V = min(factors, key=problem.loss)
    far = Endpoint(V, problem.loss(V), 1.0)
    back = descend(problem, V)
    if back.loss < least * (1 - _BELOW) and problem.form_size(back.V) <= _UNBOUNDED_SIZE:
        return None, back
    return (far if far.loss < best.loss * (1 - _SAME) else None), best
