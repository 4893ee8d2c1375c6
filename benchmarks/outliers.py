"""How far 10% of outliers move the answers of the robust losses, in clean standard errors.

    python benchmarks/outliers.py [--repeats 20] [--docs docs/measured.md]

Data sets with d = 3, rank 1 and normal noise of standard deviation s = 0.1; a tenth of the
responses is moved. The clean standard error of an entry of Q is its root mean square error over the
data sets by least squares without outliers. Two numbers are given: the bias, which is the largest
mean error of an entry, and how often no entry of the answer errs by more than three standard
errors. Under least squares without outliers that is the case in about 99% of the data sets.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from posquad import recover
from timing import machine, use_one_thread, write_between

BEGIN, END = "<!-- outliers -->", "<!-- /outliers -->"
D, NOISE, SHARE = 3, 0.1, 0.1
SAMPLES = (100, 1600)
KINDS = {
    "1000 s, both signs": (-1000.0, 1000.0),
    "1000 s, one sign": (1000.0,),
    "5 s, one sign": (5.0,),
}
LOSSES = ("huber", "huber, scale of geman-mcclure", "geman-mcclure")


def fitted(X: np.ndarray, y: np.ndarray, loss: str) -> np.ndarray:
    """Q by this loss; the second one takes its scale from a redescending fit."""
    name, _, other = loss.partition(", scale of ")
    plain = {"rank": 1, "diagnose": False}
    scale = float(recover(X, y, loss=other, **plain).scale) if other else None
    return recover(X, y, loss=name, scale=scale, **plain).Q.dense()


def moved(n: int, sizes: tuple[float, ...], repeats: int) -> dict[str, tuple[float, float]]:
    """Bias in standard errors, and the share of data sets within three of them, of each loss."""
    rng = np.random.default_rng([n, len(sizes), int(sizes[-1])])
    X, U = rng.standard_normal((n, D)), rng.standard_normal((D, 1))
    exact, triangle = U @ U.T, np.triu_indices(D)
    clean, errors = [], {loss: [] for loss in LOSSES}
    for _ in range(repeats):
        y = ((X @ U) ** 2).sum(1) + NOISE * rng.standard_normal(n)
        clean.append((recover(X, y, rank=1).Q.dense() - exact)[triangle])
        bad = rng.permutation(n)[: round(SHARE * n)]
        y[bad] += NOISE * rng.choice(sizes, len(bad))
        for loss in LOSSES:
            errors[loss].append((fitted(X, y, loss) - exact)[triangle])
    unit = np.sqrt(np.mean(np.square(clean), axis=0))
    found = {}
    for loss, error in errors.items():
        ratio = np.array(error) / unit
        found[loss] = np.abs(ratio.mean(0)).max(), (np.abs(ratio) <= 3).all(1).mean()
        print(f"{n:6d} {sizes} {loss}: {found[loss][0]:.1f} {found[loss][1]:.0%}", flush=True)
    return found


def table(repeats: int) -> str:
    """The table in Markdown."""
    lines = [
        "| outliers | loss | " + " | ".join(f"n = {n}" for n in SAMPLES) + " |",
        "|---|---|" + "---|" * len(SAMPLES),
    ]
    for kind, sizes in KINDS.items():
        cells = [moved(n, sizes, repeats) for n in SAMPLES]
        for loss in LOSSES:
            shown = [f"{cell[loss][0]:.1f} ({cell[loss][1]:.0%})" for cell in cells]
            lines.append(f"| {kind} | {loss} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20, help="data sets of each cell")
    parser.add_argument("--docs", type=Path, help="page whose table is renewed")
    options = parser.parse_args()
    use_one_thread()
    print(f"outliers, {machine()}")
    made = table(options.repeats)
    if options.docs is not None:
        write_between(options.docs, BEGIN, END, f"\n{made}\n")


if __name__ == "__main__":
    main()
