"""Checkpoints: the state of long work on the rows of a file, from which a later process goes on.

A checkpoint is one file, written atomically: a line of JSON, and the arrays as `.npz`. Its key is
a checksum of what determines the answer: the files (size, time, shape, and samples of their rows),
the responses and weights, the options and the version of posquad. A state of another key is never
used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad._version import __version__
from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError, PosquadError
from posquad.core.files import FileError, json_checksum, write_whole
from posquad.problems.rows.source import Rows

__all__ = ["Checkpoint", "CheckpointWriter", "State"]

_FORMAT = "posquad checkpoint 3"
_BEGIN = b'{"format": "posquad checkpoint'  # of every checkpoint, also of other versions
# Most bytes of the line of JSON. A choice: states have some kilobytes, and a damaged file is not
# read without end.
_HEADER = 2**24
# Seconds between two states. A choice: what a killed process loses at most; writing a state takes
# far less.
EVERY = 300.0


class Checkpoint:
    """Where `recover` and `PositiveQuadraticRegressor.fit` keep the state of long work on a file.

    A killed call that is made again goes on from the last state, to the same answer. The file is
    deleted when the answer is returned. A damaged file, or one of other data or options, is not
    used, and a warning says so; a file that is no checkpoint is refused and left as it is.

    Args:
        path: the file.
        every: seconds between two states.
        keep: leave the file when the answer is returned, until `remove` is called.
        tell: called with a sentence when work goes on from the file, or when the file cannot be
            used or written; by default only the latter are told, as warnings.

    >>> Checkpoint("fit.checkpoint", every=60)
    Checkpoint('fit.checkpoint', every=60.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: float = EVERY,
        keep: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise DomainError("checkpoint", expected="a path", got=type(path).__name__)
        self.path, self.keep, self.tell = Path(path), keep, tell
        self.every = positive_number("every", every)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, every={self.every})"

    def remove(self) -> None:
        """Delete the file, if there is one, and those of other processes beside it."""
        mark = f"{self.path.name}.rank"
        with suppress(OSError):
            for file in list(self.path.parent.iterdir()):
                if file.name.startswith(mark) and file.name.removeprefix(mark).isdigit():
                    _unlink(file)
        _unlink(self.path)


class State(NamedTuple):
    """The state of a phase of the work."""

    phase: str
    numbers: dict[str, Any]  # plain values
    arrays: dict[str, np.ndarray]


