"""The factor that a user gets, and what is measured of it on the user's rows.

A search works in other coordinates, often with normalized rows. Its answer changes once more: it
loses directions that contribute nothing, is restored to the user's coordinates and rotated. What a
result says about the answer (residual, rank, status) is measured after the last of these changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.recovery.candidates import Candidates, visible
from posquad.recovery.prepare import Prepared
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.ranks import leading_columns

# Relative increase of the residual up to which a direction contributes nothing. A definition: that
# of `solvers.cone.OPTIMAL`, so that an answer which is proved optimal stays so.
_NOTHING = 1e-10
# The same in units of eps, relative to the responses. Derived: a residual of n rounded responses is
# rounded by about eps.
_NOTHING_UNITS = 4
# Rounding of plain products that is not worth double-double ones: relative to the residual, and in
# units of eps. A definition: below the accuracy of residuals that `docs/statuses.md` asserts.
_ACCURATE = 1e-7
_ACCURATE_UNITS = 10
# Products `x_ij u_jk` up to which errors are computed in double-double arithmetic. Measured: they
# take about five seconds.
_PRECISE_PRODUCTS = 2**27
# Multiple of d eps, over the lengths of two columns, up to which their product is rounding.
# Derived: the bound of an inner product of d terms is d eps / 2, for each of the steps that made
# the columns orthogonal, and there is a margin.
_ORTHOGONAL = 4


@dataclass(frozen=True, eq=False)
class Returned:
    """Factors as they are returned, and their errors; all in the user's coordinates."""

    U: np.ndarray  # [..., d, k]  orthogonal columns of descending norm, zero beyond the rank
    rank: np.ndarray  # [...]
    working: Tensor  # [..., d, k]  the same matrices `UU'` in working coordinates
    exact: np.ndarray  # [...]  whether these reproduce the responses
    errors: Tensor  # [..., n]  of the rows as the search weighted or normalized them
    rounding: Tensor  # [..., n]  what the rounding of U contributes to them; 0 where it is nothing
    residual: np.ndarray  # [...]  relative size of the errors, of all samples
    given: np.ndarray  # [...]  the same for the lengths and weights that the user gave
    least: np.ndarray  # [...]  relative size of the rounding, or a bound on it


def returned_factor(shared: ProblemCache, found: Candidates, tolerance: float) -> Returned:
    """Return what was found in the user's coordinates, without directions that contribute nothing.

    A factor that reproduces the responses keeps its columns, because `rank_changes` has left out
    those that vanish.
    """
    exact = found.residual <= tolerance
    working, rank = _without_negligible(shared, found, ~exact)
    U = rotated(host(shared.prepared.restore(working)), rank)
    prepared = shared.prepared
    e, rounding, least = _accurate_errors(prepared, torch.from_numpy(U).to(found.U.device))
    residual, given = map(
        prepared.of_all_samples, (prepared.relative(e), prepared.given_relative(e))
    )
    return Returned(U, rank, working, exact, e, rounding, residual, given, least)


