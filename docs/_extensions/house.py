"""The look of figures: colours and lines of `posquad.report.palette`, for pages and the gallery."""

from __future__ import annotations

from typing import Any

from cycler import cycler

from posquad.report.palette import COLOURS, INK, RULE

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "mathtext.fontset": "dejavusans",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "posquad",
}


def reset(gallery_conf: dict[str, Any], path: str) -> None:
    """Give every gallery example the same look, whatever the one before it changed."""
    import matplotlib

    matplotlib.rcParams.update(STYLE)
