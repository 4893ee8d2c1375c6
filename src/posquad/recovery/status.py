"""The one place that grants a status: a function of the evidence, and of nothing else."""

from __future__ import annotations

import numpy as np

from posquad.core.status import Status, from_codes
from posquad.recovery.evidence import Evidence

# Statuses for which free directions and, as far as it was sought, another solution are excluded.
UNIQUE = (Status.RECOVERED, Status.CERTIFIED)

__all__ = ["UNIQUE", "grant", "granted", "is_open", "is_recovered"]


def grant(e: Evidence) -> np.ndarray:
    """Return the status codes `[...]`; in doubt, the more cautious status.

    >>> evidence = Evidence.blank(1, np.dtype(float))
    >>> [list(Status)[code].name for code in grant(evidence)]
    ['STALLED']
    """
    codes = np.full(np.shape(e.residual), Status.STALLED.code)
    undecided = e.spent & ~e.reproduced
    # A limit may also have ended the work before the curvature was known, or the search for others.
    undecided = undecided | (e.spent & ~e.free & np.isnan(e.curvature[..., 0]))
    undecided = undecided | (e.spent & is_open(e) & ~e.different)
    codes[e.reproduced] = Status.NOT_IDENTIFIED.code
    codes[e.reproduced & ~e.diagnosed] = Status.LOSS_REACHED.code
    codes[undecided] = Status.INTERRUPTED.code
    codes[e.best & ~e.reproduced] = Status.BEST_FIT.code
    codes[e.escapes & ~e.reproduced] = Status.NO_MINIMUM.code
    alone = e.linear | e.excluded | (e.sought & ~e.different)
    codes[_is_locally_unique(e) & alone] = Status.RECOVERED.code
    codes[~e.spans] = Status.UNDETERMINED.code
    # A missed response may be small beside the others.
    codes[e.proved & ~(e.worst > e.tolerance)] = Status.CERTIFIED.code
    return codes


def granted(e: Evidence) -> Status:
    """Return the status of one answer, in arrays of any kind.

    >>> granted(Evidence.alone(spans=False)).name, granted(Evidence.alone(best=True)).name
    ('UNDETERMINED', 'BEST_FIT')
    """
    status = from_codes(grant(e.numpy()))
    assert isinstance(status, Status), "one answer"
    return status


def is_recovered(e: Evidence) -> np.ndarray:
    """Return which answers `[...]` are recovered.

    >>> bool(is_recovered(Evidence.alone()))
    False
    """
    return grant(e) == Status.RECOVERED.code


def is_open(e: Evidence) -> np.ndarray:
    """Return where `[...]` only another solution keeps the answer from being recovered.

    >>> local = {"reproduced": True, "checked": True, "isolated": True, "largest": 1e-6}
    >>> bool(is_open(Evidence.alone(**local))), bool(is_open(Evidence.alone(**local, linear=True)))
    (True, False)
    """
    return _is_locally_unique(e) & e.spans & ~e.linear & ~e.excluded & ~e.sought


def _is_locally_unique(e: Evidence) -> np.ndarray:
    each = ~(e.worst > e.tolerance)  # also where the rows were not read again
    known = e.isolated & ~e.free & (e.error <= e.largest)  # False for NaN
    return e.reproduced & e.diagnosed & each & e.checked & known
