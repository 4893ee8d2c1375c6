"""The constants of `recover`: find them, change one of them, and tell where it is read.

A constant is a number that is a field of a group of `Tuning`, or that a module of
`posquad.recovery` assigns to a name in capitals, alone or in a tuple or dictionary. It is changed
while its module is imported: an assignment of the new value follows that of the old one. Default
arguments, other constants that are computed from it and modules that import it see the new value.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import inspect
import math
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

CAPITALS = re.compile(r"_?[A-Z][A-Z0-9_]*")
Line = tuple[str, int]  # module and number
SOURCES = ("measured", "derived", "cited", "definition", "choice")


@dataclass(frozen=True)
class Constant:
    """A number that a module assigns."""

    module: str
    name: str  # "NAME", or "Class.field"
    value: float
    part: int | None = None  # its place in a tuple or dictionary
    source: str = ""  # of a field: where its value comes from, in one word

    @property
    def label(self) -> str:
        """Name for a table: `Sizes.kernel_samples`, or `solvers.cone._PATIENCE`."""
        place = "" if self.part is None else f"[{self.part}]"
        if "." in self.name:
            return self.name
        return f"{self.module.removeprefix('posquad.recovery.')}.{self.name}{place}"

    def scaled(self, factor: float) -> float | None:
        """The number times a factor; an integer stays one, from 1; None if that changes nothing."""
        whole = isinstance(self.value, int)
        new = max(1, round(self.value * factor)) if whole else self.value * factor
        return None if new == self.value else new


def _number(value: object) -> float | None:
    """The value as an int or float, if half and double of it are others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = int(value) if isinstance(value, int) else float(value)
    return number if number and math.isfinite(number) else None


# Find them.


def fields_of(tuning: Any) -> Iterator[Constant]:
    """The numbers of a dataclass and of those in it, with the source that the text below names."""
    texts = _texts(type(tuning))
    for item in fields(tuning):
        value = getattr(tuning, item.name)
        if is_dataclass(value):
            yield from fields_of(value)
        elif (number := _number(value)) is not None:
            owner = next(c for c in type(tuning).__mro__ if item.name in c.__dict__)
            text = texts.get(item.name, "").lower()
            found = [word for word in SOURCES if word in text]
            source = min(found, key=text.index) if found else ""
            yield Constant(owner.__module__, f"{owner.__name__}.{item.name}", number, None, source)


def _texts(group: type) -> dict[str, str]:
    """The string below each field of a class and of those that it is derived from."""
    texts = {}
    for owner in group.__mro__[:-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for item, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(item, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts.setdefault(ast.unparse(item.target), ast.unparse(text.value))
    return texts


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """Every module of a package, imported."""
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def assigned_in(module: ModuleType) -> Iterator[Constant]:
    """The numbers that a module itself assigns to names in capitals, in the order of its lines."""
    for name in dict.fromkeys(_assigned_names(ast.parse(inspect.getsource(module)))):
        value = getattr(module, name)
        if isinstance(value, tuple | dict):
            parts = list(value.values() if isinstance(value, dict) else value)
            for place, item in enumerate(parts):
                number = _number(item)
                if number is not None:
                    yield Constant(module.__name__, name, number, place)
        elif (number := _number(value)) is not None:
            yield Constant(module.__name__, name, number)


def _assigned_names(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        for target in _targets(statement):
            if CAPITALS.fullmatch(target):
                yield target


def _targets(statement: ast.stmt) -> list[str]:
    """Names that a statement assigns, alone or unpacked from a tuple."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return []
    flat = [item for t in targets for item in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return [item.id for item in flat if isinstance(item, ast.Name)]


# Change one of them.


def changed_code(source: str | bytes, path: str, constant: Constant, new: float) -> CodeType:
    """The code of a module with a statement behind the assignment of the constant."""
    tree = ast.parse(source)
    body = tree.body
    *classes, name = constant.name.split(".")
    for outer in classes:
        body = next(s for s in body if isinstance(s, ast.ClassDef) and s.name == outer).body
    place = max(k for k, statement in enumerate(body) if name in _targets(statement))
    part, value = constant.part, repr(new)
    if part is not None:
        value = (
            f"{{**{name}, list({name})[{part}]: {new!r}}} if isinstance({name}, dict)"
            f" else (*{name}[:{part}], {new!r}, *{name}[{part + 1}:])"
        )
    extra = ast.parse(f"{name} = {value}").body[0]
    for node in ast.walk(extra):
        ast.copy_location(node, body[place])
    body.insert(place + 1, extra)
    return compile(tree, path, "exec")


class Change(importlib.abc.MetaPathFinder):
    """Put on `sys.meta_path` before its module is imported, gives a constant a new value."""

    def __init__(self, constant: Constant, new: float):
        self.constant, self.new = constant, new

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module with its constant changed; None for any other module."""
        if fullname != self.constant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        constant, new = self.constant, self.new

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                place = self.get_filename(fullname)
                return changed_code(self.get_data(place), place, constant, new)

        spec.loader = Loader(fullname, spec.origin)
        return spec


# Tell where it is read.


def readers(constants: Iterable[Constant], package: Path) -> dict[Constant, set[Line]]:
    """For each constant, the lines of a package that may read it.

    These are too many rather than too few: any attribute of its name counts, and its name as text.
    """
    by_name: dict[str, list[Constant]] = {}
    for constant in constants:
        by_name.setdefault(constant.name.split(".")[-1], []).append(constant)
    found: dict[Constant, set[Line]] = {c: set() for group in by_name.values() for c in group}
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package.parent).with_suffix("")
        module = ".".join(place.parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            item.asname or item.name: item.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for item in node.names
        }
        for node in ast.walk(tree):
            own = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                name = imported.get(node.id, "")
                own = node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
            else:
                continue
            for constant in by_name.get(name, ()):
                found[constant].add((module, node.lineno))
            for constant in by_name.get(own, ()):
                if constant.module == module:
                    found[constant].add((module, node.lineno))
    return found


def all_constants() -> tuple[list[Constant], list[Constant]]:
    """The fields of `Tuning`, and the numbers of the modules of `posquad.recovery`."""
    recovery = importlib.import_module("posquad.recovery")
    named = [c for module in modules_of(recovery) for c in assigned_in(module)]
    default = sys.modules["posquad.recovery.tuning"].DEFAULT
    return list(fields_of(default)), named
