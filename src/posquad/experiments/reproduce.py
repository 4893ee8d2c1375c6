"""Run the experiments, judge every claim, and write the report.

Each finished experiment is saved before the next one starts. An interrupted run therefore loses at
most one experiment, and the next run continues from there.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posquad.core.errors import DomainError, PosquadError
from posquad.core.extras import import_extra
from posquad.core.files import require_folder, write_file
from posquad.core.system import now, system_information
from posquad.core.threads import one_thread
from posquad.experiments.changes import changed_parameters, mark_changed
from posquad.experiments.claims import Judged, compare_claim
from posquad.experiments.framework import Experiment, Measured, Parameters, override
from posquad.experiments.records import Record, load, record_key, save
from posquad.experiments.suite import Suite, paper_suite
from posquad.report.figures import draw

__all__ = ["ExperimentError", "Outcome", "Watcher", "plan", "reproduce"]


RECORDS, FIGURES = "records", "figures"


class ExperimentError(PosquadError, RuntimeError):
    """An experiment could not be run with the parameters it was given."""


class Watcher:
    """Callbacks during a run; those of the base class do nothing."""

    def begins(self, experiment: Experiment, position: int, total: int) -> None:
        """Called when an experiment starts; `position` counts from 1."""

    def advances(self, fraction: float) -> None:
        """Called with the finished fraction of the running experiment."""

    def ends(self, experiment: Experiment, record: Record, *, reused: bool) -> None:
        """Called when an experiment is finished, or an earlier record of it is reused."""

    def writes(self, what: str) -> None:
        """Called when results are about to be written."""


@dataclass(frozen=True)
class Outcome:
    """The results of a run."""

    records: tuple[Record, ...]
    judged: tuple[Judged, ...]
    missing: tuple[str, ...]  # experiments that were requested but not finished
    interrupted: bool
    seconds: float


def plan(
    only: Sequence[str] = (),
    *,
    quick: bool = False,
    seed: int | None = None,
    changes: Mapping[str, Mapping[str, str]] | None = None,
    suite: Suite | None = None,
) -> dict[str, Parameters]:
    """Return the parameters of every experiment to run, by the key of the experiment.

    `changes` are texts such as `{"exp2": {"n": "1600"}}`; they take precedence over `quick` and
    `seed`. The experiments are those of the suite, by default the paper's.

    >>> plan(["exp2"], changes={"exp2": {"n": "1600"}})["exp2"].n
    1600
    """
    experiments = (suite or paper_suite()).experiments
    for key in (*only, *(changes or {})):
        if key not in experiments:
            raise DomainError("experiment", expected=f"one of {', '.join(experiments)}", got=key)
    chosen = [key for key in experiments if not only or key in only]
    unused = sorted(set(changes or {}) - set(chosen))
    if unused:
        expected = f"parameters of the experiments to run ({', '.join(chosen)})"
        raise DomainError("set", expected=expected, got=f"parameters of {', '.join(unused)}")
    parameters = {}
    for key in chosen:
        experiment = experiments[key]
        values = experiment.parameters(**(experiment.quick if quick else {}))
        if seed is not None:
            values = dataclasses.replace(values, seed=seed)
        parameters[key] = override(values, (changes or {}).get(key, {}), where=f"{key}.")
    return parameters


def reproduce(
    folder: Path,
    parameters: Mapping[str, Parameters],
    *,
    quick: bool = False,
    fresh: bool = False,
    command: str = "posquad reproduce",
    watcher: Watcher | None = None,
    suite: Suite | None = None,
) -> Outcome:
    """Run the experiments without a record in `folder`; write claims, figures and report there.

    Ctrl-C stops the running experiment; the finished ones are kept and reported. The experiments
    and their claims are those of the suite, by default the paper's.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     outcome = reproduce(Path(folder), plan(["exp5"], quick=True))
    ...     (Path(folder) / "report.html").exists(), outcome.missing
    (True, ())
    """
    watcher, suite = watcher or Watcher(), suite or paper_suite()
    experiments = suite.experiments
    for package in ("matplotlib", "jinja2"):
        import_extra(package, "lab")
    began = time.monotonic()
    require_folder(folder, ("claims.json", "report.html"))
    for place in (RECORDS, FIGURES):
        require_folder(folder / place, ())
    keys = {key: record_key(experiments[key], values) for key, values in parameters.items()}
    known = {} if fresh else {key: load(folder / RECORDS, key, keys[key]) for key in parameters}
    records: list[Record] = []
    interrupted, failure = False, None
    for position, (key, values) in enumerate(parameters.items(), 1):
        experiment = experiments[key]
        watcher.begins(experiment, position, len(parameters))
        record = known.get(key)
        try:
            if record is None:
                record = _run(experiment, values, keys[key], watcher)
                save(folder / RECORDS, record)
        except KeyboardInterrupt:
            interrupted = True
            break
        except ExperimentError as problem:
            failure = problem
            break
        records.append(record)
        watcher.ends(experiment, record, reused=known.get(key) is not None)
    finished = {record.experiment for record in records}
    outcome = Outcome(
        records=tuple(records),
        judged=tuple(
            judged
            for record in records
            for judged in _judge(suite, record, parameters[record.experiment], quick)
        ),
        missing=tuple(key for key in parameters if key not in finished),
        interrupted=interrupted,
        seconds=time.monotonic() - began,
    )
    if records:
        _write(folder, outcome, parameters, quick, command, watcher, suite)
    if failure is not None:
        raise failure
    return dataclasses.replace(outcome, seconds=time.monotonic() - began)


def _run(experiment: Experiment, parameters: Parameters, key: str, watcher: Watcher) -> Record:
    began = time.monotonic()
    try:
        with one_thread():
            measured = experiment.run(parameters, watcher.advances)
            system = system_information()
        if not isinstance(measured, Measured):
            raise TypeError(f"`run` returned {type(measured).__name__}, not Measured")
    except Exception as problem:  # unusual parameters and code of a user can raise anything
        raise ExperimentError(
            experiment.key,
            expected="an experiment that runs with these parameters (finished ones are kept; "
            "--traceback shows where it stops)",
            got=f"{type(problem).__name__}: {problem}",
        ) from problem
    return Record(
        experiment=experiment.key,
        key=key,
        parameters=dataclasses.asdict(parameters),
        measured=measured,
        seconds=time.monotonic() - began,
        system=system,
        finished=now(),
    )


def _judge(suite: Suite, record: Record, parameters: Parameters, quick: bool) -> list[Judged]:
    """Judge the claims of one experiment, and note what the user changed."""
    changes = changed_parameters(suite.experiments[record.experiment], parameters, quick=quick)
    return [
        mark_changed(compare_claim(claim, record.measured), changes)
        for claim in suite.claims
        if claim.experiment == record.experiment
    ]


def _write(
    folder: Path,
    outcome: Outcome,
    parameters: Mapping[str, Parameters],
    quick: bool,
    command: str,
    watcher: Watcher,
    suite: Suite,
) -> None:
    from posquad.experiments.report import render

    text = json.dumps([j.as_dict() for j in outcome.judged], indent=1, allow_nan=False)
    write_file(folder / "claims.json", text.encode())
    drawings = {}
    for record in outcome.records:
        experiment = suite.experiments[record.experiment]
        watcher.writes(f"figures of {experiment.key}")
        for panel in experiment.panels:
            drawings[panel.key] = draw(panel, record.measured, folder / FIGURES)
    watcher.writes("report")
    page = render(outcome, parameters, drawings, quick=quick, command=command, suite=suite)
    write_file(folder / "report.html", page.encode())
