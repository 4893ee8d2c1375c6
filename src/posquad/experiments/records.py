"""Finished experiments on disk: JSON for words and small numbers, npz for arrays, no pickle.

A record is written so that a reader never sees half of one: the arrays first, then the JSON file
that holds their digest, each moved into place in one step. Both names contain the record's key, a
hash of the parameters, of the source that computes the result and of the versions it runs on: a run
with the same key can be reused, and one with another key overwrites nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy
import torch

from posquad._version import __version__
from posquad.core.files import FileError, write_file
from posquad.core.sources import ROOT, source_closure
from posquad.experiments.framework import Experiment, Measured, Parameters, Quantity

__all__ = [
    "Record",
    "load",
    "record_key",
    "save",
]

FORMAT = 1
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile)


@dataclass(frozen=True)
class Record:
    """What one run of an experiment left: what was asked, what was measured, where and how long."""

    experiment: str
    key: str
    parameters: dict[str, Any]
    measured: Measured
    seconds: float
    system: dict[str, Any]
    finished: str  # UTC, ISO 8601


def record_key(experiment: Experiment, parameters: Parameters) -> str:
    """Hash of what determines the result: parameters, versions, and the sources that are imported.

    >>> from posquad.experiments.registry import EXPERIMENTS
    >>> len(record_key(EXPERIMENTS["exp5"], EXPERIMENTS["exp5"].parameters()))
    16
    """
    digest = hashlib.sha256()
    asked = {"format": FORMAT, "experiment": experiment.key}
    asked |= {"parameters": dataclasses.asdict(parameters), "posquad": __version__}
    asked |= {"torch": torch.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    digest.update(json.dumps(asked, sort_keys=True).encode())
    for path in source_closure(experiment.run.__module__, leave_out=_draws):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _draws(module: str) -> bool:
    """Whether a module only shows what was measured."""
    return module.startswith("posquad.report") or module.endswith(".panels")


def save(folder: Path, record: Record) -> None:
    """Write a record into `folder`.

    >>> from tempfile import TemporaryDirectory
    >>> record = Record("exp5", "key", {}, Measured(remarks=["seen"]), 1.0, {}, now())
    >>> with TemporaryDirectory() as folder:
    ...     save(Path(folder), record)
    ...     load(Path(folder), "exp5", "key").measured.remarks
    ['seen']
    """
    arrays = {f"coord {name}": values for name, values in record.measured.coords.items()}
    dims = {}
    for name, quantity in record.measured.quantities.items():
        arrays[name], dims[name] = quantity.values, quantity.dims
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    data = buffer.getvalue()
    name = f"{record.experiment}-{record.key}"
    words = {
        "format": FORMAT,
        "experiment": record.experiment,
        "key": record.key,
        "finished": record.finished,
        "seconds": record.seconds,
        "parameters": record.parameters,
        "remarks": record.measured.remarks,
        "dimensions": dims,
        "arrays": {"file": f"{name}.npz", "sha256": hashlib.sha256(data).hexdigest()},
        "system": record.system,
    }
    write_file(folder / f"{name}.npz", data)
    write_file(folder / f"{name}.json", json.dumps(words, indent=1).encode())


def load(folder: Path, experiment: str, key: str) -> Record | None:
    """The record of an experiment under this key, None if there is none.

    `FileError` if it is damaged.

    >>> load(Path("no such folder"), "exp1", "key") is None
    True
    """
    path = folder / f"{experiment}-{key}.json"
    if not path.exists():
        return None
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
        if words["format"] != FORMAT or words["experiment"] != experiment or words["key"] != key:
            raise ValueError("it is the record of something else")
        data = path.with_suffix(".npz").read_bytes()
        if hashlib.sha256(data).hexdigest() != words["arrays"]["sha256"]:
            raise ValueError(f"{experiment}-{key}.npz is not the file that was written")
        measured = Measured(remarks=list(words["remarks"]))
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for name in arrays.files:
                if name.startswith("coord "):
                    measured.coords[name.removeprefix("coord ")] = arrays[name]
                else:
                    dims = tuple(words["dimensions"][name])
                    measured.quantities[name] = Quantity(arrays[name], dims)
        return Record(
            experiment=words["experiment"],
            key=words["key"],
            parameters=words["parameters"],
            measured=measured,
            seconds=float(words["seconds"]),
            system=words["system"],
            finished=words["finished"],
        )
    except _UNREADABLE as problem:
        raise FileError(
            str(path),
            expected="a whole record; nothing was changed, run with --fresh to compute it again",
            got=f"{type(problem).__name__}: {problem}",
        ) from None
