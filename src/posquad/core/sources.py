"""Which modules of posquad a module imports, read from the sources without running them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "imported_modules", "module_path", "source_closure"]

ROOT = Path(__file__).parents[1]
_PACKAGE = ROOT.name


def module_path(name: str) -> Path | None:
    """The file of a module such as `posquad.core.errors`; None if there is no such module.

    >>> module_path("posquad.core.errors").name
    'errors.py'
    """
    place = ROOT.joinpath(*name.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def imported_modules(path: Path) -> set[str]:
    """Full names of the modules of posquad that a source file imports, inside functions too.

    >>> sorted(imported_modules(module_path("posquad.core.extras")))
    ['posquad.core.errors']
    """
    return set(_imported(path.read_text(encoding="utf-8")))


def source_closure(module: str, *, leave_out: Callable[[str], bool]) -> list[Path]:
    """The file of a module and of everything of posquad that it imports, directly or not.

    Modules for which `leave_out(name)` holds are not followed. A package counts with its
    `__init__`, and with the modules that are imported from it.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = module_path(name)
        if name in found or path is None or leave_out(name):
            continue
        found[name] = path
        waiting += imported_modules(path)
    return sorted(found.values())


@cache
def _imported(source: str) -> tuple[str, ...]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if module_path(name) is not None}
            # A package from which only modules are imported is not itself what is used.
            names |= modules if len(modules) == len(inner) else {node.module, *modules}
    return tuple(name for name in names if name.split(".")[0] == _PACKAGE)
