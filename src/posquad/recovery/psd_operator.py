"""The recovered predictor Q as an operator, without forming a d x d matrix."""

from __future__ import annotations

from typing import Any, Generic

import torch

from posquad.core.arrays import A, Array, like, require_batch, tensors
from posquad.core.errors import ShapeError

__all__ = ["Predictor"]


class Predictor(Generic[A]):
    """The matrix `Q = UU'`, held as a factor `U[..., d, r]`; rotations of U do not change it.

    `Q @ V` and `Q.apply(X)` cost O(dr) per column or row; `Q.dense()` forms the matrix.

    >>> Q = Predictor(np.array([[1.0], [2.0]]))
    >>> Q.apply(np.array([[1.0, 1.0], [2.0, -1.0]])), Q.dense()
    (array([9., 0.]), array([[1., 2.],
           [2., 4.]]))
    """

    def __init__(self, U: A) -> None:
        self.U = U

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of Q, `(..., d, d)`."""
        return (*self.U.shape[:-1], self.U.shape[-2])

    def apply(self, X: Array) -> A:
        """Return the predictions `x_i'Q x_i`, `[..., n]`, for the rows of `X[..., n, d]`."""
        u, x = tensors(U=self.U, X=X)
        if x.ndim < 2 or x.shape[-1] != u.shape[-2]:
            expected = f"shape (..., n, {u.shape[-2]})"
            raise ShapeError("X", expected=expected, got=f"shape {tuple(x.shape)}")
        require_batch(Q=u.shape[:-2], X=x.shape[:-2])
        return like(self.U, (x @ u).square().sum(-1))

    def dense(self) -> A:
        """Return the matrix `[..., d, d]`, exactly symmetric."""
        (u,) = tensors(U=self.U)
        return like(self.U, u @ u.mT)

    def eigenvalues(self) -> A:
        """Return the r largest eigenvalues, `[..., r]`, descending; the others are zero."""
        (u,) = tensors(U=self.U)
        return like(self.U, torch.linalg.svdvals(u).square())

    def __matmul__(self, V: Array) -> A:
        u, v = tensors(U=self.U, V=V)
        column = v.ndim == 1
        d = u.shape[-2]
        if v.ndim == 0 or v.shape[0 if column else -2] != d:
            expected = f"shape ({d},) or (..., {d}, m)"
            raise ShapeError("V", expected=expected, got=f"shape {tuple(v.shape)}")
        require_batch(Q=u.shape[:-2], V=v.shape[:-2])
        product = u @ (u.mT @ (v[:, None] if column else v))
        return like(self.U, product[..., 0] if column else product)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return torch.as_tensor(self.dense()).cpu().numpy().astype(dtype or "float64")

    def __repr__(self) -> str:
        return f"Predictor(shape={self.shape}, rank<={self.U.shape[-1]})"
