"""What every test of the command line needs."""

import signal

import pytest

from drawing_support import draw_unrendered
from posquad.report import fit_report


@pytest.fixture(autouse=True)
def interrupt_restored():
    """The entry point handles Ctrl-C in its own way, which must not outlive the test."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rendered():
    """For tests that need the pictures on the page of a fit."""


@pytest.fixture(autouse=True)
def fits_without_pictures(request, monkeypatch):
    """The panels of a fit are drawn but not rendered; the pages of `fits` have their pictures."""
    if "rendered" not in request.fixturenames:
        monkeypatch.setattr(fit_report, "draw", draw_unrendered)
