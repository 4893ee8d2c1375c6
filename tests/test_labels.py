"""The map from the paper's labels is complete, and every name in it exists."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

from posquad.labels import labels

ROOT = Path(__file__).parent.parent
KINDS = {"thm", "prop", "lem", "cor", "def", "rem"}
# Written down from the paper, section by section, independently of the map.
PAPER = {
    2: [
        "prop:fixed-rank-psd-manifold",
        "thm:exact-factor-fibers",
        "prop:horizontal-projection",
        "def:quotient-metric",
        "prop:quotient-metric-well-defined",
        "prop:quotient-predictor-norm-comparison",
        "prop:procrustes-distance",
        "rem:procrustes-versus-geodesic",
        "lem:factor-gradient",
        "thm:exact-quotient-gradient-flow",
        "prop:exact-discrete-predictor-dynamics",
        "rem:continuous-discrete-quotient",
    ],
    3: [
        "thm:effective-hessian",
        "lem:gaussian-population-operator",
        "thm:full-space-operator-concentration",
        "cor:global-empirical-coercivity",
        "lem:factor-predictor-local-comparison",
        "thm:local-secant-regularity",
        "lem:response-mean-concentration",
        "lem:psd-truncation-factor-perturbation",
        "thm:initialization-enters-basin",
        "cor:explicit-high-probability-initialization",
        "rem:conservative-sample-scale",
        "thm:local-gradient-flow-convergence",
        "cor:gaussian-gradient-flow-recovery",
        "thm:local-gradient-descent-convergence",
        "cor:gaussian-gradient-descent-recovery",
        "rem:oracle-step-size",
        "thm:end-to-end-gaussian-recovery",
        "rem:effective-curvature-versus-trajectory",
    ],
    4: [
        "thm:invariant-joint-spectral-reduction",
        "rem:spectral-representative-independence",
        "prop:exact-weighted-mirror-flow",
        "lem:bregman-lyapunov-identity",
        "lem:compact-reverse-bregman-levels",
        "lem:bregman-projection-interiority",
        "thm:global-convergence-bregman-projection",
        "thm:minimum-trace-limit",
        "prop:global-psd-trace-equivalence",
        "cor:global-minimum-trace-bias",
        "thm:entropic-tie-breaking",
        "rem:entropy-scope",
        "thm:finite-step-gradient-descent-convergence",
        "thm:first-order-discrete-selection-error",
        "cor:sequential-discrete-implicit-bias",
        "rem:no-explicit-joint-scaling",
    ],
}


def test_all_46_labels_are_mapped_in_order():
    expected = [name for section in sorted(PAPER) for name in PAPER[section]]
    assert len(expected) == 46
    assert list(labels()) == expected
    assert all(
        label.section in PAPER and name in PAPER[label.section] for name, label in labels().items()
    )


@pytest.mark.parametrize("name", labels())
def test_an_entry_computes_something_or_says_why_not(name):
    label = labels()[name]
    assert name.split(":")[0] in KINDS
    assert label.title
    if label.functions:
        assert label.tests, "a function without the test that holds it"
    else:
        assert label.note, "nothing computed and no reason given"


@pytest.mark.parametrize("name", [n for n, label in labels().items() if label.functions])
def test_names_in_the_map_exist(name):
    label = labels()[name]
    for function in label.functions:
        assert callable(resolve(function)), function
    for node in label.tests:
        path, _, test = node.partition("::")
        assert test in defined_tests(path), node


@pytest.mark.parametrize("name", [n for n, label in labels().items() if label.functions])
def test_functions_cite_the_label(name):
    """At least one function of an entry names the label in its docstring or its module's."""
    texts = []
    for function in labels()[name].functions:
        thing = resolve(function)
        texts += [thing.__doc__ or "", importlib.import_module(thing.__module__).__doc__ or ""]
    assert any(name in text for text in texts)


def resolve(dotted: str) -> object:
    """The object of a dotted name: the longest importable prefix, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            thing = getattr(thing, attribute)
        return thing
    raise AssertionError(f"no such name: {dotted}")


@cache
def defined_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def test_experiments_named_in_the_map_are_those_that_test_the_label():
    from posquad.experiments.registry import EXPERIMENTS

    for name, label in labels().items():
        testing = {key for key, experiment in EXPERIMENTS.items() if name in experiment.labels}
        assert set(label.experiments) == testing, name
    tested = {name for experiment in EXPERIMENTS.values() for name in experiment.labels}
    assert tested <= set(labels())
