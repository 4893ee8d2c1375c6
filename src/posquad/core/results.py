"""Base class of results: they hold arrays, compare by identity and have a short `repr`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor


class Result:
    """Base of the frozen result classes (`eq=False, repr=False`): `repr` has one line per field."""

    def __repr__(self) -> str:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        lines = [f"    {name}={self._shown(name)}," for name in names]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _shown(self, name: str) -> str:
        """Return a field as `repr` shows it."""
        return _short(getattr(self, name))


def _short(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray) and value.ndim > 0:
        kind = "tensor" if isinstance(value, Tensor) else "array"
        few = f" {value.tolist()}" if value.ndim == 1 and len(value) <= 6 else ""
        return f"<{kind} {tuple(value.shape)} {value.dtype}{few}>"
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.item()}"
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else repr(value)[:200]
