"""The sizes of numbers that computations accept, and the smallest number to divide by.

Each range has two ends in double and in single precision, the derivation of them, and what happens
to numbers outside. This is the one table of such limits; messages that name one are formatted
from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = [
    "ALL_RANGES",
    "ANSWERS",
    "BOUND_SIZES",
    "CERTIFIED_ENTRIES",
    "DIAGNOSED_FACTORS",
    "DIFFUSION_WEIGHTS",
    "FILE_NUMBERS",
    "FRAME_VALUES",
    "KERNEL_INPUTS",
    "LOSS_TERMS",
    "PLAIN_LENGTHS",
    "PLAIN_NORMS",
    "RESPONSES",
    "ROW_ENTRIES",
    "UNSCALED_INPUTS",
    "Limits",
    "Range",
    "tiny",
]


class Range(NamedTuple):
    """The ends of a range of sizes."""

    low: float
    high: float


@dataclass(frozen=True)
class Limits:
    """A range of sizes in each precision, its derivation, and what happens outside."""

    meaning: str
    double: Range
    single: Range | None  # None: the numbers are converted to double precision first
    derivation: str
    outside: str

    def of(self, dtype: torch.dtype = torch.float64) -> Range:
        """Return the range in a precision.

        >>> CERTIFIED_ENTRIES.of()
        Range(low=1e-20, high=1e+20)
        """
        if dtype == torch.float64 or self.single is None:
            return self.double
        return self.single


def tiny(like: Any = None) -> float:
    """Return the smallest normal number of a precision: the least divisor that is not zero.

    `like` is an array, a tensor or a dtype of torch; the default is double precision. The quotient
    of a number up to 4 by it is finite; of larger ones it may overflow.

    >>> tiny() == 2.0**-1022, tiny(np.zeros(1, np.float32)) == 2.0**-126
    (True, True)
    """
    dtype = torch.float64 if like is None else getattr(like, "dtype", like)
    limits = torch.finfo(dtype) if isinstance(dtype, torch.dtype) else np.finfo(dtype)
    return float(limits.tiny)


_DOUBLE, _SINGLE = torch.finfo(torch.float64), torch.finfo(torch.float32)


def _roots(limits: torch.finfo, low: int, high: int, share: float = 1.0) -> Range:
    """The range of numbers with a normal `low`-th and a finite `high`-th power."""
    return Range(limits.tiny ** (1 / low), share * limits.max ** (1 / high))


# Sizes of what a user gives.

UNSCALED_INPUTS = Limits(
    "largest entry of the inputs of `recover`",
    double=Range(2.0**-100, 2.0**100),
    single=Range(2.0**-12, 2.0**12),
    derivation="Derived: the eighth power, a squared fourth moment and the largest that is formed, "
    "is a normal number: 8 * 100 < 1022 and 8 * 12 < 126.",
    outside="rescaled by a power of two",
)

KERNEL_INPUTS = Limits(
    "largest entry of the inputs of `logdet_irls`",
    double=Range(2.0**-60, 2.0**60),
    single=Range(2e-4, 5e3),
    derivation="Derived: the eighth power, a squared entry of the kernel matrix, is a normal "
    "number: 5000^8 < 2^99 and 8 * 60 < 1022. Chosen: the factor 2^543 that remains in double "
    "precision is left to the weight and to the responses.",
    outside="refused",
)

RESPONSES = Limits(
    "largest response, of moments and of certificates",
    double=Range(1e-100, 1e100),
    single=None,
    derivation="Derived: squares are between 1e-200 and 1e200, which are normal numbers, and sums "
    "of up to 1e108 of them are finite.",
    outside="refused; for a certificate, only if they are too large",
)

FILE_NUMBERS = Limits(
    "largest number of the inputs, and of the responses, of a file",
    double=Range(1e-50, 1e50),
    single=None,
    derivation="Derived: fourth powers are between 1e-200 and 1e200, which are normal numbers, and "
    "sums of up to 1e108 of them are finite.",
    outside="refused; tiny inputs of predictions are allowed",
)

CERTIFIED_ENTRIES = Limits(
    "largest entry of the measurements and of the factor of a certificate",
    double=Range(1e-20, 1e20),
    single=None,
    derivation="Derived: an underflow loses at most 2^-1074, which, multiplied by six entries (a "
    "product of two tangent vectors has x^4 U^2) and summed over 1e13 terms, is below 1e-190, the "
    "UNDERFLOW of the proofs.",
    outside="refused: nothing is proved",
)

DIFFUSION_WEIGHTS = Limits(
    "weight of a signal in the fit of a diffusion tensor",
    double=Range(0.0, math.exp(300.0)),
    single=None,
    derivation="Derived: squared weights, exp(600) = 1e260, stay finite in sums of up to 1e47.",
    outside="left out, as if the weight was zero",
)

# Sizes at which a shorter computation loses no digits.

PLAIN_NORMS = Limits(
    "norm that is computed as the root of a sum of squares",
    double=Range((_DOUBLE.tiny / _DOUBLE.eps) ** 0.5, _DOUBLE.max**0.5),
    single=Range((_SINGLE.tiny / _SINGLE.eps) ** 0.5, _SINGLE.max**0.5),
    derivation="Derived: squares that underflow are below eps times the sum of squares.",
    outside="computed again from scaled entries",
)

PLAIN_LENGTHS = Limits(
    "length of a row that is compared without scaling",
    double=_roots(_DOUBLE, 2, 2),
    single=_roots(_SINGLE, 2, 2),
    derivation="Derived: the squared length is a normal number, so at most d squares underflow, "
    "each by less than eps times the sum.",
    outside="computed again from scaled entries",
)

ROW_ENTRIES = Limits(
    "largest entry of a row whose length is computed without scaling",
    double=_roots(_DOUBLE, 4, 4),
    single=_roots(_SINGLE, 4, 4),
    derivation="Derived: the fourth power is a normal number; the square has room for a sum.",
    outside="the row is divided by its largest entry first",
)

# Sizes of what is computed.

ANSWERS = Limits(
    "largest entry of a factor that `recover` returns",
    double=Range(_DOUBLE.tiny / _DOUBLE.eps, _DOUBLE.max),
    single=Range(_SINGLE.tiny / _SINGLE.eps, _SINGLE.max),
    derivation="Derived: entries that are smaller by eps are normal numbers.",
    outside="refused",
)

FRAME_VALUES = Limits(
    "singular value of a factor",
    double=_roots(_DOUBLE, 2, 4),
    single=_roots(_SINGLE, 2, 4),
    derivation="Derived: the square, by which is divided, is a normal number, and the fourth power "
    "is finite.",
    outside="refused",
)

DIAGNOSED_FACTORS = Limits(
    "largest singular value of a factor whose curvature is computed",
    double=_roots(_DOUBLE, 4, 4, 0.1),
    single=_roots(_SINGLE, 4, 4, 0.1),
    derivation="Derived: the fourth power is a normal number, and a sum of 1e4 of them is finite.",
    outside="not diagnosed: the curvature and the error are NaN",
)

LOSS_TERMS = Limits(
    "term of the loss or of the gradient of a trajectory",
    double=Range(_DOUBLE.tiny / _DOUBLE.eps**2, _DOUBLE.max * _DOUBLE.eps),
    single=Range(_SINGLE.tiny / _SINGLE.eps**2, _SINGLE.max * _SINGLE.eps),
    derivation="Derived: squared relative rounding errors of a term are normal numbers, and sums "
    "of up to 1 / eps terms are finite.",
    outside="refused; a trajectory that leaves the range ends as OUT_OF_RANGE",
)

BOUND_SIZES = Limits(
    "proved bound, as a number that is rounded outward",
    double=Range(1e-290, _DOUBLE.max),
    single=None,
    derivation="Derived: relative rounding errors are normal numbers: eps 1e-290 > 2^-1022.",
    outside="a lower bound is 0 instead, an upper bound is raised by the low end",
)

ALL_RANGES = {name: value for name, value in list(globals().items()) if isinstance(value, Limits)}
"""The ranges by name."""
