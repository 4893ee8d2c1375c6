"""Timing for the benchmarks: alternating runs, medians, and the machine in words."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits


def use_one_thread() -> None:
    """Limit torch and the BLAS of NumPy to one thread, for the rest of the process."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def alternate(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each function over so many rounds, taken in turn so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def machine() -> str:
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
        f"Python {platform.python_version()}, {platform.machine()}"
    )


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Write text between the two marks of a page."""
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end, 1)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
