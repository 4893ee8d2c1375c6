"""Cells, rows and the page of the comparison; and what a package defines, read from its source."""

from __future__ import annotations

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("posquad", "pymanopt", "geomstats", "torch", "CVXPY")
BEGIN, END = "<!-- comparison -->", "<!-- /comparison -->"
# The rows that the README repeats.
COMPACT = (
    "recovered out of 20 problems at n = 4p, 2p, 1.25p: one call or one start",
    "the same with up to 30 starts, or with reweighting",
    "says whether the answer is the only one",
    "unknown rank",
    "largest problem within 2 s",
    "further constraints on Q",
)


@dataclass(frozen=True)
class Cell:
    """What the table says, and what was run to be able to say it."""

    short: str
    note: str


@dataclass(frozen=True)
class Row:
    """One capability: what was run for all packages, and a cell for each of them."""

    name: str
    run: str
    cells: dict[str, Cell]

    def __post_init__(self) -> None:
        if tuple(self.cells) != PACKAGES:
            raise ValueError(f"row {self.name}: expected cells for {PACKAGES}; got {[*self.cells]}")


def require(condition: object, claim: str) -> None:
    """Refuse to write a page that a run has just contradicted."""
    if not condition:
        raise SystemExit(f"a run contradicts this claim of the comparison: {claim}")


def table(rows: list[Row]) -> str:
    lines = [f"| | {' | '.join(PACKAGES)} |", "|---" * (len(PACKAGES) + 1) + "|"]
    for row in rows:
        lines.append(f"| {row.name} | {' | '.join(row.cells[p].short for p in PACKAGES)} |")
    return "\n".join(lines)


def notes(rows: list[Row]) -> str:
    parts = []
    for row in rows:
        lines = [f"### {row.name[0].upper()}{row.name[1:]}", "", row.run, ""]
        lines += [f"- {package}: {row.cells[package].note}" for package in PACKAGES]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def replaced(text: str, rows: list[Row]) -> str:
    """The text of the README with the six rows of `COMPACT` between its marks."""
    require({*COMPACT} <= {row.name for row in rows}, "the README's rows are rows of the table")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    compact = table([row for row in rows if row.name in COMPACT])
    return f"{before}{BEGIN}\n\n{compact}\n\n{END}{after}"


@functools.cache
def defined(package: str) -> dict[str, ast.AST]:
    """Classes and functions in the source of a package, tests and drawing left out."""
    root = Path(importlib.util.find_spec(package).origin).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        if {"test", "tests", "test_cases", "visualization"} & set(path.relative_to(root).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name] = node
    return found


def absent(package: str, words: list[str], other: tuple[str, ...] = ()) -> str:
    """The sentence that nothing is named so, after looking; `other` are hits of another meaning."""
    names = [name for name in defined(package) if not name.startswith("_")]
    hits = {n for n in names if any(word in n.lower() for word in words)}
    require(hits <= set(other), f"{package} defines nothing like {words}, but {hits - set(other)}")
    listed = ", ".join(f"`{word}`" for word in words)
    rest = f" (except {', '.join(f'`{name}`' for name in sorted(hits))}: unrelated)"
    return (
        f"no public class or function of {package} has a name that contains "
        f"{listed}{rest if hits else ''}"
    )


def derived(package: str, base: str) -> list[str]:
    """Public classes of a package that name this base, or a class that does, in their source."""
    found: set[str] = {base}
    classes = {n: node for n, node in defined(package).items() if isinstance(node, ast.ClassDef)}
    while True:
        more = {
            name
            for name, node in classes.items()
            if {ast.unparse(b).rsplit(".", 1)[-1] for b in node.bases} & found
        } - found
        if not more:
            return sorted(n for n in found - {base} if not n.startswith("_"))
        found |= more
