"""Small problems on which constants of `recover` are measured, and how their answers are judged.

A *good* answer is the status that the problem calls for: RECOVERED with the right matrix where
there is one solution, BEST_FIT at the right rank where the responses have noise or no positive
semidefinite matrix explains them, NOT_IDENTIFIED where two solutions are known. A *wrong* answer
misleads: RECOVERED of another matrix or of one of two solutions, responses that cannot be
reproduced called reproduced, BEST_FIT where there is an exact answer. An answer that is neither is
cautious (STALLED, NOT_IDENTIFIED where there is one solution).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from adversarial.recovery_designs import (
    DESIGNS,
    Design,
    large_quadric,
    many_unknowns,
    wide_quadric,
)
from adversarial.recovery_problems import (
    Rng,
    drawn,
    generic,
    needed_samples,
    normal,
    responses,
    seeded,
)
from posquad import Recovery, recover
from posquad.geometry import dimension
from posquad.problems import rows
from posquad.recovery import from_rows
from posquad.recovery.streams import entry

SHAPES = [(10, 2, 1.1), (10, 2, 2.0), (6, 3, 1.25), (20, 2, 1.25), (40, 1, 1.5), (12, 2, 4.0)]
REFLECTED = (40, 3, 1.05)  # where starts are reflected
TWINS = DESIGNS | {
    "quadric, 60 < p": wide_quadric,
    "quadric, n = 200": partial(large_quadric, d=14, n=200),
}
BLOCKS = partial(many_unknowns, d=60, r=10, n=1200)  # whose spectrum is not computed in full
ROWS = ("correlated", "student", "uniform")
CONVEX = [(6, 12), (6, 60), (12, 50), (12, 160)]
UNIQUE = {"RECOVERED", "CERTIFIED"}
REPRODUCED = UNIQUE | {"NOT_IDENTIFIED", "LOSS_REACHED"}
SAME = 1e-5  # relative distance of two matrices that are the same answer


@dataclass(frozen=True)
class Answer:
    """The answer to one problem."""

    word: str
    rank: int
    Q: np.ndarray
    excluded: bool
    residual: float  # computed from Q


@dataclass(frozen=True)
class Judgement:
    """What an answer counts as; a best fit has its residual, to be compared with other settings."""

    good: bool = False
    wrong: bool = False
    residual: float | None = None


Judge = Callable[[Answer], Judgement]


@dataclass(frozen=True)
class Case:
    """One call of `recover`, of one problem or of a batch, with a judge of each problem."""

    family: str
    name: str
    X: Any
    y: np.ndarray
    rank: int | None
    judges: list[Judge]
    options: dict[str, Any] = field(default_factory=dict)
    within: Callable[[], AbstractContextManager] = nullcontext

    def solve(self) -> Recovery:
        with self.within():
            return recover(self.X, self.y, self.rank, **self.options)

    def judge(self, found: Recovery) -> list[Judgement]:
        batch = isinstance(found.status, list)
        words = found.status if isinstance(found.status, list) else [found.status]
        Q = found.Q.dense() if batch else found.Q.dense()[None]
        ranks, excluded = np.atleast_1d(found.rank), np.atleast_1d(found.excluded)
        X = self.X.read_all().numpy() if isinstance(self.X, rows.Rows) else self.X
        e = np.einsum("...ni,...ij,...nj->...n", X, Q, X) - self.y
        size = np.linalg.norm(np.atleast_2d(self.y), axis=-1)
        residuals = np.linalg.norm(e, axis=-1) / size
        answers = [
            Answer(word.name, int(ranks[k]), Q[k], bool(excluded[k]), float(residuals[k]))
            for k, word in enumerate(words)
        ]
        return [judge(answer) for judge, answer in zip(self.judges, answers, strict=True)]


# Judges.


def one_solution(U: np.ndarray, same: float = SAME) -> Judge:
    """The responses are those of UU', which they determine."""

    def judge(answer: Answer) -> Judgement:
        P = U @ U.T
        right = bool(np.linalg.norm(answer.Q - P) <= same * np.linalg.norm(P))
        said = answer.word in UNIQUE
        return Judgement(said and right, (said and not right) or answer.word == "BEST_FIT")

    return judge


def two_solutions(r: int) -> Judge:
    """Two matrices of rank r have the responses; one of lower rank may be the only one of its."""

    def judge(answer: Answer) -> Judgement:
        unique = answer.word == "CERTIFIED" or (answer.word == "RECOVERED" and answer.rank == r)
        excluded = answer.excluded and answer.rank == r
        return Judgement(answer.word == "NOT_IDENTIFIED", unique or excluded)

    return judge


def no_solution(rank: int | None = None, *, compared: bool = True) -> Judge:
    """No matrix of the rank has the responses; a best fit of the right rank is asked for."""

    def judge(answer: Answer) -> Judgement:
        good = answer.word == "BEST_FIT" and rank in (None, answer.rank)
        return Judgement(
            good, answer.word in REPRODUCED, answer.residual if good and compared else None
        )

    return judge


