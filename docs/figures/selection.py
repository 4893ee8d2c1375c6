"""The interpolant that the flow selects, as its start shrinks: the paper's experiment 6."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from posquad import selection
from posquad.report.palette import COLOURS, INK

B = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
y, d = np.array([1.0, 0.3]), np.array([1, 1, 2, 3])


def draw():
    """Left: the coordinates of the limit. Right: its trace above the least one."""
    scales = np.logspace(0, -6, 25)
    even = selection.bregman_projection(B, y, d, scales[:, None] ** 2 * np.ones(4))
    least = selection.minimum_trace(B, y, d)
    flow = [selection.mirror_flow(B, y, d, scale**2 * np.ones(4)).q for scale in scales[::6]]

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.7))
    names = ("q1 = q2", "q3", "q4")
    for colour, name, k in zip(COLOURS, names, (0, 2, 3), strict=False):
        left.semilogx(scales, even.q[:, k], color=colour, lw=2.2, label=name)
        left.semilogx(scales[::6], [q[k] for q in flow], "o", color=colour, ms=5)
        left.axhline(least.q[k], color=INK, lw=1, ls=":")
    left.plot([], [], "o", color=INK, ms=5, label="limit of the flow")
    left.plot([], [], color=INK, lw=1, ls=":", label="least trace, most entropy")
    _falling(left)
    left.set(xlabel=r"scale $\varepsilon$ of the start", ylabel="selected q", ylim=(-0.03, 0.62))
    left.set_title("Where training ends")
    left.legend(loc="upper right", fontsize=8, ncols=2)

    right.loglog(scales, even.q @ d - least.value, color=COLOURS[0], lw=2.2)
    _falling(right)
    right.set(xlabel=r"scale $\varepsilon$ of the start", ylabel="trace above the minimum")
    right.set_title(f"The trace tends to its minimum, {least.value:g}")
    return figure


def _falling(axes):
    """Small starts to the right, a tick for every second power of ten."""
    axes.invert_xaxis()
    axes.set_xticks(10.0 ** np.arange(0, -7, -2))
    axes.set_xticks([], minor=True)
