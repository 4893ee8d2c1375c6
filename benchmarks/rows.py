"""One problem in memory, on disk, in a stream, on ranks and on Dask: time, passes, memory, answers.

    python benchmarks/rows.py [--n N] [--d D] [--rank R] [--only NAME ...] [--checksums]

Every case runs in a process of its own, on one thread; its time is that of the processor, and its
peak memory is measured from outside. Of several processes, the largest time and memory count; on
Dask they are those of a worker, which also holds its rows. The difference is that of the predictor
from the one found on disk. The last table counts the reads of X that L-BFGS needs to a relative
residual of 1e-10, with one read per step and with the two reads of the solver for arrays, and from
a start in memory. `--checksums` shows only what those of a Parquet cache cost.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as distributed

from posquad import LeastSquares, RankOne, recover
from posquad.estimator import PositiveQuadraticRegressor
from posquad.geometry import dimension
from posquad.problems import rows
from posquad.recovery import population_lbfgs, spectral_initializer
from posquad.recovery.streams.curvature import Known
from posquad.recovery.streams.passes import begin_polish, polish, whitening
from timing import machine

RANKS = {"two ranks": 2, "three ranks": 3, "five ranks": 5}
CASES = ("disk", "memory", "stream", "estimator on disk", *RANKS, "dask")


def write_table(folder: Path, n: int, d: int, rank: int, noise: float) -> None:
    rng = np.random.default_rng(0)
    U = rng.standard_normal((d, rank)) / np.sqrt(d)
    X = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float64, (n, d))
    y = np.empty(n)
    for begin in range(0, n, 65_536):
        part = slice(begin, min(begin + 65_536, n))
        X[part] = rng.standard_normal((part.stop - begin, d))
        y[part] = ((X[part] @ U) ** 2).sum(1)
    np.save(folder / "y.npy", y + noise * y.std() * rng.standard_normal(n))


def run_case(name: str, folder: Path, rank: int, process: int) -> None:
    """Solve in this process, write the predictor, and print the time and the passes."""
    torch.set_num_threads(1)
    y = np.load(folder / "y.npy")
    source = rows.from_npy(folder / "x.npy")
    if name == "dask":
        run_dask(folder, rank)
        return
    if name in RANKS:
        store, size = f"file://{folder}/{name.replace(' ', '-')}", RANKS[name]
        distributed.init_process_group("gloo", init_method=store, rank=process, world_size=size)
        y = y[source.part_rows(process, size)]
        source = rows.sharded(source.part(process, size))
    begin = time.process_time()
    if name == "memory":
        Q = recover(np.load(folder / "x.npy"), y, rank).Q.dense()
    elif name == "disk" or name in RANKS:
        Q = recover(source, y, rank).Q.dense()
    elif name == "stream":
        model = PositiveQuadraticRegressor(rank)
        for part, block in source.blocks():
            model.partial_fit(block.numpy(), y[part], refit=part.stop == source.n)
        Q = model.components_.T @ model.components_
    else:
        model = PositiveQuadraticRegressor(rank).fit(source, y)
        Q = model.components_.T @ model.components_
    seconds = time.process_time() - begin
    if process == 0:
        np.save(folder / f"{name}.npy", Q)
    passes = float("nan") if name == "memory" else source.passes  # an array: not counted
    print(json.dumps({"seconds": seconds, "passes": passes}))


def run_dask(folder: Path, rank: int) -> None:
    """The same on two workers; chunks of 100,000 rows are read by the workers."""
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    from posquad.distributed import dask_recover

    def used() -> tuple[float, float]:  # on a worker
        known = resource.getrusage(resource.RUSAGE_SELF)
        return known.ru_utime + known.ru_stime, known.ru_maxrss / 1024

    def read_by_workers(path: Path):
        whole = np.load(path, mmap_mode="r")
        read = dask.delayed(lambda start: np.load(path, mmap_mode="r")[start : start + 100_000])
        parts = []
        for start in range(0, len(whole), 100_000):
            shape = (min(100_000, len(whole) - start), *whole.shape[1:])
            parts.append(da.from_delayed(read(start), shape, whole.dtype))
        return da.concatenate(parts)

    def watch() -> None:
        from posquad.distributed import worker

        made = worker.PartitionRows.__init__

        def remember(self, parts) -> None:
            made(self, parts)
            worker.PartitionRows.last = self

        worker.PartitionRows.__init__ = remember

    def passes() -> float:
        from posquad.distributed import worker

        return worker.PartitionRows.last.passes

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.run(watch)
        X, y = (read_by_workers(folder / name) for name in ("x.npy", "y.npy"))
        before = client.run(used)
        found = dask_recover(client, X, y, rank)
        after, read = client.run(used), client.run(passes)
    np.save(folder / "dask.npy", found.Q.dense())
    seconds = max(after[worker][0] - before[worker][0] for worker in after)
    peak = max(each[1] for each in after.values())
    print(json.dumps({"seconds": seconds, "passes": max(read.values()), "peak": peak}))


def compare(folder: Path, n: int, d: int, rank: int, only: list[str]) -> None:
    write_table(folder, n, d, rank, 0.1)
    print(f"{n} rows, {d} columns, rank {rank}, 10% noise, {n * d * 8 / 1e9:.2f} GB")
    print(f"{'case':<20}{'CPU s':>8}{'passes':>8}{'peak MB':>9}{'difference':>12}")
    reference = None
    for name in only:
        command = [sys.executable, __file__, "--case", name, "--folder", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        children = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--process", str(process)],
                stdout=subprocess.PIPE,
                env=environment,
            )
            for process in range(RANKS.get(name, 1))
        ]
        found, peak = {}, 0
        for child in children:  # the times and the memory are those of the largest process
            assert child.stdout is not None
            told = json.loads(child.stdout.read())
            found = {key: max(value, found.get(key, 0.0)) for key, value in told.items()}
            peak = max(peak, os.wait4(child.pid, 0)[2].ru_maxrss / 1024)
            child.returncode = 0
        peak = found.get("peak", peak)
        Q = np.load(folder / f"{name}.npy")
        reference = Q if reference is None else reference
        away = np.linalg.norm(Q - reference) / np.linalg.norm(reference)
        print(f"{name:<20}{found['seconds']:>8.1f}{found['passes']:>8.2f}{peak:>9.0f}{away:>12.1e}")


def count_reads(d: int, rank: int) -> None:
    """Reads of X to 1e-10 without noise, and to the statistical error with noise."""
    p = dimension(d, rank)
    n = 4 * p
    rng = np.random.default_rng(1)
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, rank))
    exact = ((X @ U) ** 2).sum(1)
    noisy = exact + 0.1 * exact.std() * rng.standard_normal(n)
    print(f"\nReads of X at d = {d}, rank {rank}, n = 4p = {n}")
    half = n // 2
    metric = whitening(torch.from_numpy(X.T @ X / n))
    for name, y in (("exact", exact), ("noisy", noisy)):
        start = spectral_initializer(X, y, rank, kind="bounded")
        level, share = (1e-10, 1e-30) if name == "exact" else (0.0, 0.01 * p / n)

        def passes(U0, offset, known=None, y=y, level=level, share=share):
            source = rows.in_memory(X)
            target = torch.from_numpy(y)
            with torch.no_grad():
                polish(
                    RankOne(source),
                    target,
                    None,
                    begin_polish(torch.from_numpy(np.ascontiguousarray(U0)), metric),
                    metric,
                    size=float(target @ target),
                    level=level,
                    accuracy=share,
                    stopped=lambda residual: False,
                    known=known,
                )
            return source.passes + offset

        print(f"  {name}: one read per step, from a spectral start: {passes(start, 1):.1f}")
        inside = recover(X[:half], y[:half], rank)
        print(f"  {name}: the same, from the half that is in memory: {passes(inside.U, 0.5):.1f}")
        known = Known(torch.from_numpy(X[:half]), None, n)
        count = passes(inside.U, 0.5, known)
        print(f"  {name}: the same, with the curvature of that half: {count:.1f}")
        if name == "exact":
            found = population_lbfgs(X, y, start, tolerance=1e-10)
            print(f"  {name}: two reads per step, from a spectral start: {float(found.passes):.0f}")


def compare_checksums(folder: Path, n: int, d: int, rank: int) -> None:
    """A pass over the cache of a Parquet file with and without its checksums, in turn."""
    import pyarrow
    import pyarrow.parquet as parquet

    torch.set_num_threads(1)
    X = np.random.default_rng(0).standard_normal((n, d))
    table = pyarrow.table({f"x{k}": column for k, column in enumerate(X.T)})
    parquet.write_table(table, folder / "x.parquet", compression="none", use_dictionary=False)
    checked = rows.from_parquet(folder / "x.parquet")
    plain = rows.from_parquet(folder / "x.parquet")
    plain.shards = [replace(shard, checks=()) for shard in plain.shards]
    U = np.random.default_rng(1).standard_normal((d, rank))
    y = ((X @ U) ** 2).sum(1)
    work = {
        "reading alone": (9, lambda source: [None for _ in source.blocks()]),
        "loss and gradient": (9, lambda source: LeastSquares(RankOne(source), y).gradient(U)),
        "recover": (3, lambda source: recover(source, y, rank)),
    }
    print(f"\nChecksums of a Parquet cache: {n} rows, {d} columns, rank {rank}, in the page cache")
    for name, (repeats, call) in work.items():
        best = {}
        for _ in range(repeats):
            for source in (checked, plain):
                begin = time.process_time()
                call(source)
                seconds = time.process_time() - begin
                best[source] = min(seconds, best.get(source, seconds))
        ratio = best[checked] / best[plain] - 1
        print(f"  {name:<20}{best[checked]:.3f} and {best[plain]:.3f} s of CPU, {ratio:+.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=400_000)
    parser.add_argument("--d", type=int, default=40)
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--checksums", action="store_true")
    parser.add_argument("--case")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--process", type=int, default=0)
    given = parser.parse_args()
    if given.case:
        run_case(given.case, given.folder, given.rank, given.process)
        return
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if not given.checksums:
            compare(Path(folder), given.n, given.d, given.rank, given.only)
        compare_checksums(Path(folder), given.n, given.d, given.rank)
    if not given.checksums:
        count_reads(500, 5)


if __name__ == "__main__":
    main()
