"""The map from the paper's labels is complete, and every name in it exists."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

from posquad.core.citations import cite
from posquad.labels import labels

ROOT = Path(__file__).parent.parent
KINDS = {"thm", "prop", "lem", "cor", "def", "rem"}


def test_every_label_that_is_cited_is_in_the_map():
    """A citation with a typing error, or of a statement that the map forgot, is found here."""
    pattern = re.compile(rf"`((?:{'|'.join(KINDS)}):[a-z-]+)`")
    texts = [
        *ROOT.glob("src/posquad/**/*.py"),
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("docs/*.md"),
    ]
    cited = {
        (label, path.name)
        for path in texts
        for label in pattern.findall(path.read_text(encoding="utf-8"))
    }
    assert len({label for label, _ in cited}) > 30  # the pattern finds what it looks for
    assert sorted((label, file) for label, file in cited if label not in labels()) == []


CITATION = re.compile(rf"(?:([A-Z][a-z]+ \d+\.\d+)[,]?\s+\(?)?`((?:{'|'.join(KINDS)}):[a-z0-9-]+)`")


def test_every_citation_has_the_number_of_its_label():
    """The number stands before the label: in front of brackets, or inside, with a comma."""
    wrong, seen = [], 0
    for path in [*ROOT.glob("src/posquad/**/*.py"), *ROOT.glob("docs/*.md")]:
        if path.name in ("labels.py", "citations.py", "formulas.py"):
            continue  # about labels and formulas themselves
        for number, label in CITATION.findall(path.read_text(encoding="utf-8")):
            seen += 1
            if " ".join(number.split()) != cite(label):
                wrong.append((path.name, number, label, cite(label)))
    assert wrong == []
    assert seen > 70


def test_the_citation_pattern_finds_a_missing_and_a_wrong_number():
    label = "thm:effective-hessian"
    assert CITATION.findall(f"of `{label}`") == [("", label)]
    assert CITATION.findall(f"of Theorem 3.2 (`{label}`)") == [("Theorem 3.2", label)]
    assert CITATION.findall(f"(Theorem 3.1,\n    `{label}`)") == [("Theorem 3.1", label)]


def test_every_label_has_a_number_of_its_own_kind_and_section():
    words = {"thm": "Theorem", "prop": "Proposition", "lem": "Lemma", "cor": "Corollary"}
    words |= {"def": "Definition", "rem": "Remark"}
    for name, label in labels().items():
        kind, number = label.number.split()
        assert kind == words[name.split(":")[0]], name
        assert int(number.split(".")[0]) == label.section, name
    assert len({label.number for label in labels().values()}) == len(labels())
    assert cite("no:such-label") == ""


def test_the_map_follows_the_sections_of_the_paper():
    sections = [label.section for label in labels().values()]
    assert sections == sorted(sections)
    assert set(sections) == {2, 3, 4}


def test_an_entry_computes_something_or_says_why_not():
    for name, label in labels().items():
        assert name.split(":")[0] in KINDS, name
        assert label.title, name
        if label.functions:
            assert label.tests, f"{name}: a function without the test that holds it"
        else:
            assert label.note, f"{name}: nothing computed and no reason given"


def test_names_in_the_map_exist():
    for label in labels().values():
        for function in label.functions:
            assert callable(resolve(function)), function
        for node in label.tests:
            path, _, test = node.partition("::")
            assert test in defined_tests(path), node


def test_functions_cite_the_label():
    """At least one function of an entry names the label in its docstring or its module's."""
    for name, label in labels().items():
        texts = []
        for function in label.functions:
            thing = resolve(function)
            texts += [thing.__doc__ or "", importlib.import_module(thing.__module__).__doc__ or ""]
        assert not label.functions or any(name in text for text in texts), name


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
