"""Small errors in a source file, one at a time: what `mutants.py` draws from."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

SWAPS: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
EXTREMES = {"min": "max", "amin": "amax", "minimum": "maximum", "clamp_min": "clamp_max"}
EXTREMES |= {high: low for low, high in EXTREMES.items()}


@dataclass(frozen=True)
class Mutant:
    """One change of one source file, and the lines whose execution can show it."""

    file: str  # relative to src/posquad
    line: int
    operator: str
    where: str  # the file and the code of the line, whose number and comment may change
    before: str
    after: str
    source: bytes  # the whole changed file
    lines: frozenset[tuple[str, int]]

    @property
    def names(self) -> tuple[str, str]:
        """What `equivalent_mutants.toml` may call it: this change, or any change of its line."""
        return f"{self.where}: {self.before} -> {self.after}", self.where

    @property
    def change(self) -> str:
        before, after = (
            text if len(text) < 90 else text[:87] + "..." for text in (self.before, self.after)
        )
        return f"{self.file}:{self.line}  {self.operator}: {before} -> {after}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(operator, changed node) for every small error that this node itself can carry."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        for op in SWAPS.get(type(node.op), []):
            yield "operator", _changed(node, op=op())
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in SWAPS[type(op)]:
                ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                yield "comparison", _changed(node, ops=ops)
        for i, side in enumerate(node.comparators):
            if isinstance(side, ast.Constant) and isinstance(side.value, str):
                sides = list(node.comparators)
                sides[i] = ast.Constant(side.value + "?")
                yield "string", _changed(node, comparators=sides)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "boolean", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        for factor in (2, 0.5):
            if node.value * factor != node.value:
                yield "constant", ast.Constant(node.value * factor)
    elif isinstance(node, ast.Name) and node.id in EXTREMES:
        yield "extreme", _changed(node, id=EXTREMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in EXTREMES:
        yield "extreme", _changed(node, attr=EXTREMES[node.attr])
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return", ast.Return(ast.Constant(None))
    if isinstance(node, ast.Assign | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "delete", ast.Pass()


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def sites(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """(node, the statements around it, outermost first) for every node that may be changed.

    Left out: annotations, decorators, what is only part of an error message, the inside of
    f-strings (whose positions Python 3.11 does not know), and statements at module level as a
    whole, whose deletion only ever is a NameError at import.
    """

    def walk(node: ast.AST, around: list[ast.stmt]) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        inner = [*around, node] if isinstance(node, ast.stmt) else around
        if not (isinstance(node, ast.Assign | ast.Expr) and len(inner) == 1):
            yield node, inner
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, inner)

    for statement in tree.body:
        yield from walk(statement, [])


def mutants(file: str, texts: dict[str, str]) -> Iterator[Mutant]:
    """Every mutant of this file; `texts` holds all sources, since others may name its constants."""
    source = texts[file].encode()
    code = code_lines(texts[file])
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    affected: dict[ast.stmt, frozenset[tuple[str, int]]] = {}  # found once a statement: it is slow
    for node, around in sites(ast.parse(source)):
        for operator, changed in changes(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before = " ".join(source[begin:end].decode().split())
            after = ast.unparse(ast.fix_missing_locations(changed))
            compound = isinstance(changed, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp)
            text = f"({after})" if compound else after
            mutated = source[:begin] + text.encode() + source[end:]
            if around[-1] not in affected:
                affected[around[-1]] = frozenset(lines_of(file, around, texts))
            lines = affected[around[-1]]
            where = f"{file}: {code[node.lineno - 1]}"
            yield Mutant(file, node.lineno, operator, where, before, after, mutated, lines)


def code_lines(text: str) -> list[str]:
    """The lines of a source without indentation and without comments."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.strip() for line in lines]


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(file: str, around: list[ast.stmt], texts: dict[str, str]) -> Iterator[tuple[str, int]]:
    """(file, line) whose execution depends on a change in the innermost of these statements.

    What runs at import belongs to no test: a default value is seen by those who call the function,
    an attribute of a class by its methods, another constant by the lines that name it.
    """
    statement = around[-1]
    first, last = 1, len(texts[file].splitlines())
    if isinstance(statement, FUNCTIONS):
        first, last = statement.body[0].lineno, statement.end_lineno
    elif any(isinstance(outer, FUNCTIONS) for outer in around):
        body = getattr(statement, "body", None)
        first, last = statement.lineno, body[0].lineno - 1 if body else statement.end_lineno
    elif any(isinstance(part, FUNCTIONS) for part in getattr(around[0], "body", ())):
        first, last = around[0].lineno, around[0].end_lineno
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        yield from _named(file, statement, texts)
        return
    yield from ((file, number) for number in range(first, max(first, last) + 1))


def _named(
    file: str, statement: ast.Assign | ast.AnnAssign, texts: dict[str, str]
) -> Iterator[tuple[str, int]]:
    """The lines that name what is assigned here; what begins with `_` only in its own file."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {part.id for t in targets for part in ast.walk(t) if isinstance(part, ast.Name)}
    word = re.compile(rf"\b({'|'.join(names)})\b")
    private = all(name.startswith("_") for name in names)
    for other in [file] if private else texts:
        for number, line in enumerate(texts[other].splitlines(), 1):
            if word.search(line):
                yield other, number