class CheckpointWriter:
    """The checkpoint of one call: the state it begins with, and where it saves the next ones.

    Without a checkpoint nothing is loaded or saved.
    """

    def __init__(self, checkpoint: Checkpoint | None = None, key: str = "", rank: int = 0) -> None:
        self.checkpoint, self._key, self._rank = checkpoint, key, rank
        self.state: State | None = None
        self._last, self._failed = time.monotonic(), False
        if checkpoint is None:
            return
        self.path = _of_rank(checkpoint.path, rank)
        try:
            self.state = _read(self.path, key)
        except ValueError as problem:
            self._warn(f"{self.path} is not used, and the work begins anew: {problem}.")

    @property
    def due(self) -> bool:
        """Whether it is time to save a state."""
        known = self.checkpoint
        return known is not None and time.monotonic() - self._last >= known.every

    def save(
        self, phase: str, numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Write a state in place of the last one; a disk that is full does not end the work."""
        if self.checkpoint is None:
            return
        data = io.BytesIO()
        np.savez(data, **arrays)  # type: ignore[arg-type]
        body = {"format": _FORMAT, "key": self._key, "phase": phase, "numbers": dict(numbers)}
        body["arrays_sha256"] = hashlib.sha256(data.getbuffer()).hexdigest()
        body["sha256"] = json_checksum(body)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps(body).encode() + b"\n"
            write_whole(self.path, line, data.getbuffer(), temporary=_partial(self.path))
        except OSError as problem:
            if not self._failed:
                got = problem.strerror or str(problem)
                self._warn(f"{self.path} cannot be written ({got}); the work goes on without it.")
            self._failed = True
        self._last = time.monotonic()

    def resumes(self, what: str) -> None:
        """Say that the work goes on from the state that was loaded."""
        known = self.checkpoint
        if known is not None and known.tell is not None and self._rank == 0:
            known.tell(f"Going on from {self.path}: {what}.")

    def drop(self, reason: str) -> None:
        """Say that the state that was loaded cannot be used, and forget it."""
        if self.state is not None:
            self._warn(f"{self.path} is not used, and the work begins anew: {reason}.")
        self.state = None

    def end(self) -> None:
        """Delete the file, unless the caller keeps it: the answer is known."""
        if self.checkpoint is not None and not self.checkpoint.keep:
            _unlink(self.path)

    def _warn(self, sentence: str) -> None:
        assert self.checkpoint is not None, "only a checkpoint can fail"
        if self.checkpoint.tell is not None:
            self.checkpoint.tell(sentence)
        else:
            warnings.warn(sentence, UserWarning, stacklevel=2)


def admitted_checkpoint(
    checkpoint: Checkpoint | str | os.PathLike[str] | None, source: Rows
) -> Checkpoint | None:
    """Return a checkpoint for work on a source, or refuse it."""
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if checkpoint is not None and source.fingerprint() is None:
        expected = "None unless the rows are those of files (rows.from_npy, rows.from_parquet)"
        raise DomainError("checkpoint", expected=expected, got=type(source).__name__)
    return checkpoint


def open_writer(
    checkpoint: Checkpoint | str | os.PathLike[str] | None,
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    options: Mapping[str, Any],
) -> CheckpointWriter:
    """Return the keeper of a call on the rows of a source, with the state of an earlier one.

    If several processes share the rows, each has its own file, PATH or PATH.rank1 and so on; all
    of them must be there and belong together.
    """
    known, problem, admitted = None, None, None
    try:
        admitted = admitted_checkpoint(checkpoint, source)
        known = None if admitted is None else source.fingerprint()
    except PosquadError as found:
        problem = found
    if source.is_shared or problem is not None:
        source.check_same(problem, "no checkpoint" if checkpoint is None else "a checkpoint")
    if admitted is None:
        return CheckpointWriter()
    parts = [__version__, known, source.n, source.d, str(source.dtype), dict(options)]
    parts += [_digest(y), None if weights is None else _digest(weights)]
    own = hashlib.sha256(json.dumps(parts, default=str).encode()).digest()
    everyone = source.all_gather(torch.from_numpy(np.frombuffer(own, np.int64).copy()))
    key = hashlib.sha256(b"".join(each.numpy().tobytes() for each in everyone)).hexdigest()
    problem, writer = None, CheckpointWriter()
    try:
        writer = CheckpointWriter(admitted, key, source.rank)
    except FileError as found:
        problem = found
    source.check_same(problem)
    return writer


def _of_rank(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name}.rank{rank}") if rank else path


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _unlink(path: Path) -> None:
    for file in (path, _partial(path)):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _digest(values: Tensor) -> str:
    array = values.contiguous().numpy()
    return f"{array.dtype.str} {hashlib.sha256(array.data).hexdigest()}"


def _read(path: Path, key: str) -> State | None:
    """Read a state, None if there is no file; ValueError says why it cannot be used."""
    try:
        with path.open("rb") as file:
            line, rest = file.readline(_HEADER), file.read()
    except FileNotFoundError:
        return None
    except OSError as problem:
        got = problem.strerror or str(problem)
        raise FileError(str(path), expected="a readable checkpoint", got=got) from None
    cut = not rest and _BEGIN.startswith(line)  # a damaged checkpoint of a few bytes, or empty
    if not cut and not line.startswith(_BEGIN):
        expected = "a checkpoint of posquad or no file, because it would be replaced"
        raise FileError(str(path), expected=expected, got="another file")
    body: dict[str, Any] = {}
    try:
        body = json.loads(line)
        whole = body["sha256"] == json_checksum(body)
        whole = whole and body["arrays_sha256"] == hashlib.sha256(rest).hexdigest()
    except (ValueError, LookupError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError("it is damaged")
    if body["format"] != _FORMAT or body["key"] != key:
        raise ValueError("it is of other data, other options or another version of posquad")
    with np.load(io.BytesIO(rest), allow_pickle=False) as held:
        return State(body["phase"], body["numbers"], {name: held[name] for name in held.files})
