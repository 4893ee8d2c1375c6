"""Docstrings, written to be read in a terminal, as reStructuredText.

In the source single backticks mark code and formulas, fields of result classes are explained by the
comment behind them, and members of enumerations by their value. Here single backticks become
literals, labels of the paper become links to the label map, and fields and members become lists.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from typing import Any

LABEL = re.compile(r"(?:thm|prop|lem|cor|def|rem):[a-z0-9-]+")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)", re.DOTALL)
FIELD = re.compile(r"^    (\w+):[^#]*?(?:#\s*(.*))?$")


def anchor(label: str) -> str:
    """The target of a label in the label map."""
    return "paper-" + label.replace(":", "-")


def converted(text: str, labels: set[str]) -> str:
    """The docstring as reStructuredText; examples are left as they are."""
    blocks = re.split(r"(\n[ \t]*\n)", text)
    done, example = [], False
    for block in blocks:
        if not block.strip():
            done.append(block)
            continue
        # An example goes on through blank lines only as another block that starts with a prompt.
        example = block.lstrip().startswith(">>>")
        done.append(block if example else _prose(block, labels))
    return "".join(done)


def _prose(text: str, labels: set[str]) -> str:
    pieces, end = [], 0
    for found in CODE.finditer(text):
        pieces.append(_plain(text[end : found.start()]))
        words = re.sub(r"\s*\n\s*", " ", found[1])
        if words in labels:
            pieces.append(f":ref:`{words} <{anchor(words)}>`")
        else:
            pieces.append(f"``{words}``")
        end = found.end()
        if text[end : end + 1].isalnum():  # `eq`s: reST wants a break after a literal
            pieces.append("\\ ")
    pieces.append(_plain(text[end:]))
    return "".join(pieces)


def _plain(text: str) -> str:
    """Characters that reST would read as markup, escaped, but in names of a section's entries.

    Those, and sections `Attributes:`, are for napoleon, which escapes them itself.
    """
    lines = re.sub(r"^(\s*)Attributes:$", r"\1Fields:", text, flags=re.MULTILINE).split("\n")
    return "\n".join(_escaped(line) for line in lines)


def _escaped(line: str) -> str:
    names = re.match(r"\s*(?:\w+, )*\w+:(?= |$)", line)
    start = names.end() if names else 0
    return line[:start] + re.sub(r"([*|]|_(?!\w))", r"\\\1", line[start:])


def fields(thing: type) -> list[str]:
    """The section on the fields of a dataclass, from the comments in its source."""
    comments: dict[str, str] = {}
    for owner in reversed(thing.__mro__):
        if dataclasses.is_dataclass(owner) and owner.__module__.startswith("posquad"):
            comments |= _comments(owner)
    names = [field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")]
    if not any(comments.get(name) for name in names):
        return []
    return ["", "Fields:", *(f"    {n}: {comments.get(n, '')}" for n in names), ""]


def _comments(thing: type) -> dict[str, str]:
    found: dict[str, str] = {}
    last = ""
    for line in inspect.getsource(thing).splitlines():
        match = FIELD.match(line)
        if match:
            last = match[1]
            found[last] = match[2] or ""
        elif last and line.strip().startswith("#") and found.get(last):
            found[last] += " " + line.strip().lstrip("# ")  # a comment that goes on
        else:
            last = ""
    return {name: _code_first(words) for name, words in found.items()}


def _code_first(words: str) -> str:
    """A comment that opens with a shape, `[T, ...]  what it is`, with the shape as code."""
    return re.sub(r"^(\[[^\]]*\](?:, \[[^\]]*\])*)\s*", r"`\1` ", words)


def members(thing: type[enum.Enum]) -> list[str]:
    """The members of an enumeration whose values are sentences."""
    if not all(isinstance(member.value, str) for member in thing):
        return []
    lines = [""]
    for member in thing:
        lines += [f"`{member.name}`", f"    {member.value}", ""]
    return lines


def complete(thing: Any) -> list[str]:
    """What to add to the docstring of an object."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return members(thing)
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        return fields(thing)
    return []
