"""The program of the three processes of `test_rows_in_a_group`: `group_program.py STORE RANK`."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as distributed

from posquad import Interrupted, LeastSquares, RankOne, recover
from posquad.core.errors import PosquadError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.recovery import moment_matrix, spectral_initializer
from posquad.recovery.streams import entry

N, D, SIZE = 5000, 8, 3
SHORT = 3.0  # seconds: a timeout that ends a test soon


def samples():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, 2))
    y = ((X @ U) ** 2).sum(1)
    return X, y + 0.1 * y.std() * rng.standard_normal(N), rng.random(N)


def answers(source, X, y, w):
    """The gradient, and the answers by moments, by passes and of few rows, for rows held here."""
    found = {"gradient": LeastSquares(RankOne(source), y).gradient(np.ones((D, 1)))}
    found["moments"] = recover(source, y, 2, weights=w).Q.dense()
    model = PositiveQuadraticRegressor(2).fit(source, y, w)
    found["error"] = model.predict(samples()[0][:9], return_std=True)[1]
    found["score"] = np.array(model.score(source, y, w))
    most, entry.MOMENT_MOST = entry.MOMENT_MOST, 0
    entries, entry.MEMORY_ENTRIES = entry.MEMORY_ENTRIES, 300 * D
    passes = recover(source, y, 2)
    entry.MOMENT_MOST, entry.MEMORY_ENTRIES = most, entries
    return found | {"passes": passes.Q.dense(), "steps": np.array(passes.steps)}


def starts(X, y, kinds=("moment", "bounded", "interpolant")):
    """The moment matrix, and what the initial factors of these kinds predict."""
    found = {"moment matrix": moment_matrix(X, y)}
    for kind in kinds:
        U = spectral_initializer(X, y, 2, kind=kind)
        found[f"start {kind}"] = U @ U.T
    return found


def faults(rank, store):
    """Each a call that one process cannot make; return what this one says about it."""
    X, y, w = samples()
    own = [slice(0, 2500), slice(2500, N), slice(N, N)][rank]
    broken = X.copy()
    broken[4600] = np.nan
    source = rows.sharded(X[own])
    calls = {
        "nan": lambda: recover(rows.sharded(np_rows(broken[own], store, rank)), y[own], 2),
        "array": lambda: rows.sharded(broken[own]),
        "y": lambda: recover(source, np.where(np.isnan(broken[:, 0]), np.inf, y)[own], 2),
        "none": lambda: rows.sharded(None if rank == 1 else X[own]),
        "list": lambda: rows.sharded([] if rank == 1 else X[own]),
        "integers": lambda: rows.sharded(X[own].astype(int)) and None,
        "ranks": lambda: recover(source, y[own], 2 + (rank == 1), seed=rank),
        "linear": lambda: PositiveQuadraticRegressor(2, linear=rank == 1).fit(source, y[own]),
        "widths": lambda: rows.sharded(X[own, : D - (rank == 1)]),
        "dtypes": lambda: rows.sharded(X[own].astype("f4" if rank == 1 else "f8")),
        "responses": lambda: recover(source, y[own][rank == 1 :], 2),
        "start": lambda: spectral_initializer(source, y[own][rank == 1 :], 2),
        "kinds": lambda: spectral_initializer(source, y[own], 2 + (rank == 1)),
        "weights": lambda: recover(source, y[own], 2, weights=w[own] if rank else None),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "no error"
        except PosquadError as problem:
            said[name] = str(problem)
    return said


def slow_decision(rank, own):
    """Rank 0 takes longer for a decision than the timeout, and says so."""
    source = rows.sharded(own, timeout=SHORT)
    with source.together():
        return source.broadcast(lambda: time.sleep(2 * SHORT) or "decided")


def early_leave(rank, own):
    """Rank 1 leaves with an error that the others do not have."""
    source = rows.sharded(own)
    try:
        with source.together():
            if rank == 1:
                raise MemoryError
            source.total(torch.zeros(1))
    except (MemoryError, PosquadError) as problem:
        return str(problem) or type(problem).__name__


class InterruptedRows(rows.Rows):
    """Rows in memory whose fourth pass begins with Ctrl-C."""

    def __init__(self, X):
        self.inside, self.taken = rows.in_memory(X), 0
        self.n, self.d = X.shape

    def _blocks(self):
        self.taken += 1
        if self.taken == 4:
            os.kill(os.getpid(), signal.SIGINT)
        yield from self.inside.blocks()


def interrupted(rank, own, y):
    """Ctrl-C on rank 0, in the pass after the first step."""
    source = rows.sharded(InterruptedRows(own) if rank == 0 else own)
    entry.MOMENT_MOST, entry.MEMORY_ENTRIES = 0, 300 * D
    try:
        recover(source, y, 2)
    except Interrupted as stop:
        return stop.result
    except PosquadError as problem:
        return str(problem)


def np_rows(X, store, rank):
    """Rows of a file, whose numbers are looked at when they are read."""
    if not len(X):
        return X
    np.save(f"{store}.x{rank}.npy", X)
    return rows.from_npy(f"{store}.x{rank}.npy")


def end(status):
    """End without waiting for the other processes."""
    sys.stdout.flush()
    os._exit(status)


def main():
    store, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=60),
    )
    pair = distributed.new_group([0, 1], timedelta(seconds=30))
    outer = distributed.new_group([0, 2], timedelta(seconds=SHORT))
    X, y, w = samples()
    cuts = {3: [0, 4000, 4000, N], 2: [0, 7, N]}
    for size, group in ((3, None), (2, pair)):
        if rank < size:
            own = slice(cuts[size][rank], cuts[size][rank + 1])
            source = rows.sharded(X[own], group)
            found = answers(source, X[own], y[own], w[own])
            few = slice(100 * rank, 100 * rank + 100)
            found["few"] = recover(rows.sharded(X[few], group), y[few], 2).Q.dense()
            found |= starts(source, y[own])
            few = slice(10 * rank, 10 * rank + 10)
            few_starts = starts(rows.sharded(X[few], group), y[few], ["interpolant"])
            found["few start"] = few_starts["start interpolant"]
            for name, value in found.items():
                np.save(f"{store}.{size}.{name}.{rank}.npy", value)
    for name, words in faults(rank, store).items():
        sys.stdout.write(f"{name}: {words}\n")
    own = slice(cuts[3][rank], cuts[3][rank + 1])
    sys.stdout.write(f"slow: {slow_decision(rank, X[own])}\n")
    sys.stdout.write(f"leaves: {early_leave(rank, X[own])}\n")
    stopped = interrupted(rank, X[own], y[own])
    if rank == 0:
        np.savez(f"{store}.interrupted.npz", Q=stopped.Q.dense(), residual=stopped.residual)
        stopped = stopped.status.name
    sys.stdout.write(f"interrupted: {stopped}\n")
    pids = [None] * SIZE
    distributed.all_gather_object(pids, os.getpid())
    die(rank, outer, X, y, "hangs", 2, signal.SIGSTOP)
    if rank == 0:
        os.kill(pids[2], signal.SIGKILL)
    die(rank, pair, X, y, "killed", 1, signal.SIGKILL)
    end(1)


def die(rank, group, X, y, name, victim, number):
    """Rank 0 and another, which is stopped or killed, work together; rank 0 says how that ends."""
    if rank not in (0, victim):
        return
    own = slice(0, 2500) if rank == 0 else slice(2500, N)
    source = rows.sharded(X[own], group)
    if rank == victim:
        sys.stdout.flush()
        os.kill(os.getpid(), number)
    try:
        recover(source, y[own], 2)
    except PosquadError as problem:
        sys.stdout.write(f"{name}: {problem}\n")


if __name__ == "__main__":
    main()
