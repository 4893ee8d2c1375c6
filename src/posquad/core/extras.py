"""Packages that only some functions need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from posquad.core.errors import MissingExtraError


def optional(module: str, extra: str) -> Any:
    """The module, or an error that names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise  # it is there, and something else is wrong
        raise MissingExtraError(
            module.split(".")[0],
            expected=f"the extra: pip install 'posquad[{extra}]'",
            got="no such package",
        ) from None
