"""The reduced system `Bq = y` with multiplicities: validation and independent rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import Array, require_batch, require_exactly, require_shape, tensors
from posquad.core.errors import DomainError, InfeasibleError, ShapeError
from posquad.core.ranges import tiny
from posquad.core.twofold import power_of_two

__all__ = ["System"]


@dataclass(frozen=True)
class System:
    """`B[n, m]`, `y[..., n]`, multiplicities `d[m]`, and a maximal independent set of scaled rows.

    The loss (`eq:reduced-quadratic-loss`) counts redundant rows too; the set `{q : Bq = y}` is
    described by the independent ones alone.
    """

    B: Tensor  # [n, m]
    y: Tensor  # [..., n]
    d: Tensor  # [m]
    rows: Tensor  # [s]  indices of independent rows
    scale: Tensor  # [s]  powers of two near the inverses of their norms, so nothing is rounded

    @property
    def independent(self) -> tuple[Tensor, Tensor]:
        """The independent rows, scaled to norms near one, and their right-hand sides."""
        return self.scale[:, None] * self.B[self.rows], self.scale * self.y[..., self.rows]

    @property
    def smallest_singular_value(self) -> Tensor:
        """`sigma_B^+` (`eq:smallest-positive-singular-value`)."""
        return torch.linalg.svdvals(self.B)[len(self.rows) - 1]

    def size(self, q0: Tensor) -> Tensor:
        """Reference size of residuals: ||y||, or the size of Bq0 where y = 0; `[...]`."""
        norm = torch.linalg.vector_norm(self.y, dim=-1)
        start = torch.linalg.vector_norm(q0 @ self.B.abs().mT, dim=-1)
        return torch.where(norm > 0, norm, start).clamp_min(tiny(norm))

    def double(self) -> System:
        """The same numbers in double precision."""
        B, y, d, scale = (t.double() for t in (self.B, self.y, self.d, self.scale))
        return System(B, y, d, self.rows, scale)

    def full_dual(self, lam: Tensor) -> Tensor:
        """Dual vector for all rows from one for the scaled independent rows, padded with zeros."""
        return expand_multipliers(lam, self.rows, self.scale, self.B.shape[0])

    def loss(self, q: Tensor) -> Tensor:
        """`f(q) = ||Bq - y||^2 / (2n)` (`eq:reduced-quadratic-loss`), `[...]`."""
        return (q @ self.B.mT - self.y).square().sum(-1) / (2 * self.B.shape[0])

    def gradient(self, q: Tensor) -> Tensor:
        """`g(q) = B'(Bq - y) / n` (`eq:reduced-quadratic-gradient`), `[..., m]`."""
        return (q @ self.B.mT - self.y) @ self.B / self.B.shape[0]


def prepare(
    B: Array, y: Array, multiplicities: Array, **points: Array
) -> tuple[System, dict[str, Tensor]]:
    """Check a system and points `[..., m]` with positive entries that belong to it."""
    b, v, d, *rest = (
        t.detach() for t in tensors(B=B, y=y, multiplicities=multiplicities, **points)
    )
    if b.ndim != 2 or 0 in b.shape:
        raise ShapeError("B", expected="shape (n, m) with n, m >= 1", got=f"shape {tuple(b.shape)}")
    n, m = b.shape
    require_shape("y", v, (n,), "(..., n), one entry per row of B")
    require_exactly("multiplicities", d, (m,), "one entry per column of B")
    require_positive("multiplicities", d)
    checked = dict(zip(points, rest, strict=True))
    for name, point in checked.items():
        require_shape(name, point, (m,), "(..., m), one entry per column of B")
        require_positive(name, point)
    require_batch(y=v.shape[:-1], **{name: point.shape[:-1] for name, point in checked.items()})
    rows, scale = independent_rows(b, v, "B")
    return System(b, v, d, rows, scale), checked


def expand_multipliers(lam: Tensor, rows: Tensor, scale: Tensor, n: int) -> Tensor:
    """Multipliers `[..., n]` of all rows from multipliers `[..., s]` of scaled rows."""
    dual = lam.new_zeros(*lam.shape[:-1], n)
    dual[..., rows] = lam * scale
    return dual


def require_rows(system: System) -> None:
    """Require at least one row of B that is not zero."""
    if not len(system.rows):
        raise DomainError("B", expected="at least one row that is not zero", got="only zeros")


def require_positive(name: str, values: Tensor) -> None:
    """Require entries > 0."""
    if not bool((values > 0).all()):
        smallest = float(values.min())
        raise DomainError(name, expected="entries > 0", got=f"a smallest entry of {smallest:.6g}")


def power_of_two_near(values: Tensor, *, every: int = 1) -> Tensor:
    """Powers of two near positive values, with exponents that are multiples of `every`."""
    exponent = torch.frexp(values).exponent - 1
    lower = torch.div(exponent + every // 2, every, rounding_mode="floor") * every
    return power_of_two(lower).to(values.dtype)


def independent_rows(B: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Maximal set of independent rows and their scaling; refuse a y outside the range of B."""
    largest = B.abs().amax(-1)  # squares of the entries may overflow, ratios do not
    largest = torch.where(largest > 0, largest, 1.0)
    norms = torch.linalg.vector_norm(B / largest[:, None], dim=-1)
    scale = power_of_two_near(torch.where(norms > 0, 1 / norms, 1.0) / largest)
    scaled = scale[:, None] * B
    # Scale the columns too: dependencies between rows do not depend on the units of columns.
    widest = scaled.abs().amax(0)
    equal = scaled / torch.where(widest > 0, widest, 1.0)
    # A QR without pivoting first, so that the pivoted one is only n x n.
    R = torch.linalg.qr(equal.mT, mode="r").R
    decomposition: Any = scipy.linalg.qr(R.cpu().numpy(), mode="r", pivoting=True)
    R2, pivots = decomposition
    diagonal = np.abs(np.diag(R2))
    tolerance = max(B.shape) * torch.finfo(B.dtype).eps * max(diagonal[0], tiny())
    rank = int((diagonal > tolerance).sum())
    order = torch.as_tensor(pivots.astype(np.int64), device=B.device)
    # Dependent scaled row j is the sum over k of C_kj times independent scaled row k.
    C = torch.as_tensor(
        scipy.linalg.solve_triangular(R2[:rank, :rank], R2[:rank, rank:]), dtype=B.dtype
    ).to(B.device)
    kept, rest = order[:rank], order[rank:]
    ys = scale * y
    gap = ys[..., rest] - ys[..., kept] @ C
    size = ys.abs().amax(-1, keepdim=True) * (1 + C.abs().sum(0))
    outside = gap.abs() > 1e2 * max(B.shape) * torch.finfo(B.dtype).eps * size
    if bool(outside.any()):
        j = int(torch.where(outside, gap.abs(), 0.0).reshape(-1, len(rest)).amax(0).argmax())
        worst = gap.reshape(-1, len(rest))[:, j]
        sign = -worst[worst.abs().argmax()].sign()
        z = torch.zeros_like(norms)
        z[rest[j]] = sign
        z[kept] = -sign * C[:, j]
        raise InfeasibleError(
            "y",
            expected=f"a vector in the range of {name}",
            got=f"entry {int(rest[j])}, which differs by {float(worst.abs().max()):.3e} from what "
            "the other entries imply",
            farkas=z * scale,
        )
    return kept, scale[kept]
