"""Attempts to obtain a false certificate, each with the truth beside it.

A case builds data, a factor to certify, and what is known to be true of them: other positive
semidefinite matrices that fit, tangent directions that are hardly measured. `lies` compares what a
certificate says is PROVED with that, in extended precision; an empty list means that it told no
lie. Saved certificates are also forged: bits flipped, numbers changed, dual vectors moved.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from adversarial import Family, Outcome
from posquad import Certificate, Dense, LeastSquares, RankOne, certify
from posquad.certificates import FINDINGS, Verdict, files, load, save, verify, words
from posquad.core.errors import DomainError
from posquad.core.files import json_checksum
from posquad.geometry import dimension, horizontal_basis

Rng = np.random.Generator
LONG = np.longdouble  # sixty-four bits on x86; elsewhere the checks are as good as double precision


@dataclass
class Case:
    """Data, a factor, and the truth about them."""

    X: np.ndarray
    y: np.ndarray
    U: np.ndarray
    others: list[np.ndarray] = field(default_factory=list)  # factors F of PSD matrices FF'
    unseen: list[np.ndarray] = field(default_factory=list)  # symmetric xi, hardly measured
    identifiable: bool | None = None  # None: not known
    unique: bool | None = None

    @property
    def objective(self) -> LeastSquares:
        if self.X.ndim == 3:
            return LeastSquares(Dense(self.X), self.y)
        return LeastSquares(RankOne(self.X), self.y)


def planted(rng: Rng, n: int, d: int, r: int, *, condition: float = 2.0) -> Case:
    X = rng.standard_normal((n, d))
    W = np.linalg.qr(rng.standard_normal((d, r)))[0]
    U = W * np.sqrt(np.geomspace(1.0, 1 / condition, r))
    if rng.random() < 0.5:
        U = U @ np.linalg.qr(rng.standard_normal((r, r)))[0]
    return Case(X, np.square(X @ U).sum(1), U, [U])


def sizes(rng: Rng, *, most: float = 5.0, least: float = 1.2) -> tuple[int, int, int]:
    d = int(rng.integers(2, 8))
    r = int(rng.integers(1, min(d, 3) + 1))
    return max(1, int(rng.uniform(least, most) * dimension(d, r))), d, r


# The cases.


def perturbed(rng: Rng) -> Case:
    case = planted(rng, *sizes(rng))
    off = 10.0 ** rng.uniform(-15, 0)
    return replace(case, U=case.U + off * rng.standard_normal(case.U.shape))


def noisy(rng: Rng) -> Case:
    case = planted(rng, *sizes(rng))
    off = 10.0 ** rng.uniform(-13, 0)
    return replace(case, y=case.y + off * rng.standard_normal(case.y.shape))


def rank_too_large(rng: Rng) -> Case:
    n, d, r = sizes(rng)
    r = min(r, d - 1)
    case = planted(rng, n, d, r)
    junk = 10.0 ** rng.uniform(-13, 0) * rng.standard_normal((d, 1))
    return replace(case, U=np.hstack([case.U, junk]))


def rank_too_small(rng: Rng) -> Case:
    n, d, _ = sizes(rng)
    case = planted(rng, n, d, min(2, d), condition=10.0 ** rng.uniform(0, 14))
    values, vectors = np.linalg.eigh(case.U @ case.U.T)
    return replace(case, U=vectors[:, -1:] * math.sqrt(values[-1]))


def too_few(rng: Rng) -> Case:
    _, d, r = sizes(rng)
    n = int(rng.integers(1, dimension(d, r) + 1))
    case = planted(rng, n, d, r)
    return replace(
        case, identifiable=None if n == dimension(d, r) else False, unique=unique_at(n, d, r)
    )


def unique_at(n: int, d: int, r: int) -> bool | None:
    """With n <= p and r < d there is no dual matrix; with n < p not even local uniqueness."""
    return None if (r == d and n >= dimension(d, r)) else False


def duplicated(rng: Rng) -> Case:
    n, d, r = sizes(rng)
    distinct = int(rng.integers(1, dimension(d, r)))
    if d == 1 or distinct < 1:
        distinct = 1
    case = planted(rng, distinct, d, r)
    again = rng.integers(0, distinct, n + distinct)
    signs = rng.choice([-1.0, 1.0], (len(again), 1))
    unseen = distinct < dimension(d, r)
    return replace(
        case,
        X=case.X[again] * signs,
        y=case.y[again],
        identifiable=False if unseen else None,
        unique=False if unseen else None,
    )


def in_a_subspace(rng: Rng) -> Case:
    n, d, r = sizes(rng)
    k = int(rng.integers(1, d))
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    if rng.random() < 0.5:
        basis = np.eye(d)
    leak = 0.0 if rng.random() < 0.5 else 10.0 ** rng.uniform(-17, -9)
    flat = rng.standard_normal((n, k)) @ basis[:, :k].T
    X = flat + leak * rng.standard_normal((n, d))
    case = planted(rng, n, d, r)
    hidden = basis[:, k:]
    other = np.hstack([case.U, hidden])  # Q + a projector that is hardly measured
    case = replace(case, X=X, y=np.square(X @ case.U).sum(1), others=[case.U, other])
    xi = case.U[:, :1] @ hidden[:, :1].T
    return replace(case, unseen=[xi + xi.T])


def ill_conditioned(rng: Rng) -> Case:
    n, d, _ = sizes(rng)
    r = int(rng.integers(1, d + 1))
    n = max(n, int(rng.uniform(1, 4) * dimension(d, r)))
    case = planted(rng, n, d, r, condition=10.0 ** rng.uniform(2, 24))
    X = case.X * 10.0 ** rng.uniform(-3, 3, case.X.shape[1])
    return replace(case, X=X, y=np.square(X @ case.U).sum(1))


def on_a_quadric(rng: Rng, n: int, H: np.ndarray, off: float) -> np.ndarray:
    """Rows with `x'Hx = 0` up to `off`, by moving random rows along random directions."""
    rows: list[np.ndarray] = []
    while len(rows) < n:
        x, w = rng.standard_normal((2, len(H)))
        a, b, c = w @ H @ w, x @ H @ w, x @ H @ x
        root = b * b - a * c
        if root >= 0 and abs(a) > 1e-6:
            rows.append(x + (-b + math.sqrt(root)) / a * w)
    return np.array(rows) + off * rng.standard_normal((n, len(H)))


def nearly_singular(rng: Rng) -> Case:
    """One tangent direction is measured by `off` only."""
    n, d, r = sizes(rng, least=1.5)
    case = planted(rng, n, d, r)
    basis = horizontal_basis(case.U)
    for _ in range(50):
        Delta = np.tensordot(rng.standard_normal(len(basis)), basis, 1)
        xi = case.U @ Delta.T + Delta @ case.U.T
        values = np.linalg.eigvalsh(xi)
        if min(-values[0], values[-1]) > 0.05 * np.abs(values).max():  # both signs, clearly
            break
    else:
        return case
    off = 0.0 if rng.random() < 0.3 else 10.0 ** rng.uniform(-16, -1)
    X = on_a_quadric(rng, n, xi, off)
    return replace(case, X=X, y=np.square(X @ case.U).sum(1), unseen=[xi])


def two_interpolants(rng: Rng) -> Case:
    """`x'(Q - Q')x = 0` for every input, up to `off`: both fit."""
    n, d, r = sizes(rng, most=8.0)
    case = planted(rng, n, d, r)
    for _ in range(50):
        F = rng.standard_normal((d, int(rng.integers(1, d + 1)))) * rng.uniform(0.1, 1)
        H = case.U @ case.U.T - F @ F.T
        values = np.linalg.eigvalsh(H)
        if min(-values[0], values[-1]) > 0.05 * np.abs(values).max():  # both signs, clearly
            break
    else:
        return case
    off = 0.0 if rng.random() < 0.5 else 10.0 ** rng.uniform(-16, -3)
    X = on_a_quadric(rng, n, H, off)
    return replace(case, X=X, y=np.square(X @ case.U).sum(1), others=[case.U, F])


def dense(rng: Rng) -> Case:
    """General symmetric measurements, sometimes commuting, sometimes too few."""
    n, d, r = sizes(rng, least=0.5)
    case = planted(rng, n, d, r)
    A = rng.standard_normal((n, d, d))
    A = A + A.transpose(0, 2, 1)
    if rng.random() < 0.3:
        A = A * np.eye(d)
    y = np.einsum("iab,ab->i", A, case.U @ case.U.T)
    diagonal = [case.U * rng.choice([-1.0, 1.0], (d, 1))] if (A * np.eye(d) == A).all() else []
    return replace(case, X=A, y=y, others=[case.U, *diagonal])


def light_cone(rng: Rng) -> Case:
    """`e3` and `[e1, e2]` measured alike up to `off`: rows near `x3^2 = x1^2 + x2^2`."""
    ab = rng.integers(-40, 41, (300, 2)).astype(float)
    X = np.hstack([ab, np.hypot(*ab.T)[:, None]]) + 10.0 ** rng.uniform(-12, -6) * (
        rng.standard_normal((300, 3))
    )
    U, F = np.eye(3)[:, 2:], np.eye(3)[:, :2]
    y = np.square(X @ U).sum(1)
    if rng.random() < 0.5:
        return Case(X, y, U, [U, F])
    return Case(X, y, F, [U, F])


def extreme_scale(rng: Rng) -> Case:
    case = planted(rng, *sizes(rng))
    a, b = 10.0 ** rng.uniform(-24, 24), 10.0 ** rng.uniform(-24, 24)
    X, U = a * case.X, b * case.U
    return replace(case, X=X, U=U, y=np.square(X @ U).sum(1), others=[U])


KINDS: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        perturbed,
        noisy,
        rank_too_large,
        rank_too_small,
        too_few,
        duplicated,
        in_a_subspace,
        ill_conditioned,
        nearly_singular,
        two_interpolants,
        dense,
        light_cone,
        extreme_scale,
    )
}


# The truth.


def measure(X: np.ndarray, F: np.ndarray) -> np.ndarray:
    """`A(FF')` in extended precision."""
    x, f = X.astype(LONG), F.astype(LONG)
    if X.ndim == 3:
        return (x * (f @ f.T)).sum((1, 2))
    return np.square(x @ f).sum(1)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def lies(case: Case, certificate: Certificate) -> list[str]:
    """What the certificate calls PROVED and is not true; also what its repetition would not say."""
    found: list[str] = []
    X, y, U = case.X, case.y, case.U
    Q = U.astype(LONG) @ U.astype(LONG).T
    residual = rms(measure(X, U) - y)
    if certificate.interpolation.proved:
        relative = residual / rms(y.astype(LONG))
        if relative > certificate.interpolation.value * (1 + 1e-12):
            found.append(f"relative residual {relative} > {certificate.interpolation.value}")
    if certificate.identifiability.proved:
        if case.identifiable is False:
            found.append("identifiable, with a kernel")
        lam = certificate.identifiability.value
        for xi in case.unseen:
            # Of all Delta with this xi the longest has ||xi||_F <= 2 ||U|| ||Delta||.
            seen = rms(np.einsum("ia,ab,ib->i", *(X.astype(LONG), xi.astype(LONG), X.astype(LONG))))
            least = float(np.linalg.norm(xi)) / (2 * float(np.linalg.norm(U, 2)))
            if lam * least**2 > seen**2 * (1 + 1e-9):
                found.append(f"lam = {lam} > {seen**2 / least**2}")
        computed = smallest_curvature(X, U)
        if lam > computed * (1 + 1e-6) + 1e-11 * largest_curvature(X, U):
            found.append(f"lam = {lam} > {computed}, as computed")
    if certificate.global_uniqueness.proved:
        if case.unique is False:
            found.append("unique, where other matrices fit")
        for F in case.others:
            other = F.astype(LONG) @ F.astype(LONG).T
            distance = float(np.sqrt(np.square(other - Q).sum()))
            allowed = certificate.error_bound(rms(measure(X, F) - y) * (1 + 1e-9))
            if distance > allowed + 1e-17 * float(np.abs(Q).max()):
                found.append(f"another matrix fits at distance {distance} > {allowed}")
    if certificate.minimum_trace.proved:
        gap = certificate.minimum_trace.details["gap"]
        for F in case.others:
            if rms(measure(X, F) - y) <= residual:
                trace = float(np.square(F.astype(LONG)).sum())
                if trace * (1 + gap) < float(np.trace(Q)) * (1 - 1e-15):
                    found.append(f"trace {trace} is less than {float(np.trace(Q))}")
    if certificate.local_uniqueness.proved:
        mu = certificate.local_uniqueness.details["mu"]
        for seed in range(3):
            v = np.random.default_rng(seed).standard_normal((X.shape[-1], 1))
            v = (v / np.linalg.norm(v)).astype(LONG)
            if rms(measure(X, v)) ** 2 > mu * (1 + 1e-12):
                found.append(f"mu = {mu} is exceeded")
    return found


def rival_lies(case: Case, certificate: Certificate) -> list[str]:
    """Other factors certified on the same y: if two are the answer, they agree as stated."""
    if not certificate.proved:
        return []
    found = []
    Q = case.U.astype(LONG) @ case.U.astype(LONG).T
    for F in case.others:
        rival = certify(case.objective, F, compare=False)
        if not rival.proved:
            continue
        distance = float(np.sqrt(np.square(F.astype(LONG) @ F.astype(LONG).T - Q).sum()))
        stated = sum(c.global_uniqueness.details["within"] for c in (certificate, rival))
        if distance > stated * (1 + 1e-9) + 1e-17 * float(np.abs(Q).max()):
            found.append(f"two answers at distance {distance}, stated {stated}")
    return found


def tangent_gram(X: np.ndarray, U: np.ndarray) -> np.ndarray:
    basis = horizontal_basis(U)
    rows = X @ U if X.ndim == 3 else X[:, :, None] * (X @ U)[:, None, :]
    B = 2 * rows.reshape(len(X), -1) @ basis.reshape(len(basis), -1).T
    return B.T @ B / len(X)


def smallest_curvature(X: np.ndarray, U: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(tangent_gram(X, U))[0])


def largest_curvature(X: np.ndarray, U: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(tangent_gram(X, U))[-1])


def attempt(kind: str, seed: int) -> Outcome:
    """One case: certify, verify, compare with the truth."""
    rng = np.random.default_rng([seed, sorted(KINDS).index(kind)])
    case = KINDS[kind](rng)
    try:
        certificate = certify(case.objective, case.U, compare=False)
    except DomainError:
        return Outcome(said=Counter(["refused before any work"]))
    found = lies(case, certificate)
    outcome = verify(case.objective, certificate)
    told = [name for name in FINDINGS if getattr(certificate, name).proved]
    if list(outcome.confirmed) != told or outcome.valid != bool(told):
        found.append(f"the verifier does not agree: {outcome.problems}")
    if outcome.proved != certificate.proved:
        found.append("the verifier does not agree on the headline")
    found += rival_lies(case, certificate)
    said = {"unique": certificate.global_uniqueness.proved, "proved": certificate.proved}
    return Outcome(found, Counter(word for word, holds in said.items() if holds))


# Certificates that were tampered with.


def tampered(rng: Rng, certificate: Certificate) -> Iterator[tuple[str, Certificate]]:
    """Certificates that say more than is true; each must be rejected."""
    claims, U, z = certificate.claims, certificate.witness.U, certificate.witness.z

    def stretched(name: str, factor: float) -> Certificate:
        finding = getattr(certificate, name)
        return replace(certificate, **{name: replace(finding, value=finding.value * factor)})

    yield "lam", replace(certificate, claims=replace(claims, lam=claims.lam * 1.01))
    yield "Lam", replace(certificate, claims=replace(claims, Lam=claims.Lam * 0.9))
    yield "residual", replace(certificate, claims=replace(claims, residual=claims.residual * 0.1))
    yield "mu", replace(certificate, claims=replace(claims, mu=claims.mu * 0.9))
    yield "largest", replace(certificate, claims=replace(claims, largest=claims.largest * 0.99))
    yield "lam told", stretched("identifiability", 1 + 1e-6)
    yield "radius told", stretched("local_uniqueness", 1.001)
    yield "constant told", stretched("global_uniqueness", 0.999)
    details = {**certificate.global_uniqueness.details, "residual": 0.0}
    told = replace(certificate.global_uniqueness, details=details)
    yield "residual told", replace(certificate, global_uniqueness=told)
    yield "fingerprint", replace(certificate, fingerprint="0" * 64)
    moved = replace(certificate.witness, U=U * (1 + 1e-9))
    yield "factor", replace(certificate, witness=moved)
    if z is not None and claims.beta is not None:
        yield "beta", replace(certificate, claims=replace(claims, beta=claims.beta * 1.01))
        for size in (1e-2, 1.0, 100.0):
            off = z + size * np.linalg.norm(z) * rng.standard_normal(len(z)) / math.sqrt(len(z))
            yield "dual", replace(certificate, witness=replace(certificate.witness, z=off))
        yield "no dual", replace(certificate, witness=replace(certificate.witness, z=None))
        yield "minus dual", replace(certificate, witness=replace(certificate.witness, z=-z))
    for name in FINDINGS:
        finding = getattr(certificate, name)
        if not finding.proved:
            continue
        yield f"{name} text", with_finding(certificate, name, reason="true beyond doubt")
        yield f"{name} value missing", with_finding(certificate, name, value=None)
        more = {**finding.details, "error": 0.0}
        yield f"{name} more details", with_finding(certificate, name, details=more)
        if finding.margin is not None:
            margin = finding.margin * (1 + 1e-9)
            yield f"{name} margin", with_finding(certificate, name, margin=margin)
        for key, side in words.CHECKED[name].items():
            number = finding.value if key == "value" else finding.details[key]
            if number is None:
                continue
            # Past what is given away by stating it rounded outward, and no further.
            changes = [number * (1 - side * 1e-11), None, 10**400, True, "0"]
            changes += [0.0, -number] if side == words.ABOVE else [math.inf]
            for change in changes if side != words.EQUAL else [number + 1, None]:
                yield f"{name} {key} told {change!r:.20}", restated(certificate, name, key, change)


def with_finding(certificate: Certificate, name: str, **changes) -> Certificate:
    return replace(certificate, **{name: replace(getattr(certificate, name), **changes)})


def restated(certificate: Certificate, name: str, key: str, number: object) -> Certificate:
    """One number changed, and where that is possible margin and reason made to fit."""
    finding = getattr(certificate, name)
    value = number if key == "value" else finding.value
    details = finding.details if key == "value" else {**finding.details, key: number}
    try:
        return replace(certificate, **{name: words.proved(name, value, details)})
    except (TypeError, ValueError, ArithmeticError):
        return with_finding(certificate, name, value=value, details=details)


def raised(certificate: Certificate, model: Certificate) -> Iterator[tuple[str, Certificate]]:
    """What is REFUSED called PROVED: with its own numbers, and with those of a good certificate."""
    for name in FINDINGS:
        if getattr(certificate, name).proved:
            continue
        own = with_finding(certificate, name, verdict=Verdict.PROVED)
        yield f"{name} raised", own
        yield f"{name} raised to 1", with_finding(own, name, value=1.0, margin=1.0)
        borrowed = replace(certificate, **{name: getattr(model, name)})
        yield f"{name} borrowed", borrowed
        yield f"{name} borrowed with claims", replace(borrowed, claims=model.claims)


def attempt_raising(seed: int) -> Outcome:
    """Certificates in which something is refused, forged to say that it is proved."""
    rng = np.random.default_rng([seed, 978])
    d, r = int(rng.integers(3, 6)), int(rng.integers(1, 3))
    p = dimension(d, r)
    good = planted(rng, 4 * p, d, r)
    model = certify(good.objective, good.U, compare=False)
    noise = 0.3 * rng.standard_normal(4 * p)
    bad = [
        planted(rng, max(1, p - 1), d, r),
        replace(good, y=good.y + noise),
        replace(good, U=good.U + 0.5 * rng.standard_normal(good.U.shape)),
        replace(good, X=good.X * 1e25, y=good.y * 1e50),
        replace(good, U=np.hstack([good.U, good.U[:, :1]])),
    ]
    found, count = [], 0
    for k, case in enumerate(bad):
        certificate = certify(case.objective, case.U, compare=False)
        for name, forged in raised(certificate, model):
            count += 1
            outcome = verify(case.objective, forged)
            if outcome.valid or name.split()[0] in outcome.confirmed:
                found.append(f"case {k}, {name} was accepted")
    return Outcome(found, tried=count)


def slightly_off_dual(rng: Rng, case: Case, certificate: Certificate, size: float) -> list[str]:
    """z off by a relative `size`: if it is still accepted, what it proves must still be true."""
    z, beta = certificate.witness.z, certificate.claims.beta
    if z is None or beta is None:
        return []
    noise = rng.standard_normal(len(z))
    off = z + size * np.linalg.norm(z) * noise / np.linalg.norm(noise)
    changed = replace(certificate, witness=replace(certificate.witness, z=off))
    if "global_uniqueness" not in verify(case.objective, changed).confirmed:
        return []
    U = case.U
    full = np.linalg.qr(U, mode="complete")[0]
    V = full[:, U.shape[1] :]
    K = (case.X[:, :, None] * (case.X @ U)[:, None, :]).reshape(len(z), -1)
    exact = off - K @ np.linalg.lstsq(K, off, rcond=1e-12)[0]
    low = float(np.linalg.eigvalsh(V.T @ (case.X.T * exact) @ case.X @ V)[0])
    scale = float(np.abs(exact) @ np.square(case.X).sum(1))
    if low < beta - 1e-13 * scale:
        return [f"accepted a dual vector off by {size}: {low} < {beta}"]
    return []


def flipped_bit(rng: Rng, case: Case, certificate: Certificate, folder: Path) -> list[str]:
    """One bit of a saved certificate flipped: refused, or the same content as before."""
    paths = save(certificate, folder / "certificate")
    path = paths[int(rng.integers(2))]
    content = bytearray(path.read_bytes())
    position = int(rng.integers(8 * len(content)))
    content[position // 8] ^= 1 << (position % 8)
    path.write_bytes(bytes(content))
    try:
        changed = load(paths[0])
    except DomainError:
        return []
    same = all(
        files._plain(getattr(changed, name)) == files._plain(getattr(certificate, name))
        for name in ("interpolation", "identifiability", "local_uniqueness", "global_uniqueness")
    )
    if same and changed.claims == certificate.claims:
        return []
    return [f"a flipped bit at {position} of {path.name} went unnoticed"]


def forged_file(rng: Rng, case: Case, certificate: Certificate, folder: Path) -> list[str]:
    """A number of the file changed and the checksum made to fit: for `verify` to find."""
    path, _ = save(certificate, folder / "forged")
    body = json.loads(path.read_text())
    choice = int(rng.integers(9))
    if choice == 0:
        body["claims"]["lam"] *= 1.02
    elif choice == 1:
        body["claims"]["Lam"] *= 0.5
    elif choice == 2:
        body["findings"]["global_uniqueness"]["value"] *= 0.5
    elif choice == 3:
        body["findings"]["local_uniqueness"]["details"]["lam"] *= 2
    elif choice == 4:
        body["findings"]["minimum_trace"]["details"]["gap"] = 0.0
    elif choice == 5:
        body["findings"]["minimum_trace"]["value"] *= 0.9
    elif choice == 6:
        body["claims"]["mu"] *= 0.5
    elif choice == 7:
        body["claims"]["largest"] *= 0.5
    else:
        body["findings"]["global_uniqueness"]["details"]["within"] = 0.0
    body["sha256"] = json_checksum(body)
    path.write_text(json.dumps(body))
    if verify(case.objective, load(path)).valid:
        return [f"a forged file was accepted (change {choice})"]
    return []


def attempt_forgery(seed: int) -> Outcome:
    """Every forgery of one good certificate."""
    rng = np.random.default_rng([seed, 977])
    d = int(rng.integers(3, 7))
    r = int(rng.integers(1, 3))
    case = planted(rng, 4 * dimension(d, r), d, r)
    certificate = certify(case.objective, case.U, compare=False)
    if not certificate.proved:
        return Outcome(tried=0)
    found: list[str] = []
    count = 0
    for name, forged in tampered(rng, certificate):
        count += 1
        if verify(case.objective, forged).valid:
            found.append(f"{name} was accepted")
    for size in (1e-15, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3):
        count += 1
        found += slightly_off_dual(rng, case, certificate, size)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(6):
            count += 1
            found += flipped_bit(rng, case, certificate, Path(folder))
        for _ in range(4):
            count += 1
            found += forged_file(rng, case, certificate, Path(folder))
    moved = LeastSquares(RankOne(case.X), case.y * (1 + 1e-15 * rng.integers(3, 9, len(case.y))))
    count += 1
    if verify(moved, certificate).valid:
        found.append("other data were accepted")
    return Outcome(found, tried=count)


FAMILIES = {kind: Family(partial(attempt, kind), 25, 700) for kind in KINDS} | {
    "forgery": Family(attempt_forgery, 4, 100),
    "raising": Family(attempt_raising, 3, 100),
}
