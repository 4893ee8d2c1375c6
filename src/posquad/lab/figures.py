"""Panels as pictures: SVG that follows the reader's light or dark page, PDF and PNG for papers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from posquad._extras import optional
from posquad.lab.experiment import Measured, Panel
from posquad.lab.palette import DARK, INK, RULE
from posquad.lab.records import write_file

__all__ = ["picture", "save_figures", "svg_text"]

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
}


def picture(panel: Panel, measured: Measured) -> Any:
    """The panel as a matplotlib figure. Needs the extra `posquad[lab]`.

    >>> from posquad.lab.registry import EXPERIMENTS
    >>> exp5 = EXPERIMENTS["exp5"]
    >>> measured = exp5.run(exp5.parameters(), lambda fraction: None)
    >>> picture(exp5.panels[0], measured).axes[0].get_yscale()
    'log'
    """
    matplotlib = optional("matplotlib", "lab")
    Figure = optional("matplotlib.figure", "lab").Figure
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.2, 3.2), layout="constrained")
        panel.draw(figure.subplots(), measured)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not again for every file format
    return figure


def svg_text(figure: Any) -> str:
    """The figure as SVG whose colours are variables with a light and a dark value.

    >>> from matplotlib.figure import Figure
    >>> "prefers-color-scheme" in svg_text(Figure())
    True
    """
    buffer = io.StringIO()
    with optional("matplotlib", "lab").rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for position, colour in enumerate(DARK):
        text = text.replace(colour, f"var(--c{position})")
    light = "".join(f"--c{k}:{colour};" for k, colour in enumerate(DARK))
    dark = "".join(f"--c{k}:{colour};" for k, colour in enumerate(DARK.values()))
    rules = f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    end = text.index(">") + 1
    return f"{text[:end]}<style>{rules}</style>{text[end:]}"


def save_figures(figure: Any, folder: Path, key: str) -> None:
    """Write `key.pdf` and `key.png` into a folder.

    >>> from tempfile import TemporaryDirectory
    >>> from matplotlib.figure import Figure
    >>> with TemporaryDirectory() as folder:
    ...     save_figures(Figure(), Path(folder), "empty")
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['empty.pdf', 'empty.png']
    """
    with optional("matplotlib", "lab").rc_context(_STYLE):
        for form, options in (("pdf", {"metadata": {"CreationDate": None}}), ("png", {"dpi": 200})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=form, **options)
            write_file(folder / f"{key}.{form}", buffer.getvalue())
