"""Gradients, line sums, `recover` and a million small problems on a GPU, as ratios in one run.

    python benchmarks/gpu.py [--json FILE]

"plain" makes the two products with X in torch; "read" sums the entries of X once. Errors are
relative to double precision (to plain products where those are double).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from posquad import LeastSquares, RankOne, recover
from posquad.problems.fused import fused_line, fused_sweep
from timing import machine

ROUNDS = 15
SIZES = [(1_000_000, 1024, 16), (4_000_000, 256, 5), (500_000, 2048, 5), (130_000, 8000, 5)]
LINES = [(1_000_000, 1024, 8), (4_000_000, 256, 5)]
NAMES = {torch.float32: "float32", torch.float64: "float64"}


def milliseconds(*functions: Callable[[], object]) -> list[float]:
    """Median GPU time of each function; the functions take turns."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(ROUNDS + 2):
        for k, function in enumerate(functions):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[k].append(begin.elapsed_time(end))
    return [statistics.median(values) for values in times]


def plain_gradient(X: Tensor, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    Z = X @ U
    e = Z.square().sum(1) - y
    return e, X.T @ (e[:, None] * Z)


def plain_line(X: Tensor, U: Tensor, D: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    Z, P = X @ U, X @ D
    s0, s1, s2 = Z.square().sum(1) - y, 2 * (Z * P).sum(1), P.square().sum(1)
    a, b, c = s0[:, None], s1[:, None], s2[:, None]
    sums = X.T @ torch.cat([a * Z, b * Z + a * P, c * Z + b * P, c * P], 1)
    return torch.stack([s0, s1, s2]), sums.view(len(U), 4, -1).permute(1, 0, 2)


def in_double(function: Callable[..., tuple[Tensor, Tensor]], X: Tensor, *rest: Tensor) -> Tensor:
    """The sum over rows of a function, in double precision, a few rows at a time."""
    *factors, y = rest
    parts = zip(X.split(50_000), y.split(50_000), strict=True)
    small = [factor.double() for factor in factors]
    return torch.stack([function(x.double(), *small, t.double())[1] for x, t in parts]).sum(0)


def problem(n: int, d: int, r: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator("cuda").manual_seed(n + d)
    X = torch.randn(n, d, generator=rng, device="cuda", dtype=dtype)
    U, D = torch.randn(2, d, r, generator=rng, device="cuda", dtype=dtype) / math.sqrt(d)
    return X, U, D, r * torch.rand(n, generator=rng, device="cuda", dtype=dtype)


def relative(value: Tensor, truth: Tensor) -> float:
    return float((value.double() - truth).norm() / truth.norm())


def gradients() -> list[dict]:
    print("\nLoss and gradient, through LeastSquares.loss_and_gradient")
    rows = []
    for n, d, r in SIZES:
        for dtype in NAMES:
            X, U, _, y = problem(n, d, r, dtype)
            ours = LeastSquares(RankOne(X), y).loss_and_gradient
            truth = in_double(plain_gradient, X, U, y)
            plain = partial(plain_gradient, X, U, y)
            row = compared("gradient", X, r, partial(ours, U), plain)
            row["fused"] = fused_sweep(X, U, y) is not None
            row["error"] = relative(ours(U)[1] * (n / 2), truth)
            row["plain_error"] = relative(plain()[1], truth)
            rows.append(told(row))
    return rows


def lines() -> list[dict]:
    print("\nSums along a line")
    rows = []
    for n, d, r in LINES:
        for dtype in NAMES:
            X, U, D, y = problem(n, d, r, dtype)
            fused = fused_line(X, U, D, y, None)
            if fused is None:
                print(f"  ({n}, {d}, {r}), {NAMES[dtype]}: plain products are used")
                continue
            truth = in_double(plain_line, X, U, D, y)
            plain = partial(plain_line, X, U, D, y)
            row = compared("line", X, r, partial(fused_line, X, U, D, y, None), plain)
            row |= {"fused": True, "error": relative(fused[1], truth)}
            row["plain_error"] = relative(plain()[1], truth)
            rows.append(told(row))
    return rows


def compared(kind: str, X: Tensor, r: int, ours: Callable, plain: Callable) -> dict:
    times = milliseconds(ours, plain, X.sum)
    size = {"what": kind, "n": len(X), "d": X.shape[1], "r": r, "dtype": NAMES[X.dtype]}
    return size | dict(zip(("ours_ms", "plain_ms", "read_ms"), times, strict=True))


def told(row: dict) -> dict:
    ratio, reads = row["ours_ms"] / row["plain_ms"], row["ours_ms"] / row["read_ms"]
    size = f"({row['n']}, {row['d']}, {row['r']}), {row['dtype']}"
    plain = f"{ratio:.2f} of plain ({row['plain_ms']:.2f} ms)"
    cost = f"{row['ours_ms']:.2f} ms, {plain}, {reads:.2f} reads"
    errors = f"relative error {row['error']:.1e}, plain {row['plain_error']:.1e}"
    print(f"  {size}: {cost}; {errors}{'' if row['fused'] else '; not fused'}", flush=True)
    return row


def large_recovery() -> dict:
    n, d, r = 119_970, 8000, 5
    X, U, _, _ = problem(n, d, r, torch.float64)
    y = (X @ U).square().sum(1)
    seconds, status = [], ""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):  # the first call compiles and plans
        torch.cuda.synchronize()
        begin = time.perf_counter()
        status = str(recover(X, y, rank=r).status)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    beyond = (torch.cuda.max_memory_allocated() - before) / 2**30
    size = X.numel() * 8 / 2**30
    print(
        f"\nrecover at ({n}, {d}, {r}): {status}, {seconds[1]:.1f} s (first call "
        f"{seconds[0]:.1f} s), {beyond:.2f} GiB beyond X of {size:.2f} GiB"
    )
    return {"what": "recover", "seconds": seconds, "beyond_gib": beyond, "x_gib": size}


def million() -> dict:
    count, n, d = 1_000_000, 64, 3
    rng = torch.Generator("cuda").manual_seed(0)
    X = torch.randn(n, d, generator=rng, device="cuda", dtype=torch.float64)
    U = torch.randn(count, d, d, generator=rng, device="cuda", dtype=torch.float64)
    y = (X @ U).square().sum(-1)
    y *= 1 + 0.05 * torch.randn(y.shape, generator=rng, device="cuda", dtype=torch.float64)
    seconds = []
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        recover(X, y, rank=d)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    print(
        f"\n{count} problems of d = {d}, n = {n}, rank {d}, one design: {seconds[1]:.2f} s "
        f"(first call {seconds[0]:.2f} s)"
    )
    return {"what": "million", "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU, and torch sees none here.")
    print(f"{torch.cuda.get_device_name()}; {machine()}")
    figures = [*gradients(), *lines(), large_recovery(), million()]
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
