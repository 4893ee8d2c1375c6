"""Gradient flow from several starts: the loss, and the eigenvalues of the predictor."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import posquad
from posquad.report.palette import COLOURS, INK


def draw():
    """Left: six losses. Right: the spectrum of Q along the first of these flows."""
    rng = np.random.default_rng(4)
    d, r = 6, 2
    U = np.linalg.qr(rng.standard_normal((d, r)))[0] * np.sqrt([1.0, 0.5])
    X = rng.standard_normal((60, d))
    objective = posquad.LeastSquares(posquad.RankOne(X), ((X @ U) ** 2).sum(1))
    starts = 0.02 * rng.standard_normal((6, d, r))
    flow = posquad.gradient_flow(objective, starts, t_final=6.0, rtol=1e-10, save_factors=True)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.6))
    for k in range(len(starts)):
        left.semilogy(flow.times[:, k], flow.loss[:, k], color=COLOURS[0], lw=1.3, alpha=0.75)
    left.set(xlabel="time", ylabel="loss L(U(t))", title="The loss falls, from every start")

    path = flow.factors[:, 0]
    spectrum = np.linalg.eigvalsh(path @ np.swapaxes(path, -1, -2))[:, ::-1]
    for k in range(r):
        right.plot(flow.times[:, 0], spectrum[:, k], color=COLOURS[k], lw=2.4)
        right.axhline([1.0, 0.5][k], color=INK, lw=1, ls=":")
    right.plot(flow.times[:, 0], spectrum[:, r:], color=COLOURS[2], lw=2)
    largest = np.abs(spectrum[:, r:]).max()
    right.text(6, 0.03, f"the other four: below {_power_above(largest)}", ha="right", fontsize=9)
    right.text(6, 1.02, "true eigenvalues, dotted", ha="right", va="bottom", fontsize=9)
    right.set(xlabel="time", ylabel="eigenvalues of Q(t)", ylim=(-0.05, 1.25))
    right.set_title("The rank is kept on the way")
    return figure


def _power_above(value):
    return f"1e-{int(-np.floor(np.log10(value))) - 1}"
