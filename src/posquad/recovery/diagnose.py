"""Diagnosis of a factor found by a search: is it identified, and how accurate is it?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.linalg import eigenvalue_rounding, spectral_norm
from posquad.core.ranges import DIAGNOSED_FACTORS
from posquad.core.symmetric import (
    svec,
    symmetric_congruence,
    symmetric_jacobian,
    symmetric_matrix,
)
from posquad.curvature import effective_spectrum
from posquad.curvature.ends import spectrum_ends
from posquad.geometry import dimension
from posquad.problems.held import HeldMeasurements, one_of_views
from posquad.problems.objectives import LeastSquares
from posquad.problems.packed import Packed
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, singular_values
from posquad.recovery.costs import is_quick
from posquad.recovery.problem_cache import ProblemCache, needed_samples

# Most products with the Hessian for one end of the spectrum. A choice: an end that they do not give
# to 10% is not called converged.
_PRODUCTS = 2000
# Fewest products for which an end of the spectrum is begun within a time limit. A choice: their
# number grows with the square root of the condition number, and fewer give no end to 10% at 1e4.
_LEAST_PRODUCTS = 100
# Operations per second, at least, of a product with X. Derived: memory gives 10 GB per second, and
# an entry of 8 bytes takes part in 2r operations; this is r = 2, and higher ranks are faster.
_OPERATIONS = 5e9


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a batch of problems; every array has shape `[...]`."""

    low: np.ndarray  # smallest effective eigenvalue over lambda_1(Q), working coordinates, or NaN
    high: np.ndarray  # largest effective eigenvalue over lambda_1(Q), or NaN if unknown
    error: np.ndarray  # estimate of ||Q - Q*||_F / ||Q||_F in the user's coordinates, or NaN
    needed: int  # distinct samples that identify a generic predictor of this rank
    free: np.ndarray  # whether the samples leave a direction undetermined
    isolated: np.ndarray  # whether the first-order estimate of the error is valid
    converged: np.ndarray  # whether the curvature was computed to the accuracy required
    near: np.ndarray  # relative distance from Q within which no other solution is; 0 if unknown


def _decomposes(unknowns: int) -> bool:
    """Return whether a spectrum is computed in full: about 9 p^3 operations, up to p = 500."""
    return is_quick(9 * unknowns**3)


@np.errstate(all="ignore")  # NaN stands for what is not known
def diagnose(
    shared: ProblemCache,
    U: Tensor,
    residual: np.ndarray,
    s: np.ndarray | None = None,
    budget: Budget | None = None,
) -> Diagnosis:
    """Diagnose full-rank factors `U[..., d, r]` by their curvature and residual.

    `s[..., r]` are their singular values, if they are known. When the time of the budget is over,
    the curvature of a large problem is not known.
    """
    problem, acceptance = shared.problem, shared.acceptance
    d, r = U.shape[-2:]
    p = dimension(d, r)
    s = singular_values(U) if s is None else s
    # A product with the Hessian takes two passes over X, and the spectrum needs p of them.
    whole = is_quick(4 * problem.n * d * r * p)
    whole = whole or isinstance(problem.operator, Packed)  # a product costs nearly as much
    if whole and _decomposes(p):
        clear = acceptance.clear_curvature
        low, high, free, known = _whole_spectrum(problem.operator, U, s, clear)
    else:
        budget = budget or Budget(max_steps=1)
        low, high, free, known = (host(end) for end in _ends(shared, U, s, budget))
    converged = np.isfinite(low) & np.isfinite(high)  # NaN where not converged
    top = s[..., 0] ** 2
    # To first order ||A(Q) - y||^2 / n >= low ||Delta||^2 for the lift Delta of the error, and
    # ||Q - Q*|| <= 2 ||U|| ||Delta||.
    rounding = torch.finfo(U.dtype).eps
    total = host(problem.size) * (1 + shared.prepared.within) ** 0.5  # of all responses
    rms = np.maximum(residual, rounding) * total / problem.n**0.5
    positive = np.where(low > 0, low, np.nan)
    # A fit with p unknowns leaves the share 1 - p/n of the errors in its residual, on average.
    n = shared.prepared.count
    hidden = n / np.maximum(n - p - shared.other_terms, 1)
    stretch = _stretch(shared.prepared.transform, U)
    error = 2 * s[..., 0] * rms * hidden / np.sqrt(positive) * stretch
    # The second-order term A(Delta Delta') is at most about (high / lambda_1)^(1/2) ||Delta||^2. It
    # is negligible beside low^(1/2) ||Delta|| if low is far above (high / lambda_1)^(1/2) rms.
    isolated = low > acceptance.linear * np.sqrt(high / top) * rms
    isolated = isolated & known & (low > acceptance.flat * high)
    free = free | (low <= 0)
    # If V = U + D has the responses of U, with D horizontal, then A(DU' + UD') = -A(DD'), so ||D||
    # is at least (low lambda_1 / high)^(1/2), and ||VV' - UU'|| >= 0.9 s_r ||D||: the square of the
    # factor is at least 2 (sqrt(2) - 1) = 0.83 for aligned factors (Tu, Boczar, Simchowitz,
    # Soltanolkotabi and Recht, ICML 2016, Lemma 5.4).
    reach = s[..., 0] * s[..., -1] * np.sqrt(np.maximum(low, 0) / high)
    size = np.sqrt((s**4).sum(-1))  # ||UU'||
    near = acceptance.others_near * reach / size
    near = np.where(isolated & converged, near, 0.0)
    needed = needed_samples(d, r)
    return Diagnosis(low / top, high / top, error, needed, free, isolated, converged, near)


