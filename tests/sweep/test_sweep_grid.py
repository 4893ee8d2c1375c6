"""Grids of cells: products, lists, keys and seeds, and what is refused."""

from __future__ import annotations

import hashlib
import itertools
import pkgutil

import numpy as np
import pytest

import posquad.sweep
from posquad.core.errors import DomainError
from posquad.sweep import Sweep, joined, listed, product
from posquad.sweep.grid import cell_key, cell_seed, cell_text


def test_a_product_has_every_combination_once():
    grid = product(a=[1, 2], b=["x", "y", "z"], c=[True, False])
    cells = list(grid.cells({}))
    assert grid.most == 12 == len(cells)
    combinations = list(itertools.product([1, 2], "xyz", [True, False]))
    assert [tuple(cell.values()) for cell in cells] == combinations
    assert grid.names == ("a", "b", "c")


def test_numpy_values_become_plain_numbers():
    (cell,) = product(n=np.array([3]), x=np.array([0.5])).cells({})
    assert [type(value) for value in cell.values()] == [int, float]


def test_joined_grids_share_their_parameters():
    grid = joined(product(x=[1, 2]), listed([{"x": 2}, {"x": 5}]))
    assert [cell["x"] for cell in grid.cells({})] == [1, 2, 2, 5]
    with pytest.raises(DomainError, match="same parameters"):
        joined(product(x=[1]), product(y=[1]))


def test_the_key_hashes_sweep_version_and_parameters():
    text = cell_text({"b": 1, "a": 0.1})
    assert text == '{"a":0.1,"b":1}' == cell_text({"a": 0.1, "b": 1})
    digest = hashlib.sha256(b'mine\n1\n{"a":0.1,"b":1}').hexdigest()
    assert cell_key("mine", 1, text) == digest[:32]
    assert cell_seed(digest) == int(digest[:16], 16) // 2 < 2**63
    others = {cell_key("mine", 2, text), cell_key("yours", 1, text), cell_key("mine", 1, "{}")}
    assert cell_key("mine", 1, text) not in others
    assert len(others) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: product(), "at least one axis"),
        (lambda: product(x=[]), "x: expected at least one value"),
        (lambda: product(x=range(10**9)), "at most 10,000,000 cells; got 1,000,000,000"),
        (lambda: product(x=range(4000), y=map(int, range(4000))), "cells; got 16,000,000"),
        (lambda: product(x=[1, 1]), "different values"),
        (lambda: product(x="abc"), "a sequence of values"),
        (lambda: product(x=5), "a sequence of values"),
        (lambda: product(x=[float("nan")]), "got nan"),
        (lambda: product(x=[object()]), "got object"),
        (lambda: product(x=[2**63]), "below 2"),
        (lambda: product(x=range(10**5), y=range(10**4)), "at most 10,000,000 cells; got 1,000,0"),
        (lambda: product(x=itertools.count()), "at most 10,000,000 cells"),
        (lambda: listed([]), "at least one cell"),
        (lambda: listed([{"x": 1}, {"y": 1}]), "same names"),
        (lambda: listed([{"x": 1}, {"x": 1}]), "occurs twice"),
        (lambda: listed([{"x y": 1}]), "names of letters"),
        (lambda: Sweep("Mine", print, product(x=[1])), "small letters"),
        (lambda: Sweep("mine", 3, product(x=[1])), "a function of"),
        (lambda: Sweep("mine", print, [{"x": 1}]), "product, listed or transition"),
        (lambda: Sweep("mine", print, product(x=[1]), version="2"), "an integer"),
        (lambda: Sweep("mine", print, product(x=[1]), quick=product(y=[1])), "the parameters x"),
        (lambda: Sweep("mine", print, product(x=[1]), axis="n"), "axis: expected one of the para"),
        (
            lambda: Sweep("mine", print, product(x=[1]), by="n"),
            "by: expected one of the parameters",
        ),
        (
            lambda: Sweep("mine", print, product(x=["a"]), axis="x"),
            "axis: expected .* with numbers",
        ),
        (lambda: Sweep("mine", print, product(x=[1]), target="1"), "target: expected a number"),
        (lambda: product(seed=[1, 2]), "grid: expected another name than key, seed, seconds"),
        (lambda: listed([{"host": 1}]), "grid: expected another name than key, seed, seconds"),
        (lambda: listed(5), "cells: expected a sequence of mappings"),
        (lambda: listed([1, 2]), "cells: expected a sequence of mappings"),
        (lambda: joined(product(x=[1]), 2), "grids: expected a grid made by"),
    ],
)
def test_bad_grids_are_refused_before_anything_is_computed(make, words):
    with pytest.raises(DomainError, match=words):
        make()


def test_no_public_name_is_hidden_by_a_module():
    """An imported module becomes an attribute of its package."""
    modules = {info.name for info in pkgutil.iter_modules(posquad.sweep.__path__)}
    assert not modules & set(posquad.sweep.__all__)
