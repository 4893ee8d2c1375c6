"""The one gate through which arrays enter and leave posquad.

`tensors` converts what a user passed into torch tensors of one floating dtype on one device
and refuses what cannot be computed with; `like` hands a result back in the user's kind.
The shape checks below it name the argument, what was expected and what came. Nothing here
repairs a value: integers are widened to float64 because that is exact, and that is all.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from posquad.errors import DomainError, DtypeError, NonFiniteError, ShapeError

Array = Tensor | np.ndarray
A = TypeVar("A", bound=Array)
"""Results come in the kind (torch or NumPy) of the first array argument."""

_FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def tensors(**named: Array) -> tuple[Tensor, ...]:
    """Convert the named arrays to finite tensors of one floating dtype on one device."""
    converted = {name: _as_tensor(name, value) for name, value in named.items()}
    floating = [t.dtype for t in converted.values() if t.dtype in _FLOATS]
    dtype = torch.float64 if not floating or torch.float64 in floating else torch.float32
    first_name, first = next(iter(converted.items()))
    for name, tensor in converted.items():
        if tensor.device != first.device:
            raise DtypeError(
                name, expected=f"the device of {first_name}, {first.device}", got=f"{tensor.device}"
            )
        if not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise NonFiniteError(
                name, expected="finite entries", got=f"{bad} of {tensor.numel()} not finite"
            )
    return tuple(tensor.to(dtype) for tensor in converted.values())


def like(model: A, value: Tensor) -> A:
    """Return `value` in the kind of `model`: a tensor for a tensor, else a NumPy array."""
    if isinstance(model, Tensor):
        return cast(A, value)
    return cast(A, value.detach().cpu().numpy())


def _as_tensor(name: str, value: Array) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise DtypeError(
                name,
                expected="a real numeric array",
                got=f"dtype {array.dtype} ({type(value).__name__})",
            )
        if array.dtype.kind in "iub":
            array = array.astype(np.float64)
        if array.dtype not in (np.float32, np.float64):
            raise DtypeError(name, expected="float64 or float32", got=f"dtype {array.dtype}")
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        with warnings.catch_warnings():
            # torch warns that a read-only array could be written through; we never write.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(array).reshape(np.shape(value))
    if tensor.dtype in _INTEGERS or tensor.dtype == torch.bool:
        tensor = tensor.to(torch.float64)
    if tensor.dtype not in _FLOATS:
        raise DtypeError(name, expected="float64 or float32", got=f"dtype {tensor.dtype}")
    return tensor


def require_factor(name: str, U: Tensor) -> None:
    """Require `U[..., d, r]` with `1 <= r <= d`."""
    if U.ndim < 2 or not 1 <= U.shape[-1] <= U.shape[-2]:
        raise ShapeError(name, expected="shape (..., d, r) with 1 <= r <= d", got=_shape(U))


def require_shape(name: str, tensor: Tensor, trailing: Sequence[int], meaning: str) -> None:
    """Require the last dimensions to be `trailing`; `meaning` says them in symbols."""
    k = len(trailing)
    if tensor.ndim < k or tuple(tensor.shape[tensor.ndim - k :]) != tuple(trailing):
        sizes = ", ".join(str(size) for size in trailing)
        raise ShapeError(
            name, expected=f"shape (..., {sizes}), that is {meaning}", got=_shape(tensor)
        )


def require_symmetric(name: str, M: Tensor) -> None:
    """Require `M[..., d, d]` symmetric to rounding, relative to its largest entry."""
    if M.ndim < 2 or M.shape[-1] != M.shape[-2]:
        raise ShapeError(name, expected="shape (..., d, d)", got=_shape(M))
    if M.numel() == 0:
        return
    skew = (M - M.mT).abs().amax(dim=(-2, -1))
    size = M.abs().amax(dim=(-2, -1))
    if bool((skew > 1e3 * torch.finfo(M.dtype).eps * size).any()):
        worst = float((skew / size.clamp_min(torch.finfo(M.dtype).tiny)).max())
        raise DomainError(
            name,
            expected="a symmetric matrix",
            got=f"relative asymmetry {worst:.2e}; pass (M + M.T) / 2 if that is what you mean",
        )


def require_batch(**named: tuple[Tensor, int]) -> torch.Size:
    """Require that the leading dimensions broadcast; each value is (tensor, trailing count)."""
    shapes = {name: t.shape[: t.ndim - k] for name, (t, k) in named.items()}
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        names = ", ".join(shapes)
        got = ", ".join(f"{name}: {tuple(shape)}" for name, shape in shapes.items())
        raise ShapeError(
            names, expected="leading batch dimensions that broadcast", got=got
        ) from None


def positive_number(name: str, value: float, *, zero: bool = False) -> float:
    """Return a finite positive (with `zero`, nonnegative) real number, or raise."""
    real = isinstance(value, numbers.Real) or (isinstance(value, Array) and value.ndim == 0)
    number = float(value) if real else math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        kind = "a finite number >= 0" if zero else "a finite number > 0"
        raise DomainError(name, expected=kind, got=repr(value))
    return number


def positive_integer(name: str, value: int, *, zero: bool = False) -> int:
    """Return a positive (with `zero`, nonnegative) integer, or raise."""
    low = 0 if zero else 1
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise DomainError(name, expected=f"an integer >= {low}", got=repr(value))
    return int(value)


def _shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}"
