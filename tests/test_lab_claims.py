"""The published claims: what the data file may say, and every rule on both sides of its bound."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
import scipy.stats

from lab_support import REAL, falsified, measured
from posquad.lab.claims import Claim, Judged, Verdict, claims, failures, judge
from posquad.lab.experiment import Measured

CLAIMS = claims()
KINDS = {"identity", "deterministic", "statistical", "qualitative"}
RULES = {
    "printed": set(),
    "near": {"absolute"},
    "at-most": {"bound"},
    "at-least": {"bound"},
    "prediction": {"level"},
    "range": set(),
    "rate": {"level", "trials"},
    "true": set(),
    "none": {"reason"},
}
TABLES = {
    "tab:effective-curvature-rates",
    "tab:spectral-initialization-recovery",
    "tab:conditioning-flow-rates",
    "tab:bregman-selection-results",
}
HOLDS, DIFFERS, UNKNOWN = Verdict.HOLDS, Verdict.DIFFERS, Verdict.NOT_COMPARABLE
EVERYTHING = {"absolute": 1.0, "bound": 1.0, "level": 0.95, "trials": 16, "reason": "because"}
every_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)


def claim_of(published, kind="deterministic", /, **tolerance) -> Claim:
    """A claim about a quantity `q`, for the rules."""
    return Claim("id", "exp5", "label", "statement", kind, published, "q", tolerance)


def measuring(values) -> Measured:
    """A measurement of `q` alone, along `seed` if there are several."""
    result = Measured()
    values = np.asarray(values)
    if values.ndim:
        result.along("seed", np.arange(len(values)))
    result.add("q", values, *(["seed"] if values.ndim else []))
    return result


def verdict(claim: Claim, values) -> Verdict:
    return judge(claim, measuring(values)).verdict


# The data file.


def test_there_are_enough_claims_and_their_ids_are_unique():
    assert len(CLAIMS) >= 60
    assert [name for name, count in Counter(c.id for c in CLAIMS).items() if count > 1] == []


def test_every_experiment_and_every_table_has_claims():
    assert {claim.experiment for claim in CLAIMS} == set(REAL)
    assert {claim.label for claim in CLAIMS} >= TABLES
    assert {claim.kind for claim in CLAIMS} == KINDS


@every_claim
def test_a_claim_is_well_formed(claim):
    assert claim.id.startswith(f"{claim.experiment}.")
    assert claim.kind in KINDS
    assert claim.label.split(":")[0] in {"subsec", "tab", "fig", "eq", "thm"}
    assert claim.statement.strip() == claim.statement != ""
    rule = claim.tolerance["rule"]
    assert set(claim.tolerance) == {"rule"} | RULES[rule]
    assert (claim.published is True) == (rule == "true")
    if claim.published is not True:
        many = claim.published if isinstance(claim.published, list) else [claim.published]
        assert all(isinstance(text, str) and Decimal(text).is_finite() for text in many)
        assert rule == "printed" or not isinstance(claim.published, list)
    if rule in {"prediction", "rate"}:
        assert 0.9 <= claim.tolerance["level"] < 1
    if rule == "none":
        assert len(claim.tolerance["reason"]) > 20  # not-comparable only with the reason


@every_claim
def test_strict_kinds_have_strict_rules(claim):
    """What decides the exit status is compared with a number or a truth, not with a spread."""
    if claim.kind in {"identity", "deterministic"}:
        assert claim.tolerance["rule"] in {"printed", "near", "at-most", "at-least", "true"}
    if claim.tolerance["rule"] in {"prediction", "range", "rate"}:
        assert claim.kind == "statistical"


@every_claim
def test_what_a_claim_compares_is_what_its_experiment_measures(claim):
    result = measured(claim.experiment)
    assert claim.measure in result.quantities
    assert set(claim.where) <= set(result.quantities[claim.measure].dims)
    values = result.at(claim.measure, claim.where)
    assert values is not None, "the paper's coordinates are not among the defaults"
    assert np.asarray(values, dtype=float).size
    if claim.tolerance["rule"] in {"rate", "none"}:
        assert np.ndim(values) == 0
    if claim.tolerance["rule"] == "printed":
        expected = len(claim.published) if isinstance(claim.published, list) else 1
        assert np.size(values) == expected


def example(claim: Claim, *, right: bool) -> Measured:
    """A measurement as published, or one that is off by the least that must be noticed."""
    result = Measured()
    for name, value in claim.where.items():
        result.along(name, [value])
    rule = claim.tolerance["rule"]
    many = claim.published if isinstance(claim.published, list) else [claim.published]
    if rule == "true":
        values = [right]
    elif rule in {"at-most", "at-least"}:
        bound = claim.tolerance["bound"]
        away = 1e-3 * abs(bound) or 1e-300
        values = [bound if right else bound + (away if rule == "at-most" else -away)]
    elif rule == "rate":
        rate = float(claim.published)
        values = [rate if right else 1.0 - round(rate)]  # the other end of [0, 1]
    else:
        # One unit of the last printed digit prints as another number.
        units = [10.0 ** Decimal(text).as_tuple().exponent for text in many]
        if rule == "near":
            units = [1.001 * claim.tolerance["absolute"]]
        values = [float(t) + (0 if right else u) for t, u in zip(many, units, strict=True)]
        if rule in {"prediction", "range"}:
            values = values * 3
    if rule in {"rate", "none"}:
        result.add(claim.measure, np.reshape(values, [1] * len(claim.where)), *claim.where)
        return result
    result.along("entry", np.arange(len(values)))
    shaped = np.reshape(values, [1] * len(claim.where) + [len(values)])
    result.add(claim.measure, shaped, *claim.where, "entry")
    return result


@every_claim
def test_a_claim_can_hold_and_can_fail(claim):
    """A typed verdict would survive this; a computed one follows the measurement."""
    if claim.tolerance["rule"] == "none":
        return
    assert judge(claim, example(claim, right=True)).verdict is HOLDS
    assert judge(claim, example(claim, right=False)).verdict is DIFFERS


@every_claim
def test_the_published_number_obeys_the_rule_of_its_own_claim(claim):
    rule = claim.tolerance["rule"]
    if rule == "at-most":
        assert float(claim.published) <= claim.tolerance["bound"]
    if rule == "at-least":
        assert float(claim.published) >= claim.tolerance["bound"]
    if rule == "rate":
        successes = float(claim.published) * claim.tolerance["trials"]
        assert successes == pytest.approx(round(successes), abs=1e-9)  # a count of whole trials


@pytest.mark.parametrize("key", REAL)
def test_measurements_are_judged_in_words_and_valid_json(key):
    for claim in (c for c in CLAIMS if c.experiment == key):
        judged = judge(claim, measured(key))
        assert judged.why or judged.verdict is HOLDS
        assert judged.tolerance
        entry = json.loads(json.dumps(judged.as_dict(), allow_nan=False))
        assert list(entry)[:9] == [
            *("id", "experiment", "label", "statement", "kind"),
            *("published", "measured", "tolerance", "verdict"),
        ]
        assert entry["verdict"] in {"holds", "differs", "not-comparable"}


@pytest.mark.parametrize("key", ["exp5", "exp6"])
def test_without_randomness_every_strict_claim_of_the_paper_holds(key):
    """Experiments 5 and 6 are deterministic, and run here with the paper's own parameters."""
    judged = [judge(claim, measured(key)) for claim in CLAIMS if claim.experiment == key]
    assert [j.claim.id for j in failures(judged)] == []
    assert sum(j.verdict is HOLDS for j in judged) >= 20


