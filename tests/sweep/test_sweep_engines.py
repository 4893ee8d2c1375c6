"""Processes of joblib and of Dask: the same store, one BLAS thread, and workers that die."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing

import distributed
import numpy as np
import pytest

from posquad.sweep import Sweep, load_sweep, product, read_table, run_sweep
from posquad.sweep.compute import Task
from posquad.sweep.engines import EngineError, engine_for
from posquad.sweep.state import failed_cells

KILLER = """
import os, signal
from posquad.sweep import Sweep, product

def cell(parameters, seed):
    if parameters["x"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    threads = int(os.environ.get("OMP_NUM_THREADS", 0))
    return {"y": seed % 1000, "threads": threads, "process": os.getpid()}

SWEEP = Sweep("killer", cell, product(x=range(40)))
"""


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_cell_that_kills_its_worker_is_failed_and_the_others_are_done(
    tmp_path, engine, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (tmp_path / "killer.py").write_text(KILLER)
    sweep = load_sweep(tmp_path / "killer.py")
    swept = run_sweep(sweep, tmp_path / "out", workers=1, engine=engine)
    assert (swept.done, swept.failed, swept.left) == (39, 1, 0)
    (row,) = failed_cells(tmp_path / "out")
    assert row.parameters == {"x": 7}
    assert row.message == "The worker died 2 times while it computed this cell."
    table = read_table(tmp_path / "out")
    assert sorted(table["x"].tolist()) == [x for x in range(40) if x != 7]
    assert np.array_equal(table["y"], table["seed"] % 1000)
    assert table.values("threads") == [1]
    assert os.getpid() not in table.values("process")


def test_a_group_that_has_begun_is_not_begun_again_by_the_engine(tmp_path):
    """The driver decides what follows; a group that kills would kill as often as it is tried."""
    log = tmp_path / "log"

    def cell(parameters, seed):
        with log.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    with closing(engine_for(Sweep("local", cell, product(x=[0])), workers=1)) as engine:
        engine.submit(1, Task((("a", {"x": 0}, 0),)))
        assert _collected(engine) == [(1, None)]
    assert log.read_text() == "x"


def test_a_process_that_dies_while_it_waits_costs_nothing(tmp_path):
    """The pool of an idle process refuses the next group at once."""
    sweep = Sweep("local", lambda p, seed: {"process": os.getpid()}, product(x=range(2)))
    with closing(engine_for(sweep, workers=1)) as engine:
        engine.submit(1, Task((("a", {"x": 0}, 0),)))
        ((_, first),) = _collected(engine)
        (killed,) = (outcome.result["process"] for outcome in first.outcomes)
        os.kill(killed, signal.SIGKILL)
        (pool,) = engine.idle
        while pool._flags.broken is None:
            time.sleep(0.01)
        engine.submit(2, Task((("b", {"x": 1}, 0),)))
        ((number, second),) = _collected(engine)
    assert number == 2
    assert second.outcomes[0].result["process"] != killed


def _collected(engine):
    while not (found := engine.collect(1.0)):
        pass
    return found


def test_a_function_of_this_process_can_be_sent_to_workers(tmp_path):
    factor = 5
    sweep = Sweep("local", lambda p, seed: {"y": factor * p["x"]}, product(x=range(3)))
    run_sweep(sweep, tmp_path, workers=1)
    assert read_table(tmp_path)["y"].tolist() == [0, 5, 10]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def cluster():
    """A scheduler at an address, with workers that are threads of this process."""
    local = {"host": "127.0.0.1", "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, silence_logs=50, **local
    ) as made:
        yield made


def test_a_given_scheduler_is_used_and_left_running(tmp_path, cluster):
    sweep = Sweep("local", lambda p, seed: {"y": seed % 1000 + p["x"]}, product(x=range(40)))
    there = {"engine": "dask", "scheduler": cluster.scheduler_address}
    with closing(engine_for(sweep, "dask", scheduler=there["scheduler"])) as engine:
        assert engine.workers == 2
    assert run_sweep(sweep, tmp_path / "dask", **there).computed == 40
    assert run_sweep(sweep, tmp_path / "dask", **there).computed == 0
    run_sweep(sweep, tmp_path / "here", workers=0)
    for name in ("x", "y", "seed"):
        one, other = (read_table(tmp_path / place) for place in ("dask", "here"))
        assert sorted(one[name].tolist()) == sorted(other[name].tolist())


def test_a_scheduler_that_goes_away_is_one_sentence(cluster):
    sweep = Sweep("local", lambda p, seed: {"y": time.sleep(1) or 1}, product(x=range(2)))
    with closing(engine_for(sweep, "dask", scheduler=cluster.scheduler_address)) as engine:
        engine.submit(1, Task((("a", {"x": 0}, 0),)))
        cluster.close()
        with pytest.raises(EngineError, match="a scheduler that answers; got a connection that"):
            _collected(engine)


def test_a_scheduler_that_does_not_answer_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("Timed out trying to connect to tcp://127.0.0.1:9 after 10 s")

    monkeypatch.setattr(distributed, "Client", refuse)
    sweep = Sweep("local", lambda p, seed: {"y": 1}, product(x=range(3)))
    with pytest.raises(EngineError, match="expected a Dask scheduler that answers; got Timed"):
        run_sweep(sweep, tmp_path, engine="dask", scheduler="tcp://127.0.0.1:9")
