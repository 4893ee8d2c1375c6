"""The size, rank and eigenvalues of a target predictor, on which the bounds of section 3 depend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from posquad.core.arrays import (
    Array,
    positive_integer,
    positive_number,
    require_factor,
    require_instance,
    tensors,
)
from posquad.core.errors import DomainError, DtypeError, ShapeError
from posquad.geometry.frames import frame

__all__ = ["Signal"]


@dataclass(frozen=True)
class Signal:
    """Dimension and nonzero eigenvalues of a target `Q* = U* U*'` (`eq:true-psd-predictor`).

    >>> signal = Signal.from_eigenvalues(10, [1.0, 0.5])
    >>> signal.r, signal.lambda_r
    (2, 0.5)
    """

    d: int
    eigenvalues: tuple[float, ...]  # nonzero ones, descending

    def __post_init__(self) -> None:
        d = positive_integer("d", self.d)
        if not isinstance(self.eigenvalues, tuple):
            got = type(self.eigenvalues).__name__
            raise DtypeError(
                "eigenvalues", expected="a tuple; see Signal.from_eigenvalues", got=got
            )
        count = len(self.eigenvalues)
        if not 1 <= count <= d:
            raise ShapeError("eigenvalues", expected=f"1 to d = {d} values", got=f"{count}")
        for value in self.eigenvalues:
            positive_number("eigenvalues", value)
        if list(self.eigenvalues) != sorted(self.eigenvalues, reverse=True):
            got = f"{self.eigenvalues}; Signal.from_eigenvalues sorts"
            raise DomainError("eigenvalues", expected="values in descending order", got=got)

    @classmethod
    def from_eigenvalues(cls, d: int, eigenvalues: Sequence[float] | Array) -> Signal:
        """Signal with the given nonzero eigenvalues of Q*, in any order."""
        (values,) = tensors(eigenvalues=cast(Array, eigenvalues))
        if values.ndim != 1:
            got = f"shape {tuple(values.shape)}"
            raise ShapeError("eigenvalues", expected="shape (r,)", got=got)
        return cls(d, tuple(values.sort(descending=True).values.tolist()))

    @classmethod
    def from_factor(cls, U_star: Array) -> Signal:
        """Signal of a full-rank factor `U_star[d, r]`."""
        (u,) = tensors(U_star=U_star)
        require_factor("U_star", u)
        if u.ndim != 2:
            raise ShapeError("U_star", expected="one factor (d, r)", got=f"shape {tuple(u.shape)}")
        return cls(u.shape[0], tuple(frame("U_star", u).s.square().tolist()))

    @property
    def r(self) -> int:
        return len(self.eigenvalues)

    @property
    def lambda_1(self) -> float:
        return self.eigenvalues[0]

    @property
    def lambda_r(self) -> float:
        return self.eigenvalues[-1]

    @property
    def frobenius(self) -> float:
        """`||Q*||_F`."""
        return math.hypot(*self.eigenvalues)


P = ParamSpec("P")
R = TypeVar("R")


def requires_signal(
    function: Callable[Concatenate[Signal, P], R],
) -> Callable[Concatenate[Signal, P], R]:
    """Check that the first argument is a `Signal`, not a factor or its eigenvalues."""

    @wraps(function)
    def checked(signal: Signal, *args: P.args, **kwargs: P.kwargs) -> R:
        expected = "a Signal: Signal.from_factor(U) or Signal.from_eigenvalues(d, values)"
        require_instance("signal", signal, Signal, expected)
        return function(signal, *args, **kwargs)

    return checked