@pytest.mark.parametrize("key", ["exp5", "exp6"])
def test_verdicts_change_when_the_measurement_is_falsified(key):
    for claim in (c for c in CLAIMS if c.experiment == key):
        rule = claim.tolerance["rule"]
        if rule == "none":
            continue
        value = False if rule == "true" else -1e6 if rule == "at-least" else 1e6
        judged = judge(claim, falsified(key, claim.measure, value))
        assert judged.verdict is DIFFERS, claim.id
        assert failures([judged]) == ([judged] if claim.kind != "qualitative" else [])


# What cannot be compared.


def test_a_quantity_that_was_not_measured():
    judged = judge(claim_of("1.0", rule="printed"), Measured())
    assert judged.verdict is UNKNOWN
    assert judged.measured is None
    assert judged.why == "q was not measured in this run"


def test_a_coordinate_that_was_not_run():
    claim = next(c for c in CLAIMS if c.id == "exp5.stop-base")
    claim = dataclasses.replace(claim, tolerance={"rule": "printed"})
    result = Measured()
    result.along("epsilon", [0.5, 0.25])
    result.add("base_stop", [29.72, 29.72], "epsilon")
    judged = judge(claim, result)
    assert judged.verdict is UNKNOWN
    assert judged.why == "epsilon = 0.1 was not run"


