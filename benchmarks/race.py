"""Compare posquad with other packages on the same quadratic measurements, in one process.

    python benchmarks/race.py [--quick] [--limit SECONDS] [--out DIR] [--docs FILE]

These numbers are recorded for each method: seconds and products with X until the relative Frobenius
error is 1e-6 and 1e-10, and the smallest error reached. Seconds are processor time in one thread,
which equals wall-clock time on an idle machine. The clock is stopped while an error is measured.

The other methods have the best settings that we found:
- all get the same start (the bounded spectral initializer, not counted) and the same one-pass loss
  and gradient of posquad, so that only the method differs; `posquad recover` gets no start, and
  its time includes everything from its preparation to its diagnosis;
- torch L-BFGS: strong Wolfe, history 20, no tolerances; torch Adam: learning rate 1e-2;
- pymanopt 2 PSDFixedRank: trust regions with the exact Hessian, and conjugate gradients; gradient
  tolerance 1e-14, which it needs to get below 1e-8;
- ScaledGD: fixed step of `scaled_descent`; gradient descent: `data_driven_step`;
- Clarabel: minimum trace over positive semidefinite matrices, for small d, default tolerances.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import clarabel
import numpy as np
import pymanopt
import scipy.sparse
import torch
from pymanopt.manifolds import PSDFixedRank
from pymanopt.optimizers import ConjugateGradient, TrustRegions

from posquad import LeastSquares, RankOne, recover
from posquad.core.status import Status
from posquad.dynamics.loop import iterate
from posquad.geometry import dimension
from posquad.recovery import data_driven_step, spectral_initializer
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.descent import ScaledDescent
from posquad.recovery.solvers.fit import FitState
from posquad.recovery.solvers.gauss_newton import GaussNewton
from posquad.recovery.solvers.lbfgs import PopulationLBFGS
from recovery_table import error, problem, spaced
from timing import machine, use_one_thread

LEVELS = (1e-6, 1e-10)
SETTINGS = "The other methods"  # the docstring describes their settings from here on
STALL = 0.6  # share of the limit without progress after which a method has stalled
INSTANCES = [(10, 2, 38, 2.0), (500, 5, None, 20.0), (200, 5, None, 1.0), (200, 5, None, 20.0)]


class TimeIsUp(Exception):
    """Ends a method that is done, late, or stalled."""


@dataclass
class Trace:
    """Errors over time and products, measured while the clock is stopped."""

    U_star: torch.Tensor
    limit: float
    every: int = 1
    seconds: list[float] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    calls: int = 0
    lost: float = 0.0
    best: float = float("inf")
    last: float = 0.0  # when the error last fell by a hundredth

    def start(self) -> None:
        self.begin = time.process_time()

    def mark(self, U: torch.Tensor, products: int) -> None:
        now = time.process_time()
        elapsed = now - self.begin - self.lost
        self.calls += 1
        if self.calls % self.every == 0 or elapsed > self.limit:
            away = error(U, self.U_star) if bool(torch.isfinite(U).all()) else float("inf")
            self.seconds.append(elapsed)
            self.products.append(products)
            self.errors.append(away)
            self.lost += time.process_time() - now
            if away < 0.99 * self.best:
                self.best, self.last = away, elapsed
            if elapsed > self.limit or away < 1e-11 or elapsed - self.last > STALL * self.limit:
                raise TimeIsUp

    def reached(self, level: float) -> tuple[float, int] | None:
        for s, k, e in zip(self.seconds, self.products, self.errors, strict=True):
            if e <= level:
                return s, k
        return None


@dataclass
class Instance:
    X: torch.Tensor
    y: torch.Tensor
    U_star: torch.Tensor
    U0: torch.Tensor

    @property
    def r(self) -> int:
        return self.U_star.shape[1]


def by_recover(it: Instance, trace: Trace) -> None:
    found = recover(it.X, it.y, it.r)
    trace.mark(found.U, 0)


def on_kernel(make: Callable[[Problem], object]) -> Callable[[Instance, Trace], None]:
    def run(it: Instance, trace: Trace) -> None:
        fit = Problem(RankOne(it.X), it.y)
        method = make(fit)
        begin = getattr(method, "start", lambda U: FitState.begin(fit, U))
        rules = [(Status.DIVERGED, lambda s: ~torch.isfinite(s.residual))]
        record = lambda s: trace.mark(s.U, int(s.passes))  # noqa: E731
        iterate(method, begin(it.U0), rules, record=record)

    return run


def by_torch(kind: str) -> Callable[[Instance, Trace], None]:
    def run(it: Instance, trace: Trace) -> None:
        objective = LeastSquares(RankOne(it.X), it.y)
        U = it.U0.clone().requires_grad_(True)
        if kind == "adam":
            optimizer = torch.optim.Adam([U], lr=1e-2)
        else:
            optimizer = torch.optim.LBFGS(
                [U], max_iter=100, history_size=20, tolerance_grad=0.0, tolerance_change=0.0,
                line_search_fn="strong_wolfe",
            )  # fmt: skip
        products = 0

        def closure():
            nonlocal products
            with torch.no_grad():
                value, U.grad = objective.value_and_gradient(U.detach())
            products += 2
            trace.mark(U.detach(), products)
            return value

        while True:
            optimizer.step(closure)

    return run


def by_pymanopt(kind: str) -> Callable[[Instance, Trace], None]:
    def run(it: Instance, trace: Trace) -> None:
        objective = LeastSquares(RankOne(it.X), it.y)
        manifold = PSDFixedRank(*it.U_star.shape)
        products = 0

        @pymanopt.function.numpy(manifold)
        def cost(U):
            nonlocal products
            products += 1
            return float(objective.value(torch.from_numpy(U)))

        @pymanopt.function.numpy(manifold)
        def gradient(U):
            nonlocal products
            products += 2
            trace.mark(torch.from_numpy(U.copy()), products)
            return objective.value_and_gradient(torch.from_numpy(U))[1].numpy()

        @pymanopt.function.numpy(manifold)
        def hessian(U, D):
            nonlocal products
            products += 3
            return objective.linearize(torch.from_numpy(U))(torch.from_numpy(D)).numpy()

        exact = {"euclidean_hessian": hessian} if kind == "TR" else {}
        task = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient, **exact)
        settings = {"verbosity": 0, "max_time": 1e9, "min_gradient_norm": 1e-14}
        settings |= {"max_iterations": 100_000, "min_step_size": 1e-20}
        optimizer = TrustRegions(**settings) if kind == "TR" else ConjugateGradient(**settings)
        result = optimizer.run(task, initial_point=it.U0.numpy())
        trace.mark(torch.from_numpy(result.point), products)

    return run


def by_gradient_descent(it: Instance, trace: Trace) -> None:
    objective = LeastSquares(RankOne(it.X), it.y)
    eta, U, products = float(data_driven_step(it.X, it.y, it.U0)), it.U0, 20
    while True:
        U = U - eta * objective.value_and_gradient(U)[1]
        products += 2
        trace.mark(U, products)


def by_clarabel(it: Instance, trace: Trace) -> None:
    """Minimise tr Q over positive semidefinite Q with x_i'Qx_i = y_i."""
    n, d = it.X.shape
    i, j = np.triu_indices(d)
    order = np.lexsort((i, j))  # Clarabel stacks the upper triangle by columns
    i, j = i[order], j[order]
    weight = np.where(i == j, 1.0, np.sqrt(2))
    X = it.X.numpy()
    rows = X[:, i] * X[:, j] * weight
    cone = -scipy.sparse.eye(len(i))
    A = scipy.sparse.vstack([scipy.sparse.csc_matrix(rows), cone]).tocsc()
    b = np.concatenate([it.y.numpy(), np.zeros(len(i))])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.ZeroConeT(n), clarabel.PSDTriangleConeT(d)]
    cost = (i == j).astype(float)
    P = scipy.sparse.csc_matrix((len(i), len(i)))
    q = np.array(clarabel.DefaultSolver(P, cost, A, b, cones, settings).solve().x)
    Q = np.zeros((d, d))
    Q[i, j] = Q[j, i] = q / weight
    values, vectors = np.linalg.eigh(Q)
    U = vectors[:, -it.r :] * np.sqrt(values[-it.r :].clip(1e-300))
    trace.mark(torch.from_numpy(U), 0)


