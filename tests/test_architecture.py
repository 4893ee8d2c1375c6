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

SOURCE = Path(posquad.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
LOWER = [path for path in MODULES if "lab" not in path.relative_to(SOURCE).parts]
EXTRAS = {"click", "rich", "matplotlib", "jinja2", "pyarrow", "pandas", "sklearn", "safetensors"}
EXTRAS |= {"pymanopt", "clarabel"}
ESTIMATOR = {"sklearn", "safetensors"}  # which `import posquad` does not import


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", LOWER, ids=lambda path: str(path.relative_to(SOURCE)))
def test_lower_rooms_import_neither_the_lab_nor_extras(path):
    found = imported(path)
    assert not {name for name in found if f"{name}.".startswith("posquad.lab.")}
    allowed = ESTIMATOR if "estimator" in path.relative_to(SOURCE).parts else set()
    assert not {name.split(".")[0] for name in found} & (EXTRAS - allowed)
    assert "estimator" in path.parts or "posquad.estimator" not in found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
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
    for info in pkgutil.walk_packages([str(SOURCE)], "posquad."):
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
    submodules = {info.name for info in pkgutil.iter_modules([str(SOURCE)])}
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
