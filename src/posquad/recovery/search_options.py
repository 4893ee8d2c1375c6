"""What a call of `recover` asks for, checked: the rank, the starts, the seed and the tolerance."""

from __future__ import annotations

from typing import NamedTuple

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.errors import DomainError

__all__ = ["SearchOptions", "reproduction_level"]

# Relative residual at which responses count as reproduced, unless the caller gives a `tolerance`:
# in double precision, and for inputs or responses in single precision. A definition: well above
# their rounding, eps = 2.2e-16 and 1.2e-7, and far below the noise of data.
_REPRODUCED = 1e-10
_REPRODUCED_SINGLE = 1e-5


class SearchOptions(NamedTuple):
    """Arguments of `recover` that do not depend on where the rows are."""

    rank: int | None
    max_rank: int | None
    max_starts: int | None
    seed: int
    tolerance: float | None

    def level(self, d: int, *, narrow: bool) -> float:
        """Check the arguments; return the residual at which responses count as reproduced."""
        if self.rank is not None and positive_integer("rank", self.rank) > d:
            raise DomainError("rank", expected=f"at most d = {d}", got=str(self.rank))
        if self.max_rank is not None:
            positive_integer("max_rank", self.max_rank)
        if positive_integer("seed", self.seed, zero=True) >= 2**63:
            raise DomainError("seed", expected="an integer below 2^63", got=str(self.seed))
        level = reproduction_level(self.tolerance, narrow=narrow)
        if self.max_starts is not None:
            positive_integer("max_starts", self.max_starts)
        return level


def reproduction_level(tolerance: float | None, *, narrow: bool) -> float:
    """Return the relative residual at which responses count as reproduced.

    `narrow` says whether inputs or responses are float32.

    >>> reproduction_level(None, narrow=False), reproduction_level(None, narrow=True)
    (1e-10, 1e-05)
    """
    if tolerance is None:
        return _REPRODUCED_SINGLE if narrow else _REPRODUCED
    return positive_number("tolerance", tolerance)