@pytest.mark.parametrize("rule", RULES)
def test_nan_is_not_comparable_whatever_the_rule(rule):
    claim = claim_of(
        True if rule == "true" else "0.5",
        **EVERYTHING | {"rule": rule},
    )
    for values in (np.nan, [0.5, np.nan, 0.5]):
        if rule in {"rate", "none"} and np.ndim(values):
            continue
        judged = judge(claim, measuring(values))
        assert judged.verdict is UNKNOWN
        assert judged.measured is None
        json.dumps(judged.as_dict(), allow_nan=False)


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
@pytest.mark.parametrize("rule", sorted(set(RULES) - {"true"}))
def test_an_infinite_measurement_never_holds_and_can_be_written(rule, infinity):
    """A descent that diverges measures infinity; claims.json is JSON, which has none.

    The one-sided rules may call the harmless side of their bound a success.
    """
    claim = claim_of(
        "0.5",
        **EVERYTHING | {"rule": rule},
    )
    judged = judge(claim, measuring(infinity if rule in {"rate", "none"} else [0.5, infinity, 0.5]))
    if (rule, infinity) not in {("at-most", -np.inf), ("at-least", np.inf), ("range", infinity)}:
        assert judged.verdict is not HOLDS
    json.dumps(judged.as_dict(), allow_nan=False)


def test_none_shows_the_measurement_and_the_reason():
    judged = judge(claim_of("29.72", rule="none", reason="no system is printed"), measuring(31.5))
    assert (judged.verdict, judged.measured, judged.why) == (UNKNOWN, 31.5, "no system is printed")


# The rules, one by one.


@pytest.mark.parametrize(
    ("published", "value", "expected"),
    [
        ("0.35", 0.35, HOLDS),
        ("0.35", 0.3549, HOLDS),
        ("0.35", 0.355, HOLDS),  # a tie may have been rounded either way
        ("0.35", 0.345, HOLDS),
        ("0.35", 0.35501, DIFFERS),
        ("0.35", 0.34499, DIFFERS),
        ("0.350", 0.3504, HOLDS),  # a printed zero is a digit
        ("0.350", 0.3506, DIFFERS),
        ("-0.30", -0.2951, HOLDS),
        ("-0.30", 0.30, DIFFERS),
        ("3", 3.4, HOLDS),
        ("3", 3.6, DIFFERS),
        ("2.01e16", 2.0127e16, HOLDS),
        ("2.01e16", 2.0151e16, DIFFERS),
        ("1.5e-3", 1.549e-3, HOLDS),
        ("1.5e-3", 1.551e-3, DIFFERS),
        ("4.96e-16", 4.963e-16, HOLDS),
        ("4.96e-16", 5.1e-16, DIFFERS),
        ("1.00e-13", 3.0e-13, DIFFERS),
    ],
)
def test_printed_digits(published, value, expected):
    judged = judge(claim_of(published, rule="printed"), measuring(value))
    assert judged.verdict is expected
    assert judged.measured == value
    assert judged.as_dict()["published"] == float(published)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.3, 0.2, 0.0], HOLDS),
        ([0.304, 0.199, -0.004], HOLDS),
        ([0.3, 0.206, 0.0], DIFFERS),
        ([0.3, 0.2, 0.006], DIFFERS),
        ([0.2, 0.3, 0.0], DIFFERS),
        ([0.3, 0.2], DIFFERS),
        ([0.3, 0.2, 0.0, 0.0], DIFFERS),
    ],
)
def test_printed_vectors(values, expected):
    judged = judge(claim_of(["0.30", "0.20", "0.00"], rule="printed"), measuring(values))
    assert judged.verdict is expected
    assert judged.measured == values
    assert judged.as_dict()["published"] == [0.3, 0.2, 0.0]
    if len(values) != 3:
        assert judged.why == f"{len(values)} numbers measured, 3 published"


