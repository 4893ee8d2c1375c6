"""Experiments from a file of the user.

The file defines `EXPERIMENT`, an `Experiment`, and optionally `CLAIMS`, a sequence of `Claim`, and
`TITLE`, the title of the report. It is ordinary Python and runs with the rights of the user.
"""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from posquad.core.errors import DomainError
from posquad.core.modules import module_from_file
from posquad.experiments.claims import RULES, Claim
from posquad.experiments.framework import Experiment, Parameters, describe_parameters
from posquad.experiments.registry import EXPERIMENTS
from posquad.experiments.suite import Suite
from posquad.report.formulas import as_plain

__all__ = ["load_suite", "template"]

_KEY = re.compile(r"[a-z][a-z0-9_-]*")


def template() -> str:
    """Return the source of a small experiment that runs as it is, to start from.

    >>> "EXPERIMENT = " in template()
    True
    """
    return files("posquad.experiments").joinpath("template.py.txt").read_text(encoding="utf-8")


def load_suite(path: Path) -> Suite:
    """Load the experiment and the claims of a file, and check them before anything runs.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.py")
    ...     _ = file.write_text(template())
    ...     load_suite(file).title
    'How many measurements are enough?'
    """
    expected = "a Python file; `posquad experiment new FILE` writes one"
    module = module_from_file(path, kind="own", expected=expected)
    experiment = getattr(module, "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise _wrong(path, "a constant EXPERIMENT of type Experiment", _kind(experiment))
    _check_experiment(path, experiment)
    claims = getattr(module, "CLAIMS", ())
    if not isinstance(claims, (list, tuple)) or not all(isinstance(c, Claim) for c in claims):
        raise _wrong(path, "CLAIMS to be a tuple of Claim", _kind(claims))
    title = getattr(module, "TITLE", experiment.title)
    if not isinstance(title, str) or not title.strip():
        raise _wrong(path, "TITLE to be text", repr(title))
    checked = tuple(_checked(path, experiment, claim) for claim in claims)
    ids = [claim.id for claim in checked]
    if len(set(ids)) < len(ids):
        raise _wrong(path, "claims with different ids", ", ".join(ids))
    return Suite(title, {experiment.key: experiment}, checked, file=str(path))


def _check_experiment(path: Path, experiment: Experiment) -> None:
    if not _KEY.fullmatch(experiment.key) or experiment.key in EXPERIMENTS:
        expected = "an EXPERIMENT.key of small letters, digits and hyphens, not one of the paper's"
        raise _wrong(path, expected, repr(experiment.key))
    if not (
        isinstance(experiment.parameters, type) and issubclass(experiment.parameters, Parameters)
    ):
        raise _wrong(path, "a class of Parameters", _kind(experiment.parameters))
    try:
        describe_parameters(experiment.parameters())
        experiment.parameters(**experiment.quick)
    except (KeyError, TypeError) as problem:
        expected = "parameters declared by own_parameter or paper_parameter, with defaults"
        raise _wrong(path, expected, f"{type(problem).__name__}: {problem}") from None
    for panel in experiment.panels:
        if not _KEY.fullmatch(panel.key):
            expected = "a key of small letters, digits and hyphens for each panel"
            raise _wrong(path, expected, repr(panel.key))
    texts = [experiment.question, *(panel.caption for panel in experiment.panels)]
    for text in texts:
        as_plain(text)  # raises for a formula that is not known


def _checked(path: Path, experiment: Experiment, claim: Claim) -> Claim:
    """Check a claim; one without a published number is a statement of the user."""
    if claim.experiment != experiment.key:
        expected = f"claims of the experiment {experiment.key!r}"
        raise _wrong(path, expected, f"{claim.id} of {claim.experiment!r}")
    if not claim.statement or not claim.measure:
        raise _wrong(path, f"a statement and a measure for {claim.id}", "none")
    rule = str(claim.tolerance.get("rule"))
    if rule not in RULES:
        raise _wrong(path, f"a rule for {claim.id} among {', '.join(RULES)}", repr(rule))
    missing = [name for name in RULES[rule] if name not in claim.tolerance]
    if missing:
        raise _wrong(path, f"{', '.join(missing)} with the rule {rule!r} of {claim.id}", "none")
    as_plain(claim.statement)
    as_plain(claim.note)
    own = claim.published is True and claim.source == "paper"
    return dataclasses.replace(claim, source="own") if own else claim


def _wrong(path: Path, expected: str, got: str) -> DomainError:
    return DomainError(str(path), expected=expected, got=got)


def _kind(thing: Any) -> str:
    return "none" if thing is None else f"{type(thing).__name__}"
