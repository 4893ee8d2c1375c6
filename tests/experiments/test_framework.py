"""Parameters written as text, and measurements whose dimensions have names."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posquad.core.errors import DomainError
from posquad.experiments.framework import (
    Measured,
    Parameters,
    describe_parameters,
    override,
    own_parameter,
    paper_parameter,
)
from posquad.experiments.registry import EXPERIMENTS


@dataclass(frozen=True)
class Sample(Parameters):
    n: int = paper_parameter(80, "samples")
    scale: float = own_parameter(0.5, "size of the start")
    window: tuple[float, ...] = own_parameter((0.5, 2.0), "window of the fit")
    counts: tuple[int, ...] = own_parameter((1, 2), "numbers")
    B: tuple[tuple[float, ...], ...] = own_parameter(((1.0, 0.0), (0.0, 1.0)), "rows")


def test_parameters_say_what_they_mean_and_where_they_come_from():
    entries = {entry["name"]: entry for entry in describe_parameters(Sample(seed=3, n=7))}
    assert list(entries) == ["seed", "n", "scale", "window", "counts", "B"]
    assert entries["seed"]["value"] == 3
    assert entries["n"] == {"name": "n", "value": 7, "doc": "samples", "source": "paper"}
    assert entries["scale"]["source"] == "chosen here"


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_every_experiment_describes_its_parameters(key):
    entries = describe_parameters(EXPERIMENTS[key].parameters())
    assert entries[0]["name"] == "seed"
    for entry in entries:
        assert entry["doc"].strip()
        assert entry["source"] in {"paper", "chosen here"}
        json.dumps(entry["value"], allow_nan=False)  # numbers and tuples of them, nothing else


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_quick_changes_parameters_that_exist_to_values_of_their_type(key):
    """Through the text parser, which refuses a wrong name and a wrong type."""
    experiment = EXPERIMENTS[key]
    texts = {name: json.dumps(value) for name, value in experiment.quick.items()}
    parameters = override(experiment.parameters(), texts)
    assert parameters == experiment.parameters(**experiment.quick)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seed", "7", 7),
        ("seed", " 7 ", 7),
        ("n", "1", 1),
        ("seed", "0", 0),
        ("scale", "-3", -3.0),
        ("scale", "2", 2.0),
        ("scale", "1e-3", 1e-3),
        ("window", "0.1,4", (0.1, 4.0)),
        ("window", " 0.1 , 4 ", (0.1, 4.0)),
        ("window", "[0.1, 4]", (0.1, 4.0)),
        ("window", "3", (3.0,)),
        ("counts", "3,4,5", (3, 4, 5)),
        ("B", "[[1, 2, 3]]", ((1.0, 2.0, 3.0),)),
        ("B", "[1, 2], [3, 4]", None),
    ],
)
def test_override(name, text, value):
    base = Sample()
    if value is None:  # rows without the outer bracket: not valid JSON, so refused, not guessed
        with pytest.raises(DomainError, match=r"^B: expected something like \[\[1.0, 0.0\]"):
            override(base, {name: text})
        return
    changed = override(base, {name: text})
    assert getattr(changed, name) == value
    # 2 == 2.0 in Python, but not in the record nor in its key.
    assert json.dumps(getattr(changed, name)) == json.dumps(value)
    assert dataclasses.replace(changed, **{name: getattr(base, name)}) == base
    assert base == Sample()


def test_override_changes_several_and_keeps_the_rest():
    changed = override(Sample(scale=3.0), {"n": "5", "counts": "9"})
    assert changed == Sample(n=5, counts=(9,), scale=3.0)
    assert override(Sample(), {}) == Sample()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("n", ""),
        ("n", "many"),
        ("n", "1.5"),
        ("n", "1e3"),
        ("n", "1,2"),
        ("n", "[1]"),
        ("n", "true"),
        ("n", "null"),
        ("n", '"3"'),
        ("scale", "NaN"),
        ("scale", "Infinity"),
        ("scale", "-Infinity"),
        ("scale", "1e999"),
        ("scale", "0x10"),
        ("window", ""),
        ("window", "[]"),
        ("window", "1,,2"),
        ("window", "1,a"),
        ("window", "1,NaN"),
        ("window", "1,true"),
        ("window", "1;2"),
        ("counts", "1.0,2"),
        ("counts", "[[1]]"),
        ("B", "1,2"),
        ("B", "[[]]"),
        ("B", "[[1, 2], 3]"),
        ("B", "[[1, 2], [3, null]]"),
        ("B", "[[1, 2"),
        ("scale", "{}"),
        ("scale", "__import__('os').getcwd()"),
    ],
)
def test_what_has_another_type_is_refused(name, text):
    with pytest.raises(DomainError) as caught:
        override(Sample(), {name: text}, where="exp9.")
    assert caught.value.argument == f"exp9.{name}"
    assert caught.value.expected.startswith("something like ")
    assert caught.value.got == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scale", "1" + "0" * 400),  # an integer that no float holds
        ("window", "1," + "9" * 400),
        ("n", "1" * 5000),  # more digits than Python turns into an integer
    ],
    ids=["float-overflow", "tuple-overflow", "too-many-digits"],
)
def test_absurdly_large_numbers_are_refused(name, text):
    with pytest.raises(DomainError, match=rf"^{name}: expected something like"):
        override(Sample(), {name: text})


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("n", "something like 80"),
        ("scale", "something like 0.5"),
        ("window", "something like 0.5,2.0"),
        ("counts", "something like 1,2"),
        ("B", "something like [[1.0, 0.0], [0.0, 1.0]]"),
    ],
)
def test_what_the_error_suggests_is_accepted(name, like):
    with pytest.raises(DomainError) as caught:
        override(Sample(), {name: "?"})
    assert caught.value.expected == like
    assert override(Sample(), {name: like.removeprefix("something like ")}) == Sample()


@pytest.mark.parametrize(
    ("name", "text", "least"),
    [("n", "0", 1), ("n", "-3", 1), ("seed", "-1", 0), ("counts", "3,0,5", 1), ("counts", "-1", 1)],
)
def test_sizes_are_positive_and_seeds_are_not_negative(name, text, least):
    with pytest.raises(DomainError) as caught:
        override(Sample(), {name: text}, where="exp9.")
    assert str(caught.value) == f"exp9.{name}: expected integers >= {least}; got {text}"


def test_an_unknown_parameter_is_answered_with_the_known_ones():
    with pytest.raises(DomainError) as caught:
        override(Sample(), {"samples": "3"}, where="exp9.")
    assert str(caught.value) == (
        "exp9.samples: expected one of seed, n, scale, window, counts, B; got no such parameter"
    )


@given(st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers(1), min_size=1))
def test_written_values_are_read_back(number, numbers):
    """Bit for bit: the report's command line must give the same run again."""
    texts = {"scale": repr(number), "counts": ",".join(map(str, numbers))}
    changed = override(Sample(), texts)
    assert np.float64(changed.scale).tobytes() == np.float64(number).tobytes()
    assert changed.counts == tuple(numbers)


