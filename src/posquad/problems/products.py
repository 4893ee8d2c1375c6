"""Products of a tall matrix with few columns, and sums of products over blocks of its rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from posquad.core.arrays import broadcast_shape

_PADDED_ENTRIES = 2**18  # entries of a matrix from which rows of zeros pay
_DIRECT_ROWS = {torch.float32: 8, torch.float64: 3}  # most columns V for which BLAS is faster at MV
_DIRECT_WIDTH = {torch.float32: 256, torch.float64: 1}  # least width of M for which it is
_SYMMETRIC_ENTRIES = 2**20  # entries from which half of a symmetric product is worth NumPy's call
_SYMMETRIC_BLOCK = 2**18  # entries of rows with weights that are formed at a time


def tall_product(M: Tensor, V: Tensor) -> Tensor:
    """`M @ V`, computed as `(V'M')'`, which is faster for few columns, unless V is very narrow.

    In both cases the columns of the result are contiguous.
    """
    if M.ndim == 2:
        rows = V.mT.reshape(-1, V.shape[-2])
        if M.numel() >= _PADDED_ENTRIES and _is_direct(M, len(rows)):
            return _direct(M, rows).view(*V.shape[:-2], V.shape[-1], len(M)).mT
    return _few_rows(V.mT, M.mT).mT


def _is_direct(M: Tensor, columns: int) -> bool:
    """Whether a product with this number of columns is faster as `MV` than as `(V'M')'`."""
    narrow = 1 < columns <= _DIRECT_ROWS.get(M.dtype, 0)
    return narrow and M.device.type == "cpu" and M.shape[-1] >= _DIRECT_WIDTH[M.dtype]


def _direct(M: Tensor, rows: Tensor) -> Tensor:
    """`rows @ M'`, computed as `(M rows')'`; BLAS is slow for other layouts of the operands."""
    return (M @ rows.contiguous().mT).mT.contiguous()


def adjoint_product(M: Tensor, V: Tensor) -> Tensor:
    """`M'V`, computed as `(V'M)'`, which is faster for few columns."""
    return _few_rows(V.mT, M).mT.contiguous()  # optimizers flatten gradients with `view`


def _few_rows(R: Tensor, M: Tensor) -> Tensor:
    """`R @ M`; a batch of R with one M becomes one product, so that M is read once.

    BLAS works on groups of four rows, and others take up to twice as long. A large M is worth a
    copy of R with rows of zeros.
    """
    if M.ndim > 2:
        return R @ M
    rows = R.reshape(R.shape[:-1].numel(), R.shape[-1])
    count = len(rows)
    if M.numel() >= _PADDED_ENTRIES:
        rows = _with_full_groups(rows)
    return (rows @ M)[:count].reshape(*R.shape[:-1], M.shape[-1])


def _with_full_groups(rows: Tensor) -> Tensor:
    """The rows and as many rows of zeros as make full groups of four."""
    count = len(rows)
    if count <= 2 or count % 4 == 0:
        return rows
    return torch.nn.functional.pad(rows, (0, 0, 0, -count % 4))


def weighted_form_product(blocks: Iterable[tuple[slice, Tensor]], Zt: Tensor, D: Tensor) -> Tensor:
    """`M' diag(Z.MD) Z`, `[..., d, r]`, for one M in blocks of rows and `Zt = Z'`, `[..., r, n]`.

    M is read once, and what belongs to a block stays in cache.
    """
    D = D.expand(*broadcast_shape(D.shape[:-2], Zt.shape[:-2]), *D.shape[-2:])
    lead = (*D.shape[:-2], D.shape[-1])
    rows = D.mT.reshape(-1, D.shape[-2]).contiguous()
    count, parts = len(rows), list(blocks)
    direct = _is_direct(parts[0][1], count)
    rows = rows if direct else _with_full_groups(rows)
    total = torch.zeros_like(rows)
    for block, Mb in parts:
        moved, z = _direct(Mb, rows) if direct else rows @ Mb.mT, Zt[..., block]
        own = moved[:count].view(*lead, len(Mb))
        torch.mul((own * z).sum(-2, keepdim=True), z, out=own)
        total.addmm_(moved, Mb)
    return total[:count].reshape(*lead, -1).mT


def has_symmetric_products(M: Tensor) -> bool:
    """Whether M is one large matrix on a CPU, of which `column_products` needs one triangle."""
    plain = M.ndim == 2 and M.device.type == "cpu" and not M.requires_grad
    return plain and M.numel() >= _SYMMETRIC_ENTRIES


def column_products(M: Tensor) -> Tensor:
    """`M'M`, exactly symmetric: BLAS computes one triangle, which torch does not ask of it."""
    m = M.detach().numpy()
    return torch.from_numpy(m.T @ m)


def weighted_column_products(M: Tensor, z: Tensor) -> Tensor:
    """`M' diag(z) M` for `z[n]`, the difference of the sums over positive z_i and the others.

    Each is a sum of `column_products` of blocks of the rows `|z_i|^(1/2) x_i`.
    """
    root = z.abs().sqrt()
    total = M.new_zeros(M.shape[1], M.shape[1])
    step = max(64, _SYMMETRIC_BLOCK // M.shape[1])
    for chosen, sign in ((z > 0, 1), (~(z > 0), -1)):  # NaN stays NaN
        for rows in chosen.nonzero()[:, 0].split(step):
            total.add_(column_products(M[rows] * root[rows, None]), alpha=sign)
    return total


class RunningSum:
    """Running sum of blocks, in place unless a gradient is being recorded."""

    def __init__(self) -> None:
        self._value: Tensor | None = None

    def add(self, term: Tensor) -> None:
        if self._value is None:
            self._value = term
        elif self._value.requires_grad or term.requires_grad:
            self._value = self._value + term
        else:
            self._value += term

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add `left @ right`, without a temporary matrix of its size where that is possible."""
        value, plain = self._value, left.ndim == right.ndim == 2
        recorded = left.requires_grad or right.requires_grad
        if value is None or not plain or recorded or value.requires_grad:
            self.add(left @ right)
        else:
            value.addmm_(left, right)

    @property
    def value(self) -> Tensor:
        assert self._value is not None, "an operator has at least one row"
        return self._value
