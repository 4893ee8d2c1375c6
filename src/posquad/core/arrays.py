"""Conversion and validation of arrays, on the way into posquad and on the way out.

`tensors` converts the arrays that a user passed into torch tensors of one floating dtype on one
device and refuses invalid ones; `like` returns a result as the kind of array that the user passed.
Every check names the argument, what was expected and what was passed. Values are never repaired;
the only conversion is that integers are widened to float64, as in NumPy.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from posquad.core.errors import DomainError, DtypeError, NonFiniteError, ShapeError
from posquad.core.ranges import tiny

Array = Tensor | np.ndarray
A = TypeVar("A", bound=Array)
"""Results have the kind (torch or NumPy) of the first array argument."""

_FLOATS = (torch.float32, torch.float64)


def tensors(**named: Array) -> tuple[Tensor, ...]:
    """Convert the named arrays to finite tensors of one floating dtype on one device."""
    return unified(**{name: converted_tensor(name, value) for name, value in named.items()})


def converted_tensor(name: str, value: Array) -> Tensor:
    """Convert one array to a finite floating tensor, keeping its precision and its device."""
    tensor = floating_tensor(name, value)
    _require_finite(name, tensor)
    return tensor


def unified(**converted: Tensor) -> tuple[Tensor, ...]:
    """Bring converted tensors to the widest of their dtypes; refuse more than one device."""
    wide = any(t.dtype != torch.float32 for t in converted.values())
    first_name, first = next(iter(converted.items()))
    for name, tensor in converted.items():
        if tensor.device != first.device:
            raise DtypeError(
                name, expected=f"the device of {first_name}, {first.device}", got=f"{tensor.device}"
            )
    return tuple(t.to(torch.float64 if wide else torch.float32) for t in converted.values())


def like(model: A, value: Array) -> A:
    """Return `value` as the kind of array that `model` is: a tensor, or else a NumPy array.

    A NumPy value becomes a tensor on the device of `model`; a tensor stays where it is.
    """
    if isinstance(model, Tensor):
        if not isinstance(value, Tensor):
            return cast(A, torch.from_numpy(value).to(model.device))
        return cast(A, value)
    return cast(A, host(value) if isinstance(value, Tensor) else value)


def host(tensor: Tensor) -> np.ndarray:
    """Values of a tensor as a NumPy array, which shares the memory of a tensor on the CPU."""
    return tensor.numpy(force=True)  # without its gradient


def doubles(tensor: Tensor) -> np.ndarray:
    """Values of a tensor as a NumPy array in double precision."""
    return tensor.detach().double().cpu().numpy()


def dtype_of(value: Any) -> str:
    """Name of the dtype of an argument, for an error message."""
    return str(value.dtype if isinstance(value, Tensor) else np.asarray(value).dtype)


def floating_tensor(name: str, value: Array) -> Tensor:
    """Convert one array to a floating tensor, which may have NaN and infinities."""
    tensor = value if isinstance(value, Tensor) else _from_numpy(name, value)
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise DtypeError(
            name, expected="a dense tensor with data", got=f"{tensor.layout} on {tensor.device}"
        )
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.to(torch.float64)
    if tensor.dtype not in _FLOATS:
        raise DtypeError(name, expected="float64 or float32", got=f"dtype {tensor.dtype}")
    return tensor


def _from_numpy(name: str, value: Any) -> Tensor:
    if np.ma.is_masked(value):
        raise DtypeError(name, expected="an array without missing entries", got="a MaskedArray")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors with gradients
        got = f"{type(value).__name__} ({error})"
        raise DtypeError(name, expected="an array of numbers", got=got) from None
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype not in (np.float32, np.float64):
        got = f"dtype {array.dtype} ({type(value).__name__})"
        raise DtypeError(name, expected="float64 or float32", got=got)
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # torch warns that the tensor could be used to write to a read-only array; we never write.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _require_finite(name: str, tensor: Tensor) -> None:
    if tensor.numel() == 0:
        return
    once = tensor.detach()
    for k, step in enumerate(tensor.stride()):
        once = once if step else once.narrow(k, 0, 1)  # a view of one part is inspected once
    low, high = torch.aminmax(once)  # allocates nothing, and NaN propagates
    if not (math.isfinite(low.item()) and math.isfinite(high.item())):
        bad = int((~torch.isfinite(tensor)).sum())
        got = f"{bad} of {tensor.numel()} not finite"
        raise NonFiniteError(name, expected="finite entries", got=got)


def require_factor(name: str, U: Tensor) -> None:
    """Require `U[..., d, r]` with `1 <= r <= d`."""
    if U.ndim < 2 or not 1 <= U.shape[-1] <= U.shape[-2]:
        raise ShapeError(name, expected="shape (..., d, r) with 1 <= r <= d", got=_shape(U))


def require_shape(name: str, tensor: Tensor, trailing: Sequence[int], meaning: str) -> None:
    """Require the last dimensions to be `trailing`; `meaning` is the shape in symbols."""
    k = len(trailing)
    if tensor.ndim < k or tuple(tensor.shape[tensor.ndim - k :]) != tuple(trailing):
        sizes = ", ".join(str(size) for size in trailing)
        expected = f"shape (..., {sizes}), that is {meaning}"
        raise ShapeError(name, expected=expected, got=_shape(tensor))


def require_exactly(name: str, array: Array, shape: Sequence[int], meaning: str = "") -> None:
    """Require one array of exactly this shape; `meaning` says what it holds."""
    if tuple(array.shape) != tuple(shape):
        expected = f"shape {tuple(shape)}" + (f", {meaning}" if meaning else "")
        raise ShapeError(name, expected=expected, got=f"shape {tuple(array.shape)}")


def require_symmetric(name: str, M: Tensor) -> None:
    """Require `M[..., d, d]` to be symmetric up to rounding, relative to its largest entry."""
    if M.ndim < 2 or M.shape[-1] != M.shape[-2] or M.shape[-1] == 0:
        raise ShapeError(name, expected="shape (..., d, d) with d >= 1", got=_shape(M))
    if M.numel() == 0:
        return
    skew = (M - M.mT).detach().abs().amax(dim=(-2, -1))
    size = M.detach().abs().amax(dim=(-2, -1))
    if bool((skew > 1e3 * torch.finfo(M.dtype).eps * size).any()):
        worst = float((skew / size.clamp_min(tiny(M))).max())
        raise DomainError(
            name,
            expected="a symmetric matrix",
            got=f"relative asymmetry {worst:.2e}; to use the symmetric part, pass (M + M.T) / 2",
        )


def broadcast_shape(*shapes: torch.Size) -> torch.Size:
    """Common shape of tensors that broadcast; `ValueError` if they do not.

    `torch.broadcast_shapes` would import sympy at its first call, which takes most of a second.
    """
    if not any(shapes):
        return torch.Size()
    return torch.Size(np.broadcast_shapes(*shapes))


def require_batch(**shapes: torch.Size) -> torch.Size:
    """Require that the named batch shapes broadcast together; return the common shape."""
    try:
        return broadcast_shape(*shapes.values())
    except ValueError:
        expected = "leading batch dimensions that broadcast"
        batched = {name: tuple(shape) for name, shape in shapes.items() if shape}
        got = ", ".join(f"{name}: {shape}" for name, shape in batched.items())
        raise ShapeError(", ".join(batched), expected=expected, got=got) from None


def positive_number(name: str, value: float, *, zero: bool = False) -> float:
    """Return a finite positive (with `zero`, nonnegative) real number, or raise."""
    number = _real(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        kind = "a finite number >= 0" if zero else "a finite number > 0"
        raise DomainError(name, expected=kind, got=repr(value))
    return number


def positive_numbers(name: str, value: float | Array, model: Tensor) -> Tensor:
    """Return one or more finite positive numbers as a tensor like `model`, or raise."""
    # Conversion to a narrower dtype may round a positive number to zero.
    values = converted_tensor(name, cast(Array, value)).to(model)
    if not bool(((values > 0) & torch.isfinite(values)).all()):
        low, high = float(values.detach().min()), float(values.detach().max())
        expected = f"numbers > 0 in the range of {values.dtype}"
        raise DomainError(name, expected=expected, got=f"values from {low:.6g} to {high:.6g}")
    return values


def positive_integer(name: str, value: int, *, zero: bool = False) -> int:
    """Return a positive (with `zero`, nonnegative) integer, or raise."""
    low = 0 if zero else 1
    if type(value) is int and value >= low:  # most calls, without the cost of abstract classes
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise DomainError(name, expected=f"an integer >= {low}", got=repr(value))
    return int(value)


def require_callable(name: str, value: Any, meaning: str) -> None:
    """Require a callable; `meaning` is its signature."""
    if not callable(value):
        raise DtypeError(name, expected=f"a callable {meaning}", got=type(value).__name__)


def require_instance(name: str, value: object, kind: type, expected: str) -> None:
    """Require an instance of a class; `expected` says how to make one."""
    if not isinstance(value, kind):
        raise DtypeError(name, expected=expected, got=type(value).__name__)


def _real(value: Any) -> float:
    """Value of a scalar of any library as a float; NaN for anything else."""
    if isinstance(value, Array) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}"
