"""Recovery from Dask collections: a real cluster of two processes, against `recover` in memory."""

from __future__ import annotations

import os
import signal
import time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as parquet
import pytest
from distributed import Client, Event, LocalCluster
from distributed.client import FutureCancelledError

from posquad import recover
from posquad.core.errors import DomainError, DtypeError, NonFiniteError, ShapeError
from posquad.core.status import Status
from posquad.distributed import dask_recover
from posquad.distributed.cluster import _finished
from posquad.distributed.partitions import _cuts
from posquad.problems import rows
from posquad.problems.rows.group import GroupError

N, D, RANK = 5000, 5, 2
ROUNDING = 1e-12  # relative: the sums are over other blocks than in memory


@pytest.fixture(scope="module")
def client():
    """Two workers, each a process of one thread."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, RANK))
    y = ((X @ U) ** 2).sum(1)
    return X, y + 0.1 * y.std() * rng.standard_normal(N), rng.random(N)


def assert_same(found, expected):
    assert found.status is expected.status
    assert found.rows == expected.rows
    difference = np.linalg.norm(found.Q.dense() - expected.Q.dense())
    assert difference < ROUNDING * np.linalg.norm(expected.Q.dense())
    np.testing.assert_allclose(found.residual, expected.residual, rtol=1e-10)


def test_an_array_in_uneven_chunks(client, samples):
    """X has chunks along the columns and an empty one; y has other chunks, weights are NumPy's."""
    X, y, w = samples
    found = dask_recover(
        client,
        da.from_array(X, chunks=((1000, 0, 3000, 1000), (2, 3))),
        da.from_array(y, chunks=700),
        RANK,
        weights=w,
    )
    assert_same(found, recover(X, y, RANK, weights=w))


def test_a_data_frame_of_unknown_lengths(client, samples):
    """Filters leave partitions of unknown lengths, one of them empty; y comes from another."""
    X, y, _ = samples
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame["y"], frame["kept"] = y, np.arange(N) % 9 > 0
    frame.loc[2000:2999, "kept"] = False
    table = dd.from_pandas(frame, npartitions=5)
    table = table[table["kept"]]
    other = dd.from_pandas(frame.loc[frame["kept"], "y"].reset_index(drop=True), npartitions=3)
    kept = frame["kept"].to_numpy()
    expected = recover(X[kept], y[kept])
    found = dask_recover(client, table[list("abcde")], other)
    assert_same(found, expected)
    assert int(found.rank) == RANK
    np.testing.assert_array_equal(found.rank_path.rank, expected.rank_path.rank)


