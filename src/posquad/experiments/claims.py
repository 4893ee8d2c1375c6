"""The paper's claims, and their verdicts.

Claims are data (`claims.toml`). A verdict is always computed from the measurements of an
experiment, by the tolerance rule of the claim. A deterministic number is compared to its printed
digits; a statistical one is compared with its distribution over seeds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import scipy

from posquad.core.rates import wilson
from posquad.experiments.framework import Measured
from posquad.report.formulas import as_plain

__all__ = ["Agreement", "Claim", "Judged", "claims", "compare_claim", "failures", "number"]


STRICT = ("identity", "deterministic")  # kinds whose failure sets the exit status
RULES: Mapping[str, tuple[str, ...]] = {
    "printed": (),
    "near": ("absolute",),
    "at-most": ("bound",),
    "at-least": ("bound",),
    "prediction": ("level",),
    "rate": ("level", "trials"),
    "true": (),
    "none": ("reason",),
}
"""The rules of comparison, each with what its tolerance must contain."""
_FEWEST = 8  # samples needed to describe a distribution


class Agreement(Enum):
    """The verdict on a claim; the value is the word used in files and reports."""

    HOLDS = "holds"
    DIFFERS = "differs"
    NOT_COMPARABLE = "not-comparable"


@dataclass(frozen=True)
class Claim:
    """A published number or statement."""

    id: str
    experiment: str
    label: str = ""  # in the paper
    statement: str = ""  # formulas are TeX between dollar signs
    kind: str = "qualitative"  # or identity, deterministic, statistical
    published: Any = True  # the printed text, a list of such texts, or true for words
    measure: str = ""  # name of the measured quantity
    tolerance: Mapping[str, Any] = field(default_factory=dict)  # "rule", and what the rule needs
    where: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    source: str = "paper"  # otherwise a check that the paper does not print
    given: Sequence[str] = ()  # ids of the choices of ours on which the comparison depends


@dataclass(frozen=True)
class Judged:
    """A claim with its measured value, its verdict and the reason."""

    claim: Claim
    measured: (
        Any  # a number, a list of numbers, a truth value, a summary of a distribution, or None
    )
    tolerance: str  # the tolerance rule in words
    verdict: Agreement
    why: str
    changed: tuple[str, ...] = ()  # parameters of its experiment that the user changed, in words

    def as_dict(self) -> dict[str, Any]:
        """Return the object that is written to `claims.json`."""
        c = self.claim
        return {
            "id": c.id,
            "experiment": c.experiment,
            "label": c.label,
            "statement": as_plain(c.statement),
            "kind": c.kind,
            "published": number(c.published),
            "printed": c.published,
            "measured": self.measured,
            "tolerance": self.tolerance,
            "verdict": self.verdict.value,
            "why": self.why,
            "note": as_plain(c.note),
            "source": c.source,
            "given": list(c.given),
            "changed": list(self.changed),
        }


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims, in the order of the paper.

    >>> claims()[0].id, len(claims()) >= 60
    ('exp1.invariance', True)
    """
    text = files("posquad.experiments").joinpath("claims.toml").read_text(encoding="utf-8")
    return tuple(Claim(**entry) for entry in tomllib.loads(text)["claim"])


def compare_claim(claim: Claim, measured: Measured) -> Judged:
    """Compare a claim with the measurements of its experiment.

    >>> measured = Measured()
    >>> measured.add("N_star", 2.0127e16)
    >>> claim = next(c for c in claims() if c.id == "exp3.N-star")
    >>> compare_claim(claim, measured).verdict.value
    'holds'
    """
    rule = _JUDGES[claim.tolerance["rule"]]
    if claim.measure not in measured.quantities:
        return _unknown(claim, "this run did not measure its quantity")
    values = measured.at(claim.measure, claim.where)
    if values is None:
        asked = ", ".join(f"{name} = {value:g}" for name, value in claim.where.items())
        return _unknown(claim, f"this run has no single value at {asked}")
    if not np.isfinite(np.asarray(values, dtype=float)).all():
        found = "the measured value is not finite"
        if claim.kind in STRICT:
            return Judged(claim, None, _finite(claim), Agreement.DIFFERS, found)
        return _unknown(claim, found)
    return rule(claim, values, measured)


def failures(judged: list[Judged]) -> list[Judged]:
    """Return the identity and deterministic claims that do not hold; they set the exit status.

    >>> failures([])
    []
    """
    return [j for j in judged if j.verdict is Agreement.DIFFERS and j.claim.kind in STRICT]


def number(published: Any) -> Any:
    """Convert a published text, or a list of them, to numbers; a truth value stays as it is.

    >>> number("4.96e-16"), number(["1", "1/2"]), number(True)
    (4.96e-16, [1.0, 0.5], True)
    """
    if isinstance(published, list):
        return [_value(text) for text in published]
    return published if isinstance(published, bool) else _value(published)


def _unknown(claim: Claim, reason: str) -> Judged:
    return Judged(claim, None, "not compared", Agreement.NOT_COMPARABLE, reason)


def _verdict(holds: bool) -> Agreement:
    return Agreement.HOLDS if holds else Agreement.DIFFERS


def _finite(claim: Claim) -> str:
    return f"finite, by the rule {claim.tolerance['rule']!r}"


