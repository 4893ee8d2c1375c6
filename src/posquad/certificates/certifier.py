"""`certify`: search for claims, prove them, and report what is proved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from posquad.certificates import words
from posquad.certificates.certificate import FINDINGS, Certificate, fingerprint_of
from posquad.certificates.proofs.bounded_operator import BoundedOperator, bounded_problem
from posquad.certificates.proofs.claims import (
    Claims,
    Conclusions,
    Witness,
    proved_conclusions,
    trace_gap,
)
from posquad.certificates.proofs.rounding import in_range, up
from posquad.certificates.proofs.statements import (
    TangentGram,
    proves_dual,
    proves_largest,
    proves_quartic,
    residual_and_rounding,
)
from posquad.certificates.search.curvature import extreme_values, quartic_below, quartic_guess
from posquad.certificates.search.dual import DualSearch
from posquad.certificates.search.trace import trace_dual
from posquad.core.arguments import require_boolean
from posquad.core.arrays import Array, doubles, positive_integer, positive_number
from posquad.core.errors import DomainError, Interrupted
from posquad.core.linalg import eigenvalue_rounding
from posquad.core.ranges import CERTIFIED_ENTRIES, RESPONSES
from posquad.curvature.full_space import operator_bounds
from posquad.geometry import dimension
from posquad.problems.objectives import LeastSquares, Objective
from posquad.theory import alpha_star, oracle_step, rho_star
from posquad.theory.signal import Signal

__all__ = ["certify", "proved_constants"]

_LOSSES = (1e-3, 1e-2, 0.1, 0.5)  # fractions by which an estimate is weakened for a proof


def certify(
    objective: Objective,
    U: Array,
    *,
    tolerance: float = 1e-9,
    trace_tolerance: float = 1e-6,
    compare: bool = True,
    seed: int = 0,
) -> Certificate:
    """Return a certificate of what can be proved about `Q = UU'` as the answer to `A(Q) = y`.

    Statements are about the exact matrix UU' whose factor has these floating-point entries, and all
    rounding errors are bounded; `docs/theory.md` has the proofs. Numbers are rounded outward by
    1e-12, so that a machine that rounds differently can prove them again.

    - `interpolation`: `||A(UU') - y|| / ||y|| <= value`, PROVED if that is within `tolerance`.
    - `identifiability`: `lambda_min^eff(UU') >= value > 0` (`eq:min-effective-eigenvalue`).
    - `local_uniqueness`: `value = sqrt(lam/mu)/2` (Theorem A). For the data `A(UU')`, no other
      critical point lies within this Procrustes distance, and gradient flows that start within it
      obey `Certificate.flow_envelope`. For y itself, every critical point within half of this
      distance lies within `details["critical_points_within"]`. `details["step"]` is the certified
      step size of Theorem B, and `details["paper"]` holds the constants of
      Theorem 3.3 (`thm:local-secant-regularity`) if they exist.
    - `global_uniqueness`: UU' is the only positive semidefinite matrix, of any rank, with
      measurements `A(UU')`. Every other one whose root mean square misfit to y is at most eps lies
      within `value * (eps + residual)` of it (Theorem D), also for noisy data. `details["within"]`
      is this distance for matrices that fit as well as UU' does.
    - `minimum_trace`: no positive semidefinite matrix that fits y as well has a smaller trace, up
      to the relative `details["gap"]`, PROVED if that is within `trace_tolerance`.

    Args:
        objective: one `LeastSquares` over `RankOne` or `Dense` measurements.
        U: factor `[d, r]`; little can be proved if it does not have full column rank.
        tolerance, trace_tolerance: see above.
        compare: whether to also compute the paper's constants m and M, and what follows from them.
        seed: seed of the power iteration that bounds mu from below.

    Ctrl-C raises `posquad.Interrupted`, whose `result` is a certificate that proves nothing.

    >>> from posquad import LeastSquares, RankOne, certify
    >>> X = np.random.default_rng(0).standard_normal((30, 4))
    >>> u = np.array([[1.0], [2.0], [0.0], [-1.0]])
    >>> certificate = certify(LeastSquares(RankOne(X), (X @ u)[:, 0] ** 2), u)
    >>> certificate.proved, certificate.error_bound(misfit=0.0) < 1e-10
    (True, True)
    """
    operator, y = bounded_problem(objective)
    factor = _factor(objective, U)
    require_boolean(compare=compare)
    tolerance = positive_number("tolerance", tolerance)
    trace_tolerance = positive_number("trace_tolerance", trace_tolerance)
    seed = positive_integer("seed", seed, zero=True)
    fingerprint = fingerprint_of(operator, y, factor)

    def nothing(reason: str) -> Certificate:
        findings: dict[str, Any] = {name: words.refused(reason) for name in FINDINGS}
        none = Claims(residual=0.0, largest=0.0)
        return Certificate(
            **findings, claims=none, witness=Witness(factor), fingerprint=fingerprint
        )

    problem = _range_problem(operator, y, factor)
    if problem is not None:
        return nothing(problem)
    try:
        with np.errstate(all="ignore"):  # nothing is proved from overflows
            claims, witness, found, notes = _search(operator, y, factor, trace_tolerance, seed)
            if compare and isinstance(objective, LeastSquares):
                full = math.isfinite(notes["curvature"]["condition"])
                notes["local"]["paper"] = _paper(objective, operator, factor) if full else None
    except KeyboardInterrupt as stop:
        reason = "the search for a proof was interrupted"
        raise Interrupted(nothing(reason)) from stop
    margin = words.OUTWARD_MARGIN
    return Certificate(
        interpolation=words.interpolation(found, tolerance, notes["residual"], margin),
        identifiability=words.identifiability(found, notes["curvature"], margin),
        local_uniqueness=words.local_uniqueness(found, notes["local"], margin),
        global_uniqueness=words.global_uniqueness(found, claims.beta, notes["dual"], margin),
        minimum_trace=words.minimum_trace(found, trace_tolerance, notes["trace"], margin),
        claims=_only_proved(claims, found),
        witness=witness,
        fingerprint=fingerprint,
    )


def _factor(objective: Objective, U: Array) -> np.ndarray:
    (u,) = objective.admit(U=U)
    if u.ndim != 2 or not 1 <= u.shape[1] <= u.shape[0]:
        expected = "one factor (d, r), 1 <= r <= d"
        raise DomainError("U", expected=expected, got=f"shape {tuple(u.shape)}")
    return np.ascontiguousarray(doubles(u))


def _range_problem(operator: BoundedOperator, y: np.ndarray, U: np.ndarray) -> str | None:
    """Say which array is outside the range in which the rounding bounds hold; None if none is.

    Responses are refused only if their squares could overflow. Tiny responses are allowed; they
    only make the relative residual large.
    """
    for name, arrays in (("measurements", operator.arrays()), ("factor U", (U,))):
        if not in_range(*arrays):
            size = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
            low, high = CERTIFIED_ENTRIES.of()
            return (
                f"outside the range in which the rounding bounds hold: the largest entry of the "
                f"{name} is {size:.1e}, not within [{low:.0e}, {high:.0e}]; rescale the problem"
            )
    size = float(np.abs(y).max(initial=0.0))
    largest = RESPONSES.of().high  # responses are only compared, and squared once
    if not size <= largest:
        return (
            f"outside the range in which the rounding bounds hold: the largest response is "
            f"{size:.1e}, above {largest:.0e}; rescale the problem"
        )
    return None


def proved_constants(objective: Objective, U: Array) -> tuple[float, float, float] | None:
    """Return `(lam, Lam, mu)` of Theorems A and B, proved at `Q = UU'`; None if no proof succeeds.

    They are a lower bound on `lambda_min^eff`, an upper bound on `lambda_max^eff`
    (`eq:max-effective-eigenvalue`) and an upper bound on `max N(vv')^2`. `certify` proves them too.

    >>> from posquad import LeastSquares, RankOne
    >>> lam, Lam, mu = proved_constants(LeastSquares(RankOne(np.eye(1)), np.ones(1)), np.eye(1))
    >>> round(lam, 2), round(Lam, 2), round(mu, 2)
    (4.0, 4.0, 1.0)
    """
    operator, _ = bounded_problem(objective)
    factor = _factor(objective, U)
    if not in_range(*operator.arrays(), factor):
        return None
    with np.errstate(all="ignore"):
        gram = TangentGram(operator, factor)
        claims = Claims(residual=0.0, largest=0.0)
        lower, _ = quartic_below(operator)
        claims, _ = _claim_curvature(claims, gram, lower, operator.n, dimension(*factor.shape))
        claims = _claim_quartic(claims, operator)
    if claims.lam is None or claims.Lam is None or claims.mu is None:
        return None
    return claims.lam, claims.Lam, claims.mu


Notes = dict[str, dict[str, Any]]


def _search(
    operator: BoundedOperator,
    y: np.ndarray,
    U: np.ndarray,
    trace_tolerance: float,
    seed: int,
) -> tuple[Claims, Witness, Conclusions, Notes]:
    """Return claims, witnesses, the conclusions proved from them, and notes of the search."""
    gram = TangentGram(operator, U)
    singular = np.linalg.svd(U, compute_uv=False)
    computed, rounding = residual_and_rounding(operator, y, U)
    # The allowance lets a machine that rounds differently prove the claim again.
    residual = up(computed * (1 + 1e-12) + 2 * rounding)
    claims = Claims(residual=residual, largest=_prove_largest(U, float(singular[0]) ** 2))
    lower, _ = quartic_below(operator, seed=seed)
    claims, curvature = _claim_curvature(claims, gram, lower, operator.n, dimension(*U.shape))
    deficient = singular[-1] <= max(U.shape) * np.finfo(float).eps * singular[0]
    curvature["condition"] = math.inf if deficient else float(singular[0] / singular[-1])
    claims = _claim_quartic(claims, operator)
    claims, witness, dual = _claim_dual(claims, operator, gram)
    found = proved_conclusions(operator, y, witness, claims, gram)
    trace: dict[str, Any] = {"method": "uniqueness" if found.constant is not None else None}
    if found.trace_gap is None or found.trace_gap > trace_tolerance:
        better = trace_dual(operator, y, U)
        if better is not None:
            claims = replace(claims, excess=better.excess)
            witness = replace(witness, dual=better.dual)
            trace = {"method": better.method}
            gap = trace_gap(operator, y, witness, claims, found.residual, found.constant)
            found = replace(found, trace_gap=gap)
    local: dict[str, Any] = {"mu_lower": lower, "mu_route": claims.route}
    missed = {"computed": computed, "rounding": rounding}
    notes = {
        "residual": missed,
        "curvature": curvature,
        "local": local,
        "dual": dual,
        "trace": trace,
    }
    return claims, witness, found, notes


def _prove_largest(U: np.ndarray, estimate: float) -> float:
    """Return the least of a few upper bounds on `lambda_1(UU')` that can be proved."""
    candidates = [estimate * (1 + loss) for loss in (1e-12, 1e-10, *_LOSSES)]
    return next((c for c in candidates if proves_largest(U, c)), math.inf)


def _claim_curvature(
    claims: Claims, gram: TangentGram, mu_lower: float, n: int, p: int
) -> tuple[Claims, dict[str, Any]]:
    notes: dict[str, Any] = {"n": n, "p": p, "kernel_dimension": None, "lam_estimate": 0.0}
    # lam <= 4 lambda_r mu, and the gauge term is at least 2 lambda_r weight, so it does not limit
    # lam.
    gauge = 2 * mu_lower * n
    largest = extreme_values(gram.G)[1] * 4 / n
    for loss in _LOSSES:
        if gram.proves_largest(largest * (1 + loss)):
            claims = replace(claims, Lam=largest * (1 + loss))
            break
    if n < p:
        notes["kernel_dimension"] = p - n
        return claims, notes
    full = gram.with_gauge(gauge)[0]
    low, high = extreme_values(full)
    notes["lam_estimate"] = low * 4 / n
    for loss in _LOSSES:
        if low > 0 and gram.proves_smallest((1 - loss) * low * 4 / n, gauge):
            return replace(claims, lam=(1 - loss) * low * 4 / n, gauge=gauge), notes
    rounding = eigenvalue_rounding(len(full)) * high
    if low > rounding:
        notes["kernel_dimension"] = 0
    elif len(full) <= 4000:
        values = np.linalg.eigvalsh(full)
        notes["kernel_dimension"] = int((values <= rounding).sum())
    return claims, notes


def _claim_quartic(claims: Claims, operator: BoundedOperator) -> Claims:
    guess = quartic_guess(operator)
    for loss in _LOSSES:
        value = guess.value * (1 + loss)
        if proves_quartic(operator, value, guess.route, guess.parameter):
            return replace(claims, mu=value, route=guess.route, parameter=guess.parameter)
    return claims


def _claim_dual(
    claims: Claims, operator: BoundedOperator, gram: TangentGram
) -> tuple[Claims, Witness, dict[str, Any]]:
    U = gram.U
    d, r = U.shape
    notes: dict[str, Any] = {
        "n": operator.n,
        "p": dimension(d, r),
        "method": None,
        "smallest": None,
    }
    witness = Witness(U)
    if claims.lam is None or claims.mu is None or r == d:
        return claims, witness, notes
    factor = np.linalg.cholesky(gram.with_gauge(claims.gauge)[0])  # it exists, since lam is proved
    guess = DualSearch(operator, U, factor).find()
    if guess is None:
        return claims, witness, notes
    notes |= {"method": guess.method, "smallest": guess.smallest, "exhausted": guess.exhausted}
    for loss in (1e-6, *_LOSSES):
        beta = (1 - loss) * guess.smallest
        if beta > 0 and proves_dual(operator, U, guess.z, beta, claims.lam, claims.mu):
            return replace(claims, beta=beta), Witness(U, z=guess.z), notes
    return claims, witness, notes


def _only_proved(claims: Claims, found: Conclusions) -> Claims:
    """Drop the claims that could not be proved; for the first two, zero claims nothing."""
    return replace(
        claims,
        residual=claims.residual if math.isfinite(found.residual) else 0.0,
        largest=claims.largest if math.isfinite(claims.largest) else 0.0,
        lam=found.lam,
        Lam=found.Lam,
        mu=found.mu,
        beta=claims.beta if found.constant is not None else None,
    )


def _paper(
    objective: LeastSquares, operator: BoundedOperator, U: np.ndarray
) -> dict[str, float] | None:
    """Return m, M, and the radius, step and rate of section 3.4, not proved; None if m = 0."""
    if operator.n < operator.d * (operator.d + 1) // 2:
        return None
    bounds = operator_bounds(objective.measurements)
    m, M = bounds.smallest, bounds.largest
    if not m > 1e-12 * M:
        return None
    signal = Signal.from_factor(U)
    return {
        "m": m,
        "M": M,
        "radius": rho_star(signal, m, M),
        "rate": alpha_star(signal, m),
        "step": oracle_step(signal, m, M),
    }
