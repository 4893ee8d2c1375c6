"""Records: finished experiments on disk, as a JSON file and an npz file; no pickle.

The names of both files contain the record's key, a hash of the parameters, of the source that
computes the result and of the package versions. A run with the same key can reuse the record; a
run with another key overwrites nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy
import torch

from posquad._version import __version__
from posquad.core.files import FileError, write_file
from posquad.core.sources import ROOT, imported_modules, module_path, source_closure
from posquad.core.store import StoreError, read_arrays, read_body, save_pair
from posquad.experiments.framework import Experiment, Measured, Parameters, Quantity

__all__ = [
    "Record",
    "load",
    "record_key",
    "save",
]

FORMAT = 2
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile)


@dataclass(frozen=True)
class Record:
    """The result of one run of an experiment, with its parameters, its system and its duration."""

    experiment: str
    key: str
    parameters: dict[str, Any]
    measured: Measured
    seconds: float
    system: dict[str, Any]
    finished: str  # UTC, ISO 8601


def record_key(experiment: Experiment, parameters: Parameters) -> str:
    """Hash everything that determines a result: parameters, versions, and imported source files.

    >>> from posquad.experiments.registry import EXPERIMENTS
    >>> len(record_key(EXPERIMENTS["exp5"], EXPERIMENTS["exp5"].parameters()))
    16
    """
    digest = hashlib.sha256()
    identity = {"format": FORMAT, "experiment": experiment.key}
    identity |= {"parameters": dataclasses.asdict(parameters), "posquad": __version__}
    identity |= {"torch": torch.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    digest.update(json.dumps(identity, sort_keys=True).encode())
    for name, path in _sources(experiment.run.__module__):
        digest.update(name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(module: str) -> list[tuple[str, Path]]:
    """Return the source files that compute a result, with the names under which they count.

    For a file of the user these are the file and what it imports from posquad.
    """
    if module_path(module) is not None and module.split(".")[0] == ROOT.name:
        files = source_closure(module, leave_out=_draws)
        return [(path.relative_to(ROOT).as_posix(), path) for path in files]
    own = Path(str(sys.modules[module].__file__))
    imported = {
        path for name in imported_modules(own) for path in source_closure(name, leave_out=_draws)
    }
    return [
        (own.name, own),
        *((path.relative_to(ROOT).as_posix(), path) for path in sorted(imported)),
    ]


def _draws(module: str) -> bool:
    """Return whether a module only shows what was measured."""
    return module.startswith("posquad.report") or module.endswith(".panels")


def save(folder: Path, record: Record) -> None:
    """Write a record into `folder`.

    >>> from tempfile import TemporaryDirectory
    >>> record = Record("exp5", "key", {}, Measured(remarks=["seen"]), 1.0, {}, "")
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
    name = f"{record.experiment}-{record.key}"
    body = {
        "format": FORMAT,
        "experiment": record.experiment,
        "key": record.key,
        "finished": record.finished,
        "seconds": record.seconds,
        "parameters": record.parameters,
        "remarks": record.measured.remarks,
        "dimensions": dims,
        "system": record.system,
    }
    json_path = folder / f"{name}.json"
    save_pair(json_path, body, folder / f"{name}.npz", buffer.getvalue(), write=write_file)


def load(folder: Path, experiment: str, key: str) -> Record | None:
    """Read the record of an experiment under this key; None if there is none.

    A damaged record raises `FileError`.

    >>> load(Path("no such folder"), "exp1", "key") is None
    True
    """
    path = folder / f"{experiment}-{key}.json"
    if not path.exists():
        return None
    try:
        body = read_body(path, FORMAT)
        if body["experiment"] != experiment or body["key"] != key:
            raise ValueError("it is the record of something else")
        data = read_arrays(path.with_suffix(".npz"), body)
        measured = Measured(remarks=list(body["remarks"]))
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for name in arrays.files:
                if name.startswith("coord "):
                    measured.coords[name.removeprefix("coord ")] = arrays[name]
                else:
                    dims = tuple(body["dimensions"][name])
                    measured.quantities[name] = Quantity(arrays[name], dims)
        return Record(
            experiment=body["experiment"],
            key=body["key"],
            parameters=body["parameters"],
            measured=measured,
            seconds=float(body["seconds"]),
            system=body["system"],
            finished=body["finished"],
        )
    except _UNREADABLE as problem:
        known = isinstance(problem, StoreError)
        raise FileError(
            str(path),
            expected="a complete record; nothing was changed, run with --fresh to compute it again",
            got=str(problem) if known else f"{type(problem).__name__}: {problem}",
        ) from None
