"""Ctrl-C while modules are imported: packages may catch its exception, or turn it into another."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

__all__ = ["INTERRUPTED", "allow_interrupt", "leave_on_interrupt"]

INTERRUPTED = "Interrupted: nothing was written."
_AGAIN = 0.05  # seconds after which Ctrl-C during an import is tried again


def leave_on_interrupt() -> None:
    """End the process at once on Ctrl-C, with one line and status 130.

    >>> leave_on_interrupt()
    >>> allow_interrupt()
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it may be ignored
        signal.signal(signal.SIGINT, _leave)


def allow_interrupt() -> None:
    """Raise KeyboardInterrupt on Ctrl-C again: from here on the commands handle it.

    What a command imports later is imported to its end first.

    >>> allow_interrupt()
    """
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _interrupt)


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
