"""The paper's claims and the verdicts that measurements give them.

Claims are data (`claims.toml`); a verdict is always computed, by the claim's tolerance rule, from
what an experiment measured. A number is compared to its printed digits, a statistical one with its
distribution over seeds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from importlib.resources import files
from typing import Any

import numpy as np
import scipy

from posquad.lab.experiment import Measured
from posquad.lab.problems import wilson

__all__ = ["Claim", "Judged", "Verdict", "claims", "failures", "judge"]


class Verdict(Enum):
    """Closed set of verdicts; the value is the word in files and reports."""

    HOLDS = "holds"
    DIFFERS = "differs"
    NOT_COMPARABLE = "not-comparable"


@dataclass(frozen=True)
class Claim:
    """One published number or statement."""

    id: str
    experiment: str
    label: str
    statement: str
    kind: str  # identity, deterministic, statistical, qualitative
    published: Any  # text as printed, a list of such texts, or true
    measure: str  # name of the measured quantity
    tolerance: Mapping[str, Any]
    where: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim with what was measured, the verdict and the reason for it."""

    claim: Claim
    measured: (
        Any  # a number, a list of numbers, a truth value, a summary of a distribution, or None
    )
    tolerance: str  # the rule in words
    verdict: Verdict
    why: str

    def as_dict(self) -> dict[str, Any]:
        """The object written to `claims.json`."""
        c = self.claim
        return {
            "id": c.id,
            "experiment": c.experiment,
            "label": c.label,
            "statement": c.statement,
            "kind": c.kind,
            "published": _number(c.published),
            "measured": self.measured,
            "tolerance": self.tolerance,
            "verdict": self.verdict.value,
            "why": self.why,
            "note": c.note,
        }


def claims() -> tuple[Claim, ...]:
    """Every claim, in the paper's order.

    >>> claims()[0].id, len(claims()) >= 60
    ('exp1.invariance', True)
    """
    text = files("posquad.lab").joinpath("claims.toml").read_text(encoding="utf-8")
    return tuple(Claim(**entry) for entry in tomllib.loads(text)["claim"])


def judge(claim: Claim, measured: Measured) -> Judged:
    """Compare a claim with a measurement.

    >>> measured = Measured()
    >>> measured.add("N_star", 2.0127e16)
    >>> claim = next(c for c in claims() if c.id == "exp3.N-star")
    >>> judge(claim, measured).verdict.value
    'holds'
    """
    rule = _RULES[claim.tolerance["rule"]]
    if claim.measure not in measured.quantities:
        return _unknown(claim, f"{claim.measure} was not measured in this run")
    values = measured.at(claim.measure, claim.where)
    if values is None:
        asked = ", ".join(f"{name} = {value:g}" for name, value in claim.where.items())
        return _unknown(claim, f"{asked} was not run")
    if not np.isfinite(np.asarray(values, dtype=float)).all():
        return _unknown(claim, f"{claim.measure} could not be computed in this run")
    dims = [d for d in measured.quantities[claim.measure].dims if d not in claim.where]
    return rule(claim, values, f"{dims[0]}s" if dims else "values")


def failures(judged: list[Judged]) -> list[Judged]:
    """Claims of kind identity or deterministic that do not hold: they decide the exit status.

    >>> failures([])
    []
    """
    strict = ("identity", "deterministic")
    return [j for j in judged if j.verdict is Verdict.DIFFERS and j.claim.kind in strict]


def _unknown(claim: Claim, reason: str) -> Judged:
    return Judged(claim, None, "not compared", Verdict.NOT_COMPARABLE, reason)


def _verdict(holds: bool) -> Verdict:
    return Verdict.HOLDS if holds else Verdict.DIFFERS


def _printed(claim: Claim, values: np.ndarray, _: str) -> Judged:
    published = claim.published if isinstance(claim.published, list) else [claim.published]
    got = np.atleast_1d(np.asarray(values, dtype=float))
    allowed = [_half_unit(text) for text in published]
    if len(got) == len(published):
        holds = all(
            # A hair more than half a unit, so that a tie of rounding is not a difference.
            abs(value - float(text)) <= half * (1 + 1e-6)
            for value, text, half in zip(got, published, allowed, strict=True)
        )
        why = "" if holds else "other digits"
    else:
        holds, why = False, f"{len(got)} numbers measured, {len(published)} published"
    shown = got.tolist() if isinstance(claim.published, list) else float(got[0])
    return Judged(claim, shown, "to the printed digits", _verdict(holds), why)


