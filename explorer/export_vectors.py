"""Write posquad's answers to the problems of the explorer: vectors.json, at least 200 cases.

Run by `make explorer-vectors`. The tests compare the page's own mathematics with these answers, and
fail if posquad no longer gives them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import posquad
from posquad import selection, theory
from posquad.recovery.solvers.levenberg import levenberg_marquardt
from posquad.theory.signal import Signal

HERE = Path(__file__).parent
TARGET = HERE / "vectors.json"
PROBLEMS = json.loads((HERE / "src" / "data" / "problems.json").read_text(encoding="utf-8"))

Case = dict[str, Any]


def case(kind: str, answer: Any, **given: Any) -> Case:
    """One case; arrays become lists."""
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in given.items()}
    return {"kind": kind, "input": plain, "answer": np.asarray(answer, float).tolist()}


def objective(X: np.ndarray, U: np.ndarray) -> posquad.LeastSquares:
    """The square loss of noiseless responses."""
    return posquad.LeastSquares(posquad.RankOne(X), ((X @ U) ** 2).sum(1))


def gradient_cases() -> Iterator[Case]:
    """Losses and factor gradients, the predictor's recursion, eigenvalues."""
    rng = np.random.default_rng(1)
    for d, r, n in [(1, 1, 1), (2, 1, 3), (2, 2, 4), (3, 1, 5), (3, 3, 9), (6, 2, 20)] * 3:
        X, y = rng.standard_normal((n, d)).round(2), rng.uniform(0, 3, n).round(2)
        U = rng.standard_normal((d, r)).round(2)
        loss = posquad.LeastSquares(posquad.RankOne(X), y)
        yield case("gradient", [loss.loss(U), *loss.gradient(U).ravel()], X=X, y=y, U=U)
        Q, G = U @ U.T, loss.predictor_gradient(U @ U.T)
        yield case("predictor-step", posquad.predictor_step(Q, G, 0.1), Q=Q, G=G, step=0.1)


def flow_cases() -> Iterator[Case]:
    """Factors along the gradient flow of the first scene."""
    data = PROBLEMS["fiber"]
    X, times = np.array(data["X"]), np.array([0.5, 2.0, 6.0])
    grid = list(itertools.product((0.15, 1.0), (0, 70, 200), (False, True)))
    for name, target in data["targets"].items():
        starts = np.stack([fiber_start(*point) for point in grid])
        flow = posquad.gradient_flow(
            objective(X, np.array(target)), starts, t_final=times[-1], times=times, rtol=1e-11,
            save_factors=True,
        )  # fmt: skip
        for k, (size, degrees, mirrored) in enumerate(grid):
            given = {"target": name, "size": size, "degrees": degrees, "mirrored": mirrored}
            yield case("flow", flow.factors[1:, k], **given, times=times)


