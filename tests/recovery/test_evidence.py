"""The evidence for an answer, its table, and the one function that grants a status from it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import posquad
from posquad import Status, recover
from posquad.core.errors import ShapeError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.recovery.evidence import Evidence
from posquad.recovery.status import grant, granted, is_open, is_recovered
from support import gaussian_problem, normal

SOURCES = Path(posquad.__file__).parent

# What RECOVERED needs, of an answer whose second solution was sought in vain.
WHOLE = {
    "tolerance": 1e-10,
    "residual": 1e-15,
    "reproduced": True,
    "worst": 1e-15,
    "checked": True,
    "curvature": [0.1, 1.0],
    "isolated": True,
    "error": 1e-9,
    "largest": 1e-6,
    "sought": True,
}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.RECOVERED),
        ({"sought": False, "linear": True}, Status.RECOVERED),
        ({"sought": False, "excluded": True}, Status.RECOVERED),
        ({"sought": False}, Status.NOT_IDENTIFIED),
        ({"different": True}, Status.NOT_IDENTIFIED),
        ({"worst": math.nan}, Status.RECOVERED),  # the rows are gone
        ({"worst": 1.1e-10}, Status.NOT_IDENTIFIED),
        ({"checked": False}, Status.NOT_IDENTIFIED),
        ({"free": True}, Status.NOT_IDENTIFIED),
        ({"isolated": False}, Status.NOT_IDENTIFIED),
        ({"error": 1.1e-6}, Status.NOT_IDENTIFIED),
        ({"error": math.nan}, Status.NOT_IDENTIFIED),
        ({"diagnosed": False}, Status.LOSS_REACHED),
        ({"spans": False}, Status.UNDETERMINED),
        ({"proved": True}, Status.CERTIFIED),
        ({"proved": True, "checked": False}, Status.CERTIFIED),
        ({"proved": True, "worst": 1.1e-10}, Status.NOT_IDENTIFIED),
        ({"spent": True}, Status.RECOVERED),
        ({"spent": True, "sought": False}, Status.INTERRUPTED),
        ({"spent": True, "sought": False, "different": True}, Status.NOT_IDENTIFIED),
        ({"spent": True, "curvature": [math.nan] * 2, "error": math.nan}, Status.INTERRUPTED),
        ({"reproduced": False}, Status.STALLED),
        ({"reproduced": False, "spent": True}, Status.INTERRUPTED),
        ({"reproduced": False, "best": True}, Status.BEST_FIT),
        ({"reproduced": False, "best": True, "escapes": True}, Status.NO_MINIMUM),
        ({"reproduced": False, "best": True, "spans": False}, Status.UNDETERMINED),
    ],
)
def test_a_status_follows_from_the_evidence(changes, status):
    evidence = Evidence.alone(**{**WHOLE, **changes})
    assert granted(evidence) is status
    batch = Evidence.stacked([evidence.each(lambda value: value[None])] * 2)
    assert grant(batch).tolist() == [status.code] * 2
    assert is_recovered(batch).tolist() == [status is Status.RECOVERED] * 2


def test_another_solution_is_sought_only_where_it_decides():
    assert bool(is_open(Evidence.alone(**{**WHOLE, "sought": False})))
    for change in ({}, {"linear": True}, {"excluded": True}, {"checked": False}, {"spans": False}):
        closed = {**WHOLE, "sought": not change} | change
        assert not bool(is_open(Evidence.alone(**closed)))


def test_only_one_module_grants_recovered():
    """Others read the status; they have no word of their own for it."""
    granting = [
        path.relative_to(SOURCES).as_posix()
        for room in ("recovery", "estimator")
        for path in sorted((SOURCES / room).rglob("*.py"))
        if "Status.RECOVERED" in path.read_text() or "Status.CERTIFIED" in path.read_text()
    ]
    assert granting == ["recovery/status.py"]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_evidence_of_an_answer_is_a_table(rng, kind):
    X, _, y = gaussian_problem(rng, 14, 5, 2)
    X, y = (X, y) if kind == "torch" else (X.numpy(), y.numpy())
    found = recover(X, y, 2)
    assert found.status is Status.RECOVERED
    table = {line.name: line.found for line in found.evidence.findings()}
    assert table["independent samples"] == "14"
    assert table["inputs span the space"] == "yes"
    assert float(table["relative residual"]) <= 1e-10
    assert len(str(found.evidence).splitlines()) == len(table)
    assert float(found.residual) == float(found.evidence.residual)
    assert int(found.second_starts) == int(found.evidence.second_starts)
    assert "second_starts_agreeing=" in repr(found)
    assert "Evidence" not in repr(found)


def test_the_table_says_why_a_finding_is_missing(rng):
    X, _, y = gaussian_problem(rng, 14, 5, 2)

    def told(found):
        return {line.name: line.found for line in found.evidence.findings()}

    missing = told(recover(X, y, 2, diagnose=False))
    assert missing["smallest curvature"] == "not computed, because of diagnose=False"
    noisy = told(recover(X, y + 0.1 * y.std() * normal(rng, 14), 2))
    assert noisy["search for a second solution"] == (
        "not computed, because the responses are not reproduced"
    )
    few = told(recover(X[:9], y[:9], 2))
    assert "another check failed first" in few["search for a second solution"]
    proved = told(recover(*gaussian_problem(rng, 30, 5, 2)[::2], 2, certify=True))
    assert proved["certificate"] == "proved"
    assert proved["search for a second solution"] == "not computed, because there is no other"


def test_the_evidence_of_a_batch_has_no_table(rng):
    X, _, y = gaussian_problem(rng, 14, 5, 2)
    found = recover(X, torch.stack([y, 2 * y]), 2)
    assert found.evidence.residual.shape == (2,)
    assert repr(found.evidence) == "<evidence of (2,) answers>"
    with pytest.raises(ShapeError, match="one answer"):
        found.evidence.findings()


def test_rows_that_are_not_in_memory_have_evidence_too():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((5000, 4)), rng.standard_normal((4, 2))
    found = recover(rows.in_memory(X), np.square(X @ U).sum(1), 2)
    assert found.status is Status.RECOVERED
    table = {line.name: line.found for line in found.evidence.findings()}
    assert table["largest error of one response"] == (
        "not computed, because the rows were not read again"
    )
    assert table["symmetric matrices determined"] == "yes"


@pytest.mark.parametrize("loss", ["huber", "geman-mcclure", "poisson"])
@pytest.mark.parametrize("certify", [False, True])
def test_the_evidence_of_another_loss_grants_its_status(loss, certify):
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((60, 3)), rng.standard_normal((3, 2))
    y = np.square(X @ U).sum(1)
    y = rng.poisson(y).astype(float) if loss == "poisson" else y + 7.0 * (np.arange(60) < 4)
    found = recover(X, y, 2, loss=loss, certify=certify)
    assert found.status is granted(found.evidence) is Status.BEST_FIT
    assert float(found.evidence.residual) > 1e-3
    assert np.isnan(float(found.error_estimate))


@pytest.mark.filterwarnings("ignore::posquad.core.errors.IdentifiabilityWarning")
@pytest.mark.parametrize("rank", [1, 2, None])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_constant_on_signs_leaves_squares_free(rank, value):
    """`x_1^2 - 1` is zero on rows of +-1."""
    S, y = np.random.default_rng(0).choice([-1.0, 1.0], (300, 4)), np.full(300, value)
    whole = PositiveQuadraticRegressor(rank, linear=True).fit(S, y)
    assert whole.status_ is Status.NOT_IDENTIFIED
    many = np.tile(S, (20, 1))
    read = PositiveQuadraticRegressor(rank, linear=True).fit(
        rows.in_memory(many), np.full(6000, value)
    )
    assert read.status_ is Status.NOT_IDENTIFIED


@pytest.mark.parametrize("rank", [1, None])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_a_stream_of_linear_responses_has_rank_zero(rank, slope):
    X = np.random.default_rng(0).standard_normal((5000, 3))
    y = slope * X.sum(1) + 2.0
    for model in (
        PositiveQuadraticRegressor(rank, linear=True).partial_fit(X, y),
        PositiveQuadraticRegressor(rank, linear=True).fit(rows.in_memory(X), y),
    ):
        assert model.rank_ == 0
        assert model.status_ is Status.RECOVERED


@pytest.mark.filterwarnings("ignore::posquad.core.errors.IdentifiabilityWarning")
@pytest.mark.parametrize("design", ["gaussian", "signs"])
def test_a_square_beside_other_terms_is_recovered_if_it_is_the_only_one(design):
    """Rank 0: on rows of +-1, x_1^2 is a constant; on others no form is."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) if design == "gaussian" else rng.choice([-1.0, 1.0], (60, 3))
    model = PositiveQuadraticRegressor(1, linear=True).fit(X, 2 + X[:, 0])
    assert model.rank_ == 0
    unique = design == "gaussian"
    assert model.status_ is (Status.RECOVERED if unique else Status.NOT_IDENTIFIED)
