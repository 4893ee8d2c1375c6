"""Measurements by arbitrary symmetric matrices, stored in full."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from posquad.core.arrays import Array, require_symmetric, tensors
from posquad.core.errors import ShapeError
from posquad.core.symmetric import svec
from posquad.problems.held import HeldMeasurements


class Dense(HeldMeasurements):
    """Measurements by arbitrary symmetric matrices `A[..., n, d, d]`, stored in full.

    >>> Dense(np.array([[[1.0, 0.0], [0.0, 2.0]]])).apply(np.eye(2))
    array([3.])
    """

    own_dimensions = 2

    def __init__(self, A: Array) -> None:
        (self.A,) = tensors(A=A)
        if self.A.ndim < 3 or 0 in self.A.shape[-3:]:
            raise ShapeError(
                "A",
                expected="shape (..., n, d, d) with n, d >= 1",
                got=f"shape {tuple(self.A.shape)}",
            )
        require_symmetric("A", self.A)
        self._set_shape()

    @staticmethod
    def of_checked(A: Tensor) -> Dense:
        """The operator of a tensor that is known to be valid, which is not checked again."""
        operator = object.__new__(Dense)
        operator.A = A
        operator._set_shape()
        return operator

    def _set_shape(self) -> None:
        self.n, self.d = self.A.shape[-3:-1]
        self.batch_shape = self.A.shape[:-3]
        self.dtype, self.device = self.A.dtype, self.A.device

    @property
    def data(self) -> Tensor:
        return self.A

    def holding(self, data: Tensor) -> Dense:
        return Dense.of_checked(data)

    def double(self) -> Dense:
        return Dense.of_checked(self.A.double())

    # Without broadcasting a plain product is a third as expensive for small matrices.

    def apply_kernel(self, Q: Tensor) -> Tensor:
        if Q.shape[:-2] == self.batch_shape:
            return (self.A.flatten(-2) @ Q.flatten(-2)[..., None])[..., 0]
        return torch.einsum("...iab,...ab->...i", self.A, Q)

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        if z.shape[:-1] == self.batch_shape:
            return (z[..., None, :] @ self.A.flatten(-2)).view(*z.shape[:-1], self.d, self.d)
        return torch.einsum("...i,...iab->...ab", z, self.A)

    @property
    def matrices(self) -> Tensor:
        return self.A

    @cached_property
    def system(self) -> Tensor:
        one = self.shared
        if one is None:
            return svec(self.A)
        system = svec(one.A)
        return system.expand(*self.batch_shape, *system.shape)

    def jacobian(self, Z: Tensor) -> Tensor:
        # One product for all starts: A_i U for many small U is slow one by one.
        rows, r = self.A.flatten(-3, -2), Z.shape[-1]  # [..., nd, d]
        if self.batch_shape:
            return (2 * (rows @ Z)).reshape(*Z.shape[:-2], self.n, self.d * r)
        columns = Z.movedim(-2, 0).reshape(self.d, -1)
        products = (2 * (rows @ columns)).reshape(self.n, self.d, *Z.shape[:-2], r)
        order = (*range(2, Z.ndim), 0, 1, Z.ndim)
        return products.permute(order).reshape(*Z.shape[:-2], self.n, self.d * r)

    def transformed(self, T: Tensor) -> Dense:
        """The operator with the matrices `T'A_i T`, for `T[..., d, k]`."""
        turned = T.mT[..., None, :, :] @ self.A @ T[..., None, :, :]
        return Dense.of_checked((turned + turned.mT) / 2)

    def weighted(self, s: Tensor) -> Dense:
        """The operator with the matrices `s_i A_i`, for `s[..., n]`."""
        return Dense.of_checked(s[..., None, None] * self.A)

    def normalized(self) -> Dense:
        """The operator with matrices of norm one; zero ones stay."""
        return self.weighted(1 / torch.where(self.norms > 0, self.norms, 1.0))

    def absolute_moments(self) -> Tensor:
        """`sum_i |A_i|`, `[..., d, d]`: zero where no measurement joins two coordinates."""
        return self.A.abs().sum(-3)

    def largest_term(self) -> Tensor:
        """The largest entry of all A_i in absolute value, a scalar."""
        return self.A.abs().amax()