def many_solutions(d: int) -> Judge:
    """Infinitely many matrices of rank d have the responses."""

    def judge(answer: Answer) -> Judgement:
        false = answer.word == "CERTIFIED" or (answer.word == "RECOVERED" and answer.rank == d)
        return Judgement(answer.word == "NOT_IDENTIFIED", false or answer.word == "BEST_FIT")

    return judge


# Problems.


def noisy(rng: Rng, y: np.ndarray, noise: float = 0.1) -> np.ndarray:
    return y * (1 + noise * normal(rng, *y.shape))


def exact_and_noisy(d: int, r: int, ratio: float, seed: int) -> Iterator[Case]:
    """Gaussian rows near the information limit, and n = 4p with 10% noise."""
    rng, p = np.random.default_rng([seed, d, r]), dimension(d, r)
    U = normal(rng, d, r)
    X = normal(rng, max(p + 1, round(ratio * p)), d)
    name = f"d = {d}, r = {r}, n = {len(X)}, seed {seed}"
    yield Case("exact", name, X, responses(X, U), r, [one_solution(U)])
    X = normal(rng, 4 * p, d)
    yield Case("noisy", name, X, noisy(rng, responses(X, U)), r, [no_solution(r)])


def other_rows(seed: int) -> Iterator[Case]:
    """Rows of other distributions, of uneven lengths, with zeros, repeated, or in float32."""
    for kind in ROWS:
        for d, r in ((10, 2), (6, 3)):
            X, U, y = generic(seed, kind, "1.1p", (d, r))
            yield Case("rows", f"{kind}, d = {d}, seed {seed}", X, y, r, [one_solution(U)])
    rng = np.random.default_rng([seed, 1])
    X, U = normal(rng, 80, 10), normal(rng, 10, 2)
    kinds = {
        "uneven": X * 10.0 ** rng.uniform(-3, 3, (80, 1)),
        "repeated": X[rng.permutation(np.arange(80) % 60)],
        "zeros": X * (rng.random((80, 10)) < 0.4),
        "integers": rng.integers(-2, 3, (80, 10)).astype(float),
        "units": X * 10.0 ** np.linspace(-3, 3, 10),
    }
    for kind, Z in kinds.items():
        y, scales = responses(Z, U), np.ones(10)
        if kind == "units":  # the same matrix in the units of its columns
            scales = 10.0 ** np.linspace(3, -3, 10)
            y = responses(Z, U * scales[:, None])
        V = U * scales[:, None]
        same = 1e-4 if kind == "units" else SAME
        yield Case("rows", f"{kind}, seed {seed}", Z, y, 2, [one_solution(V, same)])
        yield Case("rows", f"{kind}, noisy, seed {seed}", Z, noisy(rng, y), 2, [no_solution()])
    single = X.astype(np.float32)
    y = responses(single.astype(float), U).astype(np.float32)
    yield Case("rows", f"float32, seed {seed}", single, y, 2, [one_solution(U, 1e-3)])