def fiber_start(size: float, degrees: float, mirrored: bool) -> np.ndarray:
    """The second start of the first scene."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    R = np.array([[c, s], [s, -c]] if mirrored else [[c, -s], [s, c]])
    return size * np.array(PROBLEMS["fiber"]["start"]) @ R


def rate_factors(kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """Target and start of the second scene."""
    data = PROBLEMS["rate"]
    target = np.zeros((6, 2))
    target[0, 0], target[1, 1] = 1.0, kappa**-0.5
    return target, target + data["distance"] * kappa**-0.5 * np.array(data["direction"])


def rate_cases() -> Iterator[Case]:
    """Effective spectra, descents and oracle steps of the second scene."""
    X = np.array(PROBLEMS["rate"]["X"])
    for kappa, n in itertools.product((1.0, 2.5, 8.0, 30.0), (6, 11, 14, 22, 44, 88)):
        target, start = rate_factors(kappa)
        loss = objective(X[:n], target)
        values = posquad.effective_spectrum(loss, target).values
        yield case("spectrum", values, kappa=kappa, n=n)
        step = 0.6 / float(values[-1])
        end = posquad.gradient_descent(loss, start, step=step, max_steps=60, record_every=60)
        yield case("descent", end.U, kappa=kappa, n=n, step=step, steps=60)
        signal = Signal.from_eigenvalues(6, [1.0, 1 / kappa])
        for m, M in ((2, 8), (1, 9)) if n == 6 else ():
            given = {"largest": 1.0, "smallest": 1 / kappa, "m": m, "M": M}
            yield case("oracle-step", theory.oracle_step(signal, m, M), **given)


def selection_systems() -> Iterator[dict[str, np.ndarray]]:
    """The systems of the third scene, and the one of experiment 5."""
    paper, free = (PROBLEMS["selection"][name] for name in ("paper", "free"))
    yield {key: np.array(value, float) for key, value in paper.items()}
    for weight in (0.5, 0.8, 1.0, 1.3):
        row = [free["B"][0][0], weight, free["B"][0][2]]
        yield {"B": np.array([row]), "y": np.array(free["y"]), "d": np.array(free["d"], float)}
    yield {
        "B": np.array([[1, 0.5, 0, 1, 0.2, 0], [0, 1, 1, 0, 0.3, 0.5], [0.5, 0, 1, 0.4, 0, 1]]),
        "y": np.array([1.2, 1.0, 1.1]),
        "d": np.array([1.0, 1, 2, 1, 3, 2]),
    }


def selection_cases() -> Iterator[Case]:
    """Projections, flows, limits of finite steps, minimum traces of the third scene."""
    for system in selection_systems():
        B, y, d = system.values()
        least = selection.minimum_trace(B, y, d)
        yield case("minimum-trace", [least.value, *least.q], **system)
        for eps, shape in itertools.product((1.0, 0.3, 0.05, 0.005), (1.0, 2.0)):
            q0 = np.full(len(d), eps**2)
            q0[:2] *= [shape, 1 / shape]
            yield case("projection", selection.bregman_projection(B, y, d, q0).q, **system, q0=q0)
        for eps in (1.0, 0.1):
            q0 = np.full(len(d), eps**2)
            flow = selection.mirror_flow(B, y, d, q0, t_final=1.5, tolerance=1e-12)
            yield case("mirror-flow", flow.q[None], **system, q0=q0, times=np.array([1.5]))
            for step in (0.3, 0.02):
                limit = selection.descent_limit(B, y, d, q0, step)
                yield case("descent-limit", limit.q, **system, q0=q0, step=step)


def recovery_samples(number: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and responses of the fourth scene; `number` counts the data sets from 1."""
    data = PROBLEMS["recovery"][number - 1]
    X = np.array(data["X"])[:n]
    return X, (X @ np.array(data["u"])) ** 2


def recovery_cases() -> Iterator[Case]:
    """Losses along directions and all local minima of the fourth scene."""
    rng = np.random.default_rng(4)
    for number, n in itertools.product((1, 4, 7, 10), (3, 4, 5, 6, 9, 14)):
        X, y = recovery_samples(number, n)
        s = rng.standard_normal(3)
        s /= np.linalg.norm(s)
        z = (X @ s) ** 2
        loss = posquad.LeastSquares(posquad.RankOne(X), y)
        best = loss.loss(np.sqrt(max(0.0, y @ z / (z @ z))) * s[:, None])
        fraction = float(best) / float(loss.loss(np.zeros((3, 1))))
        yield case("direction-loss", fraction, set=number, n=n, s=s)
        yield case("minima", minima(X, y), set=number, n=n)


def minima(X: np.ndarray, y: np.ndarray, starts: int = 100) -> np.ndarray:
    """All local minima of rank one, from many starts: the loss as a fraction, then uu'."""
    loss = posquad.LeastSquares(posquad.RankOne(X), y)
    zero = float(loss.loss(np.zeros((3, 1))))
    U0 = np.random.default_rng(0).standard_normal((starts, 3, 1))
    ends = levenberg_marquardt(X, y, U0).U
    ends = ends * np.sign(ends[:, :1])
    found = np.zeros((0, 10))
    for u in ends[np.unique(ends[:, :, 0].round(3), axis=0, return_index=True)[1]]:
        for _ in range(4):  # Newton steps, where descent ends with a residual it cannot remove
            H = np.hstack([loss.hessian_product(u, e[:, None]) for e in np.eye(3)])
            u = u - np.linalg.solve(H, loss.gradient(u))
        slope = float(np.abs(loss.gradient(u)).max())
        if np.linalg.eigvalsh(H)[0] <= 1e-9 or slope > 1e-12:
            continue
        entry = np.array([float(loss.loss(u)) / zero, *(u @ u.T).ravel()])
        if (np.abs(found - entry).max(1) > 1e-6).all():
            found = np.vstack([found, entry])
    return found[np.lexsort((found[:, 1], found[:, 0].round(9)))]


SOURCES: tuple[Callable[[], Iterator[Case]], ...] = (
    gradient_cases, flow_cases, rate_cases, selection_cases, recovery_cases,
)  # fmt: skip


def cases() -> list[Case]:
    """All cases, in the order of the file."""
    return [one for source in SOURCES for one in source()]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases())
    TARGET.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