def _accurate_errors(prepared: Prepared, U: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return errors and their rounding, `[..., n]`, and the relative size of the latter, `[...]`.

    Where the rounding of plain products would change a residual, they are computed with more
    digits; elsewhere only a bound on the size of the rounding is known, and it counts as zero.
    """
    e, least = prepared.given.errors(U)
    unsure = _is_unsure(prepared.relative(e), least, e)
    if prepared.rows is not None:  # in the lengths of the user other rows count
        unsure = np.ones_like(unsure)
    if not unsure.any():
        return e, e.new_zeros(()).expand_as(e), least
    where, some, V = ..., prepared, U
    if e.ndim > 1:
        where = torch.from_numpy(unsure.nonzero()[0]).to(e.device)
        some, V = prepared.select(where), U[where]
    rounding, least = torch.zeros_like(e), np.array(least)
    part = rounding[where] = some.given.rounding(V)
    least[unsure] = some.relative(part)
    worth = _is_unsure(some.relative(e[where]), some.relative(part), e)
    worth = worth | _is_unsure(some.given_relative(e[where]), some.given_relative(part), e)
    if worth.any() and some.given.y.numel() * V.shape[-2] * V.shape[-1] <= _PRECISE_PRODUCTS:
        e[where] = some.given.precise_errors(V)
    return e, rounding, least


def _is_unsure(residual: np.ndarray, least: np.ndarray, e: Tensor) -> np.ndarray:
    """Return whether rounding of this relative size changes a residual, `[...]`."""
    return least > np.maximum(_ACCURATE * residual, _ACCURATE_UNITS * torch.finfo(e.dtype).eps)


def _without_negligible(
    shared: ProblemCache, found: Candidates, open: np.ndarray
) -> tuple[Tensor, np.ndarray]:
    """Return factors in working coordinates without negligible directions, and their ranks `[...]`.

    A direction is negligible if its eigenvalue is, and if the residual is the same without it. Only
    the factors of `open[...]` problems change.
    """
    U, rank = found.U, np.full(found.residual.shape, found.rank)
    few = numerical_rank(shared, found.singular_values)
    open = open & (few < found.rank)
    eps = torch.finfo(U.dtype).eps
    most = found.residual * (1 + _NOTHING) + _NOTHING_UNITS * eps
    for kept in range(int(few[open].min(initial=found.rank)), found.rank):
        tried = open & (few <= kept)
        if not tried.any():
            continue
        part, chosen = shared.problem.where(torch.as_tensor(tried, device=U.device))
        V = leading_columns(U if chosen is None else U[chosen], kept)
        good = np.zeros_like(open)
        good[tried] = host(part.relative_residual(V)) <= most[tried]
        if not good.any():
            continue
        V = torch.nn.functional.pad(V, (0, found.rank - kept))
        if chosen is None:
            U = V if good.all() else torch.where(torch.as_tensor(good)[..., None, None], V, U)
        else:
            taken = torch.as_tensor(good[tried], device=U.device)
            U = U.index_copy(0, chosen[taken], V[taken])
        rank[good], open = kept, open & ~good
    return U, rank


def numerical_rank(shared: ProblemCache, s: np.ndarray) -> np.ndarray:
    """Return how many eigenvalues of factors with singular values `s[..., r]` may not be zero.

    It is 0 if the predictions are negligible beside the responses.
    """
    problem, negligible = shared.problem, shared.acceptance.negligible
    predicted = s[..., 0] ** 2 * host(problem.operator.norms.mean(-1))
    mean = torch.linalg.vector_norm(problem.y, 1, dim=-1) / problem.n  # without a copy
    nothing = predicted <= negligible * host(mean)
    return np.where(nothing, 0, visible(s, negligible).sum(-1))


def rotated(U: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Rotate factors `U[..., d, k]` so that their columns are orthogonal, of descending norm.

    All columns beyond the first `rank[...]` are zero. Rotating U keeps the relative accuracy of
    small rows, which belong to large inputs. Columns that are orthogonal already are only sorted.
    """
    ranks = np.reshape(rank, -1)
    flat = U.reshape(len(ranks), *U.shape[-2:])
    turned = np.zeros_like(flat)
    for r in np.unique(ranks):
        which = ranks == r
        turned[which, :, :r] = _with_orthogonal_columns(flat[which, :, :r])
    return turned.reshape(U.shape)


def _with_orthogonal_columns(U: np.ndarray) -> np.ndarray:
    """Return factors `U[B, d, r]` with orthogonal columns of descending norm."""
    largest = abs(U).max((-2, -1), keepdims=True, initial=0.0)
    if not np.isfinite(largest).all():
        return U  # the answers are refused
    unit = U / np.where(largest > 0, largest, 1.0)  # squares are in range
    gram = unit.swapaxes(-1, -2) @ unit
    norms = np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))
    rounding = _ORTHOGONAL * U.shape[-2] * np.finfo(U.dtype).eps
    rounding = rounding * norms[..., :, None] * norms[..., None, :]
    wrong = (abs(gram) > rounding).sum((-2, -1)) > (norms > 0).sum(-1)  # the diagonal exceeds it
    if wrong.any():
        return U @ np.linalg.svd(unit, full_matrices=False)[2].swapaxes(-1, -2)
    order = (-norms).argsort(-1, kind="stable")
    return np.take_along_axis(U, order[..., None, :], -1)
