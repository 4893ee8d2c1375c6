"""Fibers in the plane of factors, and a geodesic inside the cone of predictors."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from posquad import geometry
from posquad.report.palette import COLOURS, INK, RULE


def draw():
    """Left: the plane of factors aI + bJ, J a quarter turn. Right: all 2 x 2 predictors."""
    figure = plt.figure(figsize=(9.2, 4.1))
    _fibers(figure.add_subplot(1, 2, 1))
    _cone(figure.add_subplot(1, 2, 2, projection="3d"))
    return figure


def _fibers(axes):
    angle = np.linspace(0, 2 * np.pi, 200)
    for Q in (0.2, 0.5, 1.0, 1.5):
        axes.plot(np.sqrt(Q) * np.cos(angle), np.sqrt(Q) * np.sin(angle), color=RULE, lw=1.4)
        axes.text(0, -np.sqrt(Q), f"Q = {Q:g} I", color=INK, fontsize=8, ha="center", va="bottom")
    U, Z = _factor(np.cos(0.6), np.sin(0.6)), _factor(-0.05, 0.75)
    pieces = {
        "any direction Z": Z,
        "vertical: along the fiber": geometry.vertical_projection(U, Z),
        "horizontal: changes Q": geometry.horizontal_projection(U, Z),
    }
    axes.plot(np.cos(angle), np.sin(angle), color=COLOURS[0], lw=2.2)
    for colour, (name, arrow) in zip((INK, COLOURS[0], COLOURS[1]), pieces.items(), strict=True):
        axes.annotate(
            "",
            xy=(U + arrow)[:, 0],
            xytext=U[:, 0],
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0},
        )
        axes.plot([], [], color=colour, label=name)
    axes.plot(*U[:, 0], "o", color=INK, ms=6)
    axes.text(U[0, 0] - 0.04, U[1, 0] - 0.06, "U", ha="right", va="top", fontsize=12)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title("Factors: every circle is one predictor")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), fontsize=8)


def _factor(a, b):
    """A multiple of a rotation: its predictor is (a^2 + b^2) I, its first column is (a, b)."""
    return np.array([[a, -b], [b, a]])


def _cone(axes):
    angle, height = np.linspace(0, 2 * np.pi, 120), np.linspace(0, 1.5, 2)
    for z in (0.5, 1.0, 1.5):
        axes.plot(z * np.cos(angle), z * np.sin(angle), z, color=RULE, lw=1)
    for a in np.linspace(0, 2 * np.pi, 16, endpoint=False):
        axes.plot(height * np.cos(a), height * np.sin(a), height, color=RULE, lw=0.8)
    U = np.array([[1.45, 0.0], [0.0, 0.35]])
    V = np.array([[0.25, 0.1], [-0.1, 1.55]])
    t = np.linspace(0, 1, 60)
    path = geometry.geodesic(U, V, t)
    curve = _coordinates(path @ np.swapaxes(path, -1, -2))
    ends = _coordinates(np.stack([U @ U.T, V @ V.T]))
    axes.plot(*curve, color=COLOURS[0], lw=2.6, label="geodesic of the quotient")
    axes.plot(*ends, color=COLOURS[1], lw=1.6, ls="--", label="straight line in Q")
    axes.scatter(*ends, color=INK, s=26, depthshade=False)
    axes.view_init(elev=20, azim=-72)
    axes.set_box_aspect((1, 1, 0.75), zoom=1.45)
    axes.axis("off")
    axes.set_title("Predictors: inside the cone rank 2, on it rank 1")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), fontsize=8)


def _coordinates(Q):
    """Symmetric 2 x 2 matrices in the coordinates where the cone is round."""
    return (Q[..., 0, 0] - Q[..., 1, 1]) / 2, Q[..., 0, 1], (Q[..., 0, 0] + Q[..., 1, 1]) / 2
