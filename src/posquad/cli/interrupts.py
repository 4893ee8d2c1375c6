"""Signals while modules are imported: packages may catch an exception, or turn it into another."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

__all__ = ["INTERRUPTED", "TORCHRUN", "allow_interrupt", "leave_on_interrupt"]

INTERRUPTED = "Interrupted: nothing was written."
TORCHRUN = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that `torchrun` sets for the processes that it starts."""
_TERMINATED = (
    "Error: group: expected all processes of the group to go on; got SIGTERM, as torchrun sends if "
    "one ended"
)
_AGAIN = 0.05  # seconds after which Ctrl-C during an import is tried again


def leave_on_interrupt() -> None:
    """End the process at once on Ctrl-C, with one line and status 130.

    A process of `torchrun` also ends at once, with status 1, on SIGTERM: another process has ended.

    >>> leave_on_interrupt()
    >>> allow_interrupt()
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it may be ignored
        signal.signal(signal.SIGINT, _leave)
    if os.environ.keys() >= TORCHRUN and os.environ["WORLD_SIZE"] != "1":
        signal.signal(signal.SIGTERM, leave_group)


def allow_interrupt() -> None:
    """Raise KeyboardInterrupt on Ctrl-C again: from here on the commands handle it.

    What a command imports later is imported to its end first.

    >>> allow_interrupt()
    """
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _interrupt)


def leave_group(number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
    """End the process at once, with the sentence about a group of which a process ended."""
    os.write(2, f"{_TERMINATED}\n".encode())
    os._exit(1)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
