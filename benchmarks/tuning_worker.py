"""One setting of `benchmarks/tuning.py` in a process of its own, in one thread.

    python benchmarks/tuning_worker.py '{"problems": 3, "constant": {...}, "new": 8}'

Writes one line of JSON for each case: how many answers were good and wrong, the residuals of best
fits, and the seconds of processor time; or the error that it raised.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tuning_constants import Change, Constant

CASE_LIMIT = 60.0  # seconds of processor time of one call


class TooLong(BaseException):
    """Ends a call at its limit; nothing below catches it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def attempt(case: Any) -> dict[str, Any]:
    """What is written about a case."""
    told: dict[str, Any] = {"family": case.family, "case": case.name, "total": len(case.judges)}
    begin = time.process_time()
    try:
        with limited(CASE_LIMIT):
            found = case.solve()
        told["seconds"] = time.process_time() - begin
        judged = case.judge(found)
    except TooLong:
        told["error"] = f"over {CASE_LIMIT:.0f} s"
    except Exception as error:  # whatever it is, it is what this setting does
        told["error"] = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    else:
        told["good"] = sum(j.good for j in judged)
        told["wrong"] = sum(j.wrong for j in judged)
        told["residuals"] = [j.residual for j in judged]
        return told
    told["seconds"] = time.process_time() - begin
    return told | {"good": 0, "wrong": 0, "residuals": [None] * told["total"]}


def traced(package: Path) -> set[tuple[str, int]]:
    """A set to which every line of the package that is run from now on is added."""
    lines: set[tuple[str, int]] = set()
    root = str(package) + os.sep

    def each_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return each_line

    def each_call(frame: FrameType, _event: str, _: object) -> Any:
        return each_line if frame.f_code.co_filename.startswith(root) else None

    threading.settrace(each_call)
    sys.settrace(each_call)
    return lines


def main() -> None:
    asked = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints is no result
    lines = traced(Path(asked["trace"])) if asked.get("trace") else None
    if asked.get("constant"):
        sys.meta_path.insert(0, Change(Constant(**asked["constant"]), asked["new"]))
    try:
        import torch

        from tuning_problems import cases

        torch.set_num_threads(1)
        made = cases(asked["problems"])
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        print(json.dumps({"refused": told}), file=out)
        return
    families = asked.get("families") or list(dict.fromkeys(case.family for case in made))
    made = [case for case in made if case.family in families]
    for family in families if lines is None else ():  # the first calls import and warm up
        attempt(next(case for case in made if case.family == family))
    for case in made:
        print(json.dumps(attempt(case)), file=out)
    if lines is not None:
        sys.settrace(None)
        print(json.dumps({"lines": sorted(lines)}), file=out)
    print(json.dumps({"end": True}), file=out)


if __name__ == "__main__":
    main()
