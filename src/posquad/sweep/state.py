"""The state of a sweep, read from its folder, also while a driver is running."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from posquad.sweep.store import Row, Store, driver_of

__all__ = ["SweepStatus", "failed_cells", "sweep_status"]


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is."""

    sweep: str
    version: int
    done: int  # cells with a result
    failed: int
    outside: int  # cells of these that the grid of the last run does not ask for
    asked: int  # cells of the grid; of an adaptive grid, those asked for so far
    adaptive: bool
    driver: str | None  # process and host of the running driver; None if there is none
    left: float | None  # seconds to go, estimated; None if unknown
    command: str  # the command of the last run

    @property
    def waiting(self) -> int:
        """Cells that were asked for and have no outcome."""
        return max(0, self.asked + self.outside - self.done - self.failed)


def sweep_status(folder: str | Path) -> SweepStatus:
    """Return the state of the sweep in a folder.

    >>> from tempfile import TemporaryDirectory
    >>> from posquad.sweep import Sweep, product, run_sweep
    >>> squares = Sweep("squares", lambda p, seed: {"y": p["x"] ** 2}, product(x=range(3)))
    >>> with TemporaryDirectory() as folder:
    ...     _ = run_sweep(squares, folder, workers=0)
    ...     state = sweep_status(folder)
    >>> state.done, state.waiting, state.driver
    (3, 0, None)
    """
    path = Path(folder)
    with Store.read(path) as store:
        counts, meta = store.counts(), store.meta()
    driver = driver_of(path)
    state = SweepStatus(
        sweep=str(meta["sweep"]),
        version=int(meta["version"]),
        done=counts["done"],
        failed=counts["failed"],
        outside=int(meta.get("outside", 0)),
        asked=int(meta.get("asked", 0)),
        adaptive=bool(meta.get("adaptive", False)),
        driver=driver,
        left=None,
        command=str(meta.get("command", "")),
    )
    computed = sum(counts.values()) - int(meta.get("before", 0))
    if driver is None or computed <= 0 or "started" not in meta:
        return state
    elapsed = time.time() - float(meta["started"])
    return replace(state, left=state.waiting * elapsed / computed)


def failed_cells(folder: str | Path) -> list[Row]:
    """Return the failed cells of a folder, with their tracebacks.

    >>> failed_cells("no-such-folder")
    Traceback (most recent call last):
    posquad.core.files.FileError: no-such-folder: expected the folder of a sweep, with a file sweep.sqlite; got no such file
    """  # noqa: E501
    with Store.read(Path(folder)) as store:
        return list(store.rows("failed"))
