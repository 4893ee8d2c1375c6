"""Quadratic measurements by the rows of a source, written once for every kind of source.

Every kernel is a loop over the blocks of the source; a sum over rows goes through `Rows.total`.
Vectors of one number per row are kept, as the responses are. Matrices of several numbers per row
are kept up to `KEPT_BYTES` and otherwise computed again from the block at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from posquad.core.errors import ShapeError
from posquad.core.linalg import symmetric_part
from posquad.core.symmetric import (
    reduced_system,
    solve_reduced,
    symmetric_gram,
    symmetric_system,
)
from posquad.problems.fused import fused_sweep
from posquad.problems.measurements import RankOne
from posquad.problems.products import adjoint_product, tall_product, weighted_form_product
from posquad.problems.rows.source import DerivedRows, Rows

KEPT_BYTES = 2**28  # of a matrix of several numbers per row that is kept between passes
_SYSTEM_ENTRIES = 2**21  # entries of a system of linear equations that are formed at a time
_CACHED_BYTES = 2**21  # of the rows that stay in cache between two products with them


class RankOneRows(RankOne):
    """Measurements `A_i = x_i x_i'` by the rows of a source; `n` counts the rows of everyone.

    Made by `RankOne(source)`. Vectors `[..., n]` hold the rows of this process. `X` reads all rows
    into memory, and is meant for small problems.
    """

    dtype: torch.dtype  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, X: Rows) -> None:
        self.source = source = X
        self.n, self.d = source.n, source.d
        self.batch_shape = torch.Size()
        self.dtype, self.device = source.dtype, source.device

    @property
    def held(self) -> int:
        return self.source.held

    def total(self, value: Tensor) -> Tensor:
        return self.source.total(value)

    def lower_median(self, values: Tensor) -> Tensor:
        if not self.source.is_shared:
            return super().lower_median(values)
        return _shared_median(self.source, values)

    @property
    def X(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All rows, read into memory."""
        return self.source.read_all()

    def double(self) -> RankOne:
        return RankOneRows(self.source.to(torch.float64))

    def single(self) -> RankOne:
        return RankOneRows(self.source.to(torch.float32))

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self.source.blocks():
            yield from self.split(rows, block)

    def split(self, rows: slice, block: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the parts of a block of the source that stay in cache between two products."""
        step = max(64, _CACHED_BYTES // (self.d * self.dtype.itemsize))
        if self.source.device.type != "cpu":  # no cache holds a block there, and launches cost
            step = self.held + 1
        recorded = torch.is_grad_enabled()  # what a gradient needs must outlive its block
        for start in range(0, max(1, len(block)), step):
            stop = min(start + step, len(block))
            part = block[start:stop].clone() if recorded else block[start:stop]
            yield slice(rows.start + start, rows.start + stop), part

    def _kept(self, per_row: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what a function of a block gives for all rows, along the dimension of rows."""
        parts = [(rows, per_row(block)) for rows, block in self._blocks()]
        return torch.cat([part for _, part in parts], dim=-1)

    def _summed(self, term: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Return the sum of small tensors over all blocks, and over everyone who holds rows."""
        value: Tensor | None = None
        for rows, block in self._blocks():
            part = term(rows, block)
            value = part if value is None else value + part
        assert value is not None, "a source has at least one row"
        return self.total(value)

    def apply_kernel(self, Q: Tensor) -> Tensor:
        return self._kept(lambda block: ((block @ Q) * block).sum(-1))

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        return symmetric_part(
            self._summed(lambda rows, block: block.mT @ (z[..., rows, None] * block))
        )

    def apply_factor_kernel(self, U: Tensor) -> Tensor:
        return self._kept(lambda block: tall_product(block, U).square().sum(-1))

    def apply_tangent(self, U: Tensor, Delta: Tensor) -> Tensor:
        return self._kept(
            lambda block: 2 * (tall_product(block, U) * tall_product(block, Delta)).sum(-1)
        )

    def adjoint_factor_kernel(self, z: Tensor, U: Tensor) -> Tensor:
        return self._summed(
            lambda rows, block: adjoint_product(block, z[..., rows, None] * tall_product(block, U))
        )

    def gradient_sweep(self, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        residuals: list[Tensor] = []

        def term(rows: slice, block: Tensor) -> Tensor:
            fused = fused_sweep(block, U, y[..., rows])
            if fused is not None:
                residuals.append(fused[0])
                return fused[1]
            Z = tall_product(block, U)
            residuals.append(Z.square().sum(-1) - y[..., rows])
            return adjoint_product(block, residuals[-1][..., None] * Z)

        gradient = self._summed(term)
        return torch.cat(residuals, dim=-1), gradient

    def linearize(self, U: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        numbers = U[..., 0, :].numel() * self.held
        Z = self.project(U) if numbers * U.element_size() <= KEPT_BYTES else None

        def product(Delta: Tensor) -> Tensor:
            def term(rows: slice, block: Tensor) -> Tensor:
                Zb = tall_product(block, U) if Z is None else Z[..., rows, :]
                Db, e = tall_product(block, Delta), Zb.square().sum(-1) - y[..., rows]
                a = 2 * (Zb * Db).sum(-1)
                return adjoint_product(block, a[..., None] * Zb + e[..., None] * Db)

            return self._summed(term)

        return product

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        unit = U.abs().amax((-2, -1), keepdim=True)
        unit = torch.where(unit > 0, unit, 1.0)
        largest, product = U.new_zeros(()), U.new_zeros(U.shape[:-2])
        for _, block in self._blocks():
            if len(block):
                largest = torch.maximum(largest, block.abs().amax())
                product = torch.maximum(product, (block @ (U / unit)).abs().amax((-2, -1)))
        largest, product = self.source.largest(largest), self.source.largest(product)
        log = product.log() + unit[..., 0, 0].log()
        return 2 * log, largest.log() + log

    def project(self, U: Tensor) -> Tensor:
        parts = [tall_product(block, U) for _, block in self._blocks()]
        return torch.cat(parts, dim=-2)

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        return self._summed(
            lambda rows, block: adjoint_product(block, w[..., rows, None] * Z[..., rows, :])
        )

    def gauss_newton_product(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        Zt = Z.mT.contiguous()  # [..., r, n]
        return lambda D: self.total(2 * weighted_form_product(self._blocks(), Zt, D))

    @cached_property
    def squared_lengths(self) -> Tensor:
        return self._kept(lambda block: torch.linalg.vector_norm(block, dim=-1).square())

    @cached_property
    def second_moments(self) -> Tensor:
        return self._summed(lambda _, block: block.mT @ block) / self.n

    @cached_property
    def fourth_moments(self) -> Tensor:
        return self._summed(lambda _, block: symmetric_gram(block))

    def normal_equations(self, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        width = self.d * Z.shape[-1]

        def term(rows: slice, block: Tensor) -> Tensor:
            # J in rows of dr numbers, with e as a last column: one product gives both sums.
            J = 2 * (block[:, :, None] * Z[..., rows, None, :]).flatten(-2)
            return J.mT @ torch.cat([J, e[..., rows, None]], dim=-1)

        both = self._summed(term)
        return both[..., :width], both[..., width]

    def absolute_moments(self) -> Tensor:
        return self._summed(lambda _, block: block.abs().mT @ block.abs())

    def largest_entry(self) -> Tensor:
        parts = [block.abs().amax() for _, block in self._blocks() if len(block)]
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return self.source.largest(torch.stack([zero, *parts]).amax())

    def gram(self, D: Tensor | None = None) -> Tensor:
        X = self._own("gram")
        return X @ X.mT if D is None else X @ D @ X.mT

    def symmetric_fit(self, y: Tensor) -> tuple[Tensor, Tensor]:
        D, Y = self.d * (self.d + 1) // 2, y.reshape(y.shape[:-1].numel(), self.held).T  # [n, m]
        step = max(D, _SYSTEM_ENTRIES // D)
        system = Y.new_zeros(0, D + Y.shape[1])  # equations of the rows so far, at most D
        for rows, block in self._blocks():
            for part, right in zip(block.split(step), Y[rows].split(step), strict=True):
                new = torch.cat([symmetric_system(part), right], -1)
                system = _reduced(torch.cat([system, new]), D)
        full = torch.cat([system, system.new_zeros(D - len(system), system.shape[1])])
        system = _reduced(torch.cat(self.source.gathered(full)), D)
        right = system[:, D:].T.reshape(*y.shape[:-1], D)
        return solve_reduced(system[:, :D], right, self.d)

    def transformed(self, T: Tensor) -> RankOne:
        return RankOneRows(_Transformed(self.source, T))

    def normalized(self) -> RankOne:
        return RankOneRows(_Transformed(self.source, None))

    def select(self, index: Tensor) -> RankOne:
        raise ShapeError("index", expected="a batch of operators", got="one source of rows")

    def _own(self, what: str) -> Tensor:
        if self.source.is_shared:
            expected = "all rows in one process"
            raise ShapeError(what, expected=expected, got=f"{self.held} of {self.n}")
        return self.X


def _reduced(system: Tensor, D: int) -> Tensor:
    """Return at most D equations `[D, D + m]` of the same least squares problem."""
    return torch.cat(reduced_system(system[:, :D], system[:, D:]), -1)


def _shared_median(source: Rows, values: Tensor) -> Tensor:
    """Return the lower median of `values[n]` by counting: no process needs those of the others."""
    # Floating point numbers are in the order of their bits as integers, negative ones reversed.
    whole = torch.int64 if values.dtype == torch.float64 else torch.int32
    lowest = torch.iinfo(whole).min
    ordered = values.view(whole).long()
    ordered = torch.where(ordered < 0, lowest - ordered, ordered)
    low, high = lowest, -lowest - 1
    while low < high:
        middle = (low + high) // 2
        below = int(source.total((ordered <= middle).sum()))
        low, high = (low, middle) if 2 * below >= source.n else (middle + 1, high)
    bits = torch.tensor(low if low >= 0 else lowest - low, dtype=whole, device=values.device)
    return bits.view(values.dtype)


class _Transformed(DerivedRows):
    """Rows `T'x_i`; without T, rows of length one."""

    def __init__(self, source: Rows, T: Tensor | None) -> None:
        super().__init__(source)
        self.T = T
        self.d = source.d if T is None else T.shape[-1]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self.source.blocks():
            if self.T is not None:
                yield rows, block @ self.T
            else:
                lengths = torch.linalg.vector_norm(block, dim=-1, keepdim=True)
                yield rows, block / torch.where(lengths > 0, lengths, 1.0)