def parquet_folder(folder, samples, files, groups):
    """Write the samples, among other columns, to so many files of so many row groups."""
    X, y, w = samples
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame["y"], frame["w"], frame["text"] = y, w, "t"
    for name in ("more", "columns", "than", "are", "used"):
        frame[name] = 1.0
    for k, part in enumerate(np.array_split(np.arange(N), files)):
        table = pyarrow.Table.from_pandas(frame.iloc[part], preserve_index=False)
        parquet.write_table(table, folder / f"{k}.parquet", row_group_size=-(-len(part) // groups))
    return folder


@pytest.mark.parametrize(("files", "groups", "split"), [(2, 1, False), (3, 4, True)])
def test_a_folder_of_parquet_files(client, samples, files, groups, split, tmp_path):
    """Dask reads few columns of many with joined partitions, as soon as it optimizes."""
    X, y, w = samples
    parquet_folder(tmp_path, samples, files, groups)
    table = dd.read_parquet(tmp_path, split_row_groups=split)
    assert table.npartitions == (files * groups if split else files)
    inputs = table[list("abcde")]
    assert_same(dask_recover(client, inputs, table["y"], RANK), recover(X, y, RANK))
    found = dask_recover(client, inputs * 1.0, y, RANK, weights=table["w"])
    assert_same(found, recover(X, y, RANK, weights=w))


def test_partitions_that_dask_lost_are_not_left_out(client, samples, tmp_path):
    """`persist` of Dask 2026.8 joins partitions and forgets to say so; no rows may go missing."""
    X, y, _ = samples
    table = dd.read_parquet(parquet_folder(tmp_path, samples, 4, 1))
    held = client.persist(table[list("abcde")])
    try:
        assert len(held) == N  # a Dask that does it right
    except FutureCancelledError:
        with pytest.raises(DomainError, match=r"X: expected .* not persisted, .* got 2 of its 4"):
            dask_recover(client, held, y, RANK)
    else:
        assert_same(dask_recover(client, held, y, RANK), recover(X, y, RANK))
    whole = client.persist(dd.from_pandas(pd.DataFrame(X), npartitions=3))
    assert_same(dask_recover(client, whole, y, RANK), recover(X, y, RANK))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rank": RANK, "max_steps": 1}, {"status": Status.INTERRUPTED}),
        ({"rank": RANK, "time_limit": 1e-9}, {"status": Status.INTERRUPTED}),
        ({"max_rank": 1}, {"rank": 1}),
        ({"rank": RANK, "tolerance": 0.5}, {"status": Status.NOT_IDENTIFIED}),
        ({"rank": RANK, "max_starts": 1}, {"starts": 1}),
    ],
)
def test_options_reach_the_workers(client, samples, options, expected):
    X, y, _ = samples
    found = dask_recover(client, da.from_array(X, chunks=(2500, -1)), y, **options)
    alone = recover(rows.in_memory(X), y, **options)
    for name, value in expected.items():
        assert getattr(found, name) == getattr(alone, name) == value


def test_an_error_is_not_kept_back_by_tasks_that_wait(client):
    """After it, the others have a moment to end as well."""
    go = Event("go", client=client)

    def fail():
        raise ZeroDivisionError

    slow = client.submit(lambda: Event("go").wait(60), pure=False)
    failed = client.submit(fail, pure=False)
    begin = time.monotonic()
    try:
        with pytest.raises(ZeroDivisionError):
            _finished(client, [slow, failed], (), timeout=0.1)
        assert time.monotonic() - begin < 20
    finally:
        go.set()


def test_the_cause_is_told_though_others_report_it_first(client):
    """A process of the group ends when another does, often before that one has said why."""

    def follow():
        Event("told").set()
        raise GroupError("rank 1", expected="an answer", got="none")

    def cause():
        Event("told").wait(60)
        time.sleep(1)
        raise ZeroDivisionError

    futures = [client.submit(each, pure=False) for each in (follow, cause)]
    with pytest.raises(ZeroDivisionError):
        _finished(client, futures, (), timeout=20)


def test_tasks_stay_with_the_rows_of_their_worker(client, samples, monkeypatch):
    X, y, _ = samples
    asked, submit = [], client.submit

    def watched(function, *arguments, **options):
        asked.append((function.__name__, options))
        return submit(function, *arguments, **options)

    monkeypatch.setattr(client, "submit", watched)
    dask_recover(client, client.persist(da.from_array(X, chunks=(1250, -1))), y, RANK)
    workers = [options["workers"] for name, options in asked if name == "run_rank"]
    assert {len(each) for each in workers} == {1}
    assert len({each[0] for each in workers}) == len(workers)
    for _, options in asked:  # a task is never moved, nor taken for an earlier one
        assert (options["allow_other_workers"], options["pure"]) == (False, False)


