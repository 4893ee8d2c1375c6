"""Diagnosis of a factor found by a search: is it identified, and how accurate is it?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.curvature import effective_spectrum
from posquad.geometry import dimension
from posquad.problems.objectives import LeastSquares
from posquad.recovery.budget import Budget
from posquad.recovery.prepare import Prepared

_DENSE_MOST = 500  # unknowns up to which the curvature is computed in full
_SURE = 1e-6  # largest estimated relative error of an answer that counts as recovered
_LOOSE = 1e-3  # the same for the loosest tolerance
_FLAT = 1e-13  # smallest curvature, relative to the largest, that is not rounding
_LINEAR = 20.0  # factor by which the first order must exceed the second


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a batch of problems; every tensor has shape `[...]`."""

    low: Tensor  # smallest effective eigenvalue over lambda_1(Q), in working coordinates, or NaN
    high: Tensor  # largest effective eigenvalue over lambda_1(Q), or NaN if unknown
    error: Tensor  # estimate of ||Q - Q*||_F / ||Q||_F in the user's coordinates, or NaN
    needed: int  # distinct samples that identify a generic predictor of this rank
    free: Tensor  # whether the samples leave a direction undetermined
    isolated: Tensor  # whether the first-order estimate of the error is valid
    exact: Tensor  # largest |e_i| / (|y_i| + ||x_i||^2 ||Q||)


def needed_samples(d: int, rank: int) -> int:
    """Return the samples needed to identify a rank: p + 1, or d(d+1)/2 if that is less.

    With d(d+1)/2 samples the linear system for Q is determined.
    """
    return min(dimension(d, rank) + 1, d * (d + 1) // 2)


def diagnose(prepared: Prepared, U: Tensor, residual: Tensor) -> Diagnosis:
    """Diagnose full-rank factors `U[..., d, r]` by their curvature and residual."""
    problem = prepared.problem
    d, r = U.shape[-2:]
    # The curvature is that of the fitted responses, because a residual would hide the curvature
    # along a weak column of U.
    operator = problem.operator
    objective = LeastSquares(operator, operator.apply_factor_kernel(U))
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
    # The second-order term A(Delta Delta') is at most about (high / lambda_1)^(1/2) ||Delta||^2. It
    # is negligible beside low^(1/2) ||Delta|| if low is far above (high / lambda_1)^(1/2) rms.
    isolated = low > _LINEAR * (high / top).sqrt() * rms
    e = problem.residual(problem.operator.project(U)).abs()
    own = problem.y.abs() + problem.operator.squared_lengths * top[..., None]
    exact = (e / torch.where(own > 0, own, 1.0)).amax(-1)
    isolated = isolated & known & (low > _FLAT * high)
    free = free | (low <= 0)
    return Diagnosis(low / top, high / top, error, needed_samples(d, r), free, isolated, exact)


def status_codes(
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
    """Return the status codes `[...]`; in doubt, the more cautious one."""
    reproduced = residual <= tolerance
    most = min(max(_SURE, 10 * tolerance), _LOOSE)
    known = ~diagnosis.free & diagnosis.isolated & (diagnosis.error <= most)  # False for NaN
    p = dimension(prepared.problem.d, rank)
    # Samples that differ by less than the residual allows are no independent checks.
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


def diagnose_any(prepared: Prepared, U: Tensor, residual: Tensor, budget: Budget) -> Diagnosis:
    """Diagnose factors of any rank; of those without full rank, nothing is known."""
    d, r = U.shape[-2:]
    nothing = torch.full_like(residual, torch.nan)
    s = torch.linalg.svdvals(U)
    least = max(1e-7, 10 * max(d, r) * torch.finfo(U.dtype).eps)
    limits = torch.finfo(U.dtype)
    within = (s[..., 0] > limits.tiny**0.25) & (s[..., 0] < 0.1 * limits.max**0.25)
    full = torch.isfinite(s).all(-1) & (s[..., -1] > least * s[..., 0]) & within
    never = torch.zeros_like(full)
    unknown = Diagnosis(nothing, nothing, nothing, needed_samples(d, r), never, never, nothing)
    if budget.late and dimension(d, r) > _DENSE_MOST:
        return unknown  # it could take longer than the search
    # A batch is diagnosed together, so factors without full rank are replaced by one that has it.
    safe = torch.where(full[..., None, None], U, torch.eye(d, r).to(U))
    try:
        found = diagnose(prepared, safe, residual)
    except KeyboardInterrupt:  # return the factor without its diagnosis
        budget.interrupted = True
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