def _stretch(T: Tensor, U: Tensor) -> np.ndarray:
    """`||T||^2 / ||TUU'T'||`, by which errors grow in the user's coordinates, `[...]`."""
    T = T[:1] if one_of_views(T) is not None else T
    T = T / T.abs().amax((-2, -1), keepdim=True)
    V = T @ U
    size = np.sqrt((host(V.mT @ V) ** 2).sum((-2, -1)))
    if T.shape[-1] == T.shape[-2] and int(T.count_nonzero()) == T[..., 0].numel():
        return 1 / size  # one entry per row of an invertible matrix: its norm is the largest entry
    return host(spectral_norm(T)) ** 2 / size


def _fitted_objective(operator: HeldMeasurements, U: Tensor) -> LeastSquares:
    """The loss with the fitted responses.

    Its curvature is used, because a residual would hide the curvature along a weak column of U.
    """
    return LeastSquares(operator, operator.apply_factor_kernel(U))


def _whole_spectrum(
    operator: HeldMeasurements, U: Tensor, s: np.ndarray, multiple: float
) -> tuple[np.ndarray, ...]:
    """Return both ends of the spectrum, whether there is a kernel, and whether that is known.

    `multiple` is that of `_clear_curvature`.
    """
    low, high, clear = _clear_curvature(operator, U, s, multiple)
    if clear.all():
        return low, high, ~clear, clear
    low, high, free, known = np.array(low), np.array(high), np.array(~clear), np.array(clear)
    open, where = ..., ...
    if clear.ndim:
        where = (~clear).nonzero()[0]
        open = torch.from_numpy(where).to(U.device)
        operator = operator.select(open)
    spectrum = effective_spectrum(_fitted_objective(operator, U[open]), U[open])
    low[where], high[where] = host(spectrum.values[..., 0]), host(spectrum.values[..., -1])
    free[where], known[where] = host(spectrum.is_kernel.any(-1)), host(spectrum.kernel_is_known)
    return low, high, free, known