def test_parameters_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sample().n = 3


@pytest.fixture
def measured() -> Measured:
    result = Measured()
    result.set_coordinates("kappa", (1.0, 2.0, 8.0))
    result.set_coordinates("seed", np.arange(2))
    result.add("rate", [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "kappa", "seed")
    result.add("total", 21)
    return result


def test_measured_at_coordinates(measured):
    np.testing.assert_array_equal(measured.at("rate", {"kappa": 2.0}), [3.0, 4.0])
    np.testing.assert_array_equal(measured.at("rate", {"seed": 1}), [2.0, 4.0, 6.0])
    assert measured.at("rate", {"seed": 1, "kappa": 8.0}) == 6.0
    assert measured.at("rate", {}).shape == (3, 2)
    assert measured.at("total", {}) == 21


def test_a_coordinate_is_met_to_rounding_and_never_approximately(measured):
    assert measured.at("rate", {"kappa": 2.0 * (1 + 1e-12)}) is not None
    assert measured.at("rate", {"kappa": 2.001}) is None
    assert measured.at("rate", {"kappa": 3.0}) is None
    # Small coordinates are compared relatively: 1e-12 is not 0 and not 2e-12.
    measured.set_coordinates("eta", [0.0, 1e-12])
    measured.add("error", [1.0, 2.0], "eta")
    assert measured.at("error", {"eta": 0.0}) == 1.0
    assert measured.at("error", {"eta": 1e-12}) == 2.0
    assert measured.at("error", {"eta": 2e-12}) is None


def test_a_coordinate_that_was_run_twice_is_not_answered_with_one_of_them():
    twice = Measured()
    twice.set_coordinates("eta", [0.5, 0.5])
    twice.add("error", [1.0, 2.0], "eta")
    assert twice.at("error", {"eta": 0.5}) is None


def test_measured_gives_quantities_and_coordinates_by_name(measured):
    np.testing.assert_array_equal(measured["kappa"], [1.0, 2.0, 8.0])
    assert measured["rate"].shape == (3, 2)
    with pytest.raises(KeyError):
        measured["speed"]
    with pytest.raises(KeyError):
        measured.at("speed", {})


@pytest.mark.parametrize("values", [1.0, [1.0, 2.0], [[1.0], [2.0], [3.0]], np.zeros((2, 3))])
def test_axes_must_be_the_dimensions_that_are_named(measured, values):
    with pytest.raises(DomainError, match=r"^bad: expected shape \(3, 2\) over"):
        measured.add("bad", values, "kappa", "seed")
    assert "bad" not in measured.quantities


def test_tensors_and_truth_values_are_kept_as_arrays(measured):
    measured.add("tensor", torch.tensor([1.0, 2.0], dtype=torch.float64), "seed")
    measured.add("found", True)
    assert isinstance(measured["tensor"], np.ndarray)
    assert measured["tensor"].dtype == np.float64
    assert measured["found"].dtype == bool
    assert measured["found"].shape == ()


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_the_registry_is_in_the_order_of_the_report(key):
    assert EXPERIMENTS[key].key == key
    assert EXPERIMENTS[key].number == list(EXPERIMENTS).index(key) + 1
