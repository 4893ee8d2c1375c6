"""Base class of results: they hold arrays, compare by identity and have a short `repr`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor


class Result:
    """Base of the frozen result classes (`eq=False, repr=False`): `repr` has one line per field."""

    def __repr__(self) -> str:
        lines = [f"    {name}={shown}," for name, shown in self._shown_fields()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _shown_fields(self) -> list[tuple[str, str]]:
        """Return what `repr` shows: names, and values as short words."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return [(name, short_words(getattr(self, name))) for name in names]


def short_words(value: Any) -> str:
    """Return a value as `repr` of a result shows it.

    >>> short_words(np.zeros((2, 3)))
    '<array (2, 3) float64>'
    """
    if isinstance(value, Tensor | np.ndarray) and value.ndim > 0:
        kind = "tensor" if isinstance(value, Tensor) else "array"
        few = f" {value.tolist()}" if value.ndim == 1 and len(value) <= 6 else ""
        return f"<{kind} {tuple(value.shape)} {value.dtype}{few}>"
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.item()}"
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else repr(value)[:200]
