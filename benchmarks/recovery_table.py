"""The figures that `recover` is held to: rates, times, accuracy, memory, noise, batches.

    python benchmarks/recovery_table.py [--quick] [--only NAME ...] [--out FILE]

Each row says what was required, what was the goal, and what was measured. Recovery means a relative
Frobenius error below 1e-6; "wrong" counts answers called RECOVERED that are not. Seconds are those
of the processor, in one thread: the same as on the wall when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from posquad import Status, recover
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery import population_lbfgs, spectral_initializer
from timing import machine, use_one_thread

Record = dict[str, object]


def problem(rng, n, d, eigenvalues):
    X = torch.randn(n, d, generator=rng, dtype=torch.float64)
    W = torch.linalg.qr(torch.randn(d, len(eigenvalues), generator=rng, dtype=torch.float64)).Q
    U = W * torch.tensor(eigenvalues, dtype=torch.float64).sqrt()
    return X, U, RankOne(X).apply_factor(U)


def error(U, U_star):
    """Relative Frobenius error of UU', without d x d matrices and without cancellation."""
    from posquad.geometry import procrustes_alignment

    V = U_star @ procrustes_alignment(U, U_star)
    D, S = U - V, U + V
    squared = ((D.mT @ D) * (S.mT @ S)).sum() / 2 + ((D.mT @ S) * (S.mT @ D)).sum() / 2
    return float(squared.clamp_min(0).sqrt() / torch.linalg.matrix_norm(U_star.mT @ U_star))


def rate(n: int, d: int, eigenvalues: list[float], trials: int, seed: int) -> Record:
    rng = torch.Generator().manual_seed(seed)
    good = wrong = 0
    seconds, errors, starts = [], [], []
    for _ in range(trials):
        X, U, y = problem(rng, n, d, eigenvalues)
        begin = time.process_time()
        found = recover(X, y, len(eigenvalues))
        seconds.append(time.process_time() - begin)
        away = error(found.U, U) if found.U.shape == U.shape else 1.0
        good += away < 1e-6
        wrong += away >= 1e-6 and found.status is Status.RECOVERED
        starts.append(int(found.starts))
        if away < 1e-6:
            errors.append(away)
    return {
        "n": n, "d": d, "r": len(eigenvalues), "trials": trials, "recovered": good,
        "wrong": wrong, "mean_seconds": statistics.mean(seconds),
        "median_seconds": statistics.median(seconds), "max_seconds": max(seconds),
        "mean_starts": statistics.mean(starts), "median_error": statistics.median(errors or [1.0]),
        "max_error": max(errors or [1.0]),
    }  # fmt: skip


def spaced(d: int, r: int, kappa: float) -> list[float]:
    return torch.logspace(0, -float(torch.log10(torch.tensor(kappa))), r).tolist()


def kappa_growth(trials: int) -> Record:
    """Products with X or X' until the error is 1e-10, at (200, 5, 4p)."""
    d, r = 200, 5
    n = 4 * dimension(d, r)
    counts = {}
    for kappa in (1.0, 20.0, 1e3, 1e4):
        total = 0
        for seed in range(trials):
            X, U, y = problem(torch.Generator().manual_seed(seed), n, d, spaced(d, r, kappa))
            U0 = spectral_initializer(X, y, r, kind="bounded")
            tolerance = 1e-10
            found = population_lbfgs(X, y, U0, tolerance=tolerance)
            while error(found.U, U) > 1e-10:
                tolerance /= 1.5
                found = population_lbfgs(X, y, U0, tolerance=tolerance)
            total += int(found.passes)
        counts[kappa] = total / trials
    return {"products": counts, "growth": counts[1e4] / counts[1.0]}


def noise(trials: int) -> Record:
    """Squared errors against those of the linear least squares estimate around the truth."""
    rng = torch.Generator().manual_seed(5)
    ours = oracle = 0.0
    for _ in range(trials):
        X, U, y = problem(rng, 76, 10, [1.0, 0.5])
        noisy = y * (1 + 0.05 * torch.randn(76, generator=rng, dtype=torch.float64))
        J = 2 * (X[:, :, None] * (X @ U)[:, None, :]).flatten(1)
        D = torch.linalg.lstsq(J, (noisy - y)[:, None], driver="gelsd").solution.reshape(U.shape)
        oracle += float((D @ U.mT + U @ D.mT).square().sum())
        ours += float((recover(X, noisy, 2).Q.dense() - U @ U.mT).square().sum())
    return {"trials": trials, "error_over_oracle": (ours / oracle) ** 0.5}


