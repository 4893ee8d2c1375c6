"""Partitions on a worker, in this process: what becomes of a block, and where the rows are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from posquad import recover
from posquad.core.errors import DtypeError, NonFiniteError, ShapeError
from posquad.distributed.partitions import Part, _part
from posquad.distributed.worker import PartitionRows, Place, close_store, open_store, run_rank


def made(X, y, weights=None, *, number=3, dtype="float64", width=2):
    """The part of one block of inputs; responses and weights are whole blocks."""
    pieces = [[(block, 0, len(block))] for block in (y, weights) if block is not None]
    return _part(number, width, dtype, X, pieces[0], pieces[1] if weights is not None else None)


def test_a_part_has_the_pieces_of_its_rows():
    X, y = np.arange(8.0).reshape(4, 2), np.arange(10.0)
    part = _part(3, 2, "float64", X, [(y, 2, 4), (y, 7, 9)], [(y, 0, 4)])
    assert part.number == 3
    np.testing.assert_array_equal(part.X, X)
    np.testing.assert_array_equal(part.y, [2, 3, 7, 8])
    np.testing.assert_array_equal(part.weights, [0, 1, 2, 3])
    assert _part(0, 2, "float64", X[:0], [], None).y.shape == (0,)


@pytest.mark.parametrize(("kind", "expected"), [(np.float32, np.float32), (int, np.float64)])
def test_single_precision_stays(kind, expected):
    part = made(np.ones((3, 2), kind), np.ones(3, kind), dtype=np.dtype(expected).name)
    assert (part.X.dtype, part.y.dtype) == (expected, expected)
    frame = pd.DataFrame(np.ones((3, 2), kind))
    part = made(frame, frame[0], dtype=np.dtype(expected).name)
    assert (part.X.dtype, part.y.dtype) == (expected, expected)


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "an infinity")])
@pytest.mark.parametrize("frame", [False, True])
def test_a_number_that_is_not_finite_is_named(bad, word, frame):
    """In any of the three, before any other process waits for this one."""
    X, y, w = np.ones((4, 2)), np.ones(4), np.ones(4)
    places = {"X": "row 2 of partition 3, column 1", "y": "row 2 of partition 3"}
    places["weights"] = places["y"]
    for name, place in places.items():
        broken = {"X": X.copy(), "y": y.copy(), "weights": w.copy()}
        broken[name][(2, 1) if name == "X" else 2] = bad
        if frame:
            broken = {key: pd.DataFrame(value).squeeze() for key, value in broken.items()}
        with pytest.raises(NonFiniteError) as refused:
            made(*broken.values())
        assert str(refused.value) == f"{name}: expected finite numbers; got {word} in {place}"


def test_finite_numbers_whose_sum_overflows_are_kept():
    part = made(np.full((3, 2), 1e308), np.full(3, 1e308))
    assert part.X.max() == part.y.max() == 1e308


def test_missing_values_of_pandas_are_named():
    frame = pd.DataFrame({"a": [1, 2, None], "b": [1, 2, 3]}, dtype="Int64")
    with pytest.raises(NonFiniteError, match="NaN in row 2 of partition 3, column 0"):
        made(frame, np.ones(3))


@pytest.mark.parametrize(
    ("X", "y", "error", "words"),
    [
        (np.ones((4, 3)), np.ones(4), ShapeError, "2 columns; got shape .4, 3. of partition 3"),
        (np.ones(4), np.ones(4), ShapeError, "2 columns; got shape .4,. of partition 3"),
        ([["a", "b"]], np.ones(1), DtypeError, "X: expected real numbers; got could not convert"),
        (np.ones((1, 2)), np.array(["a"]), DtypeError, "y: expected real numbers; got <U1 in"),
        (np.ones((1, 2)), np.ones(1, complex), DtypeError, "y: .* got complex128 in partition 3"),
    ],
)
def test_blocks_that_are_not_what_was_said(X, y, error, words):
    with pytest.raises(error, match=words):
        made(X, y)


def parts_of(X, y, w, lengths, numbers):
    cut = np.cumsum(lengths)[:-1]
    columns = (np.split(each, cut) for each in (X, y, w))
    return [Part(*each) for each in zip(numbers, *columns, strict=True)]


def test_rows_of_partitions_follow_each_other(monkeypatch):
    """Positions are those among all rows held, also within partitions of several blocks."""
    X = np.random.default_rng(0).standard_normal((40, 3))
    parts = parts_of(X, X[:, 0], X[:, 0], [7, 20, 13], [2, 4, 5])
    monkeypatch.setattr("posquad.problems.rows.source.BLOCK_BYTES", 5 * 3 * 8)
    source = PartitionRows(parts)
    assert (source.n, source.d, source.dtype) == (40, 3, torch.float64)
    for begin in (0, 6, 7, 26, 39):
        found = list(source.blocks(begin))
        assert found[0][0].start <= begin < found[0][0].stop
        assert [rows.stop for rows, _ in found[:-1]] == [rows.start for rows, _ in found[1:]]
        assert found[-1][0].stop == 40
        assert all(len(block) <= 5 for _, block in found)
        for rows, block in found:
            np.testing.assert_array_equal(block.numpy(), X[rows])
    for row, name in {0: "row 0 of partition 2", 6: "row 6 of partition 2"}.items():
        assert source.name_row(row) == name
    assert source.name_row(7) == "row 0 of partition 4"
    assert source.name_row(39) == "row 12 of partition 5"
    with pytest.raises(IndexError):
        source.name_row(40)


@pytest.mark.parametrize("weighted", [False, True])
def test_one_rank_alone_gives_the_answer_of_all_rows(weighted):
    """A group of one process; a partition in between is empty."""
    rng = np.random.default_rng(1)
    X, U = rng.standard_normal((5000, 4)), rng.standard_normal((4, 2))
    y = ((X @ U) ** 2).sum(1) + 0.1 * rng.standard_normal(5000)
    w = rng.random(5000)
    parts = parts_of(X, y, w, [1500, 0, 2500, 1000], [0, 1, 2, 3])
    parts = parts if weighted else [part._replace(weights=None) for part in parts]
    before = torch.get_num_threads()
    place = Place("alone", "127.0.0.1", open_store("alone", "127.0.0.1", 20.0), 20.0)
    try:
        found = run_rank(place, 0, 1, before + 1, parts, {"rank": 2})
    finally:
        close_store("alone")
    expected = recover(X, y, 2, weights=w if weighted else None)
    assert found.status is expected.status
    np.testing.assert_allclose(found.Q.dense(), expected.Q.dense(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.residual, expected.residual, rtol=1e-10)
    assert torch.get_num_threads() == before
    assert not torch.distributed.is_initialized()
