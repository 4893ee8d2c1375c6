"""What the processes of `test_fit_large` run: `posquad`, for which small tables are large.

`processes_program.py ARGUMENTS` is `posquad ARGUMENTS`. `processes_program.py faults TABLE FOLDER`
runs fits in which Ctrl-C is pressed for the first process, and in which the second one is killed.
"""

from __future__ import annotations

import os
import signal
import sys

from posquad.cli.main import main
from posquad.io.tables import _memory
from posquad.problems.moments import Moments
from posquad.problems.rows import disk
from posquad.recovery import pipeline
from posquad.report import fit_report


def fit(*arguments):
    """Run `posquad fit`; say how it ended."""
    try:
        main(["fit", *arguments])
    except SystemExit as end:
        sys.stdout.write(f"status {end.code}\n")


def press_twice(found):
    """Ctrl-C when the search has begun, as `torchrun` passes it on: to all, and a second time."""

    def search(*given, **options):
        if len(found):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        found.append(whole(*given, **options))
        return found[-1]

    whole, pipeline.search = pipeline.search, search


def faults(table, folder):
    rank = int(os.environ["RANK"])
    if rank == 0:
        press_twice([])
    fit(table, "--response", "x5", "--out", f"{folder}/interrupted")
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    if rank == 1:
        Moments.add = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
    fit(table, "--response", "x5", "--out", f"{folder}/killed", "--timeout", "20")


if __name__ == "__main__":
    _memory.STREAMED, disk.BLOCK_BYTES = 1, 2**14
    fit_report.panels = lambda fit: ()  # figures are not the subject
    if sys.argv[1] == "faults":
        faults(*sys.argv[2:])
    else:
        main(sys.argv[1:])
