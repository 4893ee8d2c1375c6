"""Fits of a file that are killed and go on from their checkpoints, for the tests and `make chaos`.

    python tests/checkpoint_chaos.py FOLDER SEED ROUTE=KILLS ...

Each attempt is a process of its own, forked so that the modules are imported once. It is killed
with SIGKILL: after a random time, or if KILLS is a list such as 3,5
after so many units of work: blocks of rows, or searches at one rank.
After each kill the checkpoint must be whole and no earlier than the one before; the answer must
have the bits of an undisturbed one.

The route "damaged" does something else after each kill: it changes a bit of the checkpoint or of
the cache of a Parquet file, or puts other rows in place of the table, under the same size and time.
The answer must have the bits of an undisturbed fit of the rows that are then in the file; a changed
cache may also end the fit, with a sentence about its checksum, and the fit after that is right.
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
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import torch
import torch.distributed as distributed

import posquad.recovery.pipeline as pipeline
import posquad.recovery.streams.gather as gather
from posquad import recover
from posquad.core.files import FileError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.problems.rows import disk, operator, source
from posquad.recovery import Checkpoint
from posquad.recovery.streams import entry

ROUTES = ("moments", "passes", "again", "linear", "command", "group", "group-passes")
DAMAGES = ("cache", "rows of Parquet", "rows", "checkpoint")
N, D = 5000, 12
_CACHES = ".x.parquet.*.npy"
_MARK = 30  # first bytes of a checkpoint; without them it is another file, which is refused
_REFUSED = 3  # exit status of a process that found a damaged cache
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
    write_parquet(folder, X)


def write_parquet(folder: Path, X: np.ndarray) -> None:
    """Write inputs so that others take as many bytes, and the footer says nothing about them."""
    table = pyarrow.table({f"x{k}": column for k, column in enumerate(X.T)})
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(table, folder / "x.parquet", **plain)


def fit(folder: Path, route: str, place: Path) -> None:
    """Fit by one of the routes, and write the answer to `place`."""
    y = np.load(folder / "y.npy")
    if route == "parquet":
        table: disk.NpyRows = rows.from_parquet(folder / "x.parquet")
    else:
        table = rows.from_npy(folder / "x.npy")
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
    return numbers["pass"], numbers["rows"]


def attempt(folder: Path, route: str, place: Path, units: int | None, seconds: float) -> str:
    """Fit in a process that is killed after some units of work or seconds; say how it ended."""
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
            refused = isinstance(problem, FileError) and "by their checksum" in str(problem)
            os._exit(_REFUSED if refused else 1)
        os._exit(0)
    if units is None and seconds:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with suppress(ProcessLookupError, PermissionError):  # the second process of a group
        os.killpg(pid, signal.SIGKILL)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "killed"
    assert os.WEXITSTATUS(status) in (0, _REFUSED), "a process failed"
    return "refused" if os.WEXITSTATUS(status) else "ended"


def _die_after(units: int) -> None:
    """Kill this process after so many blocks of rows and searches."""
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
    pipeline.search = counted(pipeline.search)


def _each(function, counted):
    def blocks(*arguments):
        for item in function(*arguments):
            counted(lambda: None)()
            yield item

    return blocks


def run(folder: Path, route: str, kills: list[int] | int, seed: int = 0) -> tuple[int, int]:
    """Kill fits of one route; return how many were killed, and how many answers were compared."""
    _prepare(folder, route)
    expected, answer = folder / "expected", folder / "answer"
    state = folder / ("model.checkpoint" if route == "command" else "state")
    begin = time.monotonic()
    assert attempt(folder, route, expected, None, 0.0) == "ended"
    whole, rng = time.monotonic() - begin, random.Random(seed)
    killed, compared, before = 0, 0, ()
    plan = list(kills) if isinstance(kills, list) else None
    while True:
        units = plan.pop(0) if plan else None
        last = not plan and units is None if plan is not None else killed >= kills
        seconds = 0.0 if last else rng.uniform(0.0, whole)
        ended = attempt(folder, route, answer, units, 0.0 if plan is not None else seconds)
        if ended == "ended":
            assert answer.read_bytes() == expected.read_bytes(), "another answer"
            assert not list(folder.glob(f"{state.name}*")), "a checkpoint is left"
            compared, before = compared + 1, ()
            answer.unlink()
            if last:
                return killed, compared
            continue
        killed += 1
        after = progress_of(state)
        written = answer.exists() or (folder / "model.safetensors").exists()
        assert after >= before or (not after and written), f"work was lost: {after} after {before}"
        before = () if "group" in route else after  # the second process may have had no state yet


def _prepare(folder: Path, route: str) -> None:
    torch.set_num_threads(1)
    disk.BLOCK_BYTES = source.BLOCK_BYTES = 40_000
    entry.MOMENT_MOST = 0 if "passes" in route else 100
    entry.MEMORY_ENTRIES = 900 * D
    write_table(folder, route)


def run_damaged(folder: Path, trials: int, seed: int = 0) -> tuple[int, int]:
    """Kill fits, and damage or replace a file of theirs before they go on.

    Return how many damaged caches were refused, and how many answers were compared.
    """
    _prepare(folder, "damaged")
    rng, answer = random.Random(seed), folder / "answer"
    originals = {name: (folder / name).read_bytes() for name in ("x.npy", "x.parquet")}
    others = _other_rows(folder)

    def forget_caches() -> None:  # a change of rows that are not read again is not noticed
        for left in folder.glob(_CACHES):
            left.unlink()

    @cache
    def expected(name: str, content: bytes) -> bytes:
        forget_caches()
        _put(folder / name, content)
        route = "parquet" if name == "x.parquet" else "moments"
        assert attempt(folder, route, answer, None, 0.0) == "ended"
        return answer.read_bytes()

    refused = 0
    for k in range(trials):
        damage = DAMAGES[k % len(DAMAGES)]
        name = "x.parquet" if damage in ("cache", "rows of Parquet") else "x.npy"
        route = "parquet" if name == "x.parquet" else "moments"
        for clean, content in originals.items():
            _put(folder / clean, content)
        forget_caches()
        ended = attempt(folder, route, answer, rng.randrange(2, 15), 0.0)
        if ended == "killed":
            content = originals[name]
            if damage == "checkpoint":
                _flip(folder / "state", rng, _MARK)
            elif damage == "cache":
                for left in folder.glob(_CACHES):
                    _flip(left, rng)
            else:
                content = others[name]
                _put(folder / name, content)
            ended = attempt(folder, route, answer, None, 0.0)
            if ended == "refused":
                refused += 1
                assert damage == "cache", "a whole cache was refused"
                ended = attempt(folder, route, answer, None, 0.0)
        assert ended == "ended", "a fit did not end"
        found = answer.read_bytes()
        assert found == expected(name, content), f"another answer: {damage}"
        answer.unlink()
    return refused, trials


def _other_rows(folder: Path) -> dict[str, bytes]:
    """The files of other inputs, each as long as the one in the folder."""
    before = {name: (folder / name).read_bytes() for name in ("x.npy", "x.parquet")}
    X = np.random.default_rng(1).standard_normal((N, D))
    np.save(folder / "x.npy", X)
    write_parquet(folder, X)
    others = {name: (folder / name).read_bytes() for name in before}
    assert {len(data) for data in others.values()} == {len(data) for data in before.values()}
    return others


def _put(path: Path, content: bytes) -> None:
    """Write a file with a time that is always the same."""
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))


def _flip(path: Path, rng: random.Random, first: int = 0) -> None:
    """Change one bit of a file, from this byte on."""
    if not path.exists():
        return
    content = bytearray(path.read_bytes())
    content[rng.randrange(first, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def main() -> None:
    folder, seed, *routes = sys.argv[1:]
    for k, (route, kills) in enumerate(word.split("=") for word in routes):
        place = Path(folder, f"{k}{route}")
        place.mkdir()
        if route == "damaged":
            refused, compared = run_damaged(place, int(kills), int(seed))
            told = json.dumps({"route": route, "refused": refused, "compared": compared})
        else:
            wanted = [int(k) for k in kills.split(",")] if "," in kills else int(kills)
            killed, compared = run(place, route, wanted, int(seed))
            told = json.dumps({"route": route, "killed": killed, "compared": compared})
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
