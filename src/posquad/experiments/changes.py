"""Parameters of a run that are not the usual ones: changed by the user, or reduced by `--quick`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from posquad.experiments.cells import format_value
from posquad.experiments.claims import Agreement, Judged
from posquad.experiments.framework import Experiment, Parameters, describe_parameters

__all__ = ["Change", "changed_parameters", "describe_sources", "mark_changed"]


@dataclass(frozen=True)
class Change:
    """A parameter that the user changed."""

    name: str  # "exp2.n"
    value: Any
    usual: Any
    source: str  # of the usual value: "paper" or "chosen here"

    @property
    def words(self) -> str:
        """Return the new value and the usual one, for instance `exp2.n = 1600 (paper: 800)`."""
        return f"{self.name} = {format_value(self.value)} ({_usual(self.source, self.usual)})"


def changed_parameters(
    experiment: Experiment, parameters: Parameters, *, quick: bool
) -> tuple[Change, ...]:
    """List the parameters that the user changed. Another seed is no change of the experiment.

    >>> from posquad.experiments.registry import EXPERIMENTS
    >>> exp2 = EXPERIMENTS["exp2"]
    >>> changes = changed_parameters(exp2, exp2.parameters(n=1600, seed=7), quick=False)
    >>> [change.words for change in changes]
    ['exp2.n = 1600 (paper: 800)']
    """
    usual = experiment.parameters()
    expected = dataclasses.replace(usual, **(experiment.quick if quick else {}))
    changes = []
    for entry in describe_parameters(parameters):
        name, old = entry["name"], getattr(usual, entry["name"])
        if name != "seed" and entry["value"] not in (old, getattr(expected, name)):
            full = f"{experiment.key}.{name}"
            changes.append(Change(full, entry["value"], old, entry["source"]))
    return tuple(changes)


def describe_sources(
    experiment: Experiment, parameters: Parameters, *, quick: bool
) -> list[dict[str, Any]]:
    """List every parameter as `describe_parameters` does, with the source of its present value.

    `changed` tells whether the user changed it.

    >>> from posquad.experiments.registry import EXPERIMENTS
    >>> exp2 = EXPERIMENTS["exp2"]
    >>> rows = describe_sources(exp2, exp2.parameters(n=1600, seeds=16), quick=True)
    >>> [row["source"] for row in rows if row["name"] in ("n", "seeds")]
    ['changed by you (paper: 800)', 'quick run (default: 128)']
    """
    changed = {change.name for change in changed_parameters(experiment, parameters, quick=quick)}
    usual = experiment.parameters()
    rows = []
    for entry in describe_parameters(parameters):
        name, old = entry["name"], getattr(usual, entry["name"])
        by_user = f"{experiment.key}.{name}" in changed
        source = entry["source"]
        if entry["value"] != old:
            by_flag = quick and name in experiment.quick and not by_user
            who = "quick run" if by_flag else "changed by you"
            source = f"{who} ({_usual(source, old)})"
        rows.append(entry | {"source": source, "changed": by_user})
    return rows


def mark_changed(judged: Judged, changes: tuple[Change, ...]) -> Judged:
    """Note on a verdict which parameters of its experiment the user changed.

    >>> from posquad.experiments.claims import claims
    >>> from posquad.experiments.framework import Measured
    >>> from posquad.experiments.claims import compare_claim
    >>> measured = Measured()
    >>> measured.add("dimension", 20)
    >>> verdict = compare_claim(next(c for c in claims() if c.id == "exp3.dimension"), measured)
    >>> mark_changed(verdict, (Change("exp3.d", 11, 10, "paper"),)).why
    'off by 1e+09 times the tolerance; you changed exp3.d = 11 (paper: 10)'
    """
    words = tuple(change.words for change in changes)
    why = judged.why
    if words and judged.verdict is not Agreement.HOLDS:
        why = "; ".join([*([why] if why else []), f"you changed {', '.join(words)}"])
    return dataclasses.replace(judged, changed=words, why=why)


def _usual(source: str, value: Any) -> str:
    return f"{'paper' if source == 'paper' else 'default'}: {format_value(value)}"
