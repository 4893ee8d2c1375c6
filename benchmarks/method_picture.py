"""How many problems are recovered as the number of samples grows: the picture in the README.

    python benchmarks/method_picture.py            measure, then draw: about a minute
    python benchmarks/method_picture.py --draw     draw the stored numbers again

Random noiseless problems with d = 10, r = 2 (p = 19 unknowns) and standard Gaussian inputs. Every
method gets the same data. A problem counts as recovered when the relative Frobenius error of Q is
below 1e-5. `recover` must also say so: its status is RECOVERED or CERTIFIED. The numbers are
written to docs/images/method.json, the picture to docs/images/method.png.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import posquad
from posquad import Status
from posquad.recovery import data_driven_descent, spectral_initializer
from posquad.report.palette import COLOURS, INK, RULE
from posquad.selection import minimum_trace_interpolant
from timing import machine

D, R, PROBLEMS = 10, 2, 64
P = posquad.geometry.dimension(D, R)
SIZES = (19, 20, 22, 24, 29, 38, 48, 57, 76, 114, 152)
SMALL = 1e-5
IMAGES = Path(__file__).parents[1] / "docs" / "images"
NUMBERS, PICTURE = IMAGES / "method.json", IMAGES / "method.png"
LABELS = {
    "gradient_descent": "gradient descent\n(spectral start, 20,000 steps)",
    "convex": "convex: minimum trace",
    "recovered": "posquad: recovered",
    "certified": "posquad: proved unique",
}


def measure(n: int) -> dict[str, int]:
    """Counts of recovered problems for one number of samples."""
    rng = np.random.default_rng([n, 13])
    U = rng.standard_normal((PROBLEMS, D, R))
    X = rng.standard_normal((PROBLEMS, n, D))
    y = ((X @ U) ** 2).sum(-1)
    truth = U @ np.swapaxes(U, -1, -2)

    found = [posquad.recover(X[k], y[k], rank=R, certify=True) for k in range(PROBLEMS)]
    right = relative(np.stack([one.Q.dense() for one in found]), truth) < SMALL
    proved = np.array([one.status is Status.CERTIFIED for one in found])
    said = proved | np.array([one.status is Status.RECOVERED for one in found])

    factor = data_driven_descent(X, y, spectral_initializer(X, y, R)).U
    descent = factor @ np.swapaxes(factor, -1, -2)
    convex = np.stack([by_trace(X[k], y[k]) for k in range(PROBLEMS)])
    return {
        "n": n,
        "gradient_descent": int((relative(descent, truth) < SMALL).sum()),
        "convex": int((relative(convex, truth) < SMALL).sum()),
        "recovered": int((said & right).sum()),
        "certified": int((proved & right).sum()),
        "wrongly_recovered": int((said & ~right).sum()),
    }


def by_trace(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The positive semidefinite matrix of least trace that reproduces the responses."""
    return minimum_trace_interpolant(X[:, :, None] * X[:, None, :], y).Q


def relative(Q: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return np.linalg.norm(Q - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))


def draw(rows: list[dict[str, int]]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(8.0, 3.6), layout="constrained")
    n = np.array([row["n"] for row in rows])
    colours = dict(zip(LABELS, (COLOURS[1], COLOURS[3], COLOURS[2], COLOURS[0]), strict=True))
    markers = dict(zip(LABELS, "sDo^", strict=True))
    for name, label in LABELS.items():
        share = [100 * row[name] / PROBLEMS for row in rows]
        width = 2.4 if name == "recovered" else 1.6
        axes.plot(
            n / P, share, marker=markers[name], ms=5, lw=width, color=colours[name], label=label
        )
    axes.axvline((P + 1) / P, color=INK, lw=0.9, ls=":")
    axes.annotate(
        "n = p + 1: no method can\ndo it with fewer samples",
        ((P + 1) / P, 8), (1.35, 3), fontsize=9, color=INK, va="bottom",
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = (1, 1.25, 1.5, 2, 3, 4, 6, 8)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(
        xlabel=f"samples per unknown, n / p  (d = {D}, r = {R}, p = {P})",
        ylabel=f"of {PROBLEMS} problems (%)",
        ylim=(-3, 103),
    )
    axes.grid(color=RULE, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", action="store_true", help="draw the stored numbers again")
    if not parser.parse_args().draw:
        rows = []
        for n in SIZES:
            rows.append(measure(n))
            print(rows[-1], flush=True)
        made = f"python benchmarks/method_picture.py; posquad {posquad.__version__}, {machine()}"
        stored = {"made_by": made, "d": D, "r": R, "p": P, "problems": PROBLEMS, "rows": rows}
        NUMBERS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    draw(json.loads(NUMBERS.read_text(encoding="utf-8"))["rows"]).savefig(PICTURE, dpi=160)


if __name__ == "__main__":
    main()
