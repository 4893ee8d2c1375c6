"""The numbers of the paper's labels.

`numbers.toml` beside this file has the number of every label; `docs/number_labels.py` derives it
from the source of the paper.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

__all__ = ["cite"]


def cite(label: str) -> str:
    """Return the kind and number that a label has in the paper; empty for an unknown label.

    Labels of sections, tables, figures and equations are known, too.

    >>> cite("thm:effective-hessian"), cite("tab:conditioning-flow-rates"), cite("thm:none")
    ('Theorem 3.1', 'Table 3', '')
    """
    return _numbers().get(label, "")


@cache
def _numbers() -> dict[str, str]:
    text = files("posquad.core").joinpath("numbers.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["numbers"]
