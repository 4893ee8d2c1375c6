"""Signals to the processes that `torchrun` starts."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from posquad.cli import processes
from posquad.cli.processes import Processes, Terminated, launched


@pytest.fixture(autouse=True)
def handlers():
    """Restore the handlers of signals after a test."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


def test_one_process_keeps_its_handlers():
    before = signal.getsignal(signal.SIGINT)
    Processes(0, 1).heed_signals()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_process_is_interrupted_once():
    Processes(0, 2).heed_signals()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)
    send(signal.SIGINT)  # the same Ctrl-C, passed on


def test_the_others_are_not_interrupted_but_terminated():
    Processes(1, 2).heed_signals()
    send(signal.SIGINT)
    with pytest.raises(Terminated, match="expected all processes of the group to go on"):
        send(signal.SIGTERM)
    assert Terminated.exit_code == 1


def test_a_process_that_joins_a_group_leaves_while_torch_waits(monkeypatch):
    """A thread ends it: where torch waits, no handler of Python runs, which this one stands for."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    left = threading.Event()
    monkeypatch.setattr(processes, "leave_group", left.set)
    with processes._leaving_at_once():
        send(signal.SIGTERM)
        assert left.wait(timeout=60)
    left.clear()
    send(signal.SIGTERM)
    assert not left.wait(timeout=0.01)
    assert not [each for each in threading.enumerate() if each.name == "posquad-signals"]


def test_processes_of_the_environment(monkeypatch):
    known = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    assert launched(7.0) == Processes(1, 3, 7.0)
