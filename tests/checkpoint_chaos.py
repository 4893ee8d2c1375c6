"""Fits of a file that are killed and go on from their checkpoints, for the tests and `make chaos`.

    python tests/checkpoint_chaos.py FOLDER SEED ROUTE=KILLS ...

Each attempt is a process of its own, forked so that the modules are imported once. It is killed
with SIGKILL: after a random time, or if KILLS is a list such as 3,5
after so many units of work: blocks of rows, or descents of the search.
After each kill the checkpoint must be whole and no earlier than the one before; the answer must
have the bits of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

import posquad.recovery.streams.descents as descents
import posquad.recovery.streams.gather as gather
from posquad import recover
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.problems.rows import disk, operator, source
from posquad.recovery import Checkpoint
from posquad.recovery.streams import entry

ROUTES = ("moments", "passes", "again", "linear", "command", "group", "group-passes")
N, D = 5000, 12
_OFTEN = 1e-9  # seconds between two states: one after every block


def write_table(folder: Path, route: str) -> None:
    """Write inputs and noisy responses; for the route "again", with first rows unlike the rest."""
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, 2))
    if route == "again":
        X[:4200] *= 1e-3
    y = ((X @ U) ** 2).sum(1)
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", y + 0.1 * y.std() * rng.standard_normal(N))
    np.save(folder / "table.npy", np.column_stack([X, np.load(folder / "y.npy")]))


def fit(folder: Path, route: str, place: Path) -> None:
    """Fit by one of the routes, and write the answer to `place`."""
    y, table = np.load(folder / "y.npy"), rows.from_npy(folder / "x.npy")
    checkpoint = Checkpoint(folder / "state", every=_OFTEN, keep=True, tell=_tell)
    if route == "command":
        from posquad.cli.main import main
        from posquad.io.tables import _memory

        _memory.STREAMED = 1
        words = ["fit", str(folder / "table.npy"), "--response", f"x{D + 1}", "--out", str(folder)]
        main([*words, "--checkpoint-every", str(_OFTEN)], standalone_mode=False)
        (folder / "model.safetensors").rename(place)
        return
    if route == "linear":
        w = np.random.default_rng(1).random(N)
        model = PositiveQuadraticRegressor(linear=True).fit(table, y, w, checkpoint=checkpoint)
        found = {"U": model.components_, "b": model.coef_, "history": model.history_}
        found["errors"] = model.predict(np.eye(D), return_std=True)[1]
    else:
        rank = 0
        if route.startswith("group"):
            rank, table, y = join_group(folder, table, y)
        known = recover(table, y, 2 if "passes" in route else None, checkpoint=checkpoint)
        if rank:
            os._exit(0)
        names = ("U", "history", "residual", "curvature", "error_estimate", "steps", "starts")
        found = {name: getattr(known, name) for name in names}
    with place.open("wb") as file:
        np.savez(file, **found)
    checkpoint.remove()


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def join_group(folder: Path, table: disk.NpyRows, y: np.ndarray) -> tuple[int, rows.Rows, Any]:
    """Fork a second process; return the rank of this one, and its rows and responses."""
    store = f"file://{folder}/store{os.getpid()}"
    rank = int(os.fork() == 0)
    distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    return rank, rows.sharded(table.part(rank, 2)), y[table.part_rows(rank, 2)]


def progress_of(state: Path) -> tuple:
    """How far a checkpoint is; it must be whole."""
    if not state.exists():
        return ()
    line, _, arrays = state.read_bytes().partition(b"\n")
    body = json.loads(line)
    assert body["arrays_sha256"] == hashlib.sha256(arrays).hexdigest(), "a torn checkpoint"
    numbers = body["numbers"]
    if body["phase"] == "passes":
        return len(numbers["losses"]), numbers["rows"] or 0
    return numbers["pass"], numbers["rows"], len(numbers.get("descents", ()))


def attempt(folder: Path, route: str, place: Path, units: int | None, seconds: float) -> bool:
    """Fit in a process that is killed after some units of work or seconds; True if it ended."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if units is not None:
            _die_after(units)
        try:
            fit(folder, route, place)
        except BaseException as problem:
            _tell(str(problem))
            os._exit(1)
        os._exit(0)
    if units is None and seconds:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with suppress(ProcessLookupError, PermissionError):  # the second process of a group
        os.killpg(pid, signal.SIGKILL)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.WEXITSTATUS(status) == 0, "a process failed"
    return not killed


def _die_after(units: int) -> None:
    """Kill this process after so many blocks of rows and descents."""
    left = [units]

    def counted(function):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    gather.Moments.add = counted(gather.Moments.add)
    operator.RankOneRows.split = _each(operator.RankOneRows.split, counted)
    descents.Descents.next = counted(descents.Descents.next)


def _each(function, counted):
    def blocks(*arguments):
        for item in function(*arguments):
            counted(lambda: None)()
            yield item

    return blocks


def run(folder: Path, route: str, kills: list[int] | int, seed: int = 0) -> tuple[int, int]:
    """Kill fits of one route; return how many were killed, and how many answers were compared."""
    torch.set_num_threads(1)
    disk.BLOCK_BYTES = source.BLOCK_BYTES = 40_000
    entry.MOMENT_MOST = 0 if "passes" in route else 100
    entry.MEMORY_ENTRIES = 900 * D
    write_table(folder, route)
    expected, answer = folder / "expected", folder / "answer"
    state = folder / ("model.checkpoint" if route == "command" else "state")
    begin = time.monotonic()
    assert attempt(folder, route, expected, None, 0.0)
    whole, rng = time.monotonic() - begin, random.Random(seed)
    killed, compared, before = 0, 0, ()
    plan = list(kills) if isinstance(kills, list) else None
    while True:
        units = plan.pop(0) if plan else None
        last = not plan and units is None if plan is not None else killed >= kills
        seconds = 0.0 if last else rng.uniform(0.0, whole)
        if attempt(folder, route, answer, units, 0.0 if plan is not None else seconds):
            assert answer.read_bytes() == expected.read_bytes(), "another answer"
            assert not list(folder.glob(f"{state.name}*")), "a checkpoint is left"
            compared, before = compared + 1, ()
            answer.unlink()
            if last:
                return killed, compared
            continue
        killed += 1
        after = progress_of(state)
        ended = answer.exists() or (folder / "model.safetensors").exists()
        assert after >= before or (not after and ended), f"work was lost: {after} after {before}"
        before = () if "group" in route else after  # the second process may have had no state yet


def main() -> None:
    folder, seed, *routes = sys.argv[1:]
    for k, (route, kills) in enumerate(word.split("=") for word in routes):
        place = Path(folder, f"{k}{route}")
        place.mkdir()
        wanted = [int(k) for k in kills.split(",")] if "," in kills else int(kills)
        killed, compared = run(place, route, wanted, int(seed))
        told = json.dumps({"route": route, "killed": killed, "compared": compared})
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
