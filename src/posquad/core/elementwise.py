"""Elementwise arithmetic for the explicit bounds: numbers or arrays of either kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from posquad.core.arrays import require_batch, tensors
from posquad.core.errors import DomainError


def exponential(exponent: Any) -> Any:
    """`exp` of a number, an array or a tensor."""
    return exponent.exp() if isinstance(exponent, Tensor) else np.exp(exponent)


def nonnegative(**named: Any) -> list[Any]:
    """Numbers or arrays without negative entries, in double precision and in their own kind."""
    checked = tensors(**named)
    for name, value in zip(named, checked, strict=True):
        if bool((value < 0).any()):
            raise DomainError(name, expected="numbers >= 0", got=f"{float(value.min()):.6g}")
    require_batch(**{name: value.shape for name, value in zip(named, checked, strict=True)})
    as_torch = any(isinstance(value, Tensor) for value in named.values())
    return [value if as_torch else value.numpy() for value in checked]
