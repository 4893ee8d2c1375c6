"""The explorer: one self-contained page on which a positive quadratic network trains.

`explorer.html` is built by `make explorer` from the folder `explorer/` of the repository, and is
committed. It computes everything itself, without a server or a network.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["explorer_path"]


def explorer_path() -> Path:
    """Path of the page, for a browser.

    >>> explorer_path().name
    'explorer.html'
    """
    return Path(__file__).with_name("explorer.html")
