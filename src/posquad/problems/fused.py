"""The gradient and the sums along a line with one read of X, on NVIDIA GPUs since Hopper.

Plain products read X twice, because no cache holds it. `fused.cu` keeps a few rows at a time on
the chip for both products; torch compiles it at the first use, which takes about a second.
`fused_sweep` and `fused_line` return None wherever the kernel does not fit, and the caller makes
the products itself. In single precision the errors are those of single precision, not of TF32.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_suffix(".cu")
_LEAST_ENTRIES = 2**25  # of X, from which a pass is worth the second that compiling takes
_LEAST_CAPABILITY = (9, 0)  # clusters and bulk copies
_WARPS = 8
_ROWS = 16  # per step
_WIDEST = {torch.float32: 128, torch.float64: 64}  # columns per warp: registers for V and G
# Where the kernel is faster than plain products, as `make bench-gpu` measures: columns of X, and
# blocks per cluster for single precision, double precision and sums along a line.
_LEAST_COLUMNS = 96
_MOST_BLOCKS = {torch.float32: 8, torch.float64: 2}
_MOST_BLOCKS_LINE = 2
_SHARED_BYTES = 228 * 1024  # per multiprocessor, of which every block reserves 1 KB
_MOST_ROWS = 2**31 - 2**20  # row numbers are 32 bits


@dataclass(frozen=True)
class _Plan:
    """A variant of the kernel; the fields are those that `fused.cu` names."""

    dtype: torch.dtype
    line: bool
    padded: int
    columns: int
    cluster: int
    resident: int

    @property
    def inputs(self) -> int:
        return (2 if self.line else 1) * self.padded

    @property
    def outputs(self) -> int:
        return (4 if self.line else 1) * self.padded

    @property
    def stages(self) -> int:
        """Steps in shared memory: as many as fit, up to four."""
        free = _SHARED_BYTES // self.resident - 1024 - self._shared_bytes(0)
        return min(4, free // (self._shared_bytes(1) - self._shared_bytes(0)))

    @property
    def shared_bytes(self) -> int:
        return self._shared_bytes(self.stages)

    def _shared_bytes(self, stages: int) -> int:
        double, size = self.dtype == torch.float64, self.dtype.itemsize
        stride = self.columns * _WARPS + 32 // size
        width = (self.outputs + 11) // 16 * 16 + 4 if double else (self.outputs + 23) // 32 * 32 + 8
        numbers = stages * stride + (_WARPS + 2 * self.cluster) * self.inputs + 2 * width
        return _ROWS * numbers * size + 8 * stages

    def clusters(self, multiprocessors: int) -> int:
        """Clusters that are resident at once; those of more than two need one of 16 neighbours."""
        if self.cluster <= 2:
            return multiprocessors * self.resident // self.cluster
        return max(1, multiprocessors // 16) * (16 // self.cluster)

    def source(self) -> str:
        named = {
            "F64": self.dtype == torch.float64,
            "LINE": self.line,
            "PADDED": self.padded,
            "COLUMNS": self.columns,
            "CLUSTER": self.cluster,
            "STAGES": self.stages,
            "RESIDENT": self.resident,
        }
        lines = [f"#define {name} {int(value)}" for name, value in named.items()]
        return "\n".join([*lines, _SOURCE.read_text(encoding="utf-8")])


def fused_sweep(X: Tensor, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """`e = rowsum((XU)^2) - y`, `[n]`, and `X'(e XU)`, `[d, r]`; None if the kernel does not fit.

    Args:
        X: inputs, `[n, d]`.
        U: a factor, `[d, r]`.
        y: responses, `[n]`.
    """
    plan = _plan(X, U, y, line=False)
    result = None if plan is None else _launched(plan, X, U, y, None)
    if result is None:
        return None
    errors, sums = result
    return errors[0], sums[:, : U.shape[-1]].contiguous()


def fused_line(
    X: Tensor, U: Tensor, D: Tensor, y: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The sums along U + tD, with `Z = XU` and `P = XD`; None where the kernel does not fit.

    Returns `s0 = rowsum(Z^2) - y`, `s1 = 2 rowsum(ZP)` and `s2 = rowsum(P^2)`, `[3, n]`, and the
    weighted sums `X'(s0 Z)`, `X'(s1 Z + s0 P)`, `X'(s2 Z + s1 P)` and `X'(s2 P)`, `[4, d, r]`.
    """
    plan = _plan(X, U, y, line=True)
    if plan is None:
        return None
    pad = torch.nn.functional.pad
    both = torch.cat([pad(factor, (0, plan.padded - U.shape[-1])) for factor in (U, D)], dim=-1)
    result = _launched(plan, X, both, y, weights)
    if result is None:
        return None
    errors, sums = result
    return errors, sums.view(len(sums), 4, plan.padded).permute(1, 0, 2)[..., : U.shape[-1]]


