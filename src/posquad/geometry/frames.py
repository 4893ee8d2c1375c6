"""Linear equations in the eigenbasis of U'U, differentiable also where eigenvalues repeat.

A factor is decomposed once as `U = W diag(s) P'`; `P` and `s**2` are the eigenvectors and
eigenvalues of `S = U'U`, computed without forming S. The small linear equations of the quotient
are solved in that basis. Differentiating an eigendecomposition would divide by eigenvalue gaps, but
the solutions themselves are smooth. So each equation defines its own derivative, which solves the
same equation with another right-hand side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from posquad.core.errors import DomainError, RankDeficientError
from posquad.core.linalg import symmetric_part
from posquad.core.ranges import FRAME_VALUES


class Frame(NamedTuple):
    """Thin singular value decomposition of a factor, not differentiated."""

    W: Tensor  # [..., d, r]  orthonormal basis of range(U)
    s: Tensor  # [..., r]     singular values, descending
    P: Tensor  # [..., r, r]  eigenvectors of U'U, in columns


def frame(name: str, U: Tensor) -> Frame:
    """Frame of a full-rank factor; raise `RankDeficientError` if it does not have full rank."""
    with torch.no_grad():
        W, s, Pt = torch.linalg.svd(U.detach(), full_matrices=False)
        _require_rank(name, U, s)
        _require_range(name, s)
    return Frame(W, s, Pt.mT)


def require_full_rank(name: str, U: Tensor) -> None:
    """Raise `RankDeficientError` for a factor that does not have full rank."""
    _require_rank(name, U, torch.linalg.svdvals(U.detach()))


def _require_rank(name: str, U: Tensor, s: Tensor) -> None:
    deficient = s[..., -1] <= max(U.shape[-2:]) * torch.finfo(U.dtype).eps * s[..., 0]
    if bool(deficient.any()):
        first = int(deficient.flatten().nonzero()[0])
        values = s.reshape(-1, s.shape[-1])[first]
        shown = ", ".join(f"{v:.3e}" for v in values.tolist())
        where = "" if U.ndim == 2 else f" at batch element {first} of {deficient.numel()}"
        raise RankDeficientError(
            name,
            expected=f"full column rank {U.shape[-1]}",
            got=f"singular values [{shown}]{where}",
            singular_values=values,
        )


def _require_range(name: str, s: Tensor) -> None:
    """Refuse scales at which second or fourth powers of singular values overflow or underflow."""
    low, high = FRAME_VALUES.of(s.dtype)
    if bool(((s < low) | (s > high)).any()):
        raise DomainError(
            name,
            expected=f"singular values from {low:.0e} to {high:.0e}",
            got=f"{float(s.min()):.3e} to {float(s.max()):.3e}: rescale the factor",
        )


def solve_sylvester(S: Tensor, C: Tensor, basis: Frame) -> Tensor:
    """Return X with `S X + X S = C`; `basis` is the frame of a factor with `U'U = S`."""
    return _Sylvester.apply(S, C, basis.s, basis.P)  # pyright: ignore[reportReturnType]


def divide_right(C: Tensor, S: Tensor, basis: Frame) -> Tensor:
    """Return X with `X S = C`."""
    return _RightDivision.apply(C, S, basis.s, basis.P)  # pyright: ignore[reportReturnType]


def polar_rotation(M: Tensor) -> Tensor:
    """Return the orthogonal polar factor R of `M = R H`, H positive semidefinite."""
    return _Polar.apply(M)  # pyright: ignore[reportReturnType]


def pair_sums(s: Tensor) -> Tensor:
    """Matrix `s_i^2 + s_j^2`, `[..., r, r]`."""
    return s.square()[..., :, None] + s.square()[..., None, :]


class _Sylvester(Function):
    @staticmethod
    def forward(S: Tensor, C: Tensor, s: Tensor, P: Tensor) -> Tensor:
        return P @ ((P.mT @ C @ P) / pair_sums(s)) @ P.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        S, _, s, P = inputs
        ctx.save_for_backward(S, s, P, output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        # S dX + dX S = dC - dS X - X dS, and the operator on the left is self-adjoint.
        S, s, P, X = ctx.saved_tensors
        Y: Any = _Sylvester.apply(S, grad_outputs[0], s, P)
        return -(Y @ X.mT + X.mT @ Y), Y, None, None


class _RightDivision(Function):
    @staticmethod
    def forward(C: Tensor, S: Tensor, s: Tensor, P: Tensor) -> Tensor:
        return ((C @ P) / s.square()[..., None, :]) @ P.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, S, s, P = inputs
        ctx.save_for_backward(S, s, P, output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        # dX S = dC - X dS
        S, s, P, X = ctx.saved_tensors
        Y: Any = _RightDivision.apply(grad_outputs[0], S, s, P)
        return Y, -(X.mT @ Y), None, None


class _Polar(Function):
    @staticmethod
    def forward(M: Tensor) -> Tensor:
        # LAPACK raises an error for NaN, so one diverged element would end the whole batch.
        finite = torch.isfinite(M).all(-1, keepdim=True).all(-2, keepdim=True)
        W, _, Vt = torch.linalg.svd(torch.where(finite, M, 0.0))
        return torch.where(finite, W @ Vt, torch.nan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        # With M = R H, dR = R K where H K + K H = R'dM - dM'R.
        M, R = ctx.saved_tensors
        H = symmetric_part(R.mT @ M)  # symmetric in exact arithmetic
        with torch.no_grad():
            eigenvalues, P = torch.linalg.eigh(H)
        skew = R.mT @ grad_outputs[0]
        skew = (skew - skew.mT) / 2
        Y: Any = _Sylvester.apply(H, skew, eigenvalues.clamp_min(0).sqrt(), P)
        return 2 * R @ Y
