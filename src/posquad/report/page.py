"""Self-contained HTML pages, rendered by Jinja2 with autoescape.

A page runs no script and loads nothing from elsewhere. Its images are data URLs, its content
security policy allows the one style sheet by its hash and forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from posquad._version import __version__
from posquad.core.extras import import_extra
from posquad.core.system import now, system_information

__all__ = ["image", "page"]


def page(
    template: str,
    *,
    styles: Sequence[str],
    filters: Mapping[str, Callable[..., str]] | None = None,
    **content: Any,
) -> str:
    """Render a template of this package; every value of `content` is escaped.

    >>> text = page("page.html.j2", styles=("report.css",), title="<b>")
    >>> "<b>" in text, "&lt;b&gt;" in text, "Content-Security-Policy" in text
    (False, True, True)
    """
    jinja2 = import_extra("jinja2", "lab")
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
        style=import_extra("markupsafe", "lab").Markup(style),
        style_hash=f"sha256-{digest}",
        version=__version__,
        made=now(),
        system=system_information(),
        **content,
    )


def image(svg: str | None) -> str:
    """Return an SVG image as a data URL; an empty string if there is no image.

    >>> image("<svg/>"), image(None)
    ('data:image/svg+xml;base64,PHN2Zy8+', '')
    """
    if svg is None:
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
