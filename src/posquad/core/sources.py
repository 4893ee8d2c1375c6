"""Imports between modules of posquad, read from the sources without running them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "imported_modules", "module_path", "source_closure"]

ROOT = Path(__file__).parents[1]
_PACKAGE = ROOT.name


def module_path(name: str) -> Path | None:
    """File of a module such as `posquad.core.errors`; None if there is no such module.

    >>> module_path("posquad.core.errors").name
    'errors.py'
    """
    place = ROOT.joinpath(*name.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def imported_modules(path: Path) -> set[str]:
    """Full names of the modules of posquad that a source file imports, also inside functions.

    >>> sorted(imported_modules(module_path("posquad.core.extras")))
    ['posquad.core.errors']
    """
    return set(_imported(path.read_text(encoding="utf-8")))


def source_closure(module: str, *, leave_out: Callable[[str], bool]) -> list[Path]:
    """Files of a module and of all modules of posquad that it imports, directly or indirectly.

    Modules for which `leave_out(name)` holds are skipped. A package counts with its `__init__`, and
    with the modules that are imported from it.

    >>> closure = source_closure("posquad.core.extras", leave_out=lambda name: False)
    >>> [path.name for path in closure]
    ['errors.py', 'extras.py']
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
            # `from package import module` uses the module, not the package itself.
            names |= modules if len(modules) == len(inner) else {node.module, *modules}
    return tuple(name for name in names if name.split(".")[0] == _PACKAGE)
