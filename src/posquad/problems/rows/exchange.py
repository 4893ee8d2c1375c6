"""How the processes of a group exchange numbers, and tell one that computes from one that is gone.

A collective fails if another process does not come within the timeout of the group, but a process
that reads many rows, or searches on behalf of all, may come much later. So before each collective
the processes meet: each says that it is ready, and one that still computes says so from a thread,
several times within the timeout. A process that says nothing for that long has ended or hangs.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from posquad.core.errors import DomainError, PosquadError

__all__ = ["TIMEOUT", "Exchange", "GroupError", "exchange_of", "join_group"]

TIMEOUT = 30.0
"""Seconds after which a process of a group that says nothing counts as ended, by default."""

_WORKING, _READY, _LEAVING = 0, 1, 2
_BEATS = 6  # signs of life within the timeout


class GroupError(PosquadError, RuntimeError):
    """Another process of the group failed or ended."""

    exit_code = 1  # of a command that it ends


class Exchange:
    """Collectives among the processes of a group (gloo).

    Every process makes one, at the same time, and then makes the same calls in the same order. For
    the group of all processes it makes connections with this timeout; a smaller group is used as it
    is, and has a timeout of its own.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        self.group: Any = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.failure: GroupError | None = None
        self.timeout, self._interval = timeout, timeout / _BEATS
        self._lock = threading.Lock()  # one collective at a time
        self._depth = 0  # of nested calls of `together`
        self._last = time.monotonic()  # when the processes met last
        if group is distributed.group.WORLD:
            with _ended_processes():
                self.group = distributed.new_group(
                    timeout=timedelta(seconds=timeout), backend="gloo"
                )

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a collective when all processes are ready for it."""
        with self._lock:
            self._meet(_READY)
            with self._noting_failure():
                function(*arguments, group=self.group)

    def check(self) -> None:
        """Raise an error if another process is known to have ended."""
        if self.failure is not None:
            raise GroupError(
                self.failure.argument, expected=self.failure.expected, got=self.failure.got
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work on something that all processes begin and end; one that leaves early ends it.

        While this process computes, it says that it is alive.
        """
        self._depth += 1
        if self._depth > 1 or self.size == 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        stop = threading.Event()
        alive = threading.Thread(target=self._beat, args=(stop,), name="posquad-alive", daemon=True)
        alive.start()
        try:
            yield
            self.check()
        finally:
            self._depth -= 1
            stop.set()
            if self.failure is None:
                with self._lock, suppress(GroupError):
                    self._meet(_LEAVING)
            alive.join()  # a thread in a collective at the end of the interpreter aborts it

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval):
            if not self._lock.acquire(blocking=False):
                continue  # this process waits in a collective
            try:
                if self.failure is None and not stop.is_set() and self._is_time():
                    self._round(_WORKING)
            except GroupError:
                return  # the next call says so
            finally:
                self._lock.release()

    def _is_time(self) -> bool:
        return time.monotonic() - self._last > 0.9 * self._interval

    def _meet(self, state: int) -> None:
        """Wait until all processes are in the same state."""
        self.check()
        while self.size > 1 and any(other != state for other in self._round(state)):
            pass

    def _round(self, state: int) -> list[int]:
        """Exchange what each process does; refuse to go on without one that left."""
        said = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._noting_failure():
            mine = torch.tensor([state])
            distributed.all_gather(said, mine, group=self.group)
        self._last = time.monotonic()
        states = [int(each) for each in said]
        if _LEAVING in states and set(states) != {_LEAVING}:
            leaving = f"rank {states.index(_LEAVING)}"
            expected, got = "it to go on", "an error or an interruption there"
            self.failure = GroupError(leaving, expected=expected, got=got)
            raise self.failure
        return states

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            with _ended_processes():
                yield
        except GroupError as problem:
            self.failure = problem
            raise


@contextmanager
def _ended_processes() -> Iterator[None]:
    """Turn the failure of a collective into one sentence."""
    try:
        yield
    except RuntimeError:
        expected, got = "all processes of the group to go on", "one that ended or hangs"
        raise GroupError("group", expected=expected, got=got) from None


def join_group(*arguments: Any, **options: Any) -> None:
    """Call `torch.distributed.init_process_group`; if it fails, say that in one sentence.

    >>> join_group("gloo", init_method="tcp://127.0.0.1:1", rank=1, world_size=2,
    ...            timeout=timedelta(seconds=0.1))
    Traceback (most recent call last):
    posquad.problems.rows.exchange.GroupError: group: expected all processes to start and to find each other; got one that did not
    """  # noqa: E501
    try:
        distributed.init_process_group(*arguments, **options)
    except RuntimeError:
        expected, got = "all processes to start and to find each other", "one that did not"
        raise GroupError("group", expected=expected, got=got) from None


_known: weakref.WeakKeyDictionary[Any, dict[float, Exchange]] = weakref.WeakKeyDictionary()


def exchange_of(group: Any, timeout: float) -> Exchange:
    """Return the exchange among the processes of a group, by default the group of all processes.

    All processes call this at the same time. It is made once for a group and a timeout, and again
    after a process has left.

    >>> exchange_of(None, 30.0)
    Traceback (most recent call last):
    posquad.core.errors.DomainError: group: expected a process group (torch.distributed.init_process_group); got none
    """  # noqa: E501
    if not distributed.is_available() or not distributed.is_initialized():
        expected = "a process group (torch.distributed.init_process_group)"
        raise DomainError("group", expected=expected, got="none")
    parent = distributed.group.WORLD if group is None else group
    backend = str(distributed.get_backend_config(parent))
    if parent is not distributed.group.WORLD and "gloo" not in backend:
        raise DomainError("group", expected="a group of the backend gloo", got=backend)
    made = _known.setdefault(parent, {})
    if timeout not in made or made[timeout].failure is not None:
        made[timeout] = Exchange(parent, timeout)
    return made[timeout]
