"""`run_sweep`: compute the cells of a sweep that are not stored yet.

The driver is the only process that writes to the store. It keeps one group of cells in each slot of
the engine, begins the next groups first and then stores what has come back.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posquad.core.arguments import require_boolean
from posquad.core.errors import DomainError, Interrupted
from posquad.sweep.compute import Batch, CellOutcome, Task
from posquad.sweep.declaration import Sweep, fingerprint
from posquad.sweep.engines import Engine, engine_for
from posquad.sweep.grid import MOST_CELLS, Grid, Parameters, cell_key, cell_seed, cell_text
from posquad.sweep.store import Store

__all__ = ["Progress", "Swept", "run_sweep"]

_GROUP_SECONDS = 0.3  # aim for the duration of a group: 100 times the cost of passing it on
_LARGEST_GROUP = 2000  # cells
_RECENT = 200  # cells whose durations predict that of the next ones
_DEATHS = 2  # deaths of the worker of a cell after which the cell is stored as failed
_TICK = 0.5  # seconds between two reports of progress

Item = tuple[str, Parameters, int]  # key, parameters, seed


@dataclass(frozen=True)
class Progress:
    """State of a run, for callbacks."""

    done: int  # cells of the grid with a result
    failed: int
    total: int  # cells of the grid; of an adaptive grid, those asked for so far
    adaptive: bool
    elapsed: float  # seconds of this run
    left: float | None  # seconds to go, estimated; None if unknown


@dataclass(frozen=True)
class Swept:
    """Result of `run_sweep`."""

    folder: Path
    done: int  # cells of the grid with a result
    failed: int
    left: int  # cells that were asked for and not computed
    computed: int  # cells computed by this run
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every cell has a result."""
        return not (self.failed or self.left)


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    quick: bool = False,
    workers: int | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    time_limit: float | None = None,
    retry: bool = False,
    progress: Callable[[Progress], None] | None = None,
    command: str = "",
) -> Swept:
    """Compute the cells of a sweep that the folder `out` does not hold yet.

    Finished cells are never computed again, and what is stored does not depend on interruptions,
    on the engine or on the number of workers. Ctrl-C raises `posquad.Interrupted`, with the
    `Swept` so far as its `result`.

    Args:
        sweep: what to compute.
        out: folder of the store.
        quick: compute `sweep.quick` instead of `sweep.grid`, if there is one.
        workers: number of processes, by default one per core; 0 computes in this process.
        engine: "local" or "dask".
        scheduler: address of a Dask scheduler, such as "tcp://host:8786".
        time_limit: seconds after which no further cell is begun.
        retry: compute failed cells again.
        progress: called about twice a second with a `Progress`.
        command: the command that repeats the run, for the report.

    >>> from tempfile import TemporaryDirectory
    >>> from posquad.sweep import product
    >>> squares = Sweep("squares", lambda p, seed: {"y": p["x"] ** 2}, product(x=range(5)))
    >>> with TemporaryDirectory() as folder:
    ...     first = run_sweep(squares, folder, workers=0)
    ...     again = run_sweep(squares, folder, workers=0)
    >>> first.computed, again.computed, again.complete
    (5, 0, True)
    """
    if not isinstance(sweep, Sweep):
        expected = "a posquad.sweep.Sweep, or what load_sweep returns"
        raise DomainError("sweep", expected=expected, got=type(sweep).__name__)
    if progress is not None and not callable(progress):
        expected = "a callable progress(Progress)"
        raise DomainError("progress", expected=expected, got=type(progress).__name__)
    require_boolean(quick=quick, retry=retry)
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit > 0):
        raise DomainError(
            "time_limit", expected="a positive number of seconds", got=f"{time_limit}"
        )
    grid = sweep.chosen(quick=quick)
    if grid.most > MOST_CELLS:
        raise DomainError("grid", expected=f"at most {MOST_CELLS:,} cells", got=f"{grid.most:,}")
    identity = {"sweep": sweep.key, "version": sweep.version, "fingerprint": fingerprint(sweep)}
    with Store.create(Path(out), identity) as store:
        store.note(command=command, place=sweep.place)
        run = _Run(sweep, grid, store, retry=retry, progress=progress)
        with _engine(sweep, engine, workers, scheduler, run) as slots:
            run.work(slots, math.inf if time_limit is None else time_limit)
        return run.swept()


@contextmanager
def _engine(
    sweep: Sweep, kind: str, workers: int | None, scheduler: str | None, run: _Run
) -> Iterator[Engine]:
    """Open the engine; on Ctrl-C keep what has come back."""
    with closing(engine_for(sweep, kind, workers, scheduler)) as engine:
        try:
            yield engine
        except KeyboardInterrupt as stop:
            for number, batch in engine.collect(0.0):
                run.take(number, batch)
            run.save()
            raise Interrupted(run.swept()) from stop


