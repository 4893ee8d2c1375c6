"""What the reference documents: the modules that `docs/api/*.md` name, and their public names.

`.. document-module:: posquad.geometry` documents one module; `.. other-modules:: posquad.geometry`
documents the other modules of that package. Sphinx is not imported here, so that
`tests/test_docs.py` can check the pages without a build.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "api"
MODULE = re.compile(r"^\.\. document-module:: (\S+)$", re.MULTILINE)
OTHER_MODULES = re.compile(r"^\.\. other-modules:: (\S+)$", re.MULTILINE)
# Experiments are data for the report, and the command line documents itself with --help.
WITHOUT_NAMES = re.compile(r"posquad\.(experiments\.exp\d\.(run|panels)|cli)\b")


def public_names(module_name: str) -> list[str]:
    """The public names of a module, in the order of its source.

    A package without `__all__` offers what it imports from posquad; a package that imports names
    on first use lists them in `__dir__`. Constants are documented in the module that defines them.
    """
    if WITHOUT_NAMES.match(module_name):
        return []
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        names = list(module.__all__)
        text = inspect.getsource(module)
        places = {name: _place(name, text) for name in names}
        return sorted(names, key=lambda name: places[name])
    names = module.__dir__() if "__dir__" in vars(module) else list(vars(module))
    things = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return [
        name
        for name, thing in things.items()
        if not inspect.ismodule(thing)
        and re.match(r"posquad\.(?!_|core\.extras)", getattr(thing, "__module__", ""))
    ]


def _place(name: str, text: str) -> int:
    """Where a name is defined; imported names come last."""
    found = re.search(rf"^(?:class |def )?{re.escape(name)}\b", text, re.MULTILINE)
    return found.start() if found else len(text)


def documented_modules() -> Iterator[tuple[Path, str]]:
    """Every page of the reference with every module it documents."""
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        inside = (module for package in OTHER_MODULES.findall(text) for module in modules(package))
        for module_name in dict.fromkeys([*MODULE.findall(text), *inside]):
            yield page, module_name


@functools.cache
def modules(package: str) -> list[str]:
    """A package and its public modules, without those named by `document-module`."""
    path = importlib.import_module(package).__path__
    found = [package, *(info.name for info in pkgutil.walk_packages(path, f"{package}."))]
    return [
        name for name in sorted(found) if name not in _documented_separately() and "._" not in name
    ]


@functools.cache
def _documented_separately() -> frozenset[str]:
    pages = (page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    return frozenset(name for text in pages for name in MODULE.findall(text))


@functools.cache
def documented() -> dict[str, Any]:
    """Every documented name with its object. An object is documented once.

    A package that `document-module` names documents the names that it gathers from its modules.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for module_name in sorted(
        {name for _, name in documented_modules()}, key=lambda n: (n.count("."), n)
    ):
        module = importlib.import_module(module_name)
        if module_name not in _documented_separately() and not hasattr(module, "__all__"):
            continue
        for name in public_names(module_name):
            thing = getattr(module, name)
            if id(thing) not in seen or isinstance(thing, float | int | str):
                seen.add(id(thing))
                found[f"{module_name}.{name}"] = thing
    return found


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
