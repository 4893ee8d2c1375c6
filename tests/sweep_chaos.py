"""A sweep whose driver and workers are killed at random, for the tests and for `make chaos`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from posquad.sweep.grid import cell_key, cell_seed, cell_text
from posquad.sweep.store import STORE, Store

MODULE = """
import os, random, time
from pathlib import Path
from posquad.sweep import Sweep, product

LOG = Path(__file__).with_name("log.txt")

def cell(parameters, seed):
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{parameters['x']}\\n".encode())
    os.close(log)
    time.sleep(0.004)
    return {"y": random.Random(seed).random(), "double": 2 * parameters["x"]}

SWEEP = Sweep("chaos", cell, product(x=range(COUNT)))
"""
DRIVER = """
import sys
from posquad.sweep import load_sweep, run_sweep
run_sweep(load_sweep(sys.argv[1]), sys.argv[2], workers=2)
assert "torch" not in sys.modules
"""


@dataclass
class Tally:
    """What happened."""

    drivers: int = 0  # drivers killed
    workers: int = 0  # workers killed
    rounds: int = 0  # stores compared with an undisturbed one
    computed: int = 0
    again: int = 0  # computations beyond the first of a cell: lost with their worker or driver


def run_chaos(folder: Path, kills: int, *, seed: int = 0, count: int = 1500) -> Tally:
    """Kill the driver or a worker `kills` times; check the store after each round."""
    rng, tally = random.Random(seed), Tally()
    while tally.drivers + tally.workers < kills:
        place = folder / f"round{tally.rounds}"
        place.mkdir()
        module, out = place / "module.py", place / "out"
        module.write_text(MODULE.replace("COUNT", str(count)))
        _round(rng, tally, kills, module, out)
        check_store(out, count)
        logged = (place / "log.txt").read_text().split()
        tally.computed += len(logged)
        tally.again += len(logged) - len(set(logged))
        assert len(set(logged)) == count
        tally.rounds += 1
    return tally


def _round(rng: random.Random, tally: Tally, kills: int, module: Path, out: Path) -> None:
    log, done, seen = module.with_name("log.txt"), set[str](), 0
    while True:
        driver = _start(module, out)
        ended = _disturb(rng, tally, kills, driver, out)
        driver.wait()
        text = log.read_text() if log.exists() else ""
        logged, seen = text[seen:].split(), len(text)
        assert not done & set(logged), "a finished cell was computed again"
        if ended:
            assert driver.returncode == 0
            return
        assert driver.returncode == -signal.SIGKILL
        _wait_for_orphans(driver.pid)
        seen = len(log.read_text()) if log.exists() else 0
        done = stored(out)


def _start(module: Path, out: Path) -> subprocess.Popen:
    words = [sys.executable, "-c", DRIVER, str(module), str(out)]
    quiet = {"PYTHONWARNINGS": "ignore:resource_tracker"}  # of loky, after its driver was killed
    return subprocess.Popen(words, start_new_session=True, env=os.environ | quiet)


def _disturb(
    rng: random.Random, tally: Tally, kills: int, driver: subprocess.Popen, out: Path
) -> bool:
    """Kill workers until the driver is killed (False) or has ended by itself (True)."""
    while tally.drivers + tally.workers < kills:
        before = len(stored(out))
        while driver.poll() is None and len(stored(out)) == before:
            time.sleep(0.02)  # until something has been stored since the last kill
        time.sleep(rng.uniform(0.0, 0.25))
        if driver.poll() is not None:
            break
        if rng.random() < 0.4:
            os.kill(driver.pid, signal.SIGKILL)
            tally.drivers += 1
            return False
        found = workers_of(driver.pid)
        if found:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)
                tally.workers += 1
    driver.wait(timeout=120)
    return True


def workers_of(pid: int) -> list[int]:
    """Processes of the pools of a driver."""
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with suppress(psutil.Error):
                if "popen_loky_posix" in " ".join(child.cmdline()):
                    found.append(child.pid)
    return found


def _wait_for_orphans(session: int) -> None:
    """Wait until the workers of a killed driver have noticed and ended."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        left = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == session and process.status() != "zombie":
                    left.append(process.pid)
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError("the workers of a killed driver did not end")


def stored(out: Path) -> set[str]:
    """The finished cells, as they are in the log."""
    if not (out / STORE).exists():
        return set()
    try:
        with Store.read(out) as store:
            return {str(row.parameters["x"]) for row in store.rows("done")}
    except Exception as problem:  # the store is being made
        if "another kind of database" in str(problem) or "no such table" in str(problem):
            return set()
        raise


def check_store(out: Path, count: int) -> None:
    """The store equals, bit for bit, what an undisturbed run stores."""
    expected = {}
    for x in range(count):
        text = cell_text({"x": x})
        key = cell_key("chaos", 1, text)
        y = random.Random(cell_seed(key)).random()
        expected[key] = (text, cell_seed(key), "done", {"double": 2 * x, "y": y})
    with Store.read(out) as store:
        found = {
            row.key: (cell_text(row.parameters), row.seed, row.status, row.result)
            for row in store.rows()
        }
    wrong = {key: found.get(key) for key in expected if found.get(key) != expected[key]}
    assert not wrong
    assert set(found) == set(expected)
