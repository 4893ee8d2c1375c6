"""Optional dependencies, imported when a function needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from posquad.core.errors import MissingExtraError


def import_extra(module: str, extra: str) -> Any:
    """Import a module, or raise an error that names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise  # the package is installed; a module that it imports is missing
        raise MissingExtraError(
            module.split(".")[0],
            expected=f"an installed package (pip install 'posquad[{extra}]')",
            got="no such package",
        ) from None
