"""Errors of posquad: each names the argument, what was expected, and what was passed.

Every error is a `PosquadError`, and also the built-in error a Python programmer would
expect (`ValueError` or `TypeError`), so either can be caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch  # the command line does not need torch for --version and --help

__all__ = [
    "DomainError",
    "DtypeError",
    "FiberError",
    "IdentifiabilityWarning",
    "InfeasibleError",
    "Interrupted",
    "MissingExtraError",
    "NonFiniteError",
    "PosquadError",
    "RankDeficientError",
    "RowError",
    "ShapeError",
    "TangencyError",
    "first_line",
]


class PosquadError(Exception):
    """Base class; the attributes `argument`, `expected` and `got` hold the parts of the message."""

    def __init__(self, argument: str, *, expected: str, got: str) -> None:
        super().__init__(f"{argument}: expected {expected}; got {got}")
        self.argument = argument
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only constructors cannot be pickled; process pools must be able to return errors.
        return _restore, (type(self), self.args, vars(self))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the best result so far as `result`.

    It is a `KeyboardInterrupt`, so the program ends unless it catches this error to use the result.
    """

    def __init__(self, result: Any) -> None:
        super().__init__("interrupted; the best result so far is in `.result`")
        self.result = result


class IdentifiabilityWarning(UserWarning):
    """The data do not determine the predictor that a fit returned."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class ShapeError(PosquadError, ValueError):
    """An array has the wrong number of dimensions or sizes that do not fit together."""


class DtypeError(PosquadError, TypeError):
    """An argument is not a real floating-point array, or is on another device."""


class NonFiniteError(PosquadError, ValueError):
    """An array holds NaN or an infinity."""


class DomainError(PosquadError, ValueError):
    """A value lies outside the set on which the function is defined."""


class RowError(DomainError):
    """A sample cannot be used: `row` is its place, from 0, and `found` what it holds.

    The message counts from 0, as Python does; commands name the line or row of the file.
    """

    def __init__(self, argument: str, *, expected: str, got: str, found: str, row: int) -> None:
        super().__init__(argument, expected=expected, got=got)
        self.found, self.row = found, row


class RankDeficientError(PosquadError, ValueError):
    """A factor does not have full column rank; `singular_values` shows by how much."""

    def __init__(
        self, argument: str, *, expected: str, got: str, singular_values: torch.Tensor
    ) -> None:
        super().__init__(argument, expected=expected, got=got)
        self.singular_values = singular_values


class FiberError(DomainError):
    """Two factors do not represent the same predictor; `distance` is their distance."""

    def __init__(self, argument: str, *, expected: str, got: str, distance: float) -> None:
        super().__init__(argument, expected=expected, got=got)
        self.distance = distance


class TangencyError(DomainError):
    """A matrix is not tangent, or not horizontal; `distance` is the relative distance."""

    def __init__(self, argument: str, *, expected: str, got: str, distance: float) -> None:
        super().__init__(argument, expected=expected, got=got)
        self.distance = distance


class MissingExtraError(PosquadError, ImportError):
    """A package of an optional extra is required but not installed."""


class InfeasibleError(PosquadError, ValueError):
    """A system `Bq = y` has no solution with every `q_a > 0`; the proof is attached.

    `farkas` is a vector z with `B'z >= 0` and `y'z <= 0`. If `y'z < 0`, no q >= 0 solves it; if
    `y'z = 0`, every solution has `q_a = 0` where `(B'z)_a > 0`: the coordinates `forced_zero`.
    """

    def __init__(
        self,
        argument: str,
        *,
        expected: str,
        got: str,
        farkas: torch.Tensor,
        forced_zero: tuple[int, ...] = (),
    ) -> None:
        super().__init__(argument, expected=expected, got=got)
        self.farkas = farkas
        self.forced_zero = forced_zero


def first_line(problem: BaseException) -> str:
    """First line of the message of an error; the name of its class if it has none.

    >>> first_line(ValueError("two\\nlines")), first_line(MemoryError())
    ('two', 'MemoryError')
    """
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def _restore(
    kind: type[PosquadError], args: tuple[Any, ...], state: dict[str, Any]
) -> PosquadError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
