"""Rules of the house that a program can check: layers, silence, documentation."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import posquad
from posquad.core.layers import allowed, subpackage_of
from posquad.core.sources import ROOT, imported_modules

MODULES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
EXTRAS = {"click", "rich", "matplotlib", "jinja2", "pyarrow", "pandas", "sklearn", "safetensors"}
EXTRAS |= {"pymanopt", "clarabel", "openpyxl", "dipy", "nibabel"}
MAY_USE = {"estimator": {"sklearn", "safetensors"}, "cli": {"click", "rich"}}
COMMAND = "from posquad.__main__ import main; main()"


def module_name(path: Path) -> str:
    """The full name of a module, or of the package whose `__init__` it is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["posquad", *parts]).removesuffix(".__init__")


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def defined_in(name: str) -> set[str]:
    """Functions and classes that the subpackage defines, and attributes that it sets."""
    return {
        node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.attr
        for path in ROOT.joinpath(name).rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    }


def offenders(faults) -> dict[str, set[str]]:
    """The modules in which `faults(path, subpackage)` finds something, with what it finds."""
    found = {
        name: set(faults(path, subpackage_of(module_name(path)))) for name, path in MODULES.items()
    }
    return {name: wrong for name, wrong in found.items() if wrong}


def test_a_subpackage_imports_only_earlier_ones():
    def faults(path, here):
        if not here:  # the top level re-exports names of the subpackages
            return set()
        others = {name: subpackage_of(name) for name in imported_modules(path)}
        # Inside the package nothing goes through the names of the top level.
        top = {name for name, there in others.items() if not there} - {"posquad._version"}
        return top | {name for name, there in others.items() if there and not allowed(here, there)}

    assert offenders(faults) == {}


@pytest.mark.parametrize(
    ("statement", "arguments", "unneeded"),
    [
        ("import posquad.recovery", (), {"selection"}),
        (COMMAND, ("fit", "data.npz"), {"selection", "dipy", "sweep", "experiments"}),
        (COMMAND, ("predict", "--help"), {"selection", "dipy", "sweep", "experiments"}),
        (COMMAND, ("dti", "--help"), {"selection", "sweep", "experiments"}),
    ],
    ids=["recovery", "fit", "predict", "dti"],
)
def test_nothing_unneeded_is_loaded(statement, arguments, unneeded, tmp_path):
    X = np.random.default_rng(0).standard_normal((30, 3))
    np.savez(tmp_path / "data.npz", X=X, y=X[:, 0] ** 2)
    code = f"import sys\ntry:\n    {statement}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    names = [name for name in run.stderr.split() if name.startswith("posquad.")]
    assert "posquad.core" in names
    assert [name for name in names if subpackage_of(name) in unneeded] == []


def test_private_names_are_not_used_across_subpackages():
    def faults(path, here):
        private = {
            name
            for name in imported_modules(path) - {"posquad._version"}
            if subpackage_of(name) != here and any(part.startswith("_") for part in name.split("."))
        }
        used = {
            node.attr
            for node in nodes(path)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        }
        # Named tuples, os._exit, and torch's compiler, without which plain products are used.
        public_by_custom = {"_replace", "_asdict", "_fields", "_exit", "_compile_kernel"}
        return private | (used - defined_in(here) - public_by_custom)

    assert offenders(faults) == {}


def test_the_estimator_uses_what_recovery_exports():
    def faults(path, here):
        if here != "estimator":
            return set()
        sources = {node.module for node in nodes(path) if isinstance(node, ast.ImportFrom)}
        return {name for name in sources if name and name.startswith("posquad.recovery.")}

    assert offenders(faults) == {}


def test_extras_are_imported_where_they_are_used():
    def faults(path, here):
        packages = {
            name.split(".")[0]
            for node in nodes(path)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
        }
        return packages & (EXTRAS - MAY_USE.get(here, set()))

    assert offenders(faults) == {}


def test_no_global_randomness_or_printing():
    """Randomness only through a generator; only the command line prints."""

    def faults(path, here):
        calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
        forbidden = {"torch.manual_seed", "np.random.seed", "torch.set_default_dtype"}
        return calls & (forbidden if path.name == "__main__.py" else forbidden | {"print"})

    assert offenders(faults) == {}


def public_objects():
    for info in pkgutil.walk_packages([str(ROOT)], "posquad."):
        if info.name.rsplit(".", 1)[-1].startswith("_"):
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            yield f"{info.name}.{name}", getattr(module, name)


def test_public_things_are_documented():
    things = dict(public_objects())
    methods = {
        f"{name}.{attribute}": getattr(thing, attribute)
        for name, thing in things.items()
        if inspect.isclass(thing)
        for attribute, value in vars(thing).items()
        if not attribute.startswith("_") and callable(value)
    }
    bare = [name for name, thing in (things | methods).items() if not inspect.getdoc(thing)]
    assert not bare, f"no docstring: {bare}"
    functions = {name: thing for name, thing in things.items() if inspect.isfunction(thing)}
    without = [name for name, thing in functions.items() if ">>> " not in inspect.getdoc(thing)]
    assert not without, f"no example: {without}"


def test_every_public_name_of_the_package_is_documented_somewhere():
    documented = {full.rsplit(".", 1)[1] for full, _ in public_objects()}
    assert set(posquad._HOME) - documented == set()
    submodules = {info.name for info in pkgutil.iter_modules([str(ROOT)])}
    assert set(posquad._SUBMODULES) - submodules == set()


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
