"""Where groups of cells are computed: processes of joblib (loky), Dask, or this process.

An engine has slots, each of which computes one group at a time. A group whose worker dies comes
back as lost (None), whatever the reason.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from posquad.core.errors import DomainError, PosquadError, first_line
from posquad.core.extras import import_extra
from posquad.sweep.compute import Batch, Task, compute, initialize, prepare
from posquad.sweep.declaration import Sweep

__all__ = ["DaskEngine", "Engine", "LocalEngine", "SerialEngine", "engine_for"]

_ATTEMPTS = 5  # a group whose processes die so often before they have begun it is lost
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


class EngineError(PosquadError, RuntimeError):
    """The workers of a sweep cannot be started or reached."""


class Engine(ABC):
    """Slots that compute groups of cells."""

    workers: int  # number of slots

    @abstractmethod
    def submit(self, number: int, task: Task) -> None:
        """Begin a group in a free slot; `number` identifies it."""

    @abstractmethod
    def collect(self, seconds: float) -> list[tuple[int, Batch | None]]:
        """Wait until a group ends, at most so long; return those that did. None: lost."""

    @abstractmethod
    def close(self) -> None:
        """End the workers at once."""


def engine_for(
    sweep: Sweep, kind: str = "local", workers: int | None = None, scheduler: str | None = None
) -> Engine:
    """Return the engine of a run. `workers=0` computes in this process, for debugging.

    >>> from posquad.sweep import product
    >>> engine_for(Sweep("none", print, product(x=[1])), workers=0).workers
    1
    """
    if kind not in ("local", "dask"):
        raise DomainError("engine", expected="'local' or 'dask'", got=repr(kind))
    if workers is not None and (type(workers) is not int or workers < 0):
        raise DomainError("workers", expected="an integer, 0 or more", got=str(workers))
    if scheduler is not None and kind != "dask":
        raise DomainError("scheduler", expected="engine 'dask' with it", got=f"engine {kind!r}")
    if workers == 0:
        return SerialEngine(sweep)
    if kind == "dask":
        return DaskEngine(sweep, workers, scheduler)
    return LocalEngine(sweep, workers or available_cores())


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _function(sweep: Sweep) -> Any:
    """Return what a worker gets: where to find the sweep, or the function itself."""
    return sweep.origin or sweep.cell


class SerialEngine(Engine):
    """Compute in this process: for debugging, and where processes cannot be started."""

    workers = 1

    def __init__(self, sweep: Sweep) -> None:
        self.cell, self.waiting = sweep.cell, list[tuple[int, Task]]()

    def submit(self, number: int, task: Task) -> None:
        self.waiting.append((number, task))

    def collect(self, seconds: float) -> list[tuple[int, Batch | None]]:
        done: list[tuple[int, Batch | None]] = []
        while self.waiting:
            number, task = self.waiting.pop(0)
            done.append((number, compute(self.cell, task)))
        return done

    def close(self) -> None:
        self.waiting = []


@dataclass(frozen=True)
class _Running:
    """A group in a pool; `begun` ends before its first cell begins."""

    number: int
    task: Task
    pool: Any
    begun: Any  # future
    attempts: int  # how often the group was given to a pool

    def was_begun(self) -> bool:
        return self.begun.done() and self.begun.exception() is None


class LocalEngine(Engine):
    """Processes of this machine, each with one thread of BLAS and a pool of its own.

    A pool of one process tells which group a death belongs to, and leaves the others running. A
    process that dies before it has begun its group is replaced, and the group is not lost.
    """

    def __init__(self, sweep: Sweep, workers: int) -> None:
        self.loky = import_extra("joblib.externals.loky", "sweep")
        broken = import_extra("joblib.externals.loky.process_executor", "sweep")
        self.lost = broken.TerminatedWorkerError, broken.BrokenProcessPool
        self.function, self.workers = _function(sweep), workers
        self.idle: list[Any] = []  # pools whose process waits
        self.running: dict[Any, _Running] = {}  # by future

    def submit(self, number: int, task: Task) -> None:
        self._submit(number, task, 1)

    def collect(self, seconds: float) -> list[tuple[int, Batch | None]]:
        ended = wait(self.running, timeout=seconds, return_when=FIRST_COMPLETED).done
        found: list[tuple[int, Batch | None]] = []
        for future in ended:
            group = self.running.pop(future)
            try:
                found.append((group.number, future.result()))
                self.idle.append(group.pool)
            except self.lost:
                group.pool.shutdown(wait=False, kill_workers=True)
                if group.was_begun() or group.attempts == _ATTEMPTS:
                    found.append((group.number, None))
                else:
                    self._submit(group.number, group.task, group.attempts + 1)
        return found

    def close(self) -> None:
        pools = [*self.idle, *(group.pool for group in self.running.values())]
        for pool in pools:
            pool.shutdown(wait=False, kill_workers=True)
        self.idle, self.running = [], {}

    def _submit(self, number: int, task: Task, attempts: int) -> None:
        with _without_interrupts():  # a new process inherits this, and leaves Ctrl-C to us
            while True:
                pool = self.idle.pop() if self.idle else self._pool()
                try:
                    begun = pool.submit(prepare, self.function)
                    future = pool.submit(compute, self.function, task)
                except self.lost:  # its process died while it waited
                    pool.shutdown(wait=False, kill_workers=True)
                    continue
                self.running[future] = _Running(number, task, pool, begun, attempts)
                return

    def _pool(self) -> Any:
        return self.loky.ProcessPoolExecutor(
            max_workers=1,
            timeout=None,
            initializer=initialize,
            initargs=(os.getpid(),),
            env=ONE_THREAD,
        )


class DaskEngine(Engine):
    """Workers of Dask distributed: of a scheduler at an address, or of a cluster of this machine.

    The number of slots is that of the threads of the workers when the run begins.
    """

    def __init__(self, sweep: Sweep, workers: int | None, scheduler: str | None) -> None:
        distributed = import_extra("distributed", "dask")
        configuration = import_extra("dask", "dask").config
        self.distributed, self.function = distributed, _function(sweep)
        self.cluster = None
        # The client would log the traceback of a lost connection beside our sentence.
        self.log = logging.getLogger("distributed.client")
        self.log_level = self.log.level
        self.log.setLevel(logging.CRITICAL)
        try:
            if scheduler is None:
                # A death ends a task at once, so that it is counted here.
                configuration.set({"distributed.scheduler.allowed-failures": 0})
                with _without_interrupts():
                    self.cluster = distributed.LocalCluster(
                        n_workers=workers or available_cores(),
                        threads_per_worker=1,
                        dashboard_address=None,
                        silence_logs=50,
                        env=ONE_THREAD,
                    )
            self.client = distributed.Client(self.cluster or scheduler, timeout=10)
        except (OSError, TimeoutError, ValueError, RuntimeError) as problem:
            self.log.setLevel(self.log_level)
            expected = "a Dask scheduler that answers"
            raise EngineError(
                str(scheduler or "local"), expected=expected, got=first_line(problem)
            ) from None
        threads = sum(self.client.nthreads().values())
        if not threads:
            self.close()
            raise EngineError(str(scheduler), expected="a scheduler with workers", got="none")
        self.workers = min(threads, workers) if workers else threads
        self.running: dict[Any, int] = {}

    def submit(self, number: int, task: Task) -> None:
        self.running[self.client.submit(compute, self.function, task, pure=False)] = number

    def collect(self, seconds: float) -> list[tuple[int, Batch | None]]:
        waited = {"timeout": seconds, "return_when": FIRST_COMPLETED}
        with suppress(TimeoutError), self._connected():
            self.distributed.wait(list(self.running), **waited)
        found: list[tuple[int, Batch | None]] = []
        for future in [f for f in self.running if f.done()]:
            number = self.running.pop(future)
            try:
                with self._connected():
                    found.append((number, future.result()))
            except self.distributed.KilledWorker:
                found.append((number, None))
        return found

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Say in one sentence that the scheduler is gone."""
        try:
            yield
        except CancelledError as problem:  # of futures that the client has given up
            expected, got = "a scheduler that answers", "a connection that was lost"
            raise EngineError("Dask", expected=expected, got=got) from problem

    def close(self) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self.client.close(timeout=2)
        if self.cluster is not None:
            with suppress(Exception):
                self.cluster.close(timeout=5)
        self.log.setLevel(self.log_level)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C while processes are started; it takes effect afterwards."""
    usable = hasattr(signal, "pthread_sigmask")
    if not usable or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
