"""Recovery from Dask collections, by a process group among the workers that hold them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError
from posquad.core.extras import import_extra
from posquad.distributed.partitions import held_parts
from posquad.distributed.worker import Place, close_store, identity, open_store, run_rank
from posquad.problems.rows.exchange import TIMEOUT, GroupError
from posquad.recovery import Recovery

__all__ = ["dask_recover"]

_LOOK = 1.0  # seconds between two looks at the list of workers


def dask_recover(
    client: Any,
    X: Any,
    y: Any,
    rank: int | None = None,
    *,
    weights: Any = None,
    seed: int = 0,
    tolerance: float | None = None,
    max_rank: int | None = None,
    max_starts: int | None = None,
    max_steps: int = 100_000,
    time_limit: float | None = None,
    timeout: float = TIMEOUT,
) -> Recovery:
    """Return `recover(X, y, rank)` for a Dask array or data frame; its rows stay where they are.

    X is computed by the cluster if it is not there yet. Each worker that holds partitions is one
    process of a `torch.distributed` group (gloo) and works on its rows; only sums travel, as for
    `posquad.problems.rows.sharded`. The workers must be able to import posquad and to open
    connections to each other, and must be processes of their own.

    Args:
        client: a `distributed.Client`.
        X: a Dask array `[n, d]` or data frame of numbers. Lengths of partitions need not be known,
            and partitions may be empty. Columns in several chunks are joined.
        y: responses: a Dask array or series in any partitions, or a NumPy array `[n]`.
        rank, seed, tolerance, max_rank, max_starts, max_steps, time_limit: as for `recover`.
        weights: weights of the squared errors, like `y`.
        timeout: seconds after which the call ends if a worker gives no sign of life. A worker that
            dies usually ends it at once.

    Returns:
        `Recovery`, as from `recover` for a source of rows.

    >>> dask_recover(None, None, None)
    Traceback (most recent call last):
    posquad.core.errors.DomainError: client: expected a distributed.Client; got NoneType
    """
    distributed = import_extra("distributed", "dask")
    if not isinstance(client, distributed.Client) or client.asynchronous:
        got = type(client).__name__
        got = f"an asynchronous {got}" if getattr(client, "asynchronous", False) else got
        raise DomainError("client", expected="a distributed.Client", got=got)
    positive_number("timeout", timeout)
    if client.status in ("closing", "closed"):
        raise DomainError("client", expected="a client that is open", got="one that was closed")
    if not client.nthreads():
        raise DomainError("client", expected="a cluster with workers", got="none")
    options = {"rank": rank, "seed": seed, "tolerance": tolerance, "max_rank": max_rank}
    options |= {"max_starts": max_starts, "max_steps": max_steps, "time_limit": time_limit}
    parts, kept = held_parts(client, X, y, weights)
    _finished(client, parts, ())
    del kept  # the parts have what the answer needs
    by_worker = _placed(client, parts)
    known = client.run(identity, workers=list(by_worker))
    if len(set(known.values())) < len(known):
        expected = "workers in processes of their own"
        raise DomainError("client", expected=expected, got="several in one process")
    # Tasks that wait for each other must begin together: one group at a time on these workers.
    with distributed.MultiLock(sorted(by_worker), client):
        return _run(client, by_worker, options, timeout)


def _placed(client: Any, parts: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the partitions of each worker in order; the first worker has the first partition."""
    holders = client.who_has(parts)
    by_worker: dict[str, list[Any]] = {}
    for part in parts:
        held = holders.get(part.key) or ()
        if not held:
            _refuse_death("a worker")
        by_worker.setdefault(min(held), []).append(part)
    return by_worker


def _run(
    client: Any, by_worker: Mapping[str, list[Any]], options: dict[str, Any], timeout: float
) -> Recovery:
    """Form the group, run the same program in all its processes, and return the answer."""
    host_of = import_extra("distributed.comm", "dask").get_address_host
    workers, threads = list(by_worker), client.nthreads()
    first, name = workers[0], f"posquad-{uuid4().hex}"
    host = host_of(first)

    def on(worker: str, function: Any, *arguments: Any) -> Any:
        return client.submit(
            function, *arguments, workers=[worker], allow_other_workers=False, pure=False
        )

    opened = on(first, open_store, name, host, timeout)
    _finished(client, [opened], [first])
    place = Place(name, host, opened.result(), timeout)
    tasks = [
        on(worker, run_rank, place, rank, len(workers), threads.get(worker, 1), held, options)
        for rank, (worker, held) in enumerate(by_worker.items())
    ]
    try:
        _finished(client, tasks, workers, timeout)
        return tasks[0].result()
    finally:
        client.cancel([task for task in tasks if not task.done()])
        if first in client.nthreads():
            client.run(close_store, name, workers=[first], on_error="ignore")


def _finished(
    client: Any, futures: Sequence[Any], workers: Iterable[str], timeout: float = 0.0
) -> None:
    """Wait for futures; raise the error of one, or say that a worker ended.

    After that, the other futures have `timeout` seconds to end as well.
    """
    library = import_extra("distributed.client", "dask")
    pending, deadline, gone = list(futures), None, set[str]()
    while pending and (deadline is None or time.monotonic() < deadline):
        with suppress(TimeoutError, library.FuturesCancelledError):
            library.wait(pending, timeout=_LOOK, return_when="FIRST_COMPLETED")
        pending = [future for future in pending if not future.done()]
        gone |= set(workers) - set(client.nthreads())
        failed = any(future.status in ("error", "cancelled", "lost") for future in futures)
        if deadline is None and (gone or failed):
            deadline = time.monotonic() + timeout
    if gone:
        _refuse_death(f"worker {min(gone)}")
    _raise_first([future.exception() for future in futures if future.status == "error"])
    if pending or any(future.status != "finished" for future in futures):
        _refuse_death("a worker")


def _raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the error that others may only report: that of a process which did not merely wait."""
    causes = [error for error in errors if not isinstance(error, GroupError)]
    for error in [*causes, *errors][:1]:
        if type(error).__name__ == "KilledWorker":
            _refuse_death("a worker")
        raise error


def _refuse_death(which: str) -> None:
    expected = "the workers of the cluster to go on"
    raise GroupError("client", expected=expected, got=f"{which} that ended")