def _plan(X: Tensor, U: Tensor, y: Tensor, *, line: bool) -> _Plan | None:
    """Return the variant for these arguments, or None if there is none or it would not pay."""
    if X.device.type != "cuda" or X.numel() < _LEAST_ENTRIES or X.dtype not in _WIDEST:
        return None
    fits = X.ndim == U.ndim == 2 and y.ndim == 1 and X.is_contiguous() and len(X) <= _MOST_ROWS
    fits = fits and all((t.dtype, t.device) == (X.dtype, X.device) for t in (U, y))
    aligned = X.data_ptr() % 16 == 0 and X.shape[-1] * X.element_size() % 16 == 0
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (X, U, y))
    if not fits or not aligned or recorded or torch.version.hip or not U.shape[-1]:
        return None
    properties = _properties(X.device.index)
    if (properties.major, properties.minor) < _LEAST_CAPABILITY:
        return None
    return planned(X.shape[-1], U.shape[-1], X.dtype, line=line)


def planned(d: int, r: int, dtype: torch.dtype, *, line: bool) -> _Plan | None:
    """Return the variant of the kernel for d columns and factors of r columns, or None.

    The columns of X are dealt to the warps of a cluster in equal parts, in multiples of what one
    lane of the tensor cores reads at a time.
    """
    widest = 64 if line else _WIDEST[dtype]
    blocks = -(-d // (widest * _WARPS))
    cluster = 1 << (blocks - 1).bit_length()  # a power of two: clusters tile the chip
    most = _MOST_BLOCKS_LINE if line else _MOST_BLOCKS[dtype]
    if r > (8 if line else 16) or d < _LEAST_COLUMNS or cluster > most:
        return None
    unit = 128 // dtype.itemsize
    columns = -(-d // (cluster * _WARPS * unit)) * unit
    resident = 2 if 2 * columns <= widest and cluster == 1 else 1
    plan = _Plan(dtype, line, 8 if line else 16, columns, cluster, resident)
    return plan if plan.stages >= 2 else None


def _launched(
    plan: _Plan, X: Tensor, V: Tensor, y: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return the errors `[1 or 3, n]` and the sums `[d, outputs]`."""
    kernel = _kernel(plan, X.device.index)
    if kernel is None:
        return None
    (n, d), device = X.shape, X.device
    clusters = plan.clusters(_properties(device.index).multi_processor_count)
    V = torch.nn.functional.pad(V, (0, plan.inputs - V.shape[-1])).contiguous()
    scale = X.new_empty(0) if weights is None else weights.to(X.dtype).contiguous()
    errors = X.new_empty(3 if plan.line else 1, n)
    sums = X.new_empty(clusters, d, plan.outputs)
    arguments = [X, V, y.contiguous(), scale, errors, sums, n, d]
    with torch.cuda.device(device):
        kernel(
            grid=(clusters * plan.cluster, 1, 1),
            block=(32 * _WARPS, 1, 1),
            args=arguments,
            shared_mem=plan.shared_bytes,
        )
    return errors, sums.sum(0)


@cache
def _properties(device: int) -> Any:
    return torch.cuda.get_device_properties(device)


@cache
def _kernel(plan: _Plan, device: int) -> Any:
    """Return the compiled kernel, or None, with a warning, where it cannot be compiled."""
    try:
        with torch.cuda.device(device):
            kernel = torch.cuda._compile_kernel(plan.source(), "sweep")
            kernel.set_shared_memory_config(plan.shared_bytes)
    except (AttributeError, RuntimeError, OSError) as problem:
        text = f"the fused GPU kernel is not available, plain products are used: {problem}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    return kernel
