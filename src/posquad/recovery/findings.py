"""The evidence for an answer, from its diagnosis and from what was measured of it."""

from __future__ import annotations

import numpy as np
import torch

from posquad.core.arrays import host
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import Diagnosis
from posquad.recovery.evidence import Evidence
from posquad.recovery.prepare import Prepared
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.returned import Returned
from posquad.recovery.solvers.cone import OPTIMAL
from posquad.recovery.stationarity import relative_offset


def reproduces(prepared: Prepared, answer: Returned, tolerance: float) -> np.ndarray:
    """Return which answers reproduce the responses, `[...]`, also in the lengths of the user.

    The rounding of U may exceed the tolerance where large terms cancel in the predictions.
    """
    reproduced = answer.exact & (answer.residual <= tolerance + answer.least)
    if prepared.rows is not None:
        own = prepared.given_relative(answer.rounding)
        reproduced = reproduced & (answer.given <= tolerance + own)
    return reproduced


def found_evidence(
    diagnosis: Diagnosis,
    found: Candidates,
    answer: Returned,
    shared: ProblemCache,
    task: Task,
    *,
    ambient: int,
) -> Evidence:
    """Return the evidence `[...]` for the answer as it is returned.

    `ambient` is the dimension of the user's inputs. Other solutions are not sought here.
    """
    prepared, acceptance = shared.prepared, shared.acceptance
    residual, given = answer.residual, answer.given
    reproduced = reproduces(prepared, answer, task.tolerance)
    worst = np.full_like(residual, np.nan)
    if reproduced.any() and prepared.sums is None:
        worst = _largest_error(shared, answer, found.singular_values)
    if prepared.is_weighted:  # and a small weight may hide a sample
        own = acceptance.hidden_errors * prepared.problem.n**0.5 * task.tolerance
        reproduced = reproduced & (worst <= own)
    sure = max(acceptance.sure, acceptance.sure_tolerances * task.tolerance)
    largest = min(sure, acceptance.loose)
    p = shared.unknowns(found.rank)
    # Samples that differ by less than the residual allows are no independent checks.
    checks = shared.checks(acceptance.independent_errors * residual / largest)
    samples, needed = shared.distinct, diagnosis.needed
    least = needed
    # Structured inputs may have fewer independent samples, and determine all.
    if shared.other_terms and prepared.sums is None:
        samples, needed, least = prepared.problem.n, p + 1, p - shared.other_terms
    no = np.zeros(residual.shape, dtype=bool)
    # A bound for rows of length one is none for the user's rows, and a difference of sums is no
    # bound where it is rounding.
    unproved = reproduced if prepared.sums is not None else prepared.rows is not None

    def each(value: object) -> np.ndarray:
        return np.array(np.broadcast_to(np.asarray(value), residual.shape))

    return Evidence(
        tolerance=each(task.tolerance),
        residual=np.minimum(given, prepared.least),
        reproduced=reproduced,
        worst=worst,
        bound=np.where(unproved, 0.0, np.minimum(found.bound, given)),
        best=_best_fits(shared, found, answer, ~reproduced),
        escapes=no,
        spans=each(prepared.span == ambient),
        samples=each(samples),
        needed=each(needed),
        checked=each((checks >= least) & (samples >= needed) & (prepared.count > p)),
        curvature=np.stack([diagnosis.low, diagnosis.high], axis=-1),
        free=each(diagnosis.free),
        isolated=each(diagnosis.isolated & diagnosis.converged),
        error=diagnosis.error,
        largest=each(largest),
        linear=each(shared.linear),
        excluded=no.copy(),
        second_starts=each(0),
        agreeing=each(0),
        different=no.copy(),
        sought=no.copy(),
        diagnosed=~no,
        spent=each(task.history.budget.spent),
        proved=no.copy(),
    )


def _best_fits(
    shared: ProblemCache, found: Candidates, answer: Returned, missed: np.ndarray
) -> np.ndarray:
    """Return which answers that have `missed` responses are best fits, `[...]`.

    Their residual is at its proved bound, or they are stationary in the weights of the user.
    """
    missed = missed & np.isfinite(answer.residual)
    best = np.array(missed & (answer.residual - found.bound <= OPTIMAL * answer.residual))
    open = missed & found.settled & ~best
    for rank in np.unique(answer.rank[open]):
        some = open & (answer.rank == rank)
        best[some] = _is_stationary(shared, answer, some, int(rank))
    return best


def _is_stationary(
    shared: ProblemCache, answer: Returned, some: np.ndarray, rank: int
) -> np.ndarray:
    """Return which of some answers of one rank are stationary."""
    acceptance, prepared = shared.acceptance, shared.prepared
    problem, chosen = prepared.problem.where(torch.as_tensor(some, device=answer.errors.device))
    index = ... if chosen is None else chosen
    V = answer.working[index][..., :rank]
    Z = problem.operator.project(V)  # that of U differs by rounding, which would hide the gauge
    offset = host(relative_offset(problem.operator, V, Z, answer.errors[index]))
    if prepared.within:  # the errors that no matrix changes are errors, too
        own = prepared.relative(answer.errors)[some] ** 2
        offset = offset * np.sqrt(own / (own + prepared.within))
    hidden = acceptance.stationary_rounding * answer.least[some] / answer.residual[some]
    most = np.clip(hidden, acceptance.stationary, acceptance.stationary_most)
    return (offset <= most).reshape(answer.residual[some].shape)


def _largest_error(shared: ProblemCache, answer: Returned, s: np.ndarray) -> np.ndarray:
    """Return the largest error of a single response, beyond the rounding of the answer, `[...]`.

    Sizes are those in working coordinates, which do not depend on units; `s[..., r]` are the
    singular values of the factor in these.
    """
    problem = shared.prepared.problem
    beyond = (answer.errors.abs() - answer.rounding).clamp_min(0.0)
    e, y = host(shared.prepared.working_errors(beyond)), host(problem.y.abs())
    if shared.other_terms:  # a constant is as large as the deviations of the responses
        y = y + host(problem.size) / problem.n**0.5
    return largest_error(e, y, host(problem.operator.norms), s)


def largest_error(e: np.ndarray, y: np.ndarray, norms: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the largest `|e_i| / (|y_i| + ||A_i|| ||Q||)`, `[...]`.

    `norms[..., n]` are those of the A_i, and `s[..., r]` the singular values of the factor of Q.

    >>> float(largest_error(np.array([0.0, 0.5]), np.ones(2), np.ones(2), np.array([2.0])))
    0.1
    """
    own = abs(y) + norms * s[..., :1] ** 2
    return (abs(e) / np.where(own > 0, own, 1.0)).max(-1)
