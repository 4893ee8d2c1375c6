"""Ctrl-C while the program is still importing its modules."""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["INTERRUPTED", "allow_interrupt", "leave_on_interrupt"]

INTERRUPTED = "Interrupted: nothing was written."


def leave_on_interrupt() -> None:
    """End the process at once on Ctrl-C, with one line and status 130.

    A KeyboardInterrupt is not enough here: packages that are being imported may catch it, or turn
    it into another error.

    >>> leave_on_interrupt()
    >>> allow_interrupt()
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it may be ignored
        signal.signal(signal.SIGINT, _leave)


def allow_interrupt() -> None:
    """Raise KeyboardInterrupt on Ctrl-C again: from here on the commands handle it.

    >>> allow_interrupt()
    """
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(130)