def _compared(
    claim: Claim, values: np.ndarray, allowed: Callable[[str], float], words: str
) -> Judged:
    """Require every measured number to be within its tolerance of the published one."""
    published = claim.published if isinstance(claim.published, list) else [claim.published]
    got = np.ravel(np.asarray(values, dtype=float))
    if not isinstance(claim.published, list) and len(got) > 1:
        published = published * len(got)  # one published number for all of them
    if len(got) == len(published):
        gaps = [
            abs(v - _value(text)) / allowed(text) for v, text in zip(got, published, strict=True)
        ]
        # Slightly more than the tolerance, so that a tie in rounding does not count as a
        # difference.
        holds = max(gaps) <= 1 + 1e-6
        why = "" if holds else f"off by {max(gaps):.2g} times the tolerance"
        shown = got.tolist() if isinstance(claim.published, list) else float(got[np.argmax(gaps)])
    else:
        holds, why = False, f"{len(got)} numbers were measured, but {len(published)} are published"
        shown = got.tolist()
    return Judged(claim, shown, words, _verdict(holds), why)


def _printed(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    return _compared(claim, values, _half_unit, "to the printed digits")


def _near(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    bound = claim.tolerance["absolute"]
    target = "the published value" if claim.source == "paper" else claim.published
    return _compared(claim, values, lambda _: bound, f"within {bound:g} of {target}")


def _at_most(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    bound, worst = claim.tolerance["bound"], float(np.max(np.abs(values)))
    holds = worst <= bound
    words = f"at most {bound:g}"
    return Judged(claim, worst, words, _verdict(holds), "" if holds else f"measured {worst:.3g}")


def _at_least(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    bound, worst = claim.tolerance["bound"], float(np.min(values))
    holds = worst >= bound
    words = f"at least {bound:g}"
    return Judged(claim, worst, words, _verdict(holds), "" if holds else f"measured {worst:.3g}")


def _prediction(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    """Compare with Student's prediction interval for one more draw (of logarithms if stated)."""
    level, target = claim.tolerance["level"], _value(claim.published)
    sample = np.ravel(np.asarray(values, dtype=float))
    if sample.size < _FEWEST:
        return _unknown(claim, f"{sample.size} samples are too few to estimate a distribution")
    log = claim.tolerance.get("scale") == "log"
    if log and not (sample > 0).all():
        return _unknown(claim, "not all samples are positive, so they have no logarithms")
    scaled = np.log(sample) if log else sample
    reach = float(scipy.stats.t.ppf(0.5 + level / 2, sample.size - 1))
    half = reach * float(scaled.std(ddof=1)) * (1 + 1 / sample.size) ** 0.5
    ends = np.array([scaled.mean() - half, scaled.mean() + half])
    low, high = (float(end) for end in (np.exp(ends) if log else ends))
    unit = _half_unit(claim.published)  # a published number stands for all numbers that round to it
    below = float((sample < target).mean() + (sample == target).mean() / 2)
    summary = {
        "median": float(np.median(sample)),
        "interval": [low, high],
        "percentile": round(100 * below, 2),
        "samples": sample.size,
    }
    holds = low - unit <= target <= high + unit
    words = f"inside the {100 * level:g}% prediction interval from {sample.size} seeds"
    place = f"at percentile {100 * below:.1f} of the measured values"
    return Judged(claim, summary, words, _verdict(holds), place)


def _rate(claim: Claim, values: np.ndarray, measured: Measured) -> Judged:
    """Test with Fisher's exact test whether published and measured counts have the same rate."""
    level, trials = claim.tolerance["level"], claim.tolerance["trials"]
    ours = len(measured["trial"])
    counts = [round(_value(claim.published) * trials), round(float(values) * ours)]
    table = [counts, [trials - counts[0], ours - counts[1]]]
    chance = float(scipy.stats.fisher_exact(table).pvalue)
    low, high = (float(end) for end in wilson(counts[1], ours))
    summary = {
        "median": float(values),
        "interval": [max(low, 0.0), min(high, 1.0)],
        "p": round(chance, 4),
        "samples": ours,
    }
    words = (
        f"compatible with the published {trials} trials (Fisher's exact test at {1 - level:.2g})"
    )
    why = f"p = {chance:.2g}; 95% Wilson interval of {ours} trials"
    return Judged(claim, summary, words, _verdict(chance >= 1 - level), why)


def _true(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    found = bool(np.all(values))
    return Judged(claim, found, "found true", _verdict(found), "" if found else "found false")


def _none(claim: Claim, values: np.ndarray, _: Measured) -> Judged:
    reason = claim.tolerance["reason"]
    return Judged(claim, float(values), "not compared", Agreement.NOT_COMPARABLE, reason)


_JUDGES: dict[str, Callable[[Claim, np.ndarray, Measured], Judged]] = {
    "printed": _printed,
    "near": _near,
    "at-most": _at_most,
    "at-least": _at_least,
    "prediction": _prediction,
    "rate": _rate,
    "true": _true,
    "none": _none,
}


def _value(text: str) -> float:
    """Convert a text such as 4.96e-16 or 1/3 to a number."""
    return float(Fraction(text))


def _half_unit(text: str) -> float:
    """Return half a unit of the last printed digit."""
    exponent = Decimal(text).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)
