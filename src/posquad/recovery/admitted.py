"""The arrays that `recover` is given, as checked tensors of one batch shape."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
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
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import Dense, Measurements, RankOne
from posquad.recovery.prepare import is_large

# Entries of the matrices up to which other measurements than rows are solved. Derived: 1 GB.
_MATRIX_ENTRIES = 2**27
# Calls between a warning and the caller of `recover`. A definition.
_STACK = 5


def admitted_start(start: Array, d: int, y: Tensor, rank: int | None) -> Tensor:
    """Return a start `[..., d, k]` of the batch of `y[..., n]`, as checked tensors."""
    U, batch = converted_tensor("start", start).to(y), y.shape[:-1]
    require_factor("start", U)
    require_shape("start", U, (d, U.shape[-1]), "(..., d, k)")
    if require_batch(X=batch, start=U.shape[:-2]) != batch:
        expected = f"a batch that broadcasts to that of X, {tuple(batch)}"
        raise ShapeError("start", expected=expected, got=f"batch {tuple(U.shape[:-2])}")
    if rank is not None and U.shape[-1] > rank:
        expected = f"at most rank = {rank} columns"
        raise DomainError("start", expected=expected, got=f"{U.shape[-1]}")
    return U.expand(*batch, *U.shape[-2:])


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


class Admitted(NamedTuple):
    """What `recover` is given, checked, in one batch shape."""

    operator: HeldMeasurements
    y: Tensor  # [..., n]
    weights: Tensor  # [..., n]
    is_narrow: bool  # whether any of them was float32
    model: Array  # what the arrays of the result are like

    @property
    def batch(self) -> torch.Size:
        return self.y.shape[:-1]

    def flattened(self) -> list[Admitted]:
        """Return the problems of the batch."""
        operator, n = self.operator, self.operator.n
        tail = operator.data.shape[len(operator.batch_shape) :]
        parts = (operator.data.reshape(-1, *tail), self.y.reshape(-1, n))
        each = zip(*parts, self.weights.reshape(-1, n), strict=True)
        return [self._replace(operator=operator.holding(a), y=y, weights=w) for a, y, w in each]


def admitted(
    X: Array | Measurements,
    y: Array | None,
    weights: Array | None,
    precision: str,
    *,
    widened: bool,
) -> Admitted:
    """Return checked measurements, responses and weights.

    Large float32 inputs of one problem stay float32, unless all are `widened`.
    """
    if precision not in ("float64", "input"):
        raise DomainError("precision", expected="'float64' or 'input'", got=repr(precision))
    name, data, kind = _data_of(X)
    per = "row of X" if kind is RankOne else "measurement"
    if y is None:
        raise DomainError("y", expected=f"responses, one per {per}", got="None")
    given = {name: converted_tensor(name, data), "y": converted_tensor("y", y)}
    if weights is not None:
        given["weights"] = converted_tensor("weights", weights)
    narrow = any(t.dtype == torch.float32 for t in given.values())
    wide, inputs = precision == "float64", given[name]
    one = inputs.ndim == 2 and all(t.ndim == 1 for key, t in given.items() if key != name)
    kept = wide and one and is_large(inputs) and not widened
    if kept:
        given[name] = inputs[:0]
    if wide:
        given = {key: tensor.to(torch.float64) for key, tensor in given.items()}
    first, responses, *rest = unified(**given)
    inputs = inputs if kept else first
    tail = kind.own_dimensions + 1
    if inputs.ndim < tail or 0 in inputs.shape[-tail:]:
        got = f"shape {tuple(inputs.shape)}"
        raise ShapeError(name, expected="shape (..., n, d) with n, d >= 1", got=got)
    if kind is RankOne:
        _warn_of_matrices(inputs)
    n, lead = inputs.shape[-tail], inputs.shape[:-tail]
    require_shape("y", responses, (n,), f"(..., n), one response per {per}")
    shapes = {name: lead, "y": responses.shape[:-1]}
    if rest:
        require_shape("weights", rest[0], (n,), f"(..., n), one weight per {per}")
        shapes["weights"] = rest[0].shape[:-1]
        require_nonnegative_weights(rest[0])
        require_positive_weight(rest[0].amax(-1))
        rest[0] = _summable(rest[0])
    batch = require_batch(**shapes)
    w = rest[0] if rest else responses.new_ones(n)
    inputs = inputs.detach().expand(*batch, *inputs.shape[-tail:])
    model = y if isinstance(X, Measurements) else X
    return Admitted(
        kind.of_checked(inputs),
        responses.detach().expand(*batch, n),
        w.detach().expand(*batch, n),
        narrow,
        model if hasattr(model, "shape") else np.asarray(model),
    )


def _data_of(X: Array | Measurements) -> tuple[str, Array, type[RankOne] | type[Dense]]:
    """Return the name and the numbers of what is given, and the operator that holds them."""
    if not isinstance(X, Measurements):
        return "X", X, RankOne
    if isinstance(X, RankOne):
        return "X", X.X, RankOne
    if isinstance(X, Dense):
        return "A", X.A, Dense
    entries = X.n * max(X.n, X.d**2) * X.batch_shape.numel()  # n x n to ask for the matrices
    if entries > _MATRIX_ENTRIES:
        expected = f"RankOne, Dense, or measurements of which n max(n, d^2) <= {_MATRIX_ENTRIES}"
        got = f"{type(X).__name__} with n = {X.n}, d = {X.d}"
        raise DomainError("X", expected=expected, got=got)
    return "A", X.matrices, Dense


def _warn_of_matrices(X: Tensor) -> None:
    """Warn of inputs `X[n, d, d]` that look like symmetric matrices, not like a batch."""
    if X.ndim == 3 and X.shape[-1] == X.shape[-2] > 1 and torch.equal(X, X.mT):
        told = (
            "X[n, d, d] with symmetric slices is taken as a batch of n problems with d rows each; "
            "for measurements <A_i, Q> by matrices A_i, pass posquad.Dense(A)"
        )
        warnings.warn(told, stacklevel=_STACK)
