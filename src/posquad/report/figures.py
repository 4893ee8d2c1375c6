"""Panels as image files: SVG that follows the light or dark mode of the page, PDF and PNG."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from posquad.core.errors import PosquadError
from posquad.core.extras import import_extra
from posquad.core.files import write_file
from posquad.report.palette import DARK, INK, RULE
from posquad.report.panel import Panel

__all__ = ["Drawing", "as_svg", "draw", "picture", "save_figures", "themed_svg"]

_M = TypeVar("_M")  # what a panel shows
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "mathtext.fontset": "dejavusans",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "posquad",
    "pdf.fonttype": 42,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}


def picture(panel: Panel[_M], measured: _M) -> Any:
    """Draw the panel as a matplotlib figure. Needs the extra `posquad[lab]`.

    >>> from posquad.experiments.registry import EXPERIMENTS
    >>> exp5 = EXPERIMENTS["exp5"]
    >>> measured = exp5.run(exp5.parameters(), lambda fraction: None)
    >>> picture(exp5.panels[0], measured).axes[0].get_yscale()
    'log'
    """
    matplotlib = import_extra("matplotlib", "lab")
    Figure = import_extra("matplotlib.figure", "lab").Figure
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.2, 3.2), layout="constrained")
        rows = len(panel.heights)
        axes = figure.subplots(rows, sharex=True, height_ratios=panel.heights)
        panel.draw(axes, measured)
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)  # with one, each file format would be drawn twice
    return figure


def themed_svg(svg: str) -> str:
    """Replace the colours of an SVG image by variables with a light and a dark value.

    >>> "prefers-color-scheme" in themed_svg('<svg><g style="fill: #1b1c1e"/></svg>')
    True
    """
    text = svg[svg.index("<svg") :]
    for position, colour in enumerate(DARK):
        text = text.replace(colour, f"var(--c{position})")
    light = "".join(f"--c{k}:{colour};" for k, colour in enumerate(DARK))
    dark = "".join(f"--c{k}:{colour};" for k, colour in enumerate(DARK.values()))
    rules = f"svg{{{light}}}@media screen and (prefers-color-scheme:dark){{svg{{{dark}}}}}"
    end = text.index(">") + 1
    return f"{text[:end]}<style>{rules}</style>{text[end:]}"


def save_figures(figure: Any, folder: Path, key: str) -> str:
    """Write `key.svg`, `key.pdf` and `key.png` into a folder; return the SVG text.

    >>> from tempfile import TemporaryDirectory
    >>> from matplotlib.figure import Figure
    >>> with TemporaryDirectory() as folder:
    ...     svg = save_figures(Figure(), Path(folder), "empty")
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['empty.pdf', 'empty.png', 'empty.svg']
    """
    svg = as_svg(figure)
    write_file(folder / f"{key}.svg", svg.encode())
    write_file(folder / f"{key}.pdf", _saved(figure, "pdf", metadata={"CreationDate": None}))
    write_file(folder / f"{key}.png", _saved(figure, "png", dpi=200))
    return svg


def as_svg(figure: Any) -> str:
    """Return the figure as SVG text with a transparent background, reproducibly.

    >>> from matplotlib.figure import Figure
    >>> "<svg" in as_svg(Figure())
    True
    """
    return _saved(figure, "svg", transparent=True, metadata={"Date": None}).decode()


def _saved(figure: Any, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with import_extra("matplotlib", "lab").rc_context(_STYLE):
        figure.savefig(buffer, format=form, **options)
    return buffer.getvalue()


@dataclass(frozen=True)
class Drawing:
    """A drawn panel: its SVG image (None if it could not be drawn) and its text alternative."""

    svg: str | None
    words: str


def draw(panel: Panel[_M], measured: _M, folder: Path | None) -> Drawing:
    """Draw a panel, and write its files if a folder is given.

    A panel that cannot be drawn (with unusual parameters) is replaced by a sentence, so that the
    report still shows the others.

    >>> broken = Panel("broken", "", "", draw=lambda axes, measured: 1 / 0, describe=lambda m: "")
    >>> draw(broken, None, None).words
    'This panel cannot be drawn with these parameters (ZeroDivisionError: division by zero).'
    """
    try:
        figure, words = picture(panel, measured), panel.describe(measured)
        svg = as_svg(figure) if folder is None else save_figures(figure, folder, panel.key)
        return Drawing(themed_svg(svg), words)
    except PosquadError:
        raise
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        return Drawing(None, f"This panel cannot be drawn with these parameters ({reason}).")