def test_one_number_is_not_compared_with_the_first_of_several():
    judged = judge(claim_of("0.30", rule="printed"), measuring([0.3, 0.7]))
    assert judged.verdict is DIFFERS
    assert judged.why == "2 numbers measured, 1 published"


@pytest.mark.parametrize(
    ("values", "worst", "expected"),
    [
        (1.25, 1.25, HOLDS),
        (0.75, 0.75, HOLDS),
        (1.2500001, 1.2500001, DIFFERS),
        ([1.0, 0.9, 1.2], 1.2, HOLDS),
        ([1.0, 0.5, 1.2], 0.5, DIFFERS),
    ],
)
def test_near(values, worst, expected):
    judged = judge(claim_of("1", rule="near", absolute=0.25), measuring(values))
    assert (judged.verdict, judged.measured) == (expected, worst)


@pytest.mark.parametrize(
    ("rule", "bound", "values", "worst", "expected"),
    [
        ("at-most", 0.5, 0.5, 0.5, HOLDS),
        ("at-most", 0.5, 0.5000001, 0.5000001, DIFFERS),
        ("at-most", 0.5, [0.1, 0.4, 0.2], 0.4, HOLDS),
        ("at-most", 0.5, [0.1, 0.6, 0.2], 0.6, DIFFERS),
        ("at-most", 1e-13, 3.11e-15, 3.11e-15, HOLDS),
        ("at-least", 0.5, 0.5, 0.5, HOLDS),
        ("at-least", 0.5, 0.4999999, 0.4999999, DIFFERS),
        ("at-least", 0.5, [0.7, 0.6], 0.6, HOLDS),
        ("at-least", 0.5, [0.7, 0.4], 0.4, DIFFERS),
        ("at-least", -1e-12, -5e-13, -5e-13, HOLDS),
        ("at-least", -1e-12, -5e-12, -5e-12, DIFFERS),
    ],
)
def test_bounds(rule, bound, values, worst, expected):
    judged = judge(claim_of("0", rule=rule, bound=bound), measuring(values))
    assert (judged.verdict, judged.measured) == (expected, worst)


def test_one_more_small_value_does_not_turn_a_failure_into_a_success():
    """Whatever a negative value means to this rule, a harmless neighbour cannot excuse it."""
    claim = claim_of("0", rule="at-most", bound=0.5)
    assert verdict(claim, [-1.0]) is verdict(claim, [-1.0, 0.0])


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        # Sample 1, 2, 3: mean 2, deviation 1, t_{0.975, 2} = 4.302653, so the 95% prediction
        # interval is 2 -+ 4.302653 sqrt(4/3) = 2 -+ 4.968276; a printed number reaches half a unit.
        ("6.9", HOLDS),
        ("7.0", HOLDS),
        ("7.1", DIFFERS),
        ("7.00", DIFFERS),
        ("-2.9", HOLDS),
        ("-3.0", HOLDS),
        ("-3.1", DIFFERS),
        ("-3.00", DIFFERS),
    ],
)
def test_prediction_interval(published, expected):
    claim = claim_of(published, "statistical", rule="prediction", level=0.95)
    judged = judge(claim, measuring([1.0, 3.0, 2.0]))
    assert judged.verdict is expected
    assert judged.measured["interval"] == pytest.approx([2 - 4.968276, 2 + 4.968276], abs=1e-6)
    assert judged.measured["median"] == 2.0
    assert judged.measured["samples"] == 3
    assert judged.tolerance == "inside the 95% prediction interval from 3 seeds"