def test_more_columns_than_moments_take(client):
    """Passes over the rows, after a start from those that fit into memory; float32 inputs."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1200, 101)).astype(np.float32)
    U = rng.standard_normal((101, 1))
    y = (X.astype(float) @ U)[:, 0] ** 2
    found = dask_recover(client, da.from_array(X, chunks=(500, -1)), da.from_array(y), 1)
    assert found.status.name == "RECOVERED"
    assert np.linalg.norm(found.Q.dense() - U @ U.T) < 1e-5 * np.linalg.norm(U @ U.T)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"X": np.ones((3, 2))}, DtypeError, "X: expected a dask array or data frame; got ndarray"),
        ({"X": da.ones(3)}, ShapeError, "X: expected shape .n, d.; got 1 dimensions"),
        ({"X": da.ones((3, 2), dtype="M8[s]")}, DtypeError, "X: expected real numbers; got dtype"),
        ({"y": da.ones(7)}, ShapeError, "y: expected 5000 rows, as X has; got 7"),
        ({"y": np.ones(7)}, ShapeError, "y: expected 5000 rows, as X has; got 7"),
        ({"y": [1.0]}, DtypeError, "y: expected a dask array or series.*; got list"),
        ({"weights": da.ones((N, 1))}, DtypeError, "weights: .* got Array of 2 dimensions"),
        ({"timeout": 0}, DomainError, "timeout: expected a finite number > 0; got 0"),
        ({"client": 1}, DomainError, "client: expected a distributed.Client; got int"),
    ],
)
def test_arguments_that_cannot_be_used(client, samples, change, error, words):
    X, y, _ = samples
    given = {"client": client, "X": da.from_array(X, chunks=2500), "y": y} | change
    with pytest.raises(error, match=words):
        dask_recover(**given)


def test_a_client_that_was_closed(client):
    with Client(client.scheduler.address) as other:
        pass
    with pytest.raises(DomainError, match="client: expected a client that is open; got one that"):
        dask_recover(other, da.ones((3, 1)), da.ones(3))


def test_a_column_of_text(client):
    table = dd.from_pandas(pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}), npartitions=1)
    with pytest.raises(DtypeError, match="X: column 'b': expected real numbers; got dtype"):
        dask_recover(client, table, np.ones(2))


def test_numbers_that_are_not_finite_are_named(client, samples):
    X, y, _ = samples
    broken = X.copy()
    broken[2600, 3] = np.nan
    words = "X: expected finite numbers; got NaN in row 100 of partition 1, column 3"
    with pytest.raises(NonFiniteError, match=words):
        dask_recover(client, da.from_array(broken, chunks=(2500, -1)), y, RANK)
    late = da.from_array(np.where(np.arange(N) == 4999, np.inf, y), chunks=2500)
    with pytest.raises(NonFiniteError, match=r"y: .* an infinity in row 999 of partition 2"):
        dask_recover(client, da.from_array(X, chunks=(2000, -1)), late, RANK)


def test_blocks_are_cut_to_other_lengths():
    held, wanted = [3, 0, 4, 5], [0, 1, 7, 0, 4]
    rows = np.split(np.arange(12), np.cumsum(held)[:-1])
    found = [[r for k, a, b in pieces for r in rows[k][a:b]] for pieces in _cuts(held, wanted)]
    assert [len(each) for each in found] == wanted
    assert [row for each in found for row in each] == list(range(12))


def test_a_worker_that_is_killed(client, samples):
    """The last test, because it takes a worker of the cluster."""
    X, y, _ = samples
    inputs = client.persist(da.from_array(X, chunks=(500, -1)))
    victim = max(client.nthreads())

    def die_in_the_group():
        import posquad.distributed.worker as worker

        worker.recover = lambda *given, **options: os.kill(os.getpid(), signal.SIGKILL)

    client.run(die_in_the_group, workers=[victim])
    words = f"the workers of the cluster to go on; got worker {victim} that ended"
    with pytest.raises(GroupError, match=words):
        dask_recover(client, inputs, y, RANK, timeout=20)


def test_a_cluster_without_workers():
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as empty,
        pytest.raises(DomainError, match="client: expected a cluster with workers; got none"),
    ):
        dask_recover(empty, da.ones((3, 1)), da.ones(3))


def test_workers_of_one_process():
    options = {"dashboard_address": ":0", "silence_logs": 50}
    with (
        LocalCluster(n_workers=2, processes=False, **options) as cluster,
        Client(cluster) as threads,
    ):
        X = threads.persist(da.ones((40, 1), chunks=(1, 1)))
        with pytest.raises(DomainError, match="workers in processes of their own; got several"):
            dask_recover(threads, X, da.ones(40))
