"""The base class of the groups of constants of `recover`."""

from __future__ import annotations

from dataclasses import fields

from posquad.core.arrays import positive_integer, positive_number


class Constants:
    """A group of constants: counts and sizes are integers from 0, all others positive numbers."""

    def __post_init__(self) -> None:
        for item in fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, item.name)
            if item.type == "int":
                positive_integer(item.name, value, zero=True)
            else:
                positive_number(item.name, value)