def memory() -> Record:
    d, r = 2000, 10
    X, U, y = problem(torch.Generator().manual_seed(0), 2 * dimension(d, r), d, spaced(d, r, 2.0))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    begin = time.process_time()
    found = recover(X, y, r)
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "megabytes_beyond_X": peak - before, "seconds": seconds, "error": error(found.U, U),
        "status": found.status.name,
    }  # fmt: skip


def batch(count: int) -> Record:
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(count, 64, 3, generator=rng, dtype=torch.float64)
    U = torch.randn(count, 3, 3, generator=rng, dtype=torch.float64)
    y = (X @ U).square().sum(-1)
    recover(X[0], y[0], 3)
    begin = time.process_time()
    found = recover(X, y, 3)
    together = time.process_time() - begin
    sample = min(count, 300)
    begin = time.process_time()
    for k in range(sample):
        recover(X[k], y[k], 3)
    loop = (time.process_time() - begin) * count / sample
    Q = U @ U.mT
    norms = torch.linalg.matrix_norm(found.Q.dense() - Q) / torch.linalg.matrix_norm(Q)
    return {
        "problems": count, "seconds": together, "loop_seconds": loop, "ratio": loop / together,
        "max_error": float(norms.max()),
    }  # fmt: skip


def rows(quick: bool) -> dict[str, tuple[str, str, Callable[[], Record]]]:
    two, three = [1.0, 0.5], [1.0, 0.75, 0.5]
    five = [1.0, 0.875, 0.75, 0.625, 0.5]
    many, some, few = (32, 8, 3) if quick else (256, 64, 32)
    small = ["256/256, mean <= 20 ms at n = 38", "10 ms at n = 24"]
    return {
        "10-2-24": (*small, lambda: rate(24, 10, two, many, 24)),
        "10-2-29": (*small, lambda: rate(29, 10, two, many, 29)),
        "10-2-38": (*small, lambda: rate(38, 10, two, many, 38)),
        "10-2-76": (*small, lambda: rate(76, 10, two, many, 76)),
        "10-2-20": (">= 97%, 0 wrong", ">= 99%, 150 ms", lambda: rate(20, 10, two, many, 20)),
        "10-2-19": ("0 wrong", "", lambda: rate(19, 10, two, many, 19)),
        "40-3-1.25p": (">= 97%, mean <= 1 s", "", lambda: rate(146, 40, three, some, 146)),
        "40-3-1.1p": ("61 of 64", "64 of 64", lambda: rate(129, 40, three, some, 129)),
        "40-3-1.05p": ("40 of 64", "60 of 64", lambda: rate(123, 40, three, some, 123)),
        "100-5-1.2p": (">= 90%, 20 s", ">= 97%, 2 s", lambda: rate(588, 100, five, few, 588)),
        "100-5-1.1p": ("16 of 32, 60 s each", "30", lambda: rate(534, 100, five, few, 534)),
        "kappa": ("growth <= 1.25", "1.1", lambda: kappa_growth(1 if quick else 3)),
        "noise": ("<= 1.05", "", lambda: noise(many)),
        "batch": ("ratio >= 20", "", lambda: batch(1000 if quick else 10_000)),
        "memory": ("X plus 1 GB", "", memory),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few trials, to see that it runs")
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--out", type=Path, default=Path("build/recovery-table.json"))
    options = parser.parse_args()
    use_one_thread()
    recover(torch.eye(2), torch.ones(2), 1)  # imports that torch delays belong to nobody's time
    print(machine())
    results: dict[str, Record] = {"machine": {"text": machine()}}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, (required, goal, measure) in rows(options.quick).items():
        if options.only and name not in options.only:
            continue
        if options.quick and name == "memory":
            continue
        results[name] = {"required": required, "goal": goal, **measure()}
        shown = ", ".join(
            f"{k} {_short(v)}" for k, v in results[name].items() if k not in ("n", "d", "r")
        )
        print(f"{name}: {shown}", flush=True)
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
