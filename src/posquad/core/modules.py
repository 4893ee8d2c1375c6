"""Python modules made from files of the user."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

from posquad.core.errors import DomainError
from posquad.core.files import FileError

__all__ = ["module_from_file", "module_from_source"]


def module_from_file(path: Path, *, kind: str, expected: str) -> ModuleType:
    """Run a Python file as a module that other code can find, as dataclasses need.

    `kind` begins the name of the module, and `expected` the message for a path that is not a file.

    >>> module_from_file(Path("no/such.py"), kind="own", expected="a Python file")
    Traceback (most recent call last):
    posquad.core.files.FileError: no/such.py: expected a Python file; got no such file
    """
    if path.suffix != ".py" or not path.is_file():
        raise FileError(str(path), expected=expected, got=_found(path))
    try:
        source = path.read_bytes()
    except OSError as problem:
        raise FileError(str(path), expected=expected, got=problem.strerror or "no access") from None
    return module_from_source(source, str(path), kind=kind)


def module_from_source(source: bytes | str, path: str, *, kind: str) -> ModuleType:
    """Run the source of a module; an error in it becomes one sentence that names the line.

    >>> module_from_source("LIMIT = 3", "mine.py", kind="own").LIMIT
    3
    >>> module_from_source("1 / 0", "mine.py", kind="own")
    Traceback (most recent call last):
    posquad.core.errors.DomainError: mine.py: expected Python that can be imported; got ZeroDivisionError: division by zero (line 1)
    """  # noqa: E501
    name = f"posquad_{kind}_" + re.sub(r"\W", "_", Path(path).stem)
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except Exception as problem:  # a file of the user can raise anything
        del sys.modules[name]
        where = f" (line {line})" if (line := _line(path, problem)) else ""
        got = f"{type(problem).__name__}: {problem}{where}"
        raise DomainError(path, expected="Python that can be imported", got=got) from problem
    return module


def _line(path: str, problem: Exception) -> int | None:
    """Return the last line of the file that the traceback names."""
    if isinstance(problem, SyntaxError):
        return None  # its message names the line
    found, trace = None, problem.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _found(path: Path) -> str:
    return "no such file" if not path.exists() else "a folder" if path.is_dir() else "another file"
