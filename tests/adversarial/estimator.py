"""Attempts to obtain a fit with other terms that is worse than a simpler one.

Small random tables with constant, two-valued and proportional columns, responses of several kinds
and weights. A promise is broken if the fit with a constant or with linear terms has a larger
squared error than the mean, than the fit without them or than linear regression (for linear
terms), if an attribute is not that of the returned function, or if an error escapes. In tables
with rows of very different length, RECOVERED must be right, and it must not be said where two
functions reproduce the responses.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import suppress
from functools import partial

import numpy as np

from adversarial import Family, Outcome
from adversarial.functions import Function, Problem, drawn_function, rows_on_lines, twin, unknowns
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor

Table = tuple[np.ndarray, np.ndarray, np.ndarray | None, int]
SLACK = 1e-7  # relative difference of squared errors that rounding and stopping rules explain


def random_table(rng: np.random.Generator) -> Table:
    """Inputs, responses, weights and a rank."""
    n, d = int(rng.integers(2, 25)), int(rng.integers(1, 5))
    X = rng.standard_normal((n, d))
    if rng.random() < 0.5:
        X[:, 0] = rng.choice([1.0, 3.0, 1e3])
    if rng.random() < 0.3:
        X[:, -1] = rng.integers(0, 2, n)
    if rng.random() < 0.1:
        X[:, 0] = 2 * X[:, -1]
    kinds = [
        rng.standard_normal(n),
        X @ rng.standard_normal(d),
        (X @ rng.standard_normal(d)) ** 2,
        np.sqrt(np.abs(X[:, -1])),
        np.round(rng.standard_normal(n)),
    ]
    y = kinds[rng.integers(5)] * 10.0 ** rng.integers(-3, 4) + rng.choice([0, 0, 5.0, -100.0])
    weights = None if rng.random() < 0.7 else rng.uniform(0, 2, n)
    return X, y, weights, int(rng.integers(1, d + 1))


def ones_table(rng: np.random.Generator) -> Table:
    """A column of ones beside one input: the error often has no minimum."""
    n = int(rng.integers(3, 40))
    x = rng.uniform(0, 3, n)
    kinds = [1 + 2 * x, np.sqrt(x), -(x**2), (1 + x) ** 2, np.exp(-x), rng.standard_normal(n)]
    return np.column_stack([np.ones(n), x]), kinds[rng.integers(6)], None, int(rng.integers(1, 3))


def attempt(make, seed: int) -> Outcome:
    X, y, weights, rank = make(np.random.default_rng(seed))
    w = np.ones(len(y)) if weights is None else weights
    outcome = Outcome(said=Counter(), tried=2)

    def squares(f: np.ndarray) -> float:
        return float(w @ (f - y) ** 2)

    def fitted(**options: bool) -> PositiveQuadraticRegressor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PositiveQuadraticRegressor(rank, max_starts=10, **options).fit(X, y, weights)

    mean = np.average(y, weights=w)
    constant, tiny = squares(np.full(len(y), mean)), 1e-20 * float(w @ y**2)
    root = np.sqrt(w)
    columns = np.column_stack([X - np.average(X, axis=0, weights=w), np.ones(len(y))])
    line = columns @ np.linalg.lstsq(root[:, None] * columns, root * y)[0]
    plain = squares(fitted().predict(X))
    simpler = {"constant": min(constant, plain), "linear": min(constant, plain, squares(line))}
    for name, options in (("constant", {"fit_intercept": True}), ("linear", {"linear": True})):
        try:
            model = fitted(**options)
        except Exception as error:
            outcome.broken.append(f"{name}: {type(error).__name__}: {error}")
            continue
        outcome.said[f"{name} {model.status_.name}"] += 1
        f = model.predict(X)
        loss = squares(f)
        if not loss <= simpler[name] * (1 + SLACK) + tiny:
            outcome.broken.append(f"{name}: {loss:.6g} is worse than {simpler[name]:.6g}")
        form = ((X @ model.components_.T) ** 2).sum(axis=1)
        size = np.abs(form).max() + np.abs(y).max() + abs(model.intercept_)
        if np.abs(form + X @ model.coef_ + model.intercept_ - f).max() > 1e-9 * size:
            outcome.broken.append(f"{name}: coefficients and predictions disagree")
        if constant > tiny:
            rounding = 1e-13 * size * np.sqrt(len(y) / constant)
            if abs(np.sqrt(loss / constant) - model.residual_) > 1e-6 * model.residual_ + rounding:
                outcome.broken.append(f"{name}: residual_ is not that of the fit")
        if model.status_ is Status.RECOVERED and loss > 1e-18 * constant + tiny:
            outcome.broken.append(f"{name}: RECOVERED with the error {loss:.3g}")
    return outcome


def attempt_long_rows(seed: int) -> Outcome:
    """Exact responses, some rows up to 1e12 times as long as the others: RECOVERED must be right.

    Half of the cases have noise far below the long responses, and nothing to recover.
    """
    rng = np.random.default_rng(seed)
    n, d, r = int(rng.integers(60, 200)), int(rng.integers(2, 6)), int(rng.integers(1, 3))
    X, U, b = rng.standard_normal((n, d)), rng.standard_normal((d, r)), rng.standard_normal(d)
    X[: int(rng.integers(1, 4))] *= 10.0 ** rng.uniform(0, 12)
    linear, noise = bool(rng.integers(2)), float(rng.integers(2))
    y = ((X @ U) ** 2).sum(1) + linear * (X @ b) + rng.normal() + noise * rng.standard_normal(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PositiveQuadraticRegressor(r, linear=linear, fit_intercept=True).fit(X, y)
    outcome = Outcome(said=Counter([model.status_.name]), tried=1)
    error = np.abs(model.components_.T @ model.components_ - U @ U.T).max() / (U**2).sum()
    if model.status_ is Status.RECOVERED and (noise or error > 1e-5):
        outcome.broken.append(f"RECOVERED with an error of {error:.2g}, noise {noise}")
    return outcome


TERMS = {"constant": {"fit_intercept": True}, "linear": {"linear": True}}


def apart(rng: np.random.Generator, d: int, r: int, terms: str, n: int) -> Problem | None:
    """A problem with two functions; None if they are too close to each other."""
    with suppress(ValueError):
        return twin(int(rng.integers(2**31)), d, r, terms, n, through_zero=bool(rng.integers(2)))
    return None


def attempt_functions(count: int, seed: int) -> Outcome:
    """Exact responses that one or two functions reproduce, from p + 1 rows on.

    RECOVERED is a defect where there are two, and must be right where there is one; BEST_FIT is a
    defect in any case.
    """
    rng = np.random.default_rng([seed, count])
    d = int(rng.integers(1, 9))
    r = int(rng.integers(1, min(d, 3) + 1))
    terms = ("constant", "linear")[int(rng.integers(2))]
    p = unknowns(d, r, terms)
    n = max(p + 1, int(p * rng.choice([1.0, 1.25, 2.0, 5.0, 10.0])))
    if count == 2:
        problem = next(filter(None, (apart(rng, d, r, terms, n) for _ in range(100))))
    else:
        function = drawn_function(rng, d, r, terms)
        problem = Problem(rng.standard_normal((n, d)), (function,))
    model = PositiveQuadraticRegressor(r, standard_errors=False, **TERMS[terms])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(problem.X, problem.y)
    outcome = Outcome(said=Counter([model.status_.name]), tried=1)
    Q = model.components_.T @ model.components_
    away = [float(np.linalg.norm(Q - f.Q) / np.linalg.norm(f.Q)) for f in problem.functions]
    wrong = model.status_ is Status.RECOVERED and (count == 2 or away[0] > 1e-5)
    if wrong or model.status_ is Status.BEST_FIT:
        word = model.status_.name
        outcome.broken.append(f"d, r, n = {d}, {r}, {n}, {terms}: {word} at distances {away}")
    return outcome


# Two functions whose linear terms differ, or must: by the design of the rows.


def on_lines(rng: np.random.Generator, n: int, one: Function, two: Function) -> Problem:
    """Rows at which the functions are equal, each on a random line; ValueError if too few are."""
    X = rows_on_lines(rng, one, two, n)
    if X is None:
        raise ValueError("one function is larger nearly everywhere")
    return Problem(X, (one, two))


def norms_apart(rng: np.random.Generator, n: int, d: int, r: int) -> Problem:
    """One form is 5 to 30 times as long as the other; each row is on a random line."""
    ratio = 10.0 ** rng.uniform(np.log10(5), np.log10(30))
    one, two = (drawn_function(rng, d, r, "linear") for _ in range(2))
    two = Function(two.U * np.sqrt(ratio), two.b * rng.choice([1.0, ratio]), two.c)
    return on_lines(rng, n, one, two)


def common_columns(rng: np.random.Generator, n: int, d: int, r: int) -> Problem:
    """The two functions share all columns but one, and often their linear terms."""
    one = drawn_function(rng, d, r, "linear")
    U = one.U.copy()
    U[:, -1] = rng.standard_normal(d)
    b = one.b if rng.random() < 0.5 else one.b + 0.3 * rng.standard_normal(d)
    return on_lines(rng, n, one, Function(U, b, one.c))


def two_valued_columns(rng: np.random.Generator, n: int, d: int, r: int) -> Problem:
    """Two columns are 0 or 1, their own squares: `x_1^2 + x_2 = x_1 + x_2^2`."""
    d = max(d, 3)
    X = rng.standard_normal((n, d))
    X[:, :2] = rng.integers(0, 2, (n, 2))
    C = rng.standard_normal((d, r - 1))
    b, size = rng.standard_normal(d), rng.uniform(0.5, 2)
    e = np.sqrt(size) * np.eye(d)
    one = Function(np.column_stack([e[0], C]), b + size * np.eye(d)[1], 0.3)
    two = Function(np.column_stack([e[1], C]), b + size * np.eye(d)[0], 0.3)
    return Problem(X, (one, two))


def separate_blocks(rng: np.random.Generator, n: int, d: int, r: int) -> Problem:
    """Each row has one of two blocks: the sign of U in the second changes no response."""
    d = max(d, 2)
    first = np.arange(d) < int(rng.integers(1, d))
    X = rng.standard_normal((n, d)) * np.where(rng.random((n, 1)) < 0.5, first, ~first)
    one = drawn_function(rng, d, r, "linear")
    return Problem(X, (one, Function(np.where(first[:, None], one.U, -one.U), one.b, one.c)))


def opposite_halves(rng: np.random.Generator, n: int, d: int, r: int) -> Problem:
    """Rows (a, a) and (a, -a), centred at a point: U with exchanged halves, and other b and c."""
    half = max(2, d // 2)
    a = rng.standard_normal((n, half))
    X = np.hstack([a, a * rng.choice([-1.0, 1.0], (n, 1))])
    one = drawn_function(rng, 2 * half, r, "none")
    two = Function(np.roll(one.U, half, axis=0), one.b, one.c)
    m, b = rng.standard_normal((2, 2 * half))

    def moved(f: Function) -> Function:
        """f(x - m) + b'x"""
        return Function(f.U, b + f.b - 2 * f.Q @ m, f.c + m @ f.Q @ m - f.b @ m)

    return Problem(X + m, (moved(one), moved(two)))


