"""Whether the squared error falls as the matrix grows without bound, so that it has no minimum.

Let `A(vv') = 0` for a direction v: no measurement sees it alone. With other terms, that is a square
which they express (`(v'x)^2` is constant, or linear because v'x takes two values). Then

    A((sqrt(s) v + w / sqrt(s)) (sqrt(s) v + w / sqrt(s))') = A(vw' + wv') + A(ww') / s,

so that for large s one column of the factor gives all products of v with any w. The limit along v
is the same problem with these products eliminated too, for the other columns, orthogonal to v.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import RankOne
from posquad.problems.projected import Projected
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.ranks import TRIAL_STARTS
from posquad.recovery.search import refine, search
from posquad.recovery.solvers.fit import cosine_at

# Measurements of a direction, over the size of their terms, that are zero. A choice: inputs that
# take two values are rounded by far less.
_UNSEEN = 1e-9
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
# Relative difference of residuals that does not count. A choice: that of the searches.
_SAME = 1e-9
# Share by which a descent from far out must fall below the limit for a minimum there. A choice.
_BELOW = 1e-6
# Operations up to which directions are tried. Derived: about a tenth of a second.
_OPERATIONS = 2**28


def escape(
    shared: ProblemCache, found: Candidates, task: Task, rank: int
) -> tuple[Candidates, bool]:
    """Return a factor far out and True if the error has no minimum, else the best one and False.

    What was `found` must be of at most this rank. Nothing is said of responses that are reproduced,
    nor where a limit ended the search.
    """
    if float(found.residual) <= task.tolerance:  # nor of equal inputs with different responses
        return found, False
    if _form_size(shared, found.U) > _ROUNDING_SIZE:
        found = _candidates(shared.problem, torch.zeros_like(found.U), found)
    limits, best = [], found
    for v in _directions(shared):
        far, best = _limit_along(shared, v, rank, best, task)
        limits += [] if far is None else [far]
    if limits:
        return min(limits, key=lambda end: float(end.residual)), True
    if not shared.other_terms or task.history.budget.spent:
        return best, False
    size = _form_size(shared, best.U)
    moving = size > _SUSPECT_SIZE
    moving = moving and float(cosine_at(shared.prepared.problem, best.U)) > _STATIONARY
    return best, size > _UNBOUNDED_SIZE or moving


def _directions(shared: ProblemCache) -> Iterator[Tensor]:
    """Yield directions `v[d]` in working coordinates with `A(vv') = 0`.

    Those of the user's inputs are tried, and linear functions whose square is a column of the other
    terms. Inputs without other terms have none.
    """
    prepared = shared.prepared
    operator, given = prepared.problem.operator, prepared.given.operator
    if prepared.sums is not None:
        yield from prepared.sums.unbounded()
        return
    if isinstance(operator, RankOne) or operator.entries * given.d > _OPERATIONS:
        return
    eye = torch.eye(given.d, dtype=prepared.problem.y.dtype)
    tried = [*prepared.enter(eye.to(prepared.problem.y)).mT]
    if isinstance(operator, Projected) and isinstance(operator.base, RankOne):
        roots = operator.Z[:, (operator.Z >= 0).all(0)].sqrt()
        tried += [*torch.linalg.lstsq(operator.base.X, roots).solution.mT] if roots.numel() else []
    for v in tried:
        length = torch.linalg.vector_norm(v)
        v = v / torch.where(length > 0, length, 1.0)
        size = _sizes(operator, v)
        if size > 0 and float(torch.linalg.vector_norm(_forms(operator, v))) <= _UNSEEN * size:
            yield v


def _forms(operator: HeldMeasurements, v: Tensor) -> Tensor:
    return operator.apply_factor_kernel(v[:, None])


def _sizes(operator: HeldMeasurements, v: Tensor) -> float:
    """Return the size of the terms of which `A(vv')` is the sum."""
    of = _forms(operator.base, v) if isinstance(operator, Projected) else operator.norms
    return float(torch.linalg.vector_norm(of))


def _limit_along(
    shared: ProblemCache, v: Tensor, rank: int, best: Candidates, task: Task
) -> tuple[Candidates | None, Candidates]:
    """Return a factor of nearly the least error with one column far out along v, and the best one.

    The first is None if that limit is not better than the `best` factor of this rank. A descent
    from far out may come back: then there is a minimum after all, the second.
    """
    problem = shared.problem
    basis = torch.linalg.svd(v[:, None]).U[:, 1:]  # orthogonal to v
    # Of all w orthogonal to v: that of v itself is rounding.
    products = problem.operator.jacobian(problem.operator.project(v[:, None])) @ basis
    W = _without_products(shared, basis, products, min(rank, problem.d) - 1, task)
    inner = Projected(problem.operator, products)
    e = problem.y - problem.operator.apply_factor_kernel(basis @ W) if W.numel() else problem.y
    least = float(problem.relative(inner.eliminated(e)))
    same = least >= float(best.residual) * (1 - _SAME)
    if same or _form_size(shared, basis @ W) > _ROUNDING_SIZE:
        return None, best
    w = basis @ torch.linalg.lstsq(products, e[:, None], driver="gelsd").solution
    unit = float(torch.linalg.vector_norm(w)) or 1.0
    factors = [
        torch.cat([s**0.5 * v[:, None] + w / s**0.5, basis @ W], dim=-1)
        for s in unit * 10.0 ** np.arange(_DECADES)
    ]
    far = min((_candidates(problem, U, best) for U in factors), key=lambda end: float(end.residual))
    with task.history.paused():
        back = refine(shared, far.U, task, far)
    below = float(back.residual) < least * (1 - _BELOW)
    if below and _form_size(shared, back.U) <= _UNBOUNDED_SIZE:
        return None, back
    return (far if float(far.residual) < float(best.residual) * (1 - _SAME) else None), best


def _without_products(
    shared: ProblemCache, basis: Tensor, products: Tensor, rank: int, task: Task
) -> Tensor:
    """Return the best factor `W[d - 1, rank]` of the other columns, all products eliminated."""
    problem, history = shared.problem, task.history
    if not rank:
        return basis.new_zeros(basis.shape[-1], 0)
    operator = Projected(problem.operator.transformed(basis), products)
    inner = Problem(operator, operator.eliminated(problem.y), spread=problem.size)
    others = shared.other_terms + operator.basis.shape[-1]
    plain = {"rows": None, "sums": None, "within": 0.0, "other_terms": others}
    prepared = replace(shared.prepared, problem=inner, **plain)
    best = history.best
    try:
        with history.paused():
            part = ProblemCache(prepared, shared.acceptance)
            return search(part, rank, task, TRIAL_STARTS).U
    finally:  # also at Ctrl-C, which keeps the best of the whole problem
        history.best = best


def _candidates(problem: Problem, U: Tensor, best: Candidates) -> Candidates:
    residual = host(problem.relative_residual(U))
    return replace(best, rank=U.shape[-1], U=U, residual=residual, known=None)


def _form_size(shared: ProblemCache, U: Tensor) -> float:
    """Return the size of the predictions over that of the responses, before they are projected."""
    if not U.numel():
        return 0.0
    if shared.prepared.sums is not None:
        return shared.prepared.sums.form_size(U)
    problem = shared.prepared.problem
    operator = problem.operator
    base = operator.base if isinstance(operator, Projected) else operator
    size = torch.linalg.vector_norm(problem.y)
    forms = torch.linalg.vector_norm(base.apply_factor_kernel(U))
    return float(forms / torch.where(size > 0, size, 1.0))
