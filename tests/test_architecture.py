"""Rules of the house that a program can check: layers, silence, documentation."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import posquad
from posquad.core.layers import allowed, room
from posquad.core.sources import ROOT, imported_modules

MODULES = sorted(ROOT.rglob("*.py"))
EXTRAS = {"click", "rich", "matplotlib", "jinja2", "pyarrow", "pandas", "sklearn", "safetensors"}
EXTRAS |= {"pymanopt", "clarabel"}
MAY_USE = {"estimator": {"sklearn", "safetensors"}, "cli": {"click", "rich"}}


def module_name(path: Path) -> str:
    """The full name of a module, or of the package whose `__init__` it is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["posquad", *parts]).removesuffix(".__init__")


def described(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=described)
def test_a_room_imports_only_rooms_above_it(path):
    here = room(module_name(path))
    others = {name: room(name) for name in imported_modules(path)}
    if not here:  # the top level names what the rooms hold
        return
    below = [name for name, there in others.items() if there and not allowed(here, there)]
    assert not below
    # Inside the package nothing goes through the names of the top level.
    assert {name for name, there in others.items() if not there} <= {"posquad._version"}


@pytest.mark.parametrize("path", MODULES, ids=described)
def test_nothing_private_is_used_across_rooms(path):
    here = room(module_name(path))
    for name in imported_modules(path):
        private = [part for part in name.split(".") if part.startswith("_")]
        assert room(name) == here or not private or name == "posquad._version", name
    source = ast.parse(path.read_text(encoding="utf-8"))
    own = {
        node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.attr
        for other in ROOT.joinpath(here).rglob("*.py")
        for node in ast.walk(ast.parse(other.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    }
    used = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
    }
    foreign = {name for name in used - own if not name.startswith("__")}
    assert not foreign - {"_replace", "_asdict", "_fields", "_exit"}  # named tuples, os._exit


@pytest.mark.parametrize("path", MODULES, ids=described)
def test_extras_are_imported_where_they_are_used(path):
    packages = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert not packages & (EXTRAS - MAY_USE.get(room(module_name(path)), set()))


@pytest.mark.parametrize("path", MODULES, ids=described)
def test_no_global_randomness_or_printing(path):
    """Randomness only through a generator; only the command line prints."""
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert not calls & {"torch.manual_seed", "np.random.seed", "torch.set_default_dtype"}
    if path.name != "__main__.py":
        assert "print" not in calls


def public_objects():
    for info in pkgutil.walk_packages([str(ROOT)], "posquad."):
        if info.name.rsplit(".", 1)[-1].startswith("_"):
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            yield f"{info.name}.{name}", getattr(module, name)


@pytest.mark.parametrize("name", [name for name, _ in public_objects()])
def test_public_things_are_documented(name):
    thing = dict(public_objects())[name]
    assert inspect.getdoc(thing), name
    if inspect.isfunction(thing):
        assert ">>> " in inspect.getdoc(thing), f"{name} has no example"
    if inspect.isclass(thing):
        for attribute, value in vars(thing).items():
            if not attribute.startswith("_") and callable(value):
                assert inspect.getdoc(getattr(thing, attribute)), f"{name}.{attribute}"


def test_every_public_name_of_the_package_is_documented_somewhere():
    exported = {name for name in vars(posquad) if not name.startswith("_")}
    documented = {full.rsplit(".", 1)[1] for full, _ in public_objects()}
    submodules = {info.name for info in pkgutil.iter_modules([str(ROOT)])}
    assert exported - documented - submodules == set()


def test_module_runs_as_a_program():
    run = subprocess.run(
        [sys.executable, "-m", "posquad", "info"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert run.stdout.startswith(f"posquad      {posquad.__version__}")
    assert run.stderr == ""
