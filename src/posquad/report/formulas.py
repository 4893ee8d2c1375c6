r"""Sentences with formulas: TeX between dollar signs, and code between backticks.

A page shows the formulas as MathML, which needs no script; a terminal, a file and the text
alternative of a picture show them as plain text. Only the part of TeX is known that the reports
use; anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

from posquad.core.errors import DomainError

__all__ = ["as_html", "as_plain", "mathml"]

_PIECE = re.compile(r"\$([^$]+)\$|`([^`]+)`")
_TOKEN = re.compile(r"\s+|\\[A-Za-z]+|\\[|,]|\d+(?:\.\d+)?|.", re.DOTALL)
_GREEK = dict(
    zip(
        ("alpha", "delta", "varepsilon", "eta", "kappa", "lambda", "rho", "sigma", "tau", "mu"),
        "αδεηκλρστμ",
        strict=True,
    )
)
_LETTERS = _GREEK | {"infty": "∞", "ell": "\N{SCRIPT SMALL L}"}
_OPERATORS = {
    "le": "≤", "ge": "≥", "ne": "≠", "cdot": "·", "to": "→", "in": "∈",
    "times": "\N{MULTIPLICATION SIGN}", "approx": "≈", "ldots": "…", "star": "⋆", "|": "‖",
}  # fmt: skip
_FUNCTIONS = ("min", "max", "log", "exp", "tr")
_SMALL = {"2": "²", "3": "³"}
_PRIME, _MINUS, _ASTERISK = "\N{PRIME}", "\N{MINUS SIGN}", "\N{ASTERISK OPERATOR}"


@dataclass
class _Node:
    """A part of a formula: `kind` names an element of MathML."""

    kind: str  # mi, mn, mo, mtext, mspace, mrow, mfrac, msqrt, mover, msub, msup, msubsup
    text: str = ""
    parts: list[_Node] = field(default_factory=list)
    upright: bool = False


def as_html(text: str) -> str:
    """Return the sentence as HTML: formulas as MathML, code as code, the rest escaped.

    >>> as_html("a < b at `n` with $x_1$")
    'a &lt; b at <code>n</code> with <math><msub><mi>x</mi><mn>1</mn></msub></math>'
    """
    return _converted(text, mathml, lambda code: f"<code>{escape(code)}</code>", escape)


def as_plain(text: str) -> str:
    r"""Return the sentence as plain text.

    >>> as_plain(r"At one point it is $4\eta GQG$, of order $\lambda_{\min}^{\mathrm{eff}}/2$.")
    'At one point it is 4η GQG, of order λ_min^eff/2.'
    """
    return _converted(text, _plain_formula, str, str)


def _converted(
    text: str,
    formula: Callable[[str], str],
    code: Callable[[str], str],
    rest: Callable[[str], str],
) -> str:
    pieces, end = [], 0
    for found in _PIECE.finditer(text):
        pieces.append(rest(text[end : found.start()]))
        pieces.append(formula(found[1]) if found[1] is not None else code(found[2]))
        end = found.end()
    return "".join([*pieces, rest(text[end:])])


def mathml(source: str) -> str:
    r"""Return a formula in TeX as an inline element of MathML.

    >>> mathml(r"\frac{1}{2}")
    '<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>'
    """
    return f"<math>{''.join(_markup(node) for node in _parse(source).parts)}</math>"


def _plain_formula(source: str) -> str:
    return re.sub(r"\s+", " ", _plain(_parse(source))).strip()


# From TeX to nodes.


class _Reader:
    def __init__(self, source: str) -> None:
        self.source, self.tokens = source, _TOKEN.findall(source)
        self.place = 0

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.place += 1
        return token

    def skip_space(self) -> None:
        while self.peek().isspace():
            self.take()

    def refuse(self, got: str) -> DomainError:
        expected = "TeX that the reports use"
        return DomainError("formula", expected=expected, got=f"{got} in {self.source!r}")


def _parse(source: str) -> _Node:
    return _row(_Reader(source), closing="")


def _row(reader: _Reader, closing: str) -> _Node:
    parts: list[_Node] = []
    while True:
        token = reader.peek()
        if token == closing:
            reader.take()
            return _Node("mrow", parts=parts)
        if token in ("", "}"):
            raise reader.refuse("an unbalanced brace")
        if token.isspace():
            reader.take()
            parts.append(_Node("space"))  # kept in plain text only
            continue
        parts.append(_scripts(reader, _atom(reader)))


def _scripts(reader: _Reader, base: _Node) -> _Node:
    found: dict[str, _Node] = {}
    while reader.peek() in ("^", "_", "'"):
        mark = reader.take()
        if mark == "'":
            found["^"] = _Node("mo", _PRIME)
        else:
            found[mark] = _argument(reader)
    if not found:
        return base
    kind = {"_": "msub", "^": "msup"}[next(iter(found))] if len(found) == 1 else "msubsup"
    return _Node(kind, parts=[base, *(found[mark] for mark in ("_", "^") if mark in found)])


def _argument(reader: _Reader) -> _Node:
    reader.skip_space()
    if reader.peek() == "{":
        reader.take()
        row = _row(reader, closing="}")
        return row.parts[0] if len(row.parts) == 1 else row
    return _atom(reader)


def _words(reader: _Reader) -> str:
    """Return the text of a group, as it stands."""
    reader.skip_space()
    if reader.take() != "{":
        raise reader.refuse("a command without its group")
    words = []
    while (token := reader.take()) != "}":
        if not token:
            raise reader.refuse("an unbalanced brace")
        words.append(token)
    return "".join(words)


def _atom(reader: _Reader) -> _Node:
    token = reader.take()
    if not token:
        raise reader.refuse("an early end")
    name = token[1:]
    if token == "{":
        return _row(reader, closing="}")
    if token[0] != "\\":
        if token[0].isdigit():
            return _Node("mn", token)
        if token.isalpha():
            return _Node("mi", token)
        return _Node("mo", {"-": _MINUS, "*": _ASTERISK}.get(token, token))
    if name in _LETTERS:
        return _Node("mi", _LETTERS[name])
    if name in _OPERATORS:
        return _Node("mo", _OPERATORS[name])
    if name in _FUNCTIONS:
        return _Node("mi", name, upright=True)
    if name == ",":
        return _Node("mspace")
    if name in ("mathrm", "text"):
        return _Node("mi" if name == "mathrm" else "mtext", _words(reader), upright=True)
    if name == "sqrt":
        return _Node("msqrt", parts=[_argument(reader)])
    if name == "frac":
        return _Node("mfrac", parts=[_argument(reader), _argument(reader)])
    if name in ("hat", "widehat"):
        return _Node("mover", parts=[_argument(reader), _Node("mo", "^")])
    raise reader.refuse(token)


# From nodes to text.


def _markup(node: _Node) -> str:
    if node.kind == "space":
        return ""
    if node.kind == "mspace":
        return '<mspace width="0.1667em"></mspace>'
    inner = "".join(_markup(part) for part in node.parts) or escape(node.text, quote=False)
    # A single upright letter needs to say so; longer names are upright by themselves.
    variant = ' mathvariant="normal"' if node.upright and len(node.text) == 1 else ""
    if node.kind == "mo" and node.text in "‖|":
        variant = ' stretchy="false" lspace="0" rspace="0"'
    return f"<{node.kind}{variant}>{inner}</{node.kind}>"


def _plain(node: _Node) -> str:
    parts = [_plain(part) for part in node.parts]
    if node.kind in ("space", "mspace"):
        return " "
    if node.kind == "mfrac":
        return "/".join(_bracketed(part) for part in parts)
    if node.kind == "msqrt":
        return f"√{_bracketed(parts[0])}"
    if node.kind == "mover":
        return f"{parts[0]}\N{COMBINING CIRCUMFLEX ACCENT}"
    if node.kind in ("msub", "msup", "msubsup"):
        marks = {"msub": "_", "msup": "^", "msubsup": "_^"}[node.kind]
        return parts[0] + "".join(
            _script(mark, part) for mark, part in zip(marks, parts[1:], strict=True)
        )
    if parts:
        return "".join(parts)
    return {_MINUS: "-", _ASTERISK: "*", _PRIME: "'"}.get(node.text, node.text)


def _script(mark: str, text: str) -> str:
    if mark == "^" and (text in _SMALL or text == "'"):
        return _SMALL.get(text, text)
    return f"{mark}{text}" if re.fullmatch(r"-?[\w.⋆*]+", text) else f"{mark}({text})"


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w.⋆*]+", text) else f"({text})"
