"""Rows of the comparison that solve the problem: rates, accuracy, identification, rank, size."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import cvxpy
import numpy as np
import torch
from torch import Tensor

from peers_solvers import FITS, by_adam, by_cvxpy, by_uno, random_start, squares
from peers_table import PACKAGES, Cell, Row, absent, require
from posquad import Status, recover, spectral_initializer
from posquad.geometry import dimension
from recovery_table import problem

D, R, TRIALS, STARTS = 10, 2, 20, 30
SIZES = {"4p": 76, "2p": 38, "1.25p": 24}
USUAL = {
    "pymanopt": "pymanopt trust regions",
    "geomstats": "geomstats L-BFGS-B",
    "torch": "torch L-BFGS",
    "CVXPY": "CVXPY with Uno",
}
Instance = tuple[Tensor, Tensor, Tensor]
Fit = Callable[[Tensor, Tensor, Tensor], Tensor]


def instances(n: int, trials: int = TRIALS) -> list[Instance]:
    rng = torch.Generator().manual_seed(n)
    return [problem(rng, n, D, [1.0, 0.5]) for _ in range(trials)]


def away(Q: Tensor, U: Tensor) -> float:
    """Relative Frobenius error."""
    true = U @ U.mT
    return float((Q - true).norm() / true.norm())


def restarted(fit: Fit, X: Tensor, y: Tensor, rng: torch.Generator, starts: int) -> Tensor:
    """The loop that a user writes: random starts until the responses are reproduced."""
    loss, best, least = squares(X, y), torch.zeros(D, R, dtype=X.dtype), float("inf")
    for _ in range(starts):
        U = fit(X, y, random_start(X, y, R, rng))
        if float(loss(U)) < least:
            best, least = U, float(loss(U))
        if least < 1e-16:
            break
    return best @ best.mT


@functools.cache
def campaign() -> dict[str, dict[str, tuple[list[float], float]]]:
    """For each method and n: the errors of all problems, and the mean seconds of one."""
    recover(torch.eye(2), torch.ones(2), 1)  # imports that torch delays belong to nobody's time
    methods = {"posquad recover": lambda X, y, _: recover(X, y, R).Q.dense()}
    for name, fit in FITS.items():
        methods[f"{name}, random start"] = functools.partial(_one, fit)
        methods[f"{name}, posquad's spectral start"] = functools.partial(_spectral, fit)
    for name in USUAL.values():
        methods[f"{name}, up to {STARTS} starts"] = functools.partial(_many, FITS[name])
    methods["CVXPY minimum trace"] = lambda X, y, _: by_cvxpy(X, y)[0]
    methods["CVXPY reweighted trace"] = lambda X, y, _: by_cvxpy(X, y, R)[0]
    results: dict[str, dict[str, tuple[list[float], float]]] = {}
    for name, solve in methods.items():
        results[name] = {}
        for label, n in SIZES.items():
            rng, errors, begin = torch.Generator().manual_seed(n), [], time.process_time()
            for X, U, y in instances(n):
                errors.append(away(solve(X, y, rng), U))
            results[name][label] = errors, (time.process_time() - begin) / TRIALS
    results["torch Adam, random start"] = _adam()
    return results


def _one(fit: Fit, X: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
    return restarted(fit, X, y, rng, 1)


def _many(fit: Fit, X: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
    return restarted(fit, X, y, rng, STARTS)


def _spectral(fit: Fit, X: Tensor, y: Tensor, _: object) -> Tensor:
    U = fit(X, y, spectral_initializer(X, y, R, kind="bounded"))
    return U @ U.mT


def _adam() -> dict[str, tuple[list[float], float]]:
    results = {}
    for label, n in SIZES.items():
        X, U, y = map(torch.stack, zip(*instances(n), strict=True))
        begin = time.process_time()
        V = by_adam(squares(X, y), random_start(X, y, R, torch.Generator().manual_seed(n)))
        seconds = (time.process_time() - begin) / TRIALS
        results[label] = [away(a @ a.mT, b) for a, b in zip(V, U, strict=True)], seconds
    return results


def _counts(name: str) -> str:
    return ", ".join(str(sum(e < 1e-6 for e in campaign()[name][n][0])) for n in SIZES)


def _spelled(names: list[str]) -> str:
    parts = []
    for name in names:
        seconds = ", ".join(f"{campaign()[name][n][1] * 1e3:.0f}" for n in SIZES)
        parts.append(f"{name}: {_counts(name)} ({seconds} ms per problem)")
    return "; ".join(parts)


def _of(package: str, *, many: bool) -> list[str]:
    by_hand = lambda name: "up to" in name or "reweighted" in name  # noqa: E731
    return [n for n in campaign() if n.startswith(package) and by_hand(n) == many]


def _cell(package: str, *, many: bool, suffix: str = "") -> Cell:
    names = _of(package, many=many)
    best = max(names, key=lambda name: sum(map(int, _counts(name).split(", "))))
    return Cell(_counts(best) + suffix, _spelled(names))


def one_run() -> Row:
    sizes = ", ".join(f"{n} = {label}" for label, n in SIZES.items())
    cells = {
        p: _cell(p, many=False) for p in ("posquad", "pymanopt", "geomstats", "torch", "CVXPY")
    }
    return Row(
        f"recovered out of {TRIALS} problems at n = 4p, 2p, 1.25p: one call or one start",
        f"Noiseless problems with d = {D}, r = {R}, p = {dimension(D, R)}, eigenvalues 1 and 0.5, "
        f"standard Gaussian inputs, n = {sizes}. Recovered means a relative Frobenius error below "
        "1e-6. "
        "The table shows the best result of each package. `recover` restarts by itself, "
        f"so in the next row the other packages get up to {STARTS} starts too.",
        cells,
    )


def with_restarts() -> Row:
    ours = Cell(_counts("posquad recover"), "the same call: restarts are part of `recover`")
    loop = "a hand-written loop that ends when the relative squared residual is below 1e-16: "
    cells = {"posquad": ours}
    for package in USUAL:
        cell = _cell(package, many=True, suffix=" (loop by hand)")
        cells[package] = Cell(cell.short, loop + cell.note)
    good = failed = 0
    for X, U, y in instances(38):
        start = random_start(X, y, R, torch.Generator().manual_seed(0))
        try:
            V = by_uno(X, y, start, STARTS)
            good += away(V @ V.mT, U) < 1e-6
        except cvxpy.SolverError:
            failed += 1
    more = (
        "; reweighting: up to 20 weighted traces, each weighted by the inverse of the previous "
        "answer; CVXPY's own "
        f"`solve(nlp=True, best_of={STARTS})` at n = 2p: {good} of {TRIALS} recovered, {failed} "
        "ended in `SolverError`"
    )
    short = cells["CVXPY"].short.replace("loop by hand", "loop by hand, or `best_of`")
    cells["CVXPY"] = Cell(short, cells["CVXPY"].note + more)
    name = f"the same with up to {STARTS} starts, or with reweighting"
    return Row(name, "The same problems, counted in the same way.", cells)


def seconds() -> Row:
    cells = {}
    for package in PACKAGES:
        names = _of(package, many=package != "posquad")
        times = {name: campaign()[name]["2p"][1] for name in names}
        note = "; ".join(f"{name}: {value * 1e3:.1f} ms" for name, value in times.items())
        cells[package] = Cell(f"{min(times.values()) * 1e3:.0f} ms", note)
    cells["posquad"] = Cell(cells["posquad"].short, f"{cells['posquad'].note}, diagnosis included")
    run = "Mean processor time per problem at n = 2p, restarts or reweighting included, one thread."
    return Row("the same, time per problem at n = 2p", run, cells)


def accuracy() -> Row:
    cells = {}
    for package in PACKAGES:
        medians = {}
        for name in _of(package, many=False):
            good = [e for e in campaign()[name]["2p"][0] if e < 1e-6]
            medians[name] = statistics.median(good) if good else float("nan")
        spelled = "; ".join(f"{name}: {value:.0e}" for name, value in medians.items())
        cells[package] = Cell(f"{min(medians.values()):.0e}", spelled)
    run = (
        "Median relative error of the recovered matrices at n = 2p; the tolerances of the other "
        "packages are tightened."
    )
    return Row("error of the recovered matrices, n = 2p", run, cells)


def identification() -> Row:
    """At n = p = 19 many matrices of rank 2 fit: which package says so?"""
    few, rng = instances(19), torch.Generator().manual_seed(0)
    found = [recover(X, y, R) for X, _, y in few]
    silent = sum(f.status in (Status.RECOVERED, Status.CERTIFIED) for f in found)
    certified = sum(
        recover(X, y, R, certify=True).status is Status.CERTIFIED for X, _, y in instances(38)
    )
    require(silent == 0, "posquad calls nothing recovered at n = p")
    cells = {
        "posquad": Cell(
            f"status; proof ({certified} of {TRIALS} at 2p)",
            f"0 of {TRIALS} called recovered at n = p, statuses "
            f"{sorted({f.status.name for f in found})}; `certify=True` at n = 2p: {certified} of "
            f"{TRIALS} CERTIFIED",
        )
    }
    words = ["certif", "identif", "unique"]
    named = {
        "pymanopt": ("pymanopt", words, ("identify_linear_piece",)),
        "geomstats": ("geomstats", words, ("UniqueDiagonalMatrixAlgorithm",)),
        "torch": ("torch.optim", words),
        "CVXPY": ("cvxpy", words, ("make_unique_names", "unique_list")),
    }
    for package, name in USUAL.items():
        wrong = 0
        for X, U, y in few:
            Q = restarted(FITS[name], X, y, rng, 2)
            residual = ((X @ Q) * X).sum(1) - y
            wrong += bool(residual.norm() < 1e-6 * y.norm()) and away(Q, U) > 1e-3
        ends = {
            "pymanopt": "`OptimizerResult` has the stopping criterion, cost and gradient norm",
            "geomstats": "SciPy's `OptimizeResult` has success and message of the iteration",
            "torch": "`step` returns the loss",
            "CVXPY": "`status` is optimal",
        }[package]
        cells[package] = Cell(
            "no",
            f"{wrong} of {TRIALS} answers at n = p (best of 2 starts) fit to 1e-6 and are wrong by "
            f"more than 1e-3; {ends}; {absent(*named[package])}",
        )
    wrong = strict = 0
    for X, U, y in few:
        Q, task = by_cvxpy(X, y)
        wrong += task.status.startswith("optimal") and away(Q, U) > 1e-3
    for X, _, y in instances(38):
        slack = _dual_slack(X, by_cvxpy(X, y)[1])
        strict += bool(slack[0] > -1e-6) and int((slack > 1e-4).sum()) == D - R
    cells["CVXPY"] = Cell(
        "duals; check by hand",
        f"{cells['CVXPY'].note}; minimum trace at n = p: {wrong} of {TRIALS} answers have status "
        "optimal (or optimal_inaccurate) and are wrong by more than 1e-3, because `optimal` means "
        "that "
        "the trace is minimal, not that Q is unique; from `constraint.dual_value` the matrix "
        f"`I - sum z_i x_i x_i'` has rank d - r in {strict} of {TRIALS} problems at n = 2p, from "
        "which uniqueness can be argued, to the accuracy of the solver",
    )
    run = f"n = p = 19, where other matrices of rank {R} usually fit as well, and n = 2p = 38."
    return Row("says whether the answer is the only one", run, cells)


def _dual_slack(X: Tensor, task: cvxpy.Problem) -> np.ndarray:
    """Eigenvalues of the dual matrix, with whichever sign CVXPY gives its multipliers."""
    z = task.constraints[0].dual_value
    forms = X.numpy().T @ (z[:, None] * X.numpy())
    both = [np.linalg.eigvalsh(np.eye(D) + sign * forms) for sign in (1.0, -1.0)]
    return max(both, key=lambda values: values[0])


ROWS = [one_run, with_restarts, seconds, accuracy, identification]
