"""Random `kill -9` of the driver and of workers; `make chaos` has ten times as many."""

from __future__ import annotations

import sys

import pytest

from sweep_chaos import run_chaos


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a signal of POSIX systems")
def test_nothing_is_lost_and_nothing_is_computed_twice(tmp_path):
    tally = run_chaos(tmp_path, 20, seed=3)
    assert tally.drivers + tally.workers == 20
    assert tally.drivers >= 3
    assert tally.workers >= 3
    assert tally.rounds >= 1
