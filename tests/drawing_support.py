"""Panels without their images: rendering takes most of the time of a small fit or experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posquad.report.figures import Drawing
from posquad.report.panel import Panel


def draw_unrendered(panel: Panel[Any], measured: Any, folder: Path | None) -> Drawing:
    """Draw a panel on axes that are not rendered; its image is empty, and no file is written."""
    panel.draw(Figure().subplots(len(panel.heights), sharex=True), measured)
    return Drawing("<svg/>", panel.describe(measured))


class OnlySvg:
    """A figure that leaves the other formats empty: they take most of the time."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def savefig(self, buffer: Any, *, format: str, **options: Any) -> None:
        if format == "svg":
            self.figure.savefig(buffer, format=format, **options)
