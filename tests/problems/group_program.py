"""The program of the three processes of `test_rows_in_a_group`: `group_program.py STORE RANK`."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as distributed

from posquad import LeastSquares, RankOne, recover
from posquad.core.errors import PosquadError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.recovery.streams import entry

N, D, SIZE = 5000, 8, 3


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
    most, entry.MOMENT_MOST = entry.MOMENT_MOST, 0
    entries, entry.MEMORY_ENTRIES = entry.MEMORY_ENTRIES, 300 * D
    passes = recover(source, y, 2)
    entry.MOMENT_MOST, entry.MEMORY_ENTRIES = most, entries
    return found | {"passes": passes.Q.dense(), "steps": np.array(passes.steps)}


def faults(rank, store):
    """Each a call that one process cannot make; return what this one says about it."""
    X, y, w = samples()
    own = [slice(0, 2500), slice(2500, N), slice(N, N)][rank]
    broken = X.copy()
    broken[4600] = np.nan
    source = rows.sharded(X[own])
    calls = {
        "nan": lambda: recover(rows.sharded(np_rows(broken[own], store, rank)), y[own], 2),
        "widths": lambda: rows.sharded(X[own, : D - (rank == 1)]),
        "responses": lambda: recover(source, y[own][rank == 1 :], 2),
        "weights": lambda: recover(source, y[own], 2, weights=w[own] if rank else None),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except PosquadError as problem:
            said[name] = str(problem)
    return said


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
    pair = distributed.new_group([0, 1], timeout=timedelta(seconds=3))
    X, y, w = samples()
    cuts = {3: [0, 4000, 4000, N], 2: [0, 7, N]}
    for size, group in ((3, None), (2, pair)):
        if rank < size:
            own = slice(cuts[size][rank], cuts[size][rank + 1])
            source = rows.sharded(X[own], group)
            found = answers(source, X[own], y[own], w[own])
            few = slice(100 * rank, 100 * rank + 100)
            found["few"] = recover(rows.sharded(X[few], group), y[few], 2).Q.dense()
            for name, value in found.items():
                np.save(f"{store}.{size}.{name}.{rank}.npy", value)
    for name, words in faults(rank, store).items():
        sys.stdout.write(f"{name}: {words}\n")
    if rank < 2:
        half = slice(0, 2500) if rank == 0 else slice(2500, N)
        source = rows.sharded(X[half], pair)
        if rank == 1:
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
        try:
            recover(source, y[half], 2)
        except PosquadError as problem:
            sys.stdout.write(f"killed: {problem}\n")
            end(1)
    end(0)


if __name__ == "__main__":
    main()
