"""The processes that `torchrun` starts: each reads and fits its part of a large table, one writes.

The first process prints and writes. It alone heeds Ctrl-C, and the others end with it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

from posquad.cli.interrupts import TORCHRUN, leave_group
from posquad.core.errors import PosquadError
from posquad.io.tables import Samples

__all__ = ["Processes", "launched"]

_START = 120.0  # seconds that the processes may take to start
_SAME = 5.0  # seconds within which a second signal is the same Ctrl-C, passed on by torchrun
_T = TypeVar("_T")


@dataclass(frozen=True)
class Processes:
    """The processes of one fit: the rank of this one, how many there are, and their timeout."""

    rank: int = 0
    size: int = 1
    timeout: float = 30.0  # seconds without a sign of life after which one counts as ended
    joined: list[Any] = field(default_factory=list, repr=False)  # how to leave; the exchange

    @contextmanager
    def joint_work(self) -> Iterator[None]:
        """Begin and end work in which the processes may join, and say that they are alive."""
        with ExitStack() as stack:
            self.joined[:] = [stack]
            try:
                yield
            finally:
                self.joined.clear()

    def heed_signals(self) -> None:
        """Leave Ctrl-C to the first process, which torchrun interrupts twice.

        SIGTERM, by which torchrun ends the others when one ended, is an error with one sentence.
        """
        if self.size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.rank else _Once())
            signal.signal(signal.SIGTERM, _terminate)

    def after_the_first(self, make: Callable[[], _T]) -> _T:
        """Call a function in the first process, and then in the others, which find its files."""
        if self.size == 1:
            return make()
        import torch.distributed as distributed

        exchange = self._exchange()
        made = make() if self.rank == 0 else None
        exchange.call(distributed.barrier)
        return make() if made is None else made

    def shared(self, source: Any) -> tuple[Any, slice]:
        """Return a source with the rows that this process reads, and which rows these are."""
        if self.size == 1:
            return source, slice(0, source.n)
        from posquad.problems import rows

        self._exchange()
        own = source.part(self.rank, self.size)
        return rows.sharded(own, timeout=self.timeout), source.part_rows(self.rank, self.size)

    def own_part(self, samples: Samples) -> tuple[Any, Any, Any]:
        """Return the inputs, responses and weights that this process fits.

        They are all of them, unless there are several processes and the table stays in its file:
        then its rows are shared. Of a smaller table, the first process fits all, and the others
        end.
        """
        if self.size == 1 or samples.extremes is None:
            if self.rank:
                raise SystemExit(0)
            return samples.X, samples.y, samples.weights
        source, place = self.shared(samples.X)
        weights = None if samples.weights is None else samples.weights[place]
        assert samples.y is not None, "a fit has responses"
        return source, samples.y[place], weights

    def _exchange(self) -> Any:
        import torch.distributed as distributed

        from posquad.problems.rows.exchange import exchange_of, join_group

        [stack, *made] = self.joined
        if made:
            return made[0]
        with _leaving_at_once():
            if not distributed.is_initialized():
                join_group("gloo", timeout=timedelta(seconds=max(_START, self.timeout)))
                # Threads of a group that is left to the end of the interpreter may abort it.
                stack.callback(distributed.destroy_process_group)
            exchange = exchange_of(None, self.timeout)
        stack.enter_context(exchange.together())
        self.joined.append(exchange)
        return exchange


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """End the process on SIGTERM also while torch waits for the others: then no handler runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)

    def watch() -> None:
        while number := os.read(read, 1):
            if number[0] == signal.SIGTERM:
                leave_group()

    thread = threading.Thread(target=watch, name="posquad-signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)  # ends the thread
        thread.join()
        os.close(read)


class Terminated(PosquadError, RuntimeError):
    """SIGTERM, by which torchrun ends the processes of a fit when one of them has ended."""

    exit_code = 1


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # to leave without a second error
    expected, got = "all processes of the group to go on", "SIGTERM, as torchrun sends if one ended"
    raise Terminated("group", expected=expected, got=got)


class _Once:
    """A handler of Ctrl-C that ignores its repetitions."""

    def __init__(self) -> None:
        self.last = -_SAME

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        again, self.last = now - self.last < _SAME, now
        if not again:
            raise KeyboardInterrupt


def launched(timeout: float = 30.0) -> Processes:
    """Return the processes that `torchrun` started; without it, this one alone.

    >>> launched()
    Processes(rank=0, size=1, timeout=30.0)
    """
    if not os.environ.keys() >= TORCHRUN:
        return Processes(timeout=timeout)
    return Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout)
