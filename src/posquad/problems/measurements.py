"""Linear maps A from symmetric matrices to measurements, `A(Q)_i = <A_i, Q>`.

`Measurements` is what they have in common; `posquad.problems.operator` describes its two layers of
methods, and what an operator must implement.

`RankOne` is the operator of quadratic networks, `A_i = x_i x_i'`. It never forms an object of size
n d^2 and, for a loss with its gradient or a Hessian product, reads X once: rows are processed in
blocks that stay in cache while both products with the block are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import Array, positive_integer, tensors
from posquad.core.errors import ShapeError
from posquad.core.linalg import symmetric_part
from posquad.core.symmetric import (
    svec,
    symmetric_fit,
    symmetric_gram,
    symmetric_matrix,
    symmetric_system,
)
from posquad.core.twofold import Twofold, from_doubles
from posquad.problems.dense import Dense as Dense
from posquad.problems.fused import fused_sweep
from posquad.problems.held import HeldMeasurements
from posquad.problems.operator import Measurements, factor_scale
from posquad.problems.products import (
    RunningSum,
    adjoint_product,
    column_products,
    has_symmetric_products,
    tall_product,
    weighted_column_products,
    weighted_form_product,
)
from posquad.problems.rows.source import Rows

__all__ = ["Dense", "GaussianPopulation", "Measurements", "RankOne"]

_BLOCK_BYTES = {"cpu": 2 * 2**20}
_BLOCK_BYTES_ELSEWHERE = 2**28  # accelerators work best with few large products
_TERM_ENTRIES = 2**17  # terms x_ij u_jk of a product in double-double arithmetic, formed at a time
_JACOBIAN_ENTRIES = 2**22  # entries of a block of rows of a Jacobian


class RankOne(HeldMeasurements):
    """Quadratic measurements `A_i = x_i x_i'`, `A(Q)_i = x_i'Q x_i`.

    `eq:gaussian-measurement-operator`. `X[..., n, d]` holds the inputs in rows.

    `apply_factor`, `adjoint_factor`, a loss with its gradient (see `LeastSquares`) and a Hessian
    product each read X once; a Hessian product also needs XU at the point, which is one more
    pass. `apply_factor` makes one product of n d r multiplications and additions, the others two.
    Memory beyond X is one block of rows and O(nr + dr); `apply` and `adjoint` also hold the d x d
    matrix that they take or return.

    X may also be a source of rows (`posquad.problems.rows`): then every kernel is a pass over it.

    `recover` also uses what only rows have: `squared_lengths`, `column_sizes`, `largest_entry`,
    `second_moments` and `gram`, the inner products of all rows, which is n x n and is asked for
    where such systems are affordable; `project_precisely` in double-double arithmetic, and
    `product_sizes` for the rounding of XU; `single`, the operator in single precision.

    >>> RankOne(np.array([[1.0, 2.0], [0.0, 1.0]])).apply(np.diag([1.0, 10.0]))
    array([41., 10.])
    """

    own_dimensions = 1
    bounded = True

    def __new__(cls, *given: Any, **named: Any) -> Any:
        if cls is RankOne and any(isinstance(X, Rows) for X in (*given, *named.values())):
            from posquad.problems.rows.operator import RankOneRows  # a subclass of this one

            return object.__new__(RankOneRows)
        return object.__new__(cls)

    def __init__(self, X: Array | Rows) -> None:
        assert not isinstance(X, Rows), "RankOneRows is made for a source"
        (self.X,) = tensors(X=X)
        if self.X.ndim < 2 or 0 in self.X.shape[-2:]:
            raise ShapeError(
                "X", expected="shape (..., n, d) with n, d >= 1", got=f"shape {tuple(self.X.shape)}"
            )
        self._set_shape()

    @staticmethod
    def of_checked(X: Tensor) -> RankOne:
        """The operator of a tensor that is known to be valid, which is not checked again."""
        operator = object.__new__(RankOne)
        operator.X = X
        operator._set_shape()
        return operator

    def _set_shape(self) -> None:
        self.n, self.d = self.X.shape[-2:]
        self.batch_shape = self.X.shape[:-2]
        self.dtype, self.device = self.X.dtype, self.X.device

    @property
    def data(self) -> Tensor:
        return self.X

    def holding(self, data: Tensor) -> RankOne:
        return RankOne.of_checked(data)

    def double(self) -> RankOne:
        return RankOne(self.X.double())

    def single(self) -> RankOne:
        """The same operator with its data in single precision, which are copied once."""
        return self._single

    @cached_property
    def _single(self) -> RankOne:
        return RankOne.of_checked(self.X.float())

    @property
    def single_entries(self) -> int:
        """Entries of the copy that `single` makes of X."""
        return self.n * self.d

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Row blocks of X that are small enough to stay in cache between two uses."""
        row_bytes = self.d * self.X.element_size() * max(1, math.prod(self.batch_shape))
        budget = _BLOCK_BYTES.get(self.X.device.type, _BLOCK_BYTES_ELSEWHERE)
        rows = max(64, budget // row_bytes)
        if rows >= self.n:
            yield slice(0, self.n), self.X
            return
        for start in range(0, self.n, rows):
            block = slice(start, min(start + rows, self.n))
            yield block, self.X[..., block, :]

    def _product_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Row blocks for products with few columns, which form nothing of the size of a block.

        On an accelerator, one block: its cache is small and every product costs a launch.
        """
        return self._blocks() if self.X.device.type in _BLOCK_BYTES else self._parts()

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Row blocks for what uses each of them once: in memory, all rows."""
        yield slice(0, self.n), self.X

    def _kept(
        self,
        of_rows: Callable[[Tensor], Tensor],
        blocks: Iterable[tuple[slice, Tensor]],
        dim: int = -1,
    ) -> Tensor:
        """Return what a function of a block of rows gives for all rows, along this dimension."""
        values = [of_rows(Xb) for _, Xb in blocks]
        return values[0] if len(values) == 1 else torch.cat(values, dim=dim)

    def _summed(
        self, term: Callable[[slice, Tensor], Tensor], blocks: Iterable[tuple[slice, Tensor]]
    ) -> Tensor:
        """Return the sum of small tensors over all blocks, and over everyone who holds rows."""
        total = RunningSum()
        for rows, Xb in blocks:
            total.add(term(rows, Xb))
        return self.total(total.value)

    def _summed_products(self, scaled: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Return the sum of `Xb' scaled(rows, Xb)` over all blocks, and over everyone."""
        total = RunningSum()
        for rows, Xb in self._blocks():
            total.add_product(Xb.mT, scaled(rows, Xb))
        return self.total(total.value)

    def _keeps(self, numbers: int) -> bool:
        """Whether so many numbers per row are kept between two passes."""
        return True

    @property
    def _symmetric_rows(self) -> Tensor | None:
        """X, if half of a symmetric product with it is faster than the whole."""
        return self.X if has_symmetric_products(self.X) else None

    def apply_kernel(self, Q: Tensor) -> Tensor:
        return self._kept(lambda Xb: ((Xb @ Q) * Xb).sum(-1), self._blocks())

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        if z.ndim == 1 and not z.requires_grad and (X := self._symmetric_rows) is not None:
            return weighted_column_products(X, z)
        # The two triangles of the sum agree only up to rounding.
        return symmetric_part(self._summed_products(lambda rows, Xb: z[..., rows, None] * Xb))

    def apply_factor_kernel(self, U: Tensor) -> Tensor:
        return self._kept(lambda Xb: tall_product(Xb, U).square().sum(-1), self._parts())

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        unit, log_unit = factor_scale(U)
        largest, product = U.new_zeros(self.batch_shape), U.new_zeros(U.shape[:-2])
        for _, Xb in self._parts():
            if Xb.numel():
                low, high = torch.aminmax(Xb.flatten(-2), dim=-1)
                largest = torch.maximum(largest, torch.maximum(-low, high))
                product = torch.maximum(product, tall_product(Xb, U / unit).abs().amax((-2, -1)))
        largest, product = self.largest(largest), self.largest(product)
        product = product.log() + log_unit
        return 2 * product, largest.log() + product

    def apply_tangent(self, U: Tensor, Delta: Tensor) -> Tensor:
        return self._kept(
            lambda Xb: 2 * (tall_product(Xb, U) * tall_product(Xb, Delta)).sum(-1), self._parts()
        )

    # What a search keeps of U is XU. All but `gram` and `symmetric_fit`, which are for small
    # problems, are products with a block of rows, or sums over blocks of small matrices.

    def project(self, U: Tensor) -> Tensor:
        """`XU`, `[..., n, r]`, for `U[..., d, r]`; dimensions in front of those of X are starts."""
        return self._kept(lambda Xb: tall_product(Xb, U), self._parts(), -2)

    def forms(self, Z: Tensor) -> Tensor:
        return Z.square().sum(-1)

    def paired(self, Z: Tensor, W: Tensor) -> Tensor:
        return (Z * W).sum(-1)

    @property
    def matrices(self) -> Tensor:
        return self.X[..., :, None] * self.X[..., None, :]

    @cached_property
    def norms(self) -> Tensor:
        return self.squared_lengths

    @cached_property
    def squares(self) -> Tensor:
        return self.adjoint_kernel(self.squared_lengths)

    def jacobian(self, Z: Tensor) -> Tensor:
        return (2 * self.X[..., :, None] * Z[..., None, :]).flatten(-2)

    def jacobian_size(self, Z: Tensor) -> Tensor:
        return (self.squared_lengths * Z.square().sum(-1)).sum(-1)

    def dual_system(self, Z: Tensor) -> Tensor:
        return (4 * self.gram()) * (Z @ Z.mT)

    @cached_property
    def system(self) -> Tensor:
        return symmetric_system(self.X)

    def inner_products(self, D: Tensor | None = None) -> Tensor:
        return self.gram(D).square()

    def project_precisely(self, U: Tensor) -> Twofold:
        """`XU`, `[..., n, r]`, as if computed with twice the digits of `U[..., d, r]`."""
        parts = []
        for _, Xb in self._blocks():
            if U.dtype != torch.float64:
                parts.append(from_doubles(Xb.double() @ U.double()))
                continue
            rows = _TERM_ENTRIES // (max(1, math.prod(Xb.shape[:-2])) * U.shape[-2] * U.shape[-1])
            for part in Xb.split(max(1, rows), -2):
                terms = from_doubles(part[..., None]).times(U[..., None, :, :])
                parts.append(terms.sum(-2))
        return Twofold(*(torch.cat(column, -2) for column in zip(*parts, strict=True)))

    @cached_property
    def column_sizes(self) -> Tensor:
        """`max_i |x_ij|`, `[..., d]`."""
        if (shared := self.shared) is not None:
            return shared.column_sizes
        parts = [torch.maximum(Xb.amax(-2), -Xb.amin(-2)) for _, Xb in self._blocks()]
        return torch.stack(parts).amax(0)

    def product_sizes(self, U: Tensor) -> Tensor:
        """`(sum_j (x_ij u_jk)^2)^(1/2)`, `[..., n, r]`, for `U[..., d, r]`.

        Rounding of X, of U or of their product changes `XU` by about eps times these numbers. They
        exceed `|XU|` where the terms cancel.
        """
        if (shared := self.shared) is not None:
            return shared.product_sizes(U)
        unit, _ = factor_scale(U)
        squares, parts = (U / unit).square(), []
        for _, Xb in self._blocks():
            size = Xb.abs().amax((-2, -1), keepdim=True)
            size = torch.where(size > 0, size, 1.0)  # so that squares are in range
            parts.append(((Xb / size).square() @ squares).sqrt() * size)
        return torch.cat(parts, dim=-2) * unit

    def measured(self, U: Tensor, s: Tensor | None) -> tuple[Tensor, Tensor]:
        squares = _scaled(self.project(U), s).square()
        largest = self.column_sizes.to(U.dtype)[..., :, None] * U
        rows = squares if s is None else s.square()[..., None] * squares
        lengths = largest.square().sum(-2).sqrt()
        return squares.sum(-1), 2 * (rows.sum(-2).sqrt() * lengths).sum(-1)

    def scaled_rounding(self, U: Tensor, s: Tensor | None) -> Tensor:
        sizes = _scaled(self.product_sizes(U), s)
        return 2 * (_scaled(self.project(U), s).abs() * sizes).sum(-1)

    def precise_forms(self, U: Tensor, s: Tensor | None) -> Twofold:
        Z = self.project_precisely(U)
        Z = Z if s is None else Z.times(s.double()[..., None])
        return (Z * Z).sum(-1)

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        """`X' diag(w) Z`, `[..., d, r]`, for `w[..., n]` and `Z[..., n, r]`."""
        return self._summed(
            lambda rows, Xb: adjoint_product(Xb, w[..., rows, None] * Z[..., rows, :]),
            self._parts(),
        )

    def gauss_newton_product(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        """The map `D -> 2 X' diag(Z.XD) Z` of `[..., d, r]`, half of `J'J` at U, for `Z = XU`."""
        if self.batch_shape:
            return lambda D: 2 * self.weighted_adjoint((Z * self.project(D)).sum(-1), Z)
        Zt = Z.mT.contiguous()  # [..., r, n]
        return lambda D: self.total(2 * weighted_form_product(self._product_blocks(), Zt, D))

    @cached_property
    def squared_lengths(self) -> Tensor:
        """`||x_i||^2`, `[..., n]`."""
        if (shared := self.shared) is not None:
            return shared.squared_lengths.expand(self.X.shape[:-1])
        return self._kept(lambda Xb: torch.linalg.vector_norm(Xb, dim=-1).square(), self._blocks())

    @cached_property
    def second_moments(self) -> Tensor:
        """`X'X / n`, `[..., d, d]`."""
        if (X := self._symmetric_rows) is not None:
            return column_products(X) / self.n
        return self._summed_products(lambda _, Xb: Xb) / self.n

    @cached_property
    def fourth_moments(self) -> Tensor:
        """`sum_i svec(x_i x_i') svec(x_i x_i')'`, `[..., D, D]`, where D = d(d+1)/2."""
        if (shared := self.shared) is None:
            return self._summed(lambda _, Xb: symmetric_gram(Xb), self._parts())
        gram = symmetric_gram(shared.X)
        return gram.expand(*self.batch_shape, *gram.shape)

    def normal_equations(self, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """`J'J` and `J'e` for `Z = XU` and `e[..., n]`, where `(J Delta)_i = 2 x_i'Delta U'x_i`."""
        width = self.d * Z.shape[-1]
        step = max(1, _JACOBIAN_ENTRIES // (width * max(1, e.shape[:-1].numel())))
        matrix, right = RunningSum(), RunningSum()
        for rows, Xb in self._parts():
            own = Xb, Z[..., rows, :], e[..., rows, None]
            blocks: Iterable[tuple[Tensor, ...]] = [own]
            if Xb.shape[-2] > step:
                blocks = zip(*(t.split(step, -2) for t in own), strict=True)
            for block in blocks:
                square, product = _normal_block(*block)
                matrix.add(square)
                right.add(product)
        return self.total(matrix.value), self.total(right.value)

    def absolute_moments(self) -> Tensor:
        """`sum_i |A_i|`, `[..., d, d]`: zero where two coordinates share no row."""
        return self._summed(lambda _, Xb: Xb.abs().mT @ Xb.abs(), self._blocks())

    def largest_term(self) -> Tensor:
        """The largest entry of all A_i in absolute value, a scalar."""
        return self.largest_entry().square()

    def largest_entry(self) -> Tensor:
        """The largest `|X_ij|`, a scalar."""
        ends = [torch.aminmax(Xb) for _, Xb in self._parts() if Xb.numel()]
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        sizes = [torch.maximum(-low, high) for low, high in ends]
        return self.largest(torch.stack([zero, *sizes]).amax())

    def gram(self, D: Tensor | None = None) -> Tensor:
        """`X D X'`, `[..., n, n]`, for `D[..., d, d]`, by default the identity."""
        return self._inner_products if D is None else self.X @ D @ self.X.mT

    @cached_property
    def _inner_products(self) -> Tensor:
        return self.X @ self.X.mT

    def symmetric_fit(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The symmetric S of least `||A(S) - y||`, and whether the system determines it, `[...]`.

        Needs `n >= d(d+1)/2`, and forms the n x d(d+1)/2 matrix of the system.
        """
        return symmetric_fit(self.X, y)

    def transformed(self, T: Tensor) -> RankOne:
        """The operator with inputs `T'x_i`, for `T[..., d, k]`."""
        return RankOne.of_checked(self.X @ T)

    def weighted(self, s: Tensor) -> RankOne:
        """The operator with the matrices `s_i A_i`, for nonnegative `s[..., n]`."""
        return RankOne.of_checked(s.sqrt()[..., None] * self.X)

    def normalized(self) -> RankOne:
        """The operator with rows of length one; zero rows stay."""
        lengths = self.squared_lengths.sqrt()[..., None]
        return RankOne.of_checked(self.X / torch.where(lengths > 0, lengths, 1.0))

    def at_rows(self, index: Tensor) -> RankOne:
        """The operator of the rows at these indices, `[m]`, which ascend."""
        parts = []
        for block, Xb in self._blocks():
            inside = index[(index >= block.start) & (index < block.stop)]
            parts.append(Xb[..., inside - block.start, :])
        return RankOne.of_checked(torch.cat(parts, dim=-2))

    def adjoint_factor_kernel(self, z: Tensor, U: Tensor) -> Tensor:
        return self._summed(
            lambda rows, Xb: adjoint_product(Xb, z[..., rows, None] * tall_product(Xb, U)),
            self._product_blocks(),
        )

    def gradient_sweep(self, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        residuals: list[Tensor] = []

        def term(rows: slice, Xb: Tensor) -> Tensor:
            fused = fused_sweep(Xb, U, y[..., rows])
            if fused is not None:
                residuals.append(fused[0])
                return fused[1]
            Z = tall_product(Xb, U)  # [..., rows, r]
            residuals.append(Z.square().sum(-1) - y[..., rows])
            return adjoint_product(Xb, residuals[-1][..., None] * Z)

        gradient = self._summed(term, self._product_blocks())
        return torch.cat(residuals, dim=-1), gradient

    def linearize(self, U: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        # [..., n, r], reused by every product at this point
        Z = self.project(U) if self._keeps(U[..., 0, :].numel()) else None

        def product(Delta: Tensor) -> Tensor:
            def term(rows: slice, Xb: Tensor) -> Tensor:
                Zb = tall_product(Xb, U) if Z is None else Z[..., rows, :]
                Db, e = tall_product(Xb, Delta), Zb.square().sum(-1) - y[..., rows]
                a = 2 * (Zb * Db).sum(-1)
                return adjoint_product(Xb, a[..., None] * Zb + e[..., None] * Db)

            return self._summed(term, self._product_blocks())

        return product


def _scaled(Z: Tensor, s: Tensor | None) -> Tensor:
    return Z if s is None else s[..., None] * Z


def _normal_block(X: Tensor, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """`J'J` and `J'e` of a block of rows, with J in rows of dr numbers, and `e[..., rows, 1]`."""
    J = (2 * X[..., :, None] * Z[..., None, :]).flatten(-2)  # [..., rows, dr]
    return J.mT @ J, (J.mT @ e)[..., 0]


class GaussianPopulation(Measurements):
    """The Gaussian population operator `T(H) = 2H + tr(H) I`.

    T is that of Lemma 3.1 (`lem:gaussian-population-operator`). The distribution of x enters every
    loss only through T, so the population is represented by the `n = d(d+1)/2 + 1` measurements
    `A(H) = sqrt(n) (sqrt(2) svec(H), tr H)`, for which `A*A/n = T` exactly (svec stacks the
    diagonal and sqrt(2) times the upper triangle, an isometry).

    >>> GaussianPopulation(2).normal(np.diag([1.0, 2.0]))
    array([[5., 0.],
           [0., 7.]])
    """

    def __init__(self, d: int) -> None:
        self.d = positive_integer("d", d)
        self.n = self.d * (self.d + 1) // 2 + 1
        self.batch_shape = torch.Size()

    def apply_kernel(self, Q: Tensor) -> Tensor:
        traces = Q.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        return math.sqrt(self.n) * torch.cat([math.sqrt(2) * svec(Q), traces], dim=-1)

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        eye = torch.eye(self.d, dtype=z.dtype, device=z.device)
        matrix = math.sqrt(2) * symmetric_matrix(z[..., :-1], self.d)
        return math.sqrt(self.n) * (matrix + z[..., -1, None, None] * eye)

    def normal_kernel(self, H: Tensor) -> Tensor:
        eye = torch.eye(self.d, dtype=H.dtype, device=H.device)
        return 2 * H + H.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * eye