def _near(claim: Claim, values: np.ndarray, _: str) -> Judged:
    bound, target = claim.tolerance["absolute"], float(claim.published)
    got = np.atleast_1d(np.asarray(values, dtype=float))
    worst = float(got[np.argmax(abs(got - target))])
    holds = abs(worst - target) <= bound
    words = f"within {bound:g} of the published value"
    return Judged(claim, worst, words, _verdict(holds), f"off by {abs(worst - target):.1e} at most")


def _at_most(claim: Claim, values: np.ndarray, _: str) -> Judged:
    bound, worst = claim.tolerance["bound"], float(np.max(np.abs(values)))
    holds = worst <= bound
    words = f"at most {bound:g}"
    return Judged(claim, worst, words, _verdict(holds), "" if holds else f"{worst:.3g} is not")


def _at_least(claim: Claim, values: np.ndarray, _: str) -> Judged:
    bound, worst = claim.tolerance["bound"], float(np.min(values))
    holds = worst >= bound
    words = f"at least {bound:g}"
    return Judged(claim, worst, words, _verdict(holds), "" if holds else f"{worst:.3g} is not")


def _prediction(claim: Claim, values: np.ndarray, over: str) -> Judged:
    level = claim.tolerance["level"]
    sample = np.ravel(np.asarray(values, dtype=float))
    if sample.size < 2:
        return _unknown(claim, "one sample has no spread to compare with")
    reach = float(scipy.stats.t.ppf(0.5 + level / 2, sample.size - 1))
    half = reach * float(sample.std(ddof=1)) * (1 + 1 / sample.size) ** 0.5
    words = f"inside the {100 * level:g}% prediction interval from {sample.size} {over}"
    return _placed(claim, sample, (sample.mean() - half, sample.mean() + half), words)


def _range(claim: Claim, values: np.ndarray, over: str) -> Judged:
    sample = np.ravel(np.asarray(values, dtype=float))
    words = f"inside the range over {sample.size} {over}"
    return _placed(claim, sample, (sample.min(), sample.max()), words)


def _placed(claim: Claim, sample: np.ndarray, ends: tuple[float, float], words: str) -> Judged:
    """Where the published value lies beside a measured sample and an interval made from it."""
    target = float(claim.published)
    below = float((sample < target).mean() + (sample == target).mean() / 2)
    half = _half_unit(claim.published)  # a published number stands for all that print like it
    holds = ends[0] - half <= target <= ends[1] + half
    summary = {
        "median": float(np.median(sample)),
        "interval": [float(end) for end in ends],
        "percentile": round(100 * below, 2),
        "samples": sample.size,
    }
    place = f"at percentile {100 * below:.1f} of what was measured"
    return Judged(claim, summary, words, _verdict(holds), place)


def _rate(claim: Claim, values: np.ndarray, _: str) -> Judged:
    level, trials = claim.tolerance["level"], claim.tolerance["trials"]
    rate = float(values)
    low, high = (float(end) for end in wilson(float(claim.published) * trials, trials, level))
    holds = low - 1e-12 <= rate <= high + 1e-12
    words = f"inside the {100 * level:g}% Wilson interval of the published {trials} trials"
    why = f"{100 * rate:.1f}% against [{100 * max(low, 0):.1f}%, {100 * min(high, 1):.1f}%]"
    return Judged(claim, rate, words, _verdict(holds), why)


def _true(claim: Claim, values: np.ndarray, _: str) -> Judged:
    found = bool(np.all(values))
    return Judged(claim, found, "found true", _verdict(found), "" if found else "found false")


def _none(claim: Claim, values: np.ndarray, _: str) -> Judged:
    reason = claim.tolerance["reason"]
    return Judged(claim, float(values), "not compared", Verdict.NOT_COMPARABLE, reason)


_RULES: dict[str, Callable[[Claim, np.ndarray, str], Judged]] = {
    "printed": _printed,
    "near": _near,
    "at-most": _at_most,
    "at-least": _at_least,
    "prediction": _prediction,
    "range": _range,
    "rate": _rate,
    "true": _true,
    "none": _none,
}


def _half_unit(text: str) -> float:
    """Half a unit of the last printed digit."""
    exponent = Decimal(text).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


def _number(published: Any) -> Any:
    if isinstance(published, list):
        return [float(text) for text in published]
    return published if isinstance(published, bool) else float(published)
