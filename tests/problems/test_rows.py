"""Sources of rows: the same operator from memory, disk and pieces, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest
import torch

from conformance import MeasurementsConformance
from posquad import LeastSquares, RankOne, recover
from posquad.core.errors import DomainError, NonFiniteError, PosquadError, ShapeError
from posquad.core.files import FileError
from posquad.problems import rows
from posquad.problems.rows import disk, operator, source
from support import normal


class Pieces:
    """A table in pieces of uneven length, as XGBoost's `DataIter` gives them."""

    def __init__(self, X, y=None, weights=None, cuts=(3, 3, 8)):
        self.parts = [slice(a, b) for a, b in zip((0, *cuts), (*cuts, len(X)), strict=True)]
        self.X, self.y, self.weights = X, y, weights

    def reset(self):
        self.k = -1

    def next(self, input_data):
        self.k += 1
        if self.k == len(self.parts):
            return 0
        part = self.parts[self.k]
        rest = {"label": self.y, "weight": self.weights}
        rest = {name: None if v is None else v[part] for name, v in rest.items()}
        input_data(data=self.X[part], **rest)
        return 1


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that a small table has several."""
    monkeypatch.setattr(source, "BLOCK_BYTES", 200)
    monkeypatch.setattr(disk, "BLOCK_BYTES", 200)
    monkeypatch.setattr(operator, "_CACHED_BYTES", 1)


def kept(kind, folder, X):
    """The rows of X as a source of this kind."""
    x = X.numpy()
    if kind == "memory":
        return rows.in_memory(X)
    if kind == "pieces":
        return rows.from_iterator(Pieces(x, cuts=(1, min(4, len(x)))))
    if kind == "columns":
        order = np.arange(x.shape[1])[::-1]
        np.save(folder / "wide.npy", np.column_stack([x[:, :1] + 1, x[:, order]]))
        return rows.from_npy(folder / "wide.npy", columns=[int(k) + 1 for k in order])
    if kind == "by column":
        np.save(folder / "f.npy", np.asfortranarray(x))
        return rows.from_npy(folder / "f.npy")
    cuts = [0, len(x)] if kind == "npy" else [0, 1, 1, len(x) // 2, len(x)]
    paths = []
    for k, (a, b) in enumerate(pairwise(cuts)):
        paths.append(folder / f"{k}.npy")
        np.save(paths[-1], x[a:b])
    return rows.from_npy(paths if kind == "shards" else paths[0])


KINDS = ["memory", "npy", "shards", "by column", "columns", "pieces"]


class TestRowsOfASource(MeasurementsConformance):
    @pytest.fixture(params=[("npy", 1, 1), ("shards", 17, 3), ("pieces", 17, 3)])
    def build(self, request, rng, tmp_path):
        kind, n, d = request.param
        X = normal(rng, n, d)
        return lambda dtype=torch.float64, device="cpu": RankOne(kept(kind, tmp_path, X.to(dtype)))


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_rank_one_measurements(rng, kind, tmp_path):
    """Those that only `RankOne` has, against NumPy."""
    X, U, e = normal(rng, 150, 3), normal(rng, 3, 2), normal(rng, 150)
    X[5] = 0
    x, u = X.numpy(), U.numpy()
    operator = RankOne(kept(kind, tmp_path, X))
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(operator.squared_lengths, (x**2).sum(-1), **close)
    np.testing.assert_allclose(operator.second_moments, x.T @ x / 150, **close)
    np.testing.assert_allclose(operator.absolute_moments(), abs(x).T @ abs(x), **close)
    assert float(operator.largest_entry()) == abs(x).max()
    np.testing.assert_allclose(operator.project(U), x @ u, **close)
    Z = x @ u
    np.testing.assert_allclose(
        operator.weighted_adjoint(e, torch.from_numpy(Z)), x.T @ (e.numpy()[:, None] * Z), **close
    )
    J = 2 * np.einsum("ni,nj->nij", x, Z).reshape(150, 6)
    matrix, right = operator.normal_equations(torch.from_numpy(Z), e)
    np.testing.assert_allclose(matrix, J.T @ J, **close)
    np.testing.assert_allclose(right, J.T @ e.numpy(), **close)
    D = normal(rng, 3, 2)
    product = operator.gauss_newton_product(torch.from_numpy(Z))(D)
    expected = (J.T @ (J @ D.numpy().ravel()) / 2).reshape(3, 2)
    np.testing.assert_allclose(product, expected, rtol=1e-11, atol=1e-11)
    i, j = np.triu_indices(3)
    system = x[:, i] * x[:, j] * np.where(i == j, 1, np.sqrt(2))
    np.testing.assert_allclose(operator.fourth_moments, system.T @ system, **close)
    np.testing.assert_allclose(operator.gram(), x @ x.T, **close)
    T = normal(rng, 3, 2)
    np.testing.assert_allclose(operator.transformed(T).X, x @ T.numpy(), **close)
    lengths = np.linalg.norm(operator.normalized().X.numpy(), axis=-1)
    np.testing.assert_allclose(np.delete(lengths, 5), 1, rtol=1e-14)
    S, determined = operator.symmetric_fit(operator.apply_kernel(torch.eye(3).double()))
    assert bool(determined)
    np.testing.assert_allclose(S, np.eye(3), atol=1e-11)


@pytest.mark.parametrize("budget", [0, 2**28])
def test_a_hessian_product_may_compute_xu_again(rng, budget, monkeypatch, tmp_path):
    monkeypatch.setattr(operator, "KEPT_BYTES", budget)
    X, U, D = normal(rng, 40, 3), normal(rng, 3, 2), normal(rng, 3, 2)
    y = normal(rng, 40)
    table = kept("npy", tmp_path, X)
    product = LeastSquares(RankOne(table), y).linearize(U)
    before = table.reads
    x, u, d = X.numpy(), U.numpy(), D.numpy()
    e = ((x @ u) ** 2).sum(1) - y.numpy()
    curved = x.T @ (2 * ((x @ u) * (x @ d)).sum(1)[:, None] * (x @ u) + e[:, None] * (x @ d))
    np.testing.assert_allclose(product(D), curved * 2 / 40, rtol=1e-11, atol=1e-12)
    assert table.reads - before == 40  # one pass, with or without XU


def test_one_pass_gives_a_loss_with_its_gradient(rng, tmp_path):
    table = kept("shards", tmp_path, normal(rng, 30, 2))
    LeastSquares(RankOne(table), torch.ones(30).double()).loss_and_gradient(normal(rng, 2, 1))
    assert table.passes == 1


@pytest.mark.parametrize("kind", ["npy", "shards", "by column", "columns"])
def test_parts_of_a_file_are_its_rows(rng, kind, tmp_path):
    X = normal(rng, 23, 3)
    table = kept(kind, tmp_path, X)
    for count in (1, 2, 5, 30):
        parts = [table.part(index, count) for index in range(count)]
        held = [part for part in parts if not isinstance(part, torch.Tensor)]
        assert torch.equal(torch.cat([part.read_all() for part in held]), X)
        # They have the same blocks, so that sums over blocks are the same.
        sizes = [len(block) for part in held for _, block in part.blocks()]
        assert sizes == [len(block) for _, block in table.blocks()]
        places = [table.part_rows(index, count) for index in range(count)]
        assert [place.stop - place.start for place in places] == [len(part) for part in parts]
        assert [place.start for place in places[1:]] == [place.stop for place in places[:-1]]
    second = table.part(1, 2)
    half = second.part(1, 2)
    assert torch.equal(half.read_all(), X[len(X) - half.n :])
    assert second.name_row(0).startswith("row")


def test_single_precision_is_converted_block_by_block(rng, tmp_path):
    X = normal(rng, 50, 4, dtype=torch.float32)
    table = kept("npy", tmp_path, X)
    assert table.dtype == torch.float32
    assert RankOne(table).double().X.dtype == torch.float64
    np.testing.assert_array_equal(table.to(torch.float64).read_all(), X.numpy().astype(float))


def test_first_rows_and_responses_of_pieces(rng):
    X, y, w = normal(rng, 12, 2), normal(rng, 12), torch.rand(12, generator=rng).double()
    table = rows.from_iterator(Pieces(X.numpy(), y.numpy(), w.numpy()))
    assert torch.equal(table.y, y)
    assert torch.equal(table.weights, w)
    assert torch.equal(table.first_rows(7), X[:7])
    assert torch.equal(table.first_rows(70), X)


def test_pieces_may_use_their_memory_again(rng):
    X, y, w = normal(rng, 12, 2).numpy(), normal(rng, 12).numpy(), np.arange(12.0)
    data, label, weight = np.empty((4, 2)), np.empty(4), np.empty(4)

    class Reused(Pieces):
        def next(self, input_data):
            self.k += 1
            if self.k < 3:
                part = slice(4 * self.k, 4 * self.k + 4)
                data[:], label[:], weight[:] = X[part], y[part], w[part]
                input_data(data=data, label=label, weight=weight)
            return int(self.k < 3)

    table = rows.from_iterator(Reused(X))
    np.testing.assert_array_equal(table.y, y)
    np.testing.assert_array_equal(table.weights, w)
    np.testing.assert_array_equal(table.read_all(), X)
    gradient = LeastSquares(RankOne(table), y).gradient(torch.ones(2, 1).double())
    z = X.sum(1)
    np.testing.assert_allclose(gradient[:, 0], X.T @ ((z**2 - y) * z) / 6, rtol=1e-12)


def test_files_that_cannot_be_used(rng, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((4, 2)))
    np.save(tmp_path / "b.npy", np.ones((4, 3)))
    np.save(tmp_path / "c.npy", np.ones((4, 2), dtype=complex))
    np.save(tmp_path / "d.npy", np.ones(4))
    (tmp_path / "e.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    (tmp_path / "f.npy").write_bytes(b"text")
    np.save(tmp_path / "g.npy", np.ones((0, 2)))
    for name, words in {
        "missing": "expected a readable .npy file; got No such file or directory",
        "c": "expected real numbers of at most 8 bytes; got complex128",
        "d": "expected an array of two axes",
        "e": "the file is incomplete",
        "f": "expected a NumPy array",
    }.items():
        with pytest.raises(FileError, match=words):
            rows.from_npy([tmp_path / "a.npy", tmp_path / f"{name}.npy"])
    with pytest.raises(ShapeError, match=r"b.npy: expected 2 columns .* got 3 columns"):
        rows.from_npy([tmp_path / "a.npy", tmp_path / "b.npy"])
    with pytest.raises(ShapeError, match="n, d >= 1"):
        rows.from_npy(tmp_path / "g.npy")
    with pytest.raises(DomainError, match="at least one file"):
        rows.from_npy([])
    with pytest.raises(
        DomainError, match="columns: expected columns from 0 to 1, at least one; got 2"
    ):
        rows.from_npy(tmp_path / "a.npy", columns=[2])


def test_a_damaged_header_is_refused_in_one_sentence(tmp_path):
    """Any bit of it: NumPy raises errors of several kinds."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones((20, 3)))
    whole = path.read_bytes()
    told = []
    for place in range(8, 96):
        for bit in (0, 3, 6):
            other = bytes([whole[place] ^ (1 << bit)])
            path.write_bytes(whole[:place] + other + whole[place + 1 :])
            try:
                rows.from_npy(path)
            except PosquadError as problem:
                told.append(str(problem))
    assert len(told) > 200
    assert not any("\n" in words for words in told)


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((400, 2)))
    table = rows.from_npy(path)
    blocks = table.blocks()
    next(blocks)
    os.truncate(path, 3000)
    with pytest.raises(FileError, match=r"expected at least .* bytes; got the end of the file"):
        list(blocks)
    with pytest.raises(FileError, match="expected the file as it was when it was opened"):
        table.read_all()
    path.unlink()
    with pytest.raises(FileError, match=r"a.npy: expected a readable file; got No such file"):
        table.read_all()


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_file_that_is_rewritten_in_a_pass_ends_it(name, tmp_path):
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for path in paths:
        np.save(path, np.ones((400, 2)))
    blocks = rows.from_npy(paths).blocks()
    next(blocks)
    with (tmp_path / f"{name}.npy").open("r+b") as file:  # in place, with as many bytes
        np.save(file, np.zeros((400, 2)))
    os.utime(tmp_path / f"{name}.npy", ns=(1, 1))  # a clock may not tell such times apart
    with pytest.raises(FileError, match=rf"{name}.npy: .*; got one that was changed since"):
        list(blocks)