def unknown_rank(d: int, r: int, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng([seed, d, r, 2])
    X, U = normal(rng, 6 * dimension(d, r), d), normal(rng, d, r)
    y, name = responses(X, U), f"d = {d}, r = {r}, seed {seed}"
    yield Case("rank", f"exact, {name}", X, y, None, [one_solution(U)])
    yield Case("rank", f"noisy, {name}", X, noisy(rng, y), None, [no_solution(r)])


def convex(d: int, n: int, seed: int) -> Iterator[Case]:
    """Rank d: an interior point of the cone, no matrix at all, and a boundary point."""
    rng = np.random.default_rng([seed, d, n, 3])
    X, name = normal(rng, n, d), f"d = {d}, n = {n}, seed {seed}"
    U = normal(rng, d, d)
    y = responses(X, U)
    judge = one_solution(U) if n >= needed_samples(d, d) else many_solutions(d)
    yield Case("convex", f"feasible, {name}", X, y, d, [judge])
    y = y.copy()
    y[0] *= -0.5
    yield Case("convex", f"infeasible, {name}", X, y, d, [no_solution()])
    u = normal(rng, d, 1)
    yield Case("convex", f"boundary, {name}", X, responses(X, u), d, [one_solution(u)])


def large_convex() -> Iterator[Case]:
    """More rows than the interior point method takes first, with no solution."""
    rng = np.random.default_rng(4)
    X = normal(rng, 1700, 56)
    yield Case("convex", "d = 56, n = 1700", X, np.abs(normal(rng, 1700)), 56, [no_solution()])


def losses(seed: int) -> Iterator[Case]:
    """Counts, and noise with a tenth of outliers."""
    for d, r in ((4, 1), (6, 2)):
        rng, n = np.random.default_rng([seed, d, 5]), 10 * dimension(d, r)
        X, U = normal(rng, n, d), normal(rng, d, r)
        mean = responses(X, U)
        contaminated = mean + 0.1 * normal(rng, n)
        contaminated[rng.permutation(n)[: n // 10]] += 30
        for loss in ("huber", "geman-mcclure", "poisson"):
            y = rng.poisson(mean).astype(float) if loss == "poisson" else contaminated
            judge = no_solution(r, compared=False)  # another loss does not minimise the residual
            name = f"{loss}, d = {d}, seed {seed}"
            yield Case("loss", name, X, y, r, [judge], {"loss": loss})


def batches(seed: int) -> Iterator[Case]:
    """Fifty small problems at a time; the convex ones share their rows."""
    rng, count = np.random.default_rng([seed, 6]), 50
    X, U = normal(rng, count, 24, 6), normal(rng, count, 6, 2)
    y, name = np.square(X @ U).sum(-1), f"seed {seed}"
    yield Case("batch", f"exact, {name}", X, y, 2, [one_solution(u) for u in U])
    yield Case("batch", f"noisy, {name}", X, noisy(rng, y), 2, [no_solution(2)] * count)
    Z, U = normal(rng, count, 8, 5), normal(rng, count, 5, 1)
    z = np.square(Z @ U).sum(-1)
    yield Case("batch", f"exact, r = 1, {name}", Z, z, 1, [one_solution(u) for u in U])
    for n, d in ((24, 3), (12, 4)):
        X, y = normal(rng, n, d), np.abs(normal(rng, count, n))
        y[:, 0] *= -1
        yield Case("batch", f"convex, d = {d}, {name}", X, y, d, [no_solution()] * count)


def twins(name: str, design: Design, seed: int) -> Iterator[Case]:
    made = drawn(design(seeded(seed, name)))
    r = made.U.shape[1]
    yield Case("two solutions", f"{name}, seed {seed}", made.X, made.y, r, [two_solutions(r)])


def large(n: int, d: int, r: int) -> Iterator[Case]:
    """First-order steps; from 2^20 entries on partly in single precision."""
    rng = np.random.default_rng([n, d, r])
    X, U = normal(rng, n, d), normal(rng, d, r) * np.geomspace(1, 0.2, r)
    y, name = responses(X, U), f"d = {d}, r = {r}, n = {n}"
    yield Case("large", f"exact, {name}", X, y, r, [one_solution(U)])
    yield Case("large", f"noisy, {name}", X, noisy(rng, y), r, [no_solution(r)])


@contextmanager
def few_in_memory(rows_kept: int, d: int) -> Iterator[None]:
    """No moments, and so many rows in memory in place of 2^24 entries, as for much larger files."""
    modules = (entry, from_rows)
    before = entry.MOMENT_MOST, entry.MEMORY_ENTRIES
    share = rows_kept * d / 2**24
    for module in modules:
        module.MOMENT_MOST, module.MEMORY_ENTRIES = 0, round(before[1] * share)
    try:
        yield
    finally:
        for module in modules:
            module.MOMENT_MOST, module.MEMORY_ENTRIES = before


def streams(seed: int) -> Iterator[Case]:
    """A source of rows, solved from its moments and by passes."""
    rng, d, r, n = np.random.default_rng([seed, 8]), 12, 2, 5000
    X, U = normal(rng, n, d), normal(rng, d, r)
    y, source, name = responses(X, U), rows.in_memory(X), f"seed {seed}"
    z = noisy(rng, y)
    yield Case("stream", f"moments, {name}", source, y, r, [one_solution(U)])
    yield Case("stream", f"moments, noisy, {name}", source, z, None, [no_solution(r)])
    scales = np.geomspace(1, 1e-3, d)
    other, V = rows.in_memory(X * scales), U / scales[:, None]
    yield Case("stream", f"moments, columns in units, {name}", other, y, r, [one_solution(V)])
    Z = X[:, :6].copy()
    Z[:, 1] = Z[:, 0] * rng.choice([-1.0, 1.0], n)  # e_1 and e_2 have the same responses
    other = rows.in_memory(Z)
    judge = two_solutions(1)
    yield Case("stream", f"moments, two solutions, {name}", other, Z[:, 0] ** 2, 1, [judge])
    within = partial(few_in_memory, 900, d)
    yield Case("stream", f"passes, {name}", source, y, r, [one_solution(U)], within=within)
    yield Case("stream", f"passes, noisy, {name}", source, z, r, [no_solution(r)], within=within)


def cases(problems: int) -> list[Case]:
    """All cases: `problems` of each small kind, half as many of the slower ones, few large ones."""
    few = (problems + 1) // 2
    made: list[Case] = []
    for seed in range(problems):
        for shape in SHAPES:
            made += exact_and_noisy(*shape, seed)
        for d, r in ((8, 2), (12, 3), (20, 3)):
            made += unknown_rank(d, r, seed)
        for d, n in CONVEX:
            made += convex(d, n, seed)
        made += streams(seed)
    for seed in range(few):
        for make in (other_rows, losses, batches):
            made += make(seed)
        made += exact_and_noisy(*REFLECTED, seed)
        for name, design in TWINS.items():
            made += twins(name, design, seed)
    made += [*unknown_rank(60, 3, 0), *twins("blocks, p = 555", BLOCKS, 0), *large_convex()]
    return [*made, next(large(1788, 150, 3)), *large(7200, 150, 3)]
