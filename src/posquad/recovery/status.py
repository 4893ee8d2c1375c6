"""The one place that grants a status: a function of the evidence, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from posquad.core.status import Status, from_codes
from posquad.recovery.evidence import Evidence

# Statuses for which free directions and, as far as it was sought, another solution are excluded.
UNIQUE = (Status.RECOVERED, Status.CERTIFIED)

__all__ = ["RULES", "UNIQUE", "Rule", "grant", "granted", "is_open", "is_recovered"]


class Rule(NamedTuple):
    """A status, and the condition under which it is granted.

    The condition joins findings by "and" only, so that the rules can be shown as a table.
    """

    status: Status
    holds: Callable[[Evidence], np.ndarray]


def grant(e: Evidence) -> np.ndarray:
    """Return the status codes `[...]`: of the first of `RULES` that holds.

    >>> evidence = Evidence.blank(1, np.dtype(float))
    >>> [list(Status)[code].name for code in grant(evidence)]
    ['STALLED']
    """
    codes = np.empty(np.shape(e.residual), dtype=np.int64)
    for rule in reversed(RULES):  # earlier rules override later ones
        codes[rule.holds(e)] = rule.status.code
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
    known = e.isolated & ~e.free & (e.error <= e.largest)  # False for NaN
    return e.reproduced & e.diagnosed & _is_none_missed(e) & e.checked & known


def _is_none_missed(e: Evidence) -> np.ndarray:
    """Return where no response is known to be missed, which the residual hides if it is small."""
    return ~(e.worst > e.tolerance)  # also where the rows were not read again


def _is_curvature_unknown(e: Evidence) -> np.ndarray:
    return np.isnan(e.curvature[..., 0])


def _is_alone(e: Evidence) -> np.ndarray:
    return e.linear | e.excluded | (e.sought & ~e.different)


# In order of precedence: the first that holds is granted. `docs/statuses.md` shows them as a table,
# which is computed from these functions.
RULES = (
    Rule(Status.CERTIFIED, lambda e: e.proved & _is_none_missed(e)),
    Rule(Status.UNDETERMINED, lambda e: ~e.spans),
    Rule(Status.RECOVERED, lambda e: _is_locally_unique(e) & _is_alone(e)),
    Rule(Status.NO_MINIMUM, lambda e: e.escapes & ~e.reproduced),
    Rule(Status.BEST_FIT, lambda e: e.best & ~e.reproduced),
    # A limit ended the search for an answer, or the work before the curvature was known, or the
    # search for a second solution.
    Rule(Status.INTERRUPTED, lambda e: e.spent & ~e.reproduced),
    Rule(Status.INTERRUPTED, lambda e: e.spent & ~e.free & _is_curvature_unknown(e)),
    Rule(Status.INTERRUPTED, lambda e: e.spent & is_open(e) & ~e.different),
    Rule(Status.LOSS_REACHED, lambda e: e.reproduced & ~e.diagnosed),
    Rule(Status.NOT_IDENTIFIED, lambda e: e.reproduced),
    Rule(Status.STALLED, lambda e: np.ones_like(e.reproduced)),
)
