"""Rates of training read off the effective spectrum, and its kernel when samples are few."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import posquad
from posquad.report.palette import COLOURS, INK

FLOOR = 3e-6  # where eigenvalues that are zero are drawn


def draw():
    """Left: the error along three eigenvectors. Right: the spectrum against the sample size."""
    rng = np.random.default_rng(0)
    d, r = 6, 2
    U = np.linalg.qr(rng.standard_normal((d, r)))[0] * np.sqrt([1.0, 0.5])
    X = rng.standard_normal((40, d))
    y = ((X @ U) ** 2).sum(1)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.7))
    _rates(left, posquad.LeastSquares(posquad.RankOne(X), y), U)
    _kernel(right, X, y, U)
    return figure


def _rates(axes, objective, U):
    spectrum = posquad.effective_spectrum(objective, U)

    def error(V):
        return posquad.geometry.procrustes_distance(V, U)

    for colour, k in zip(COLOURS, (0, len(spectrum.values) // 2, -1), strict=False):
        flow = posquad.gradient_flow(
            objective, U + 1e-4 * spectrum.vectors[k], t_final=3.0, rtol=1e-11, atol=1e-16,
            observables={"error": error},
        )  # fmt: skip
        rate = spectrum.values[k]
        shown = flow.observables["error"] > 1e-8
        axes.semilogy(
            flow.times[shown], flow.observables["error"][shown], color=colour, lw=2.4,
            label=f"eigenvalue {rate:.2f}",
        )  # fmt: skip
        t = np.linspace(0, min(3.0, np.log(1e4) / rate), 2)
        axes.semilogy(t, 1e-4 * np.exp(-rate * t), color=INK, lw=1.1, ls=":")
    axes.plot([], [], color=INK, lw=1.1, ls=":", label="slope = eigenvalue")
    axes.set(xlabel="time", ylabel="distance to the solution", ylim=(1e-8, 3e-3))
    axes.set_title("Each direction has its rate")
    axes.legend(loc="upper right", fontsize=8, ncols=2)


def _kernel(axes, X, y, U):
    sizes = [4, 6, 8, 10, 11, 12, 14, 18, 24, 40]
    p = posquad.geometry.dimension(*U.shape)
    for position, n in enumerate(sizes):
        part = posquad.LeastSquares(posquad.RankOne(X[:n]), y[:n])
        spectrum = posquad.effective_spectrum(part, U)
        seen = spectrum.values[~spectrum.is_kernel]
        axes.semilogy(np.full(len(seen), position), seen, "o", color=COLOURS[0], ms=4.5)
        if spectrum.kernel_dimension:
            axes.semilogy([position], [FLOOR], "s", color=COLOURS[1], ms=6)
            axes.text(position, 1.7 * FLOOR, spectrum.kernel_dimension, ha="center", fontsize=9)
    axes.axvline(sizes.index(p) - 0.5, color=INK, lw=1, ls=":")
    axes.text(sizes.index(p) - 0.4, 60, f"n = p = {p}", fontsize=9)
    axes.plot([], [], "o", color=COLOURS[0], ms=4.5, label="effective eigenvalues")
    axes.plot([], [], "s", color=COLOURS[1], ms=6, label="zero: not identified (how many)")
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set(xlabel="samples n", ylabel="eigenvalue", ylim=(FLOOR / 3, 200))
    axes.set_title("What the data do not see")
    axes.legend(loc="lower right", fontsize=8, bbox_to_anchor=(1.0, 0.0))