def _clear_curvature(
    operator: HeldMeasurements, U: Tensor, s: np.ndarray, multiple: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ends of the effective spectrum where the data are fitted.

    The third value `[...]` says whether they are all that has to be known: no direction is so flat
    that it could belong to the kernel, because all exceed their rounding by this `multiple`. Else
    `effective_spectrum` has to decide.
    """
    r, m = U.shape[-1], operator.d * U.shape[-1]
    D = operator.d * (operator.d + 1) // 2
    if r == operator.d and operator.n >= D and operator.batch_shape:
        curvature, gauge = _square_curvature(operator, U), 0
    else:
        Z = operator.project(U)
        e = Z.new_zeros(()).expand(*Z.shape[:-2], operator.n)
        curvature, gauge = operator.normal_equations(Z, e)[0], r * (r - 1) // 2
    values = host(torch.linalg.eigvalsh(curvature)) / operator.n
    low, high = values[..., gauge], values[..., -1]
    return low, high, (low > multiple * _flat(m, s) * high) & (U.dtype == torch.float64)


def _flat(m: int, s: np.ndarray) -> np.ndarray:
    """Return the rounding of an eigenvalue of `J'J`, with m unknowns, over the largest one.

    It is that in population coordinates, by which the ratio of two curvatures changes by at most
    (2 + r) lambda_1 / lambda_r.
    """
    rounding, spread = eigenvalue_rounding(m), (s[..., 0] / s[..., -1]) ** 2
    return (2 + s.shape[-1]) * spread * (rounding + rounding**2 * spread)


def _square_curvature(operator: HeldMeasurements, U: Tensor) -> Tensor:
    """Matrix `[..., D, D]` with the spectrum of `J'J` without the gauge, for `U[..., d, d]`.

    With `K = LL'` the fourth moments and B the derivative of `svec(UU')`, `J'J = B'KB` and
    `L'(BB')L` have the same positive eigenvalues. `BB'` maps S to `2(QS + SQ)`, which is linear in
    `Q = UU'`. Inputs of one design share L, and the matrices are then one product with `svec(Q)`.
    """
    K = operator.fourth_moments
    shared = one_of_views(K)
    factor, failed = torch.linalg.cholesky_ex(K if shared is None else shared)
    # Zero, which is not clear, where the samples do not determine all symmetric matrices.
    factor = torch.where((failed == 0)[..., None, None], factor, 0.0)
    if shared is None:
        N = factor.mT @ symmetric_jacobian(U)
        return N @ N.mT
    D, d = factor.shape[-1], U.shape[-1]
    eye = torch.eye(d, dtype=U.dtype, device=U.device)
    basis = symmetric_matrix(torch.eye(D, dtype=U.dtype, device=U.device), d)
    # (I + Q)S(I + Q) - (I - Q)S(I - Q) = 2(QS + SQ)
    maps = symmetric_congruence(eye + basis) - symmetric_congruence(eye - basis)
    maps = factor.mT @ maps @ factor  # [D, D, D]
    return (svec(U @ U.mT) @ maps.flatten(1)).unflatten(-1, (D, D))


def _ends(shared: ProblemCache, U: Tensor, s: np.ndarray, budget: Budget) -> tuple[Tensor, ...]:
    """Return both ends of the spectrum, whether there is a kernel, and whether that is known.

    When the time of the budget is over, the ends are NaN.
    """
    accuracy, problem = shared.acceptance.curvature_accuracy, shared.problem
    m = U.shape[-2] * U.shape[-1]
    in_time = problem.y.numel() * m**2 < budget.seconds_left * _OPERATIONS
    if shared.is_linearized(U.shape[-1]) and in_time:
        low, high = shared.linearized(U).ends(accuracy)
        least = shared.acceptance.clear_curvature * torch.as_tensor(_flat(m, s)).to(low)
        if bool((low > least * high).all()):
            none = torch.zeros_like(low, dtype=torch.bool)
            return low, high, none, ~none
    for operator in (shared.single, problem.operator):
        if operator is not None:
            ends = spectrum_ends(operator, U, accuracy, stopped=lambda: budget.late)
            if bool(ends.known.all()):  # no kernel: zero is excluded
                return ends.low, ends.high, ~ends.known, ends.known
    # A product with the Hessian takes two passes over X.
    second = _OPERATIONS / (4 * problem.y.numel() * U.shape[-2] * U.shape[-1])
    products = min(_PRODUCTS, budget.seconds_left * second / 2)
    if products < _LEAST_PRODUCTS:
        nothing = torch.full(problem.y.shape[:-1], torch.nan, dtype=U.dtype, device=U.device)
        never = torch.zeros_like(nothing, dtype=torch.bool)
        return nothing, nothing, never, never
    objective = _fitted_objective(problem.operator, U)
    loose = {"tolerance": accuracy, "method": "matrix-free", "max_products": int(products)}
    smallest = effective_spectrum(objective, U, which="smallest", **loose)
    largest = effective_spectrum(objective, U, which="largest", **loose)
    low, high = smallest.values[..., 0], largest.values[..., 0]
    return low, high, smallest.is_kernel[..., 0], smallest.kernel_is_known


def undiagnosed(
    shared: ProblemCache, found: Candidates, rank: np.ndarray, budget: Budget
) -> Diagnosis:
    """Return the diagnosis of factors of which nothing is known."""
    del shared, rank, budget
    d, r = found.U.shape[-2:]
    nothing = np.full_like(found.residual, np.nan)
    never, zero = np.zeros_like(nothing, dtype=bool), np.zeros_like(nothing)
    needed = needed_samples(d, r)
    return Diagnosis(nothing, nothing, nothing, needed, never, never, never, zero)


def diagnose_any(
    shared: ProblemCache, found: Candidates, rank: np.ndarray, budget: Budget
) -> Diagnosis:
    """Diagnose factors of any rank; of those without full rank, nothing is known.

    At rank d the samples leave a direction free if they do not determine every symmetric matrix;
    then neither the curvature nor the error is computed. Nor is it where the `rank[...]` of what is
    returned is lower.
    """
    U, residual = found.U, found.residual
    d, r = U.shape[-2:]
    nothing = undiagnosed(shared, found, rank, budget)
    s, eps, acceptance = found.singular_values, torch.finfo(U.dtype).eps, shared.acceptance
    least = max(acceptance.full_rank, acceptance.full_rank_rounding * max(d, r) * eps)
    low, high = DIAGNOSED_FACTORS.of(U.dtype)
    within = (s[..., 0] > low) & (s[..., 0] < high)
    full = np.isfinite(s).all(-1) & (s[..., -1] > least * s[..., 0]) & within
    if r == d:
        free = shared.distinct < d * (d + 1) // 2
        full = full & ~free & (rank == d)
        nothing = replace(nothing, free=free)
    if budget.late and not _decomposes(dimension(d, r)):
        return nothing  # it could take longer than the search
    if not full.any():
        return nothing
    if full.all():
        return diagnose(shared, U, residual, s, budget)
    # A batch is diagnosed together, so factors without full rank are replaced by one that has it.
    is_full = torch.as_tensor(full, device=U.device)
    safe = torch.where(is_full[..., None, None], U, torch.eye(d, r).to(U))
    known = diagnose(shared, safe, residual, np.where(full[..., None], s, 1.0), budget)
    each = {
        name: np.where(full, value, getattr(nothing, name))
        for name, value in vars(known).items()
        if name != "needed"
    }
    return Diagnosis(**each, needed=known.needed)
