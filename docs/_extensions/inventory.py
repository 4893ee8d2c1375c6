"""What the reference documents: the rooms that `docs/api/*.md` name, and the public names in them.

No Sphinx here, so that `tests/test_docs.py` can check the pages without a build.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "api"
ROOM = re.compile(r"^\.\. room:: (\S+)$", re.MULTILINE)


def public_names(module_name: str) -> list[str]:
    """The public names of a module, in the order of its source.

    A package without a list of its own offers what it imports from posquad; constants are at home
    where they are defined, beside the words that explain them.
    """
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        names = list(module.__all__)
        text = inspect.getsource(module)
        places = {name: _place(name, text) for name in names}
        return sorted(names, key=lambda name: places[name])
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(thing)
        and re.match(r"posquad\.(?!_)", getattr(thing, "__module__", ""))
    ]


def _place(name: str, text: str) -> int:
    """Where a name is defined; imported names come last."""
    found = re.search(rf"^(?:class |def )?{re.escape(name)}\b", text, re.MULTILINE)
    return found.start() if found else len(text)


def rooms() -> Iterator[tuple[Path, str]]:
    """Every page of the reference with every module it documents."""
    for page in sorted(PAGES.glob("*.md")):
        for module_name in ROOM.findall(page.read_text(encoding="utf-8")):
            yield page, module_name


@functools.cache
def documented() -> dict[str, Any]:
    """Every documented name with its object. An object has one home: the first room naming it.

    Packages that gather names from their modules come before those modules.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for module_name in sorted((name for _, name in rooms()), key=_precedence):
        module = importlib.import_module(module_name)
        for name in public_names(module_name):
            thing = getattr(module, name)
            if id(thing) not in seen or isinstance(thing, float | int | str):
                seen.add(id(thing))
                found[f"{module_name}.{name}"] = thing
    return found


def _precedence(module_name: str) -> tuple[int, bool, str]:
    # theory gathers sharper's functions, but they are at home in sharper
    return module_name.count("."), module_name == "posquad.theory", module_name


@functools.cache
def homes() -> dict[int, str]:
    """From the identity of an object to the name under which it is documented."""
    return {id(thing): name for name, thing in documented().items()}


def resolve(dotted: str) -> Any:
    """The object behind a dotted name, or None."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part, None)
        return thing
    return None


def home(dotted: str) -> str | None:
    """The documented name of what `dotted` names: itself, its twin, or a member of its twin."""
    known, by_identity = documented(), homes()
    if dotted in known:
        return dotted
    thing = resolve(dotted)
    if thing is not None and id(thing) in by_identity:
        return by_identity[id(thing)]
    owner, _, member = dotted.rpartition(".")
    found = by_identity.get(id(resolve(owner))) if owner else None
    return f"{found}.{member}" if found and thing is not None else None
