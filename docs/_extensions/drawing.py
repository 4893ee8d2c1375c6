"""The directive `drawing`: a figure made by a script at build time, that follows light and dark.

    ```{drawing} quotient
    :alt: what the picture shows, for those who cannot see it

    A caption.
    ```

runs `draw()` of `docs/figures/quotient.py`, which returns a matplotlib figure, and puts it into the
page as SVG whose colours are variables that `_static/site.css` sets for either theme.
"""

from __future__ import annotations

import functools
import html
import io
import runpy
from pathlib import Path
from typing import Any, ClassVar

import matplotlib
from docutils import nodes
from docutils.parsers.rst import directives
from house import STYLE
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from posquad.report.palette import DARK

matplotlib.use("Agg")

FIGURES = Path(__file__).parent.parent / "figures"


@functools.cache
def svg_of(script: Path, alt: str) -> str:
    """The figure of a script, its colours replaced by variables `--ink-0`, `--ink-1`, ..."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = runpy.run_path(str(script))["draw"]()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for position, colour in enumerate(DARK):
        text = text.replace(colour, f"var(--ink-{position})")
    # Identifiers must be unique in a page that shows several figures.
    text = text.replace('id="', f'id="{script.stem}-').replace("url(#", f"url(#{script.stem}-")
    text = text.replace('href="#', f'href="#{script.stem}-')
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)


class Drawing(SphinxDirective):
    """See the module."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Run the script and wrap its picture and the caption in a figure."""
        script = FIGURES / f"{self.arguments[0]}.py"
        if "alt" not in self.options or not script.is_file():
            raise self.error(f"drawing: expected :alt: and a script {script.name}")
        self.env.note_dependency(str(script))
        picture = nodes.raw("", svg_of(script, self.options["alt"]), format="html")
        figure = nodes.figure("", picture, classes=["drawing"])
        if self.content:
            caption = self.parse_content_to_nodes()[0]
            figure += nodes.caption("", "", *caption.children)
        self.set_source_info(figure)
        return [figure]


def stylesheet() -> str:
    """The colours of the drawings for a light and for a dark page."""
    light = "".join(f"--ink-{k}:{colour};" for k, colour in enumerate(DARK))
    dark = "".join(f"--ink-{k}:{colour};" for k, colour in enumerate(DARK.values()))
    return f'html{{{light}}}html[data-theme="dark"]{{{dark}}}'


def write_stylesheet(app: Sphinx, problem: Exception | None) -> None:
    """Put the colours beside the other static files."""
    if problem is None and app.builder.format == "html":
        Path(app.outdir, "_static", "drawings.css").write_text(stylesheet(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the colours of its pictures."""
    app.add_directive("drawing", Drawing)
    app.add_css_file("drawings.css")
    app.connect("build-finished", write_stylesheet)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