def test_prediction_interval_against_scipy_and_its_promise():
    """99 of 100 further draws lie in the 99% interval: 4000 trials, binomial error 3.9 sigma."""
    rng = np.random.default_rng(0)
    draws = rng.normal(3.0, 0.2, size=(4000, 9))
    claim = claim_of("3.000000", "statistical", rule="prediction", level=0.99)
    sample = draws[0, :8]
    low, high = judge(claim, measuring(sample)).measured["interval"]
    scale = scipy.stats.sem(sample) * math.sqrt(8 + 1)
    expected = scipy.stats.t.interval(0.99, 7, loc=sample.mean(), scale=scale)
    assert (low, high) == pytest.approx(expected, rel=1e-12)
    hits = 0
    for row in draws:
        text = f"{row[8]:.6f}"
        hits += verdict(dataclasses.replace(claim, published=text), row[:8]) is HOLDS
    assert abs(hits / 4000 - 0.99) < 3.9 * math.sqrt(0.99 * 0.01 / 4000)


def test_prediction_from_one_sample_says_so():
    judged = judge(claim_of("1.0", rule="prediction", level=0.95), measuring([1.0]))
    assert judged.verdict is UNKNOWN
    assert judged.why == "one sample has no spread to compare with"


@pytest.mark.parametrize(
    ("published", "expected", "percentile"),
    [
        ("1.0", HOLDS, 12.5),
        ("4.0", HOLDS, 87.5),
        ("2.5", HOLDS, 50.0),
        ("3.0", HOLDS, 62.5),  # two below, and half of the one that equals it
        ("4.1", DIFFERS, 100.0),
        ("0.9", DIFFERS, 0.0),
        ("4.0e0", HOLDS, 87.5),
        ("4.04", DIFFERS, 100.0),  # half a unit is 0.005 here
        ("4", HOLDS, 87.5),
        ("5", DIFFERS, 100.0),
    ],
)
def test_range(published, expected, percentile):
    claim = claim_of(published, "statistical", rule="range")
    judged = judge(claim, measuring([4.0, 1.0, 3.0, 2.0]))
    assert judged.verdict is expected
    assert judged.measured["percentile"] == percentile
    assert judged.measured["interval"] == [1.0, 4.0]
    assert judged.measured["median"] == 2.5


@pytest.mark.parametrize(
    ("published", "successes"), [("0", 0), ("0.125", 2), ("0.5", 8), ("1", 16)]
)
def test_rate(published, successes):
    claim = claim_of(published, "statistical", rule="rate", level=0.99, trials=16)
    test = scipy.stats.binomtest(successes, 16)
    ends = test.proportion_ci(confidence_level=0.99, method="wilson")
    assert verdict(claim, ends.low) is HOLDS
    assert verdict(claim, ends.high) is HOLDS
    assert verdict(claim, successes / 16) is HOLDS
    if successes > 0:
        assert verdict(claim, ends.low - 1e-9) is DIFFERS
    if successes < 16:
        assert verdict(claim, ends.high + 1e-9) is DIFFERS
    assert judge(claim, measuring(0.25)).measured == 0.25


@pytest.mark.parametrize(
    ("values", "expected"),
    [(True, HOLDS), (False, DIFFERS), ([True, True], HOLDS), ([True, False], DIFFERS)],
)
def test_true(values, expected):
    judged = judge(claim_of(True, "qualitative", rule="true"), measuring(values))
    assert judged.verdict is expected
    assert judged.measured is (expected is HOLDS)
    assert judged.as_dict()["published"] is True


def test_only_identities_and_deterministic_claims_that_differ_are_failures():
    judged = [
        Judged(claim_of("1.0", kind, rule="printed"), 1.0, "rule", word, "why")
        for kind, word in product(sorted(KINDS), Verdict)
    ]
    found = {(j.claim.kind, j.verdict) for j in failures(judged)}
    assert found == {("identity", DIFFERS), ("deterministic", DIFFERS)}
    assert len(failures(judged)) == 2


def test_the_words_of_verdicts_are_fixed_by_the_design():
    assert [word.value for word in Verdict] == ["holds", "differs", "not-comparable"]