RUNNERS: dict[str, Callable[[Instance, Trace], None]] = {
    "posquad recover": by_recover,
    "posquad population L-BFGS": on_kernel(PopulationLBFGS),
    "posquad Gauss-Newton-CG": on_kernel(GaussNewton),
    "torch L-BFGS": by_torch("lbfgs"),
    "torch Adam": by_torch("adam"),
    "pymanopt trust regions": by_pymanopt("TR"),
    "pymanopt CG": by_pymanopt("CG"),
    "ScaledGD": on_kernel(lambda fit: ScaledDescent(fit, 0.15 / 3.5)),
    "gradient descent": by_gradient_descent,
    "minimum-trace SDP (Clarabel)": by_clarabel,
}


def race(d: int, r: int, n: int | None, kappa: float, limit: float) -> dict:
    n = n or 4 * dimension(d, r)
    X, U, y = problem(torch.Generator().manual_seed(d), n, d, spaced(d, r, kappa))
    it = Instance(X, y, U, spectral_initializer(X, y, r, kind="bounded"))
    results = {}
    for name, run in RUNNERS.items():
        if "SDP" in name and d > 20:
            continue
        trace = Trace(U, limit)
        trace.start()
        failure = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(it, trace)
        except TimeIsUp:
            pass
        except Exception as problem_of_peer:
            failure = f"{type(problem_of_peer).__name__}: {problem_of_peer}"[:200]
        row = {"final_error": min(trace.errors, default=float("inf")), "failure": failure}
        for level in LEVELS:
            reached = trace.reached(level)
            row[f"seconds_{level:g}"] = reached[0] if reached else None
            row[f"products_{level:g}"] = reached[1] if reached else None
        step = max(1, len(trace.errors) // 300)
        row["curve"] = [trace.seconds[::step], trace.errors[::step]]
        results[name] = row
        times = f"{_cell(row['seconds_1e-06']):>9} {_cell(row['seconds_1e-10']):>9}"
        rest = f"{row['products_1e-10']!s:>7} {row['final_error']:.0e} {failure}"
        print(f"  {name:30s} {times} {rest}", flush=True)
    return {"d": d, "r": r, "n": n, "kappa": kappa, "limit": limit, "methods": results}


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"


def _warm_up() -> None:
    """Imports that packages delay to the first call belong to nobody's time."""
    X, U, y = problem(torch.Generator().manual_seed(1), 12, 3, [1.0])
    for run in RUNNERS.values():
        trace = Trace(U, 0.05)
        trace.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run(Instance(X, y, U, U + 0.1), trace)
            except TimeIsUp:
                continue


def table(records: list[dict], head: str) -> str:
    what, settings = __doc__.split(SETTINGS, 1)
    lines = ["# Speed of recovery methods", "", *what.splitlines()[4:7], ""]
    lines += [f"Made by `python benchmarks/race.py --limit {records[0]['limit']:g}`. {head}", ""]
    lines += ["The last column is the time to 1e-10 divided by that of `posquad recover`.", ""]
    lines += [SETTINGS + settings.rstrip(), ""]
    for record in records:
        sizes = ", ".join(f"{key} = {record[key]:g}" for key in ("d", "r", "n", "kappa"))
        columns = ["method", "to 1e-6", "to 1e-10", "products to 1e-10", "best error", "ratio"]
        lines += [f"## {sizes}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        ours = record["methods"]["posquad recover"]["seconds_1e-10"]
        for name, row in record["methods"].items():
            ratio = row["seconds_1e-10"]
            shown = "-" if ratio is None or ours is None else f"{ratio / ours:.1f}x"
            products = row["products_1e-10"] or "-"
            failure = f" ({row['failure']})" if row["failure"] else ""
            lines.append(
                f"| {name} | {_cell(row['seconds_1e-06'])} | {_cell(row['seconds_1e-10'])} | "
                f"{products} | {row['final_error']:.0e}{failure} | {shown} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def figure(records: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown, axes = plt.subplots(1, len(records), figsize=(4.5 * len(records), 4), squeeze=False)
    for axis, record in zip(axes[0], records, strict=True):
        for name, row in record["methods"].items():
            seconds, errors = row["curve"]
            size = 9 if len(seconds) == 1 else 3  # a method that only tells its last error
            axis.loglog(seconds, errors, ".-", label=name, markersize=size, linewidth=1)
        axis.set_title(
            f"d={record['d']}, r={record['r']}, n={record['n']}, kappa={record['kappa']:g}"
        )
        axis.set_xlabel("seconds")
        axis.set_ylim(1e-16, 2)
    axes[0][0].set_ylabel("relative Frobenius error")
    axes[0][0].legend(fontsize=6)
    shown.tight_layout()
    shown.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the smallest instance only")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a method")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--docs", type=Path, default=None, help="where to write the table")
    options = parser.parse_args()
    use_one_thread()
    _warm_up()
    packages = ("torch", "numpy", "pymanopt", "clarabel")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    head = f"{machine()}; {versions}."
    print(head)
    records = []
    for d, r, n, kappa in INSTANCES[: 1 if options.quick else None]:
        print(f"d = {d}, r = {r}, kappa = {kappa:g}: to 1e-6, to 1e-10, products, last error")
        records.append(race(d, r, n, kappa, options.limit))
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": head, "instances": records}, indent=1)
        (options.out / "race.json").write_text(text, encoding="utf-8")
        text = table(records, head)
        figure(records, options.out / "race.png")
        if options.docs is not None:
            figure(records, options.docs.parent / "images" / "recovery-race.png")
            text += "\n![Relative error of every method against time](images/recovery-race.png)\n"
        (options.docs or options.out / "recovery-race.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
