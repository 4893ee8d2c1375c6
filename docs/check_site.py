"""Check the built site: it needs no network, and every file and anchor it points to is there.

Run by `make docs` on `docs/_build/html`; prints what is wrong, and exits 1 if anything is.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements whose address is fetched when the page is shown; a plain link is not.
FETCHED = {"img", "script", "iframe", "source", "video", "audio", "embed", "object", "use"}
RELATIONS = {"stylesheet", "icon", "shortcut", "preload", "prefetch", "preconnect", "dns-prefetch"}
REMOTE = re.compile(r"""(url\(|@import)\s*["']?(https?:)?//""")


class Page(HTMLParser):
    """The addresses in a page and the anchors it offers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        address = values.get("src") or values.get("data") or values.get("href") or ""
        relation = set(values.get("rel", "").split())
        if tag in FETCHED or (tag == "link" and relation & RELATIONS):
            self.fetched.append(address)
        elif tag in ("a", "link"):
            self.linked.append(address)


@cache
def page(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text(encoding="utf-8"))


def problems(site: Path) -> list[str]:
    """What is wrong with the site, one sentence each."""
    found = []
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:  # a template of the theme, not a page
            continue
        name = path.relative_to(site)
        for address in page(path).fetched:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                found.append(f"{name}: fetches {address} from the network")
        for address in page(path).fetched + page(path).linked:
            reason = _missing(path, address)
            if reason:
                found.append(f"{name}: {address} {reason}")
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        if REMOTE.search(text):
            found.append(f"{path.relative_to(site)}: fetches from the network")
    return found


def _missing(path: Path, address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or not address:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return "is not there"
    fragment = unquote(parts.fragment)
    if "=" in fragment:  # a state of the explorer, not an anchor
        return ""
    if fragment and target.suffix == ".html" and fragment not in page(target).anchors:
        return "names an anchor that is not there"
    return ""


def main() -> int:
    """Check the folder given as the only argument."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        print(f"{site}: expected a built site; got no index.html")
        return 1
    found = problems(site)
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
