"""What every test of the command line needs."""

import signal

import pytest


@pytest.fixture(autouse=True)
def interrupt_restored():
    """The entry point handles Ctrl-C in its own way, which must not outlive the test."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