STRUCTURED = {
    make.__name__.replace("_", " "): make
    for make in (norms_apart, common_columns, two_valued_columns, separate_blocks, opposite_halves)
}


def attempt_structured(name: str, seed: int) -> Outcome:
    """Two functions with linear terms and exactly the same responses: RECOVERED is a defect."""
    rng = np.random.default_rng([seed, sorted(STRUCTURED).index(name), 7])
    for _ in range(200):
        d, r = [(3, 1), (4, 1), (4, 2), (5, 2), (6, 2), (6, 3)][int(rng.integers(6))]
        p = unknowns(d, r, "linear")
        n = max(p + 1, int(p * rng.choice([1.0, 1.25, 2.0, 4.0])))
        with suppress(ValueError):
            problem = STRUCTURED[name](rng, n, d, r)
            break
    n, d = problem.X.shape
    model = PositiveQuadraticRegressor(r, standard_errors=False, linear=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(problem.X, problem.y)
    word = model.status_.name
    outcome = Outcome(said=Counter([word]))
    rank = np.linalg.matrix_rank(model.components_, tol=1e-6)
    if word in ("RECOVERED", "CERTIFIED") and rank == r:
        Q = model.components_.T @ model.components_
        far = [float(np.linalg.norm(Q - f.Q) / np.linalg.norm(f.Q)) for f in problem.functions]
        outcome.broken.append(f"d, r, n = {d}, {r}, {n}: {word} at distances {far}")
    return outcome


FAMILIES = {
    f"two functions, {name}": Family(partial(attempt_structured, name), in_tests=5, in_full=300)
    for name in STRUCTURED
} | {
    "one function": Family(partial(attempt_functions, 1), in_tests=20, in_full=1000),
    "two functions": Family(partial(attempt_functions, 2), in_tests=20, in_full=1000),
    "long_rows": Family(attempt_long_rows, in_tests=10, in_full=1000),
    "tables": Family(lambda seed: attempt(random_table, seed), in_tests=25, in_full=2000),
    "ones": Family(lambda seed: attempt(ones_table, seed), in_tests=10, in_full=500),
}
