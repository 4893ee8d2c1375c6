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
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy
import torch

from posquad import __version__
from posquad._files import write_whole
from posquad.errors import PosquadError
from posquad.lab.experiment import Experiment, Measured, Parameters, Quantity

__all__ = [
    "Record",
    "RecordError",
    "load",
    "record_key",
    "require_folder",
    "save",
    "system_information",
    "write_file",
]

FORMAT = 1
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile)


class RecordError(PosquadError):
    """A record or its folder cannot be read or written."""


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
    """Hash of what determines the result: the parameters and the source of library and experiment.

    >>> from posquad.lab.registry import EXPERIMENTS
    >>> len(record_key(EXPERIMENTS["exp5"], EXPERIMENTS["exp5"].parameters()))
    16
    """
    digest = hashlib.sha256()
    asked = {"format": FORMAT, "experiment": experiment.key}
    asked |= {"parameters": dataclasses.asdict(parameters), "posquad": __version__}
    asked |= {"torch": torch.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    digest.update(json.dumps(asked, sort_keys=True).encode())
    root = Path(__file__).parents[1]
    library = [path for path in root.rglob("*.py") if "lab" not in path.relative_to(root).parts]
    shared = [root / "lab" / name for name in ("problems.py", "dial.py")]
    own = import_module(experiment.run.__module__).__file__
    for path in sorted([*library, *shared, Path(str(own))]):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


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

    `RecordError` if it is damaged.

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
        raise RecordError(
            str(path),
            expected="a whole record; nothing was changed, run with --fresh to compute it again",
            got=f"{type(problem).__name__}: {problem}",
        ) from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever looks sees the old content or the new, never a part.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "a" / "b.txt", b"whole")
    ...     (Path(folder) / "a" / "b.txt").read_bytes()
    b'whole'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as problem:
        raise RecordError(
            str(path),
            expected="a place that can be written to",
            got=problem.strerror or str(problem),  # without the name of a file that is not theirs
        ) from None


def require_folder(folder: Path, names: Iterable[str]) -> None:
    """Find out before any work whether files of these names can be written to a folder.

    >>> require_folder(Path(__file__), [])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    posquad.lab.records.RecordError: ...records.py: expected a folder; got a file of that name
    """
    if folder.exists() and not folder.is_dir():
        raise RecordError(str(folder), expected="a folder", got="a file of that name")
    for name in names:
        if (folder / name).is_dir():
            raise RecordError(str(folder / name), expected="a file", got="a folder of that name")
    probe = folder / ".probe"
    try:
        write_file(probe, b"")
    except RecordError as problem:
        raise RecordError(str(folder), expected="a folder to write to", got=problem.got) from None
    probe.unlink(missing_ok=True)


def system_information() -> dict[str, Any]:
    """Versions and hardware that a result may depend on.

    >>> sorted(system_information())[:3]
    ['cores', 'devices', 'machine']
    """
    count = torch.cuda.device_count()
    return {
        "posquad": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(k) for k in range(count)],
    }


def now() -> str:
    """The time of day in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
