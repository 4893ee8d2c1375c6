"""Which status an answer has, from its diagnosis and from what was measured of it."""

from __future__ import annotations

import numpy as np
import torch

from posquad.core.arrays import host
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import Diagnosis
from posquad.recovery.prepare import Prepared
from posquad.recovery.returned import Returned
from posquad.recovery.shared import Shared
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


def status_codes(
    diagnosis: Diagnosis,
    found: Candidates,
    answer: Returned,
    shared: Shared,
    task: Task,
    *,
    ambient: int,
) -> np.ndarray:
    """Return the status codes `[...]`; in doubt, the more cautious one.

    They are those of the `answer` as it is returned. `ambient` is the dimension of the user's
    inputs. Other solutions are not sought here.
    """
    residual, acceptance = answer.residual, shared.tuning.acceptance
    reproduced = reproduces(shared.prepared, answer, task.tolerance)
    worst = np.full_like(residual, np.inf)
    if reproduced.any():
        worst = _largest_error(shared, answer, found.singular_values)
    if shared.prepared.is_weighted:  # and a small weight may hide a sample
        own = acceptance.hidden_errors * shared.problem.n**0.5 * task.tolerance
        reproduced = reproduced & (worst <= own)
    most = min(max(acceptance.sure, acceptance.sure_tolerances * task.tolerance), acceptance.loose)
    known = ~diagnosis.free & diagnosis.isolated & diagnosis.converged
    known = known & (diagnosis.error <= most)  # False for NaN
    p = dimension(shared.problem.d, found.rank)
    # Samples that differ by less than the residual allows are no independent checks.
    enough = shared.checks(acceptance.independent_errors * residual / most) >= diagnosis.needed
    enough = enough & (shared.prepared.count > p)
    interrupted = task.history.budget.spent
    codes = np.full(residual.shape, (Status.INTERRUPTED if interrupted else Status.STALLED).code)
    codes[reproduced] = Status.NOT_IDENTIFIED.code
    if interrupted:
        unknown = np.isnan(diagnosis.low) & ~diagnosis.free
        codes[reproduced & unknown] = Status.INTERRUPTED.code
    codes[_best_fits(shared, found, answer, ~reproduced)] = Status.BEST_FIT.code
    codes[reproduced & known & enough & (worst <= task.tolerance)] = Status.RECOVERED.code
    codes[shared.prepared.span < ambient] = Status.UNDETERMINED.code
    return codes


def _best_fits(
    shared: Shared, found: Candidates, answer: Returned, missed: np.ndarray
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


def _is_stationary(shared: Shared, answer: Returned, some: np.ndarray, rank: int) -> np.ndarray:
    """Return which of some answers of one rank are stationary."""
    acceptance = shared.tuning.acceptance
    problem, chosen = shared.problem.where(torch.as_tensor(some, device=answer.errors.device))
    index = ... if chosen is None else chosen
    V = answer.working[index][..., :rank]
    Z = problem.operator.project(V)  # that of U differs by rounding, which would hide the gauge
    offset = host(relative_offset(problem.operator, V, Z, answer.errors[index]))
    hidden = acceptance.stationary_rounding * answer.least[some] / answer.residual[some]
    most = np.clip(hidden, acceptance.stationary, acceptance.stationary_most)
    return (offset <= most).reshape(answer.residual[some].shape)


def _largest_error(shared: Shared, answer: Returned, s: np.ndarray) -> np.ndarray:
    """Return the largest error of a single response, beyond the rounding of the answer, `[...]`.

    Sizes are those in working coordinates, which do not depend on units; `s[..., r]` are the
    singular values of the factor in these.
    """
    problem = shared.problem
    beyond = (answer.errors.abs() - answer.rounding).clamp_min(0.0)
    e = host(shared.prepared.working_errors(beyond))
    return largest_error(e, host(problem.y), host(problem.operator.squared_lengths), s)


def largest_error(e: np.ndarray, y: np.ndarray, lengths: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the largest `|e_i| / (|y_i| + ||x_i||^2 ||Q||)`, `[...]`.

    `lengths[..., n]` are the squared lengths of the inputs, and `s[..., r]` the singular values of
    the factor of Q.

    >>> float(largest_error(np.array([0.0, 0.5]), np.ones(2), np.ones(2), np.array([2.0])))
    0.1
    """
    own = abs(y) + lengths * s[..., :1] ** 2
    return (abs(e) / np.where(own > 0, own, 1.0)).max(-1)