def test_the_reader_stops_when_the_caller_does(tmp_path):
    import threading

    np.save(tmp_path / "a.npy", np.ones((400, 2)))
    for _ in rows.from_npy(tmp_path / "a.npy").blocks():
        break
    assert "posquad-reader" not in {thread.name for thread in threading.enumerate()}


def test_a_row_that_is_not_finite_is_named(tmp_path):
    X = np.ones((30, 2))
    np.save(tmp_path / "a.npy", X)
    X[11, 1] = np.nan
    np.save(tmp_path / "b.npy", X)
    table = rows.from_npy([tmp_path / "a.npy", tmp_path / "b.npy"])
    with pytest.raises(NonFiniteError, match=r"got NaN in row 11 of .*b.npy, column 1"):
        _ = [table.require_finite(part, block) for part, block in table.blocks()]
    with pytest.raises(NonFiniteError, match=r"got NaN in row 11, column 1$"):
        rows.in_memory(X)
    chosen = rows.from_npy(tmp_path / "b.npy", columns=[1])
    with pytest.raises(NonFiniteError, match=r"got NaN in row 11 of .*b.npy, column 1$"):
        chosen.require_finite(slice(0, 30), chosen.read_all())
    with pytest.raises(NonFiniteError, match=r"got NaN in row 11, column 1$"):
        rows.from_iterator(Pieces(X))
    with pytest.raises(NonFiniteError, match=r"y: .* got NaN for row 11 of .*b.npy$"):
        recover(table, np.repeat([1.0, np.nan, 1.0], [41, 1, 18]), 1)


