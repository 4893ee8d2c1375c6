"""The arrays that `recover` is given, as checked tensors of one batch shape."""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.arrays import (
    Array,
    converted_tensor,
    require_batch,
    require_factor,
    require_shape,
    unified,
)
from posquad.core.errors import DomainError, ShapeError


def admitted_start(start: Array, X: Tensor, y: Tensor, rank: int | None) -> Tensor:
    """Return a start `[..., d, k]` of the batch of X, as checked tensors."""
    U = converted_tensor("start", start).to(y)
    require_factor("start", U)
    require_shape("start", U, (X.shape[-1], U.shape[-1]), "(..., d, k)")
    if require_batch(X=X.shape[:-2], start=U.shape[:-2]) != X.shape[:-2]:
        expected = f"a batch that broadcasts to that of X, {tuple(X.shape[:-2])}"
        raise ShapeError("start", expected=expected, got=f"batch {tuple(U.shape[:-2])}")
    if rank is not None and U.shape[-1] > rank:
        expected = f"at most rank = {rank} columns"
        raise DomainError("start", expected=expected, got=f"{U.shape[-1]}")
    return U.expand(*X.shape[:-2], *U.shape[-2:])


def require_nonnegative_weights(w: Tensor) -> None:
    """Refuse weights of which one is negative."""
    if bool((w < 0).any()):
        raise _bad_weights(f"least {float(w.min()):.3g}")


def require_positive_weight(largest: Tensor) -> None:
    """Refuse weights that are all zero; `largest[...]` is the largest of each problem."""
    if not bool((largest > 0).all()):
        raise _bad_weights("only zeros")


def _summable(w: Tensor) -> Tensor:
    """Return weights whose sums and products stay in range; a power of two changes no digit.

    >>> _summable(torch.tensor([1e308, 1e308], dtype=torch.float64)).sum().item() < 1e200
    True
    """
    largest = w.amax(-1, keepdim=True)
    most = torch.finfo(w.dtype).max ** 0.5
    unit = torch.where(largest > most, largest.log2().floor().exp2(), 1.0)
    return w / unit if bool((unit != 1).any()) else w


def _bad_weights(got: str) -> DomainError:
    return DomainError("weights", expected="nonnegative weights, not all zero", got=got)


def admitted_arrays(
    X: Array, y: Array | None, weights: Array | None, precision: str, most: float
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return checked tensors of one batch shape, and whether any of them was float32.

    Float32 inputs of one problem with more than `most` entries stay float32.
    """
    if precision not in ("float64", "input"):
        raise DomainError("precision", expected="'float64' or 'input'", got=repr(precision))
    if y is None:
        raise DomainError("y", expected="responses, one per row of X", got="None")
    given = {"X": converted_tensor("X", X), "y": converted_tensor("y", y)}
    if weights is not None:
        given["weights"] = converted_tensor("weights", weights)
    narrow = any(t.dtype == torch.float32 for t in given.values())
    wide, inputs = precision == "float64", given["X"]
    one = inputs.ndim == 2 and all(t.ndim == 1 for name, t in given.items() if name != "X")
    kept = wide and one and inputs.numel() > most
    if kept:
        given["X"] = inputs[:0]
    if wide:
        given = {name: tensor.to(torch.float64) for name, tensor in given.items()}
    first, responses, *rest = unified(**given)
    inputs = inputs if kept else first
    if inputs.ndim < 2 or 0 in inputs.shape[-2:]:
        got = f"shape {tuple(inputs.shape)}"
        raise ShapeError("X", expected="shape (..., n, d) with n, d >= 1", got=got)
    n = inputs.shape[-2]
    require_shape("y", responses, (n,), "(..., n), one response per row of X")
    shapes = {"X": inputs.shape[:-2], "y": responses.shape[:-1]}
    if rest:
        require_shape("weights", rest[0], (n,), "(..., n), one weight per row of X")
        shapes["weights"] = rest[0].shape[:-1]
        require_nonnegative_weights(rest[0])
        require_positive_weight(rest[0].amax(-1))
        rest[0] = _summable(rest[0])
    batch = require_batch(**shapes)
    w = rest[0] if rest else responses.new_ones(n)
    return (
        inputs.detach().expand(*batch, *inputs.shape[-2:]),
        responses.detach().expand(*batch, n),
        w.detach().expand(*batch, n),
        narrow,
    )
