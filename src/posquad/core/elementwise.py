"""Elementwise arithmetic on numbers, NumPy arrays or tensors, for the explicit bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from posquad.core.arrays import require_batch, tensors
from posquad.core.errors import DomainError


def exponential(exponent: Any) -> Any:
    """`exp` of a number, an array or a tensor."""
    return exponent.exp() if isinstance(exponent, Tensor) else np.exp(exponent)


def nonnegative(**named: Any) -> list[Any]:
    """Require entries >= 0 and shapes that broadcast; return tensors if any argument is one."""
    checked = tensors(**named)
    for name, value in zip(named, checked, strict=True):
        if bool((value < 0).any()):
            raise DomainError(name, expected="numbers >= 0", got=f"{float(value.min()):.6g}")
    require_batch(**{name: value.shape for name, value in zip(named, checked, strict=True)})
    as_torch = any(isinstance(value, Tensor) for value in named.values())
    return [value if as_torch else value.numpy() for value in checked]


def largest(values: Any) -> float:
    """Largest entry of an array or tensor; 0 if it is empty."""
    return float(values.max()) if math.prod(values.shape) else 0.0
