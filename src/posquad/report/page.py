"""Pages: one HTML file each that needs nothing else, made with Jinja2 and autoescape.

A page runs no script and loads nothing: images are data, the one style sheet is allowed by its
hash, and the content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from posquad._version import __version__
from posquad.core.extras import optional
from posquad.core.system import now, system_information

__all__ = ["image", "page"]


def page(
    template: str,
    *,
    styles: Sequence[str],
    filters: Mapping[str, Callable[..., str]] | None = None,
    **content: Any,
) -> str:
    """A page made from a template of this package; every value of `content` is escaped.

    >>> text = page("page.html.j2", styles=("report.css",), title="<b>")
    >>> "<b>" in text, "&lt;b&gt;" in text, "Content-Security-Policy" in text
    (False, True, True)
    """
    jinja2 = optional("jinja2", "lab")
    here = files("posquad.report")
    texts = {name: here.joinpath(name).read_text(encoding="utf-8") for name in styles}
    style = "".join(texts.values())
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: here.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= dict(filters or {})
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template(template).render(
        style=optional("markupsafe", "lab").Markup(style),
        style_hash=f"sha256-{digest}",
        version=__version__,
        made=now(),
        system=system_information(),
        **content,
    )


def image(svg: str | None) -> str:
    """A picture as an address that holds it, none where there is no picture.

    >>> image("<svg/>"), image(None)
    ('data:image/svg+xml;base64,PHN2Zy8+', '')
    """
    if svg is None:
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
