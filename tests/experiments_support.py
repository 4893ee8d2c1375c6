"""Small parameters, records and stand-ins, for the tests of experiments."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from posquad.experiments.framework import Experiment, Measured, Quantity
from posquad.experiments.records import Record, record_key
from posquad.experiments.registry import EXPERIMENTS

REAL: dict[str, Experiment] = dict(EXPERIMENTS)

TINY: dict[str, dict[str, Any]] = {
    "exp1": {"seeds": 2, "steps": 10, "d": 6, "r": 2, "n": 20, "correction_steps": 3},
    "exp2": {"seeds": 2, "records": 8, "rk4_step": 0.05, "n": 200},
    "exp3": {"trials": 3, "budgets": (10, 20), "tabled_budget": 20, "flow_trials": 1}
    | {"flow_steps": 500},
    "exp4": {"map_steps": 20, "records": 10, "rk4_step": 0.1},
    "exp5": {"tolerance": 1e-9},
    "exp6": {"samples": 3},
    "exp7": {"seeds": 2, "dials": (0.0, 1.0), "epsilons": (0.5,), "n": 1, "d": 2}
    | {"residual_tolerance": 1e-3, "law_problems": 1, "law_dials": (0.01, 0.03)}
    | {"law_starts": (1e-1, 1e-4, 1e-5, 1e-6)},
    "exp8": {
        "d": (3, 4),
        "r": (1, 1),
        "ratios": (8, 128),
        "largest_ratios": (128, 128),
        "trials": (3, 2),
    }
    | {"steps": (40,)},
}
"""Seconds instead of minutes; what claims ask for (lambda_r, kappa, epsilon, ...) is still run."""


@cache
def _measured(key: str) -> Measured:
    experiment = REAL[key]
    return experiment.run(experiment.parameters(**TINY[key]), lambda fraction: None)


def measured(key: str) -> Measured:
    """Return a fresh copy of what the experiment measures with tiny parameters."""
    return copy.deepcopy(_measured(key))


def falsified(key: str, name: str, value: Any) -> Measured:
    """The measurement with one quantity replaced by this value everywhere."""
    result = measured(key)
    old = result.quantities[name]
    result.quantities[name] = Quantity(np.full(old.values.shape, value), old.dims)
    return result


def stand_in(
    key: str,
    calls: list,
    *,
    problem: BaseException | None = None,
    answer: Measured | None = None,
    **changes: Any,
) -> Experiment:
    """Return an experiment that notes each run, answers at once or raises, and draws nothing."""

    def run(parameters, progress):
        calls.append((key, parameters))
        if problem is not None:
            raise problem
        progress(1.0)
        return answer or measured(key)

    run.__module__ = REAL[key].run.__module__  # its source is part of the key of a record
    return dataclasses.replace(REAL[key], run=run, **{"panels": (), "tables": (), **changes})


def small_record(seed: int = 0, *, value: float = 1.0, experiment: str = "exp5") -> Record:
    """A record of every kind of array that an experiment keeps."""
    kept = Measured(remarks=['a remark with Umlaut ä, "quotes" and <tags>'])
    kept.set_coordinates("epsilon", [0.5, 0.1])
    kept.set_coordinates("step", np.arange(3))
    kept.add("error", [[value, np.pi, -0.0], [np.nan, np.inf, 5e-324]], "epsilon", "step")
    kept.add("single", np.array([1.5, 2.5], dtype=np.float32), "epsilon")
    kept.add("found", [True, False, True], "step")
    kept.add("count", 7)
    parameters = EXPERIMENTS[experiment].parameters(seed=seed)
    return Record(
        experiment=experiment,
        key=record_key(EXPERIMENTS[experiment], parameters),
        parameters=dataclasses.asdict(parameters),
        measured=kept,
        seconds=0.25,
        system={"torch": "2.13.0", "devices": []},
        finished="2026-07-01T12:00:00Z",
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