class _Run:
    """The state of one run."""

    def __init__(
        self, sweep: Sweep, grid: Grid, store: Store, *, retry: bool, progress: Any
    ) -> None:
        self.sweep, self.grid, self.store, self.progress = sweep, grid, store, progress
        self.began, self.ticked = time.monotonic(), -math.inf
        self.known: dict[str, Mapping[str, float] | None] = {}  # by the text of a cell
        self.names: tuple[str, ...] | None = None
        for row in store.rows():
            if row.result is not None:
                self.names = self.names or tuple(row.result)
            if row.result is not None or not retry:
                self.known[cell_text(row.parameters)] = row.result
        self.stored = tuple(self.known)
        self.asked: dict[str, str] = {}  # text of every cell asked for, to its key
        self.cells: dict[str, Item] = {}  # by key, those that are waiting or running
        self.queue: deque[str] = deque()  # keys, in the order of the grid
        self.alone: deque[str] = deque()  # cells whose worker died: each in a group of its own
        self.groups: dict[int, tuple[str, ...]] = {}
        self.deaths: dict[str, int] = {}
        self.unsaved: list[tuple[Batch, dict[str, tuple[Parameters, int]]]] = []
        self.durations: deque[float] = deque(maxlen=_RECENT)
        self.computed = self.submitted = 0
        self.counted = {"done": 0, "failed": 0}
        self._extend()

    def work(self, engine: Engine, time_limit: float) -> None:
        """Compute until no cell is left or the time is over."""
        before = sum(self.store.counts().values())
        self.store.note(workers=engine.workers, started=time.time(), before=before)
        while True:
            left = time_limit - (time.monotonic() - self.began)
            while left > 0 and len(self.groups) < engine.workers and (self.queue or self.alone):
                self._submit(engine, left)
            self.save()
            if not self.groups:
                break
            for number, batch in engine.collect(_TICK):
                self.take(number, batch)
            if len(self.queue) < 2 * engine.workers:  # an adaptive grid takes a while to ask
                self._extend()
            self._report()
        self._report(final=True)

    def take(self, number: int, batch: Batch | None) -> None:
        """Take the outcomes of a group; cells that were not begun wait again."""
        group = self.groups.pop(number)
        if batch is None:
            self._lost(group)
            return
        cells = {}
        for outcome in batch.outcomes:
            if outcome.misuse and self.names is None:
                expected = "a dict of finite numbers from the cell function"
                raise DomainError(self.sweep.key, expected=expected, got=outcome.misuse)
            _, parameters, seed = self.cells.pop(outcome.key)
            cells[outcome.key] = parameters, seed
            self._learn(parameters, outcome)
        self.queue.extendleft(reversed([key for key in group if key in self.cells]))
        self.unsaved.append((batch, cells))

    def save(self) -> None:
        """Store what has come back."""
        while self.unsaved:
            self.store.add(*self.unsaved[0])
            self.unsaved.pop(0)

    def swept(self) -> Swept:
        """Return the state of the run."""
        return Swept(
            self.store.folder,
            done=self.counted["done"],
            failed=self.counted["failed"],
            left=len(self.cells),
            computed=self.computed,
            seconds=time.monotonic() - self.began,
        )

    def _submit(self, engine: Engine, left: float) -> None:
        if self.alone:
            group = (self.alone.popleft(),)
        else:
            # Towards the end groups are smaller, so that every slot gets one.
            size = min(self._group_size(), _LARGEST_GROUP)
            size = min(size, max(math.ceil(len(self.queue) / engine.workers), size // 8))
            group = tuple(self.queue.popleft() for _ in range(min(size, len(self.queue))))
        self.submitted += 1
        self.groups[self.submitted] = group
        cells = tuple(self.cells[key] for key in group)
        engine.submit(self.submitted, Task(cells, min(2 * _GROUP_SECONDS, left), self.names))

    def _group_size(self) -> int:
        if not self.durations:
            return 1
        mean = sum(self.durations) / len(self.durations)
        return max(1, int(_GROUP_SECONDS / max(mean, 1e-7)))

    def _lost(self, group: tuple[str, ...]) -> None:
        """Let the cells of a dead worker run again, each alone: then it is known which one kills.

        A cell that was alone at two deaths is stored as failed.
        """
        key = group[0]
        self.deaths[key] = self.deaths.get(key, 0) + (len(group) == 1)
        if self.deaths[key] < _DEATHS:
            self.alone.extend(group)
            return
        _, parameters, seed = self.cells.pop(key)
        message = f"The worker died {_DEATHS} times while it computed this cell."
        outcome = CellOutcome(key, None, 0.0, message=message)
        self._learn(parameters, outcome)
        self.unsaved.append((Batch([outcome], ""), {key: (parameters, seed)}))

    def _learn(self, parameters: Parameters, outcome: CellOutcome) -> None:
        self.known[cell_text(parameters)] = outcome.result
        self.counted["done" if outcome.result is not None else "failed"] += 1
        self.computed += 1
        self.durations.append(outcome.seconds)
        if self.names is None and outcome.result is not None:
            self.names = tuple(outcome.result)
            measure = self.sweep.measure
            if measure and measure not in self.names:
                expected = f"the result {measure!r}, which the sweep declares as its measure"
                raise DomainError(self.sweep.key, expected=expected, got=", ".join(self.names))

    def _extend(self) -> None:
        """Queue the cells that the grid asks for and that were not asked for before."""
        if self.asked and not self.grid.adaptive:
            return
        before = len(self.asked)
        for parameters in self.grid.cells(self.known):
            text = cell_text(parameters)
            if text in self.asked:
                continue
            key = self.asked[text] = cell_key(self.sweep.key, self.sweep.version, text)
            if text in self.known:
                self.counted["done" if self.known[text] is not None else "failed"] += 1
                continue
            self.cells[key] = key, parameters, cell_seed(key)
            self.queue.append(key)
        if len(self.asked) > before:
            outside = sum(text not in self.asked for text in self.stored)
            self.store.note(asked=len(self.asked), outside=outside, adaptive=self.grid.adaptive)

    def _report(self, *, final: bool = False) -> None:
        if self.progress is None or not (final or time.monotonic() - self.ticked > _TICK):
            return
        self.ticked = time.monotonic()
        elapsed = self.ticked - self.began
        rate = self.computed / elapsed if elapsed > 0 else 0.0
        left = len(self.cells) / rate if rate else None
        self.progress(
            Progress(
                done=self.counted["done"],
                failed=self.counted["failed"],
                total=len(self.asked),
                adaptive=self.grid.adaptive,
                elapsed=elapsed,
                left=left,
            )
        )
