"""The exit status of the program after Ctrl-C."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import posquad.__main__ as program

class Command:
    @staticmethod
    def main(prog_name):
        try:
            exec("raise KeyboardInterrupt")  # code from a string, as in the making of a dataclass
        except KeyboardInterrupt:
            print("handled")
            raise SystemExit({code})

program.import_extra = lambda name, extra: Command
program.main()
"""


@pytest.mark.parametrize(("code", "status"), [(130, 130), (2, -2)])
def test_a_handled_interrupt_is_no_death_by_signal(tmp_path, code, status):
    """With any other code, CPython 3.11 dies of the signal although the interrupt was handled."""
    if status < 0 and sys.version_info[:2] != (3, 11):
        pytest.skip("the behaviour of CPython 3.11")
    (tmp_path / "started.py").write_text(PROGRAM.format(code=code))
    words = [sys.executable, "-m", "started"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ended.stdout, ended.stderr) == ("handled\n", "")
    assert ended.returncode == status