def test_pieces_that_cannot_be_used():
    X = np.ones((12, 2))
    with pytest.raises(ShapeError, match="pieces: expected at least one row"):
        rows.from_iterator(Pieces(X[:0], cuts=()))
    pieces = Pieces(X)
    table = rows.from_iterator(pieces)
    pieces.parts = pieces.parts[:-1]
    with pytest.raises(DomainError, match="expected 12 rows, as before; got 8"):
        table.read_all()
    pieces.parts = [slice(0, 12), slice(0, 12)]
    with pytest.raises(DomainError, match="expected 12 rows, as before; got more than 12"):
        table.read_all()
    pieces.parts, pieces.X = [slice(0, 12)], X[:, :1]
    with pytest.raises(ShapeError, match="data: expected pieces of one width; got 1 after 2"):
        table.read_all()
    with pytest.raises(ShapeError, match="label: expected shape"):
        rows.from_iterator(Pieces(X, y=np.ones((12, 1))))
    pieces = Pieces(X)
    for calls in (0, 2):
        pieces.next = lambda give, calls=calls: [give(X) for _ in range(calls)] or 1
        with pytest.raises(DomainError, match=f"pieces: expected one call of .*; got {calls} call"):
            rows.from_iterator(pieces)


def test_memory_is_two_blocks_measured_from_outside(rng, tmp_path):
    """A child reads 32 MB and then 128 MB, of both kinds; the second adds little to its peak."""
    import pyarrow
    import pyarrow.parquet as parquet

    program = textwrap.dedent("""
        import resource, sys
        import torch
        from posquad import RankOne
        from posquad.problems import rows
        torch.set_num_threads(1)
        for path in sys.argv[1:]:
            read = rows.from_npy if path.endswith("npy") else rows.from_parquet
            operator = RankOne(read(path))
            z, U = torch.ones(operator.n).double(), torch.ones(64, 1).double()
            operator.adjoint_factor_kernel(z, U)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
    """)
    paths = []
    for n in (2**16, 2**18):
        paths += [str(tmp_path / f"{n}.npy"), str(tmp_path / f"{n}.parquet")]
        np.lib.format.open_memmap(paths[-2], "w+", np.float64, (n, 64)).flush()
        column = normal(rng, n).numpy()
        table = pyarrow.table({f"x{k}": column for k in range(64)})
        # One row group whose numbers are stored as they are: what is read is not smaller.
        parquet.write_table(
            table, paths[-1], row_group_size=n, use_dictionary=False, compression="none"
        )
    with subprocess.Popen([sys.executable, "-c", program, *paths], stdout=subprocess.PIPE) as child:
        words = child.stdout.read().split()
        _, ended, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(ended)
    assert child.returncode == 0
    # Two buffers of 16 MB, and freed memory that Arrow keeps for a while, the more the busier
    # the machine is: 24 to 52 MB in all, in kilobytes; the file has 134,000.
    assert usage.ru_maxrss - int(words[1]) < 67_000


def test_converted_rows_are_of_the_same_process():
    source = rows.in_memory(np.ones((2, 2)))
    source.rank = 1
    assert source.to(torch.float32).rank == 1


def test_rows_on_another_device_are_not_those_of_the_cpu(tmp_path):
    """A checkpoint holds sums of the device that made them; rows without a file have none."""
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    table = rows.from_npy(tmp_path / "a.npy")
    assert table.to(torch.float32).fingerprint() == table.fingerprint()
    assert table.to(device="meta").fingerprint() == ["meta", *table.fingerprint()]
    assert rows.in_memory(np.ones((3, 2))).to(device="meta").fingerprint() is None
