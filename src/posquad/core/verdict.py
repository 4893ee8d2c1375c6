"""How certain a finding is."""

from __future__ import annotations

from enum import Enum

__all__ = ["Verdict"]


class Verdict(Enum):
    """How certain a finding is; the value of each member is a sentence for the user."""

    PROVED = "proved, with every rounding error bounded"
    NUMERICAL = (
        "computed in floating point but not proved: the rounding errors could not be bounded"
    )
    REFUSED = "not certified; the reason names the inequality that failed"
