"""`recover` for measurements in memory: least squares or another loss, and a certificate."""

from __future__ import annotations

from dataclasses import replace

import torch

from posquad.certificates import certifier
from posquad.core.arrays import Array, host, require_instance
from posquad.core.errors import DomainError, Interrupted, PosquadError
from posquad.problems.measurements import Measurements
from posquad.problems.objectives import LeastSquares
from posquad.recovery.acceptance import Acceptance
from posquad.recovery.admitted import Admitted, admitted
from posquad.recovery.candidates import singular_values
from posquad.recovery.findings import largest_error
from posquad.recovery.least_squares import recover_by_least_squares
from posquad.recovery.losses import chosen_loss
from posquad.recovery.options import Options
from posquad.recovery.other_losses import recover_by_reweighting
from posquad.recovery.problem import Problem
from posquad.recovery.result import Recovery
from posquad.recovery.status import granted


def recover_in_memory(
    X: Array | Measurements, y: Array | None, weights: Array | None, options: Options
) -> Recovery:
    """Return the answer to measurements in memory."""
    acceptance, certify = options.acceptance, options.certify
    if acceptance is not None:
        expected = "posquad.recovery.Acceptance"
        require_instance("acceptance", acceptance, Acceptance, expected)
    other = chosen_loss(options.loss, options.scale)
    given = admitted(X, y, weights, options.precision, widened=other is not None)
    if certify and not options.diagnose:
        expected = "True with certify=True: a certificate needs an answer that is diagnosed"
        raise DomainError("diagnose", expected=expected, got="False")
    if certify and given.batch:
        expected = "False for a batch: a certificate is about one problem"
        raise DomainError("certify", expected=expected, got=f"batch {tuple(given.batch)}")
    level = options.wanted.level(given.operator.d, narrow=given.is_narrow)
    if other is not None:
        found = recover_by_reweighting(other, given, options, level)
        return _certified(found, given, level) if certify else found
    history = options.history(options.progress)
    weighted = weights is not None
    found = recover_by_least_squares(given, options, level, history, weighted=weighted)
    if certify and not history.budget.spent:
        return _certified(found, given, level)
    return found


def _certified(found: Recovery, given: Admitted, level: float) -> Recovery:
    """Return the answer with its certificate, if its factor can be certified.

    It is called CERTIFIED if each response is also reproduced relative to its own size.

    Ctrl-C raises `Interrupted` with the answer.
    """
    if int(found.rank) == 0:
        return found
    kept = (given.weights > 0).nonzero()[:, 0]
    U = torch.as_tensor(found.U[:, : int(found.rank)]).to(given.y)
    U = U.double()  # in single precision fourth powers of the inputs may overflow
    problem = Problem(given.operator.at_rows(kept).double(), given.y[kept].double())
    objective = LeastSquares(problem.operator, problem.y)
    try:
        certificate = certifier.certify(objective, U, tolerance=level)
    except PosquadError:  # the factor does not have full rank
        return found
    except KeyboardInterrupt as stop:
        raise Interrupted(found) from stop
    e = problem.operator.apply_factor_kernel(U) - problem.y
    norms = host(problem.operator.norms)
    worst = float(largest_error(host(e), host(problem.y), norms, singular_values(U)))
    if not certificate.proved or worst > level:
        return replace(found, certificate=certificate)
    evidence = found.evidence.updated(worst=worst, proved=True)
    return replace(found, certificate=certificate, status=granted(evidence), evidence=evidence)
