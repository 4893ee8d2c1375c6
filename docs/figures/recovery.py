"""What `recover` says of random problems as the number of samples grows, and who was right."""

from __future__ import annotations

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

import posquad
from posquad.report.palette import COLOURS, INK, RULE

D, R, TRIALS = 6, 2, 32
SIZES = (10, 11, 12, 13, 15, 18, 22, 33, 44)


def draw():
    """Shares of each status, and the share of answers that are the truth, for each n."""
    counts, right, descent = [], [], []
    for n in SIZES:
        rng = np.random.default_rng([n, 7])
        U = rng.standard_normal((TRIALS, D, R))
        X = rng.standard_normal((TRIALS, n, D))
        y = ((X @ U) ** 2).sum(-1)
        # where nothing can be identified, more starts only take longer
        starts = 50 if n <= posquad.geometry.dimension(D, R) else None
        found = posquad.recover(X, y, rank=R, max_starts=starts)
        counts.append(Counter(status.name for status in found.status))
        right.append(_right(found.U, U))
        descent.append(_right(_descended(X, y, rng.standard_normal(U.shape), U), U))
    return _picture(counts, right, descent)


def _descended(X, y, starts, U):
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    largest = posquad.effective_spectrum(objective, U).values[..., -1]  # an oracle's step
    return posquad.gradient_descent(objective, starts, step=0.5 / largest, max_steps=2000).U


def _right(V, U):
    Q, truth = V @ np.swapaxes(V, -1, -2), U @ np.swapaxes(U, -1, -2)
    error = np.linalg.norm(Q - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))
    return float((error < 1e-5).mean())


def _picture(counts, right, descent):
    figure, axes = plt.subplots(figsize=(8.4, 3.9))
    position = np.arange(len(SIZES))
    bottom = np.zeros(len(SIZES))
    colours = {"RECOVERED": COLOURS[2], "NOT_IDENTIFIED": COLOURS[5], "STALLED": COLOURS[3]}
    for name in sorted({name for count in counts for name in count}, key="NRS".find):
        share = np.array([count[name] / TRIALS for count in counts])
        colour = colours.get(name, RULE)
        axes.bar(position, share, 0.7, bottom, color=colour, alpha=0.45, label=f"says {name}")
        bottom += share
    axes.plot(position, right, "o", color=INK, ms=6, label="recover is right")
    axes.plot(
        position, descent, "s--", color=COLOURS[1], ms=5, lw=1.4,
        label="gradient descent is right\n(one start, 2000 steps)",
    )  # fmt: skip
    p = posquad.geometry.dimension(D, R)
    axes.set_xticks(position, [f"{n}\n{n / p:.2g}" for n in SIZES])
    axes.set(
        xlabel=f"samples n, and n / p with p = {p}", ylabel="share of the problems", ylim=(0, 1.05)
    )
    axes.grid(False, axis="x")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    return figure
