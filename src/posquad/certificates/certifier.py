"""`certify`: search for claims, prove them, say in words what is proved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from posquad.certificates import words
from posquad.certificates.certificate import FINDINGS, Certificate, fingerprint_of
from posquad.certificates.proofs.bounded_operator import Forms, forms_of
from posquad.certificates.proofs.claims import Claims, Conclusions, Witness, judge, trace_gap
from posquad.certificates.proofs.rounding import LARGEST_RESPONSE, in_range, up
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
from posquad.core.arrays import Array, positive_integer, positive_number
from posquad.core.errors import DomainError
from posquad.curvature.full_space import operator_bounds
from posquad.geometry import dimension
from posquad.problems.objectives import LeastSquares, Objective
from posquad.theory import alpha_star, oracle_step, rho_star
from posquad.theory.signal import Signal

__all__ = ["certify", "proved_constants"]

_SHRINK = (1e-3, 1e-2, 0.1, 0.5)  # what is given up of an estimate until its proof succeeds


def certify(
    objective: Objective,
    U: Array,
    *,
    tolerance: float = 1e-9,
    trace_tolerance: float = 1e-6,
    compare: bool = True,
    seed: int = 0,
) -> Certificate:
    """Say what can be proved about `Q = UU'` as the answer to `A(Q) = y`.

    Statements are about the exact matrix UU' whose factor has these floating-point entries, and
    every rounding error on the way is bounded; `docs/theory.md` has the proofs.

    Numbers are stated rounded outward by 1e-12, so that another machine can prove them again.

    - `interpolation`: `||A(UU') - y|| / ||y|| <= value`, PROVED if that is within `tolerance`.
    - `identifiability`: `lambda_min^eff(UU') >= value > 0` (`eq:min-effective-eigenvalue`).
    - `local_uniqueness`: `value = sqrt(lam/mu)/2` (Theorem A): for the data `A(UU')` no other
      critical point lies within this Procrustes distance, and the gradient flow from there obeys
      `Certificate.flow_envelope`; for y itself, every critical point within half of it lies within
      `details["critical_points_within"]`. `details["step"]` is the certified step of Theorem B,
      `details["paper"]` the constants of `thm:local-secant-regularity` where they exist.
    - `global_uniqueness`: UU' is the only positive semidefinite matrix, of any rank, with
      measurements `A(UU')`, and each one that explains y to root mean square misfit eps lies within
      `value * (eps + residual)` of it (Theorem D). This is a statement about noisy data too;
      `details["within"]` is the distance for those that fit as well as UU' does.
    - `minimum_trace`: no positive semidefinite matrix that fits y as well has a smaller trace, up
      to the relative `details["gap"]`, PROVED if that is within `trace_tolerance`.

    Args:
        objective: one `LeastSquares` over `RankOne` or `Dense` measurements.
        U: a factor `[d, r]`; of one without full column rank little can be proved.
        tolerance, trace_tolerance: as above.
        compare: also compute the paper's constants m, M and what follows from them.
        seed: of the power iteration that bounds mu from below.

    >>> from posquad import LeastSquares, RankOne, certify
    >>> X = np.random.default_rng(0).standard_normal((30, 4))
    >>> u = np.array([[1.0], [2.0], [0.0], [-1.0]])
    >>> certificate = certify(LeastSquares(RankOne(X), (X @ u)[:, 0] ** 2), u)
    >>> certificate.proved, certificate.error_bound(misfit=0.0) < 1e-10
    (True, True)
    """
    forms, y = forms_of(objective)
    factor = _factor(objective, U)
    tolerance = positive_number("tolerance", tolerance)
    trace_tolerance = positive_number("trace_tolerance", trace_tolerance)
    seed = positive_integer("seed", seed, zero=True)
    fingerprint = fingerprint_of(forms, y, factor)
    outside = _outside(forms, y, factor)
    if outside is not None:
        findings: dict[str, Any] = {name: words.refused(outside) for name in FINDINGS}
        nothing = Claims(residual=0.0, largest=0.0)
        return Certificate(
            **findings, claims=nothing, witness=Witness(factor), fingerprint=fingerprint
        )
    with np.errstate(all="ignore"):  # what overflows is not proved
        claims, witness, found, seen = _search(forms, y, factor, trace_tolerance, seed)
        if compare and isinstance(objective, LeastSquares):
            full = math.isfinite(seen["curvature"]["condition"])
            seen["local"]["paper"] = _paper(objective, forms, factor) if full else None
    give = words.GIVE
    return Certificate(
        interpolation=words.interpolation(found, tolerance, seen["residual"], give),
        identifiability=words.identifiability(found, seen["curvature"], give),
        local_uniqueness=words.local_uniqueness(found, seen["local"], give),
        global_uniqueness=words.global_uniqueness(found, claims.beta, seen["dual"], give),
        minimum_trace=words.minimum_trace(found, trace_tolerance, seen["trace"], give),
        claims=_only_proved(claims, found),
        witness=witness,
        fingerprint=fingerprint,
    )


def _factor(objective: Objective, U: Array) -> np.ndarray:
    (u,) = objective.admit(U=U)
    if u.ndim != 2 or not 1 <= u.shape[1] <= u.shape[0]:
        expected = "one factor (d, r), 1 <= r <= d"
        raise DomainError("U", expected=expected, got=f"shape {tuple(u.shape)}")
    return np.ascontiguousarray(u.detach().double().cpu().numpy())


def _outside(forms: Forms, y: np.ndarray, U: np.ndarray) -> str | None:
    """In words, which array leaves the range in which rounding bounds are kept; None if none does.

    Of responses only a size at which squares overflow matters: a small y has a large relative
    residual, which is the truth about it.
    """
    for name, arrays in (("measurements", forms.arrays()), ("factor U", (U,))):
        if not in_range(*arrays):
            size = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
            return (
                f"outside the range in which rounding bounds are kept: the largest entry of the "
                f"{name} is {size:.1e}, not within [1e-20, 1e20]; rescale the problem"
            )
    size = float(np.abs(y).max(initial=0.0))
    if not size <= LARGEST_RESPONSE:
        return (
            f"outside the range in which rounding bounds are kept: the largest response is "
            f"{size:.1e}, above {LARGEST_RESPONSE:.0e}; rescale the problem"
        )
    return None


def proved_constants(objective: Objective, U: Array) -> tuple[float, float, float] | None:
    """`(lam, Lam, mu)` of Theorems A and B, proved at `Q = UU'`; None if they cannot be.

    A lower bound on `lambda_min^eff`, an upper bound on `lambda_max^eff`
    (`eq:max-effective-eigenvalue`) and one on `max N(vv')^2`: part of what `certify` proves.

    >>> from posquad import LeastSquares, RankOne
    >>> lam, Lam, mu = proved_constants(LeastSquares(RankOne(np.eye(1)), np.ones(1)), np.eye(1))
    >>> round(lam, 2), round(Lam, 2), round(mu, 2)
    (4.0, 4.0, 1.0)
    """
    forms, _ = forms_of(objective)
    factor = _factor(objective, U)
    if not in_range(*forms.arrays(), factor):
        return None
    with np.errstate(all="ignore"):
        gram = TangentGram(forms, factor)
        claims = Claims(residual=0.0, largest=0.0)
        lower, _ = quartic_below(forms)
        claims, _ = _claim_curvature(claims, gram, lower, forms.n, dimension(*factor.shape))
        claims = _claim_quartic(claims, forms)
    if claims.lam is None or claims.Lam is None or claims.mu is None:
        return None
    return claims.lam, claims.Lam, claims.mu


Seen = dict[str, dict[str, Any]]


def _search(
    forms: Forms,
    y: np.ndarray,
    U: np.ndarray,
    trace_tolerance: float,
    seed: int,
) -> tuple[Claims, Witness, Conclusions, Seen]:
    """Claims that can be proved, and what is concluded from them; also what was seen on the way."""
    gram = TangentGram(forms, U)
    singular = np.linalg.svd(U, compute_uv=False)
    computed, rounding = residual_and_rounding(forms, y, U)
    # So much that another machine, which rounds differently, can prove it again.
    residual = up(computed * (1 + 1e-12) + 2 * rounding)
    claims = Claims(residual=residual, largest=_prove_largest(U, float(singular[0]) ** 2))
    lower, _ = quartic_below(forms, seed=seed)
    claims, curvature = _claim_curvature(claims, gram, lower, forms.n, dimension(*U.shape))
    deficient = singular[-1] <= max(U.shape) * np.finfo(float).eps * singular[0]
    curvature["condition"] = math.inf if deficient else float(singular[0] / singular[-1])
    claims = _claim_quartic(claims, forms)
    claims, witness, dual = _claim_dual(claims, forms, gram)
    found = judge(forms, y, witness, claims, gram)
    trace: dict[str, Any] = {"method": "uniqueness" if found.constant is not None else None}
    if found.trace_gap is None or found.trace_gap > trace_tolerance:
        better = trace_dual(forms, y, U)
        if better is not None:
            claims = replace(claims, excess=better.excess)
            witness = replace(witness, dual=better.dual)
            trace = {"method": better.method}
            gap = trace_gap(forms, y, witness, claims, found.residual, found.constant)
            found = replace(found, trace_gap=gap)
    local: dict[str, Any] = {"mu_lower": lower, "mu_route": claims.route}
    missed = {"computed": computed, "rounding": rounding}
    seen = {
        "residual": missed,
        "curvature": curvature,
        "local": local,
        "dual": dual,
        "trace": trace,
    }
    return claims, witness, found, seen


def _prove_largest(U: np.ndarray, estimate: float) -> float:
    """The least of a few upper bounds on `lambda_1(UU')` that can be proved."""
    candidates = [estimate * (1 + give) for give in (1e-12, 1e-10, *_SHRINK)]
    return next((c for c in candidates if proves_largest(U, c)), math.inf)


def _claim_curvature(
    claims: Claims, gram: TangentGram, mu_lower: float, n: int, p: int
) -> tuple[Claims, dict[str, Any]]:
    seen: dict[str, Any] = {"n": n, "p": p, "kernel_dimension": None, "lam_estimate": 0.0}
    # lam <= 4 lambda_r mu, and the gauge term is at least 2 lambda_r weight: it never decides.
    gauge = 2 * mu_lower * n
    largest = extreme_values(gram.G)[1] * 4 / n
    for give in _SHRINK:
        if gram.proves_largest(largest * (1 + give)):
            claims = replace(claims, Lam=largest * (1 + give))
            break
    if n < p:
        seen["kernel_dimension"] = p - n
        return claims, seen
    full = gram.with_gauge(gauge)[0]
    low, high = extreme_values(full)
    seen["lam_estimate"] = low * 4 / n
    for give in _SHRINK:
        if low > 0 and gram.proves_smallest((1 - give) * low * 4 / n, gauge):
            return replace(claims, lam=(1 - give) * low * 4 / n, gauge=gauge), seen
    rounding = 10 * len(full) * np.finfo(float).eps * high
    if low > rounding:
        seen["kernel_dimension"] = 0
    elif len(full) <= 4000:
        values = np.linalg.eigvalsh(full)
        seen["kernel_dimension"] = int((values <= rounding).sum())
    return claims, seen


def _claim_quartic(claims: Claims, forms: Forms) -> Claims:
    guess = quartic_guess(forms)
    for give in _SHRINK:
        value = guess.value * (1 + give)
        if proves_quartic(forms, value, guess.route, guess.parameter):
            return replace(claims, mu=value, route=guess.route, parameter=guess.parameter)
    return claims


def _claim_dual(
    claims: Claims, forms: Forms, gram: TangentGram
) -> tuple[Claims, Witness, dict[str, Any]]:
    U = gram.U
    d, r = U.shape
    seen: dict[str, Any] = {"n": forms.n, "p": dimension(d, r), "method": None, "smallest": None}
    witness = Witness(U)
    if claims.lam is None or claims.mu is None or r == d:
        return claims, witness, seen
    factor = np.linalg.cholesky(gram.with_gauge(claims.gauge)[0])  # it exists: lam is proved
    guess = DualSearch(forms, U, factor).find()
    if guess is None:
        return claims, witness, seen
    seen |= {"method": guess.method, "smallest": guess.smallest, "exhausted": guess.exhausted}
    for give in (1e-6, *_SHRINK):
        beta = (1 - give) * guess.smallest
        if beta > 0 and proves_dual(forms, U, guess.z, beta, claims.lam, claims.mu):
            return replace(claims, beta=beta), Witness(U, z=guess.z), seen
    return claims, witness, seen


def _only_proved(claims: Claims, found: Conclusions) -> Claims:
    """Without the numbers that could not be proved (of the first two a zero claims nothing)."""
    return replace(
        claims,
        residual=claims.residual if math.isfinite(found.residual) else 0.0,
        largest=claims.largest if math.isfinite(claims.largest) else 0.0,
        lam=found.lam,
        Lam=found.Lam,
        mu=found.mu,
        beta=claims.beta if found.constant is not None else None,
    )


def _paper(objective: LeastSquares, forms: Forms, U: np.ndarray) -> dict[str, float] | None:
    """m, M and the radius, step and rate of section 3.4; None where m = 0. Not proved."""
    if forms.n < forms.d * (forms.d + 1) // 2:
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
