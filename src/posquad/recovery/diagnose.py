"""What may be said of a factor that a search found: identified or not, how surely, how accurate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.curvature import effective_spectrum
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.recovery.prepare import Prepared
from posquad.recovery.solvers.fit import Watch

_DENSE_MOST = 500  # unknowns up to which the curvature is computed in full
_SURE = 1e-6  # largest estimated relative error of an answer that is called recovered
_LOOSE = 1e-3  # and the largest that a looser tolerance can make of it
_FLAT = 1e-13  # curvature over the largest one, below which it is rounding
_LINEAR = 20.0  # how far the first order must outweigh the second


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a batch of problems, each `[...]`."""

    low: Tensor  # ends of the effective spectrum in working coordinates, relative to the largest
    high: Tensor  # eigenvalue of Q there; NaN where not known
    error: Tensor  # estimate of ||Q - Q*||_F / ||Q||_F for the user; NaN where not known
    needed: int  # distinct samples that identify a generic predictor of this rank
    free: Tensor  # a direction that the samples do not see
    isolated: Tensor  # the first-order estimate holds
    exact: Tensor  # largest |e_i| / (|y_i| + ||x_i||^2 ||Q||)


def needed_samples(d: int, rank: int) -> int:
    """`p + 1`, or `d(d+1)/2` where that is less: then the system is linear."""
    return min(dimension(d, rank) + 1, d * (d + 1) // 2)


def diagnose(prepared: Prepared, U: Tensor, residual: Tensor) -> Diagnosis:
    """Curvature at full-rank factors `U[..., d, r]`, and what it says about the residual."""
    problem = prepared.problem
    d, r = U.shape[-2:]
    # What the samples see at U is the curvature with the fitted responses as the truth: a residual
    # would hide it beside a weak column of U.
    operator = RankOne(problem.X)
    objective = LeastSquares(operator, operator.apply_factor(U))
    if dimension(d, r) <= _DENSE_MOST:
        spectrum = effective_spectrum(objective, U)
        low, high = spectrum.values[..., 0], spectrum.values[..., -1]
        free, known = spectrum.is_kernel.any(-1), spectrum.kernel_is_known
    else:
        loose = {"tolerance": 0.3, "method": "matrix-free", "max_products": 2000}
        smallest = effective_spectrum(objective, U, which="smallest", **loose)
        largest = effective_spectrum(objective, U, which="largest", **loose)
        low, high = smallest.values[..., 0], largest.values[..., 0]
        free, known = smallest.is_kernel[..., 0], smallest.kernel_is_known
    top = torch.linalg.matrix_norm(U, 2).square()
    # To first order ||A(Q) - y||^2 / n >= low ||Delta||^2 for the lift Delta of the error, and
    # ||Q - Q*|| <= 2 ||U|| ||Delta||. In the user's coordinates Q is TQT'.
    rounding = torch.finfo(U.dtype).eps
    rms = residual.clamp_min(rounding) * problem.size / problem.n**0.5
    positive = torch.where(low > 0, low, torch.nan)
    T = prepared.transform / prepared.transform.abs().amax((-2, -1), keepdim=True)
    V = T @ U
    stretch = torch.linalg.matrix_norm(T, 2).square() / torch.linalg.matrix_norm(V.mT @ V)
    error = 2 * top.sqrt() * rms / positive.sqrt() * stretch
    # The second-order term A(Delta Delta') is at most about (high / lambda_1)^(1/2) ||Delta||^2:
    # nothing beside low^(1/2) ||Delta|| if low exceeds (high / lambda_1)^(1/2) rms by far.
    isolated = low > _LINEAR * (high / top).sqrt() * rms
    e = problem.residual(problem.forward(U)).abs()
    own = problem.y.abs() + problem.lengths * top[..., None]
    exact = (e / torch.where(own > 0, own, 1.0)).amax(-1)
    isolated = isolated & known & (low > _FLAT * high)
    free = free | (low <= 0)
    return Diagnosis(low / top, high / top, error, needed_samples(d, r), free, isolated, exact)


def verdict(
    diagnosis: Diagnosis,
    residual: Tensor,
    *,
    rank: int,
    tolerance: float,
    prepared: Prepared,
    ambient: int,
    settled: Tensor,
    interrupted: bool,
) -> Tensor:
    """Status codes `[...]`; the cautious word wins."""
    reproduced = residual <= tolerance
    most = min(max(_SURE, 10 * tolerance), _LOOSE)
    known = ~diagnosis.free & diagnosis.isolated & (diagnosis.error <= most)  # NaN is not known
    p = dimension(prepared.problem.d, rank)
    # Samples too alike to differ by more than the residual allows check nothing.
    enough = (prepared.checks(10 * residual / most) >= diagnosis.needed) & (prepared.count > p)
    sure = reproduced & known & enough & (diagnosis.exact <= tolerance)

    def choose(condition: Tensor, status: Status, otherwise: Tensor) -> Tensor:
        return torch.where(condition, status.code, otherwise)

    undecided = Status.INTERRUPTED if interrupted else Status.STALLED
    codes = torch.full(residual.shape, undecided.code, device=residual.device)
    codes = choose(settled, Status.BEST_FIT, codes)
    codes = choose(reproduced, Status.NOT_IDENTIFIED, codes)
    if interrupted:
        codes = choose(reproduced & diagnosis.low.isnan(), Status.INTERRUPTED, codes)
    codes = choose(sure, Status.RECOVERED, codes)
    return choose(prepared.span < ambient, Status.UNDETERMINED, codes)


def diagnose_any(prepared: Prepared, U: Tensor, residual: Tensor, watch: Watch) -> Diagnosis:
    """The diagnosis, at a stand-in where the factor has no full rank (nothing is known there)."""
    d, r = U.shape[-2:]
    nothing = torch.full_like(residual, torch.nan)
    s = torch.linalg.svdvals(U)
    least = max(1e-7, 10 * max(d, r) * torch.finfo(U.dtype).eps)
    limits = torch.finfo(U.dtype)
    within = (s[..., 0] > limits.tiny**0.25) & (s[..., 0] < 0.1 * limits.max**0.25)
    full = torch.isfinite(s).all(-1) & (s[..., -1] > least * s[..., 0]) & within
    never = torch.zeros_like(full)
    unknown = Diagnosis(nothing, nothing, nothing, needed_samples(d, r), never, never, nothing)
    if watch.late and dimension(d, r) > _DENSE_MOST:
        return unknown  # it could take longer than the search
    safe = torch.where(full[..., None, None], U, torch.eye(d, r).to(U))
    try:
        found = diagnose(prepared, safe, residual)
    except KeyboardInterrupt:  # the factor is worth more than what is known of it
        watch.interrupted = True
        return unknown
    return Diagnosis(
        low=torch.where(full, found.low, nothing),
        high=torch.where(full, found.high, nothing),
        error=torch.where(full, found.error, nothing),
        needed=found.needed,
        free=found.free & full,
        isolated=found.isolated & full,
        exact=torch.where(full, found.exact, nothing),
    )
