"""What may be said of a factor that a search found: identified or not, how surely, how accurate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.curvature import effective_spectrum
from posquad.geometry import dimension
from posquad.measurements import RankOne
from posquad.objectives import LeastSquares
from posquad.recovery._fit import Quadratic
from posquad.status import Status

_DENSE_MOST = 500  # unknowns up to which the curvature is computed in full
_SURE = 1e-3  # largest estimated relative error of an answer that is called recovered


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a batch of problems, each `[...]`."""

    low: Tensor  # ends of the effective spectrum in working coordinates, relative to the largest
    high: Tensor  # eigenvalue of Q there; NaN where not known
    error: Tensor  # first-order estimate of ||Q - Q*||_F / ||Q||_F from the residual
    needed: int  # distinct samples that identify a generic predictor of this rank
    free: Tensor  # a direction that the samples do not see


def needed_samples(d: int, rank: int) -> int:
    """`p + 1`, or `d(d+1)/2` where that is less: then the system is linear."""
    return min(dimension(d, rank) + 1, d * (d + 1) // 2)


def diagnose(problem: Quadratic, U: Tensor, residual: Tensor) -> Diagnosis:
    """Curvature at full-rank factors `U[..., d, r]`, and what it says about the residual."""
    d, r = U.shape[-2:]
    objective = LeastSquares(RankOne(problem.X), problem.y)
    if dimension(d, r) <= _DENSE_MOST:
        spectrum = effective_spectrum(objective, U)
        low, high = spectrum.values[..., 0], spectrum.values[..., -1]
        free = spectrum.is_kernel.any(-1)
    else:
        loose = {"tolerance": 0.3, "method": "matrix-free", "max_products": 2000}
        smallest = effective_spectrum(objective, U, which="smallest", **loose)
        largest = effective_spectrum(objective, U, which="largest", **loose)
        low, high = smallest.values[..., 0], largest.values[..., 0]
        free = smallest.is_kernel[..., 0]
    top = torch.linalg.matrix_norm(U, 2).square()
    # To first order ||A(Q) - y||^2 / n >= low ||Delta||^2 for the lift Delta of the error, and
    # ||Q - Q*|| <= 2 ||U|| ||Delta||.
    rms = residual * problem.size / problem.n**0.5
    size = torch.linalg.matrix_norm(U.mT @ U)
    error = 2 * top.sqrt() * rms / low.clamp_min(0).sqrt() / size
    return Diagnosis(low / top, high / top, error, needed_samples(d, r), free | (low <= 0))


def verdict(
    diagnosis: Diagnosis,
    residual: Tensor,
    *,
    tolerance: float,
    distinct: Tensor,
    deficient: Tensor,
    settled: Tensor,
    interrupted: bool,
) -> Tensor:
    """Status codes `[...]`; the cautious word wins."""
    reproduced = residual <= tolerance
    known = ~diagnosis.free & (diagnosis.error <= _SURE)  # NaN is not known
    sure = reproduced & known & (distinct >= diagnosis.needed)

    def choose(condition: Tensor, status: Status, otherwise: Tensor) -> Tensor:
        return torch.where(condition, status.code, otherwise)

    undecided = Status.INTERRUPTED if interrupted else Status.STALLED
    codes = torch.full(residual.shape, undecided.code, device=residual.device)
    codes = choose(settled, Status.BEST_FIT, codes)
    codes = choose(reproduced, Status.NOT_IDENTIFIED, codes)
    codes = choose(sure, Status.RECOVERED, codes)
    codes = choose(deficient, Status.UNDETERMINED, codes)
    return choose(~torch.isfinite(residual), Status.DIVERGED, codes)


def diagnose_any(problem: Quadratic, U: Tensor, residual: Tensor) -> Diagnosis:
    """The diagnosis, at a stand-in where the factor has no full rank (nothing is known there)."""
    s = torch.linalg.svdvals(U)
    full = torch.isfinite(s).all(-1) & (s[..., -1] > 1e-7 * s[..., 0]) & (s[..., 0] > 1e-50)
    safe = torch.where(full[..., None, None], U, torch.eye(*U.shape[-2:]).to(U))
    nothing = torch.full_like(residual, torch.nan)
    try:
        found = diagnose(problem, safe, residual)
    except KeyboardInterrupt:  # the factor is worth more than what is known of it
        needed = needed_samples(*U.shape[-2:])
        return Diagnosis(nothing, nothing, nothing, needed, torch.zeros_like(full))
    return Diagnosis(
        low=torch.where(full, found.low, nothing),
        high=torch.where(full, found.high, nothing),
        error=torch.where(full, found.error, torch.inf),
        needed=found.needed,
        free=found.free & full,
    )
