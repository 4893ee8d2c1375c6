"""The results of a sweep: one SQLite file, written by one process.

A group of finished cells is one transaction with a rollback journal and `synchronous=FULL`, so that
after a crash of the driver or of the machine a group is in the file as a whole or not at all. Each
row has a checksum, and opening a store checks all of them. A second file, `driver.lock`, is a
database on which the driver holds a write lock for as long as it lives; SQLite and the system
release it when the driver ends, in whatever way.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posquad.core.errors import DomainError
from posquad.core.files import FileError, require_folder
from posquad.core.system import now
from posquad.sweep.compute import Batch
from posquad.sweep.grid import Parameters, cell_text

__all__ = ["LOCK", "STORE", "Row", "Store", "driver_of"]

STORE, LOCK = "sweep.sqlite", "driver.lock"
_FORMAT = "posquad sweep 1"
_PATIENCE = 60.0  # seconds to wait for a reader that has the file
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE cells (
  key TEXT PRIMARY KEY, parameters TEXT NOT NULL, seed INTEGER NOT NULL, status TEXT NOT NULL,
  result TEXT, message TEXT NOT NULL, seconds REAL NOT NULL, finished TEXT NOT NULL,
  host TEXT NOT NULL, versions INTEGER NOT NULL, checksum TEXT NOT NULL
);
"""
# Rows are appended, and only the index of their keys, which are hashes, is written all over.


_REPLACED = ("status", "result", "message", "seconds", "finished", "host", "versions", "checksum")
_INSERT = (
    "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _REPLACED)
    + " WHERE cells.status = 'failed'"
)


@dataclass(frozen=True)
class Row:
    """One finished or failed cell, as it is stored."""

    key: str
    parameters: Parameters
    seed: int
    status: str  # "done" or "failed"
    result: dict[str, float | int] | None
    message: str
    seconds: float
    finished: str
    host: str
    versions: dict[str, str]


class Store:
    """The store of a folder, open for reading, and for writing if `Store.create` opened it."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder, self.connection = folder, connection
        self.path = folder / STORE

    @staticmethod
    @contextmanager
    def create(folder: Path, identity: Mapping[str, Any]) -> Iterator[Store]:
        """Open the store of a sweep for writing, and make it if there is none.

        `identity` says which sweep and version the results belong to; a store with another one
        is refused. So is a folder that another driver is using.
        """
        require_folder(folder, [STORE, LOCK])
        with _driver_lock(folder), closing(_connect(folder / STORE, new=True)) as connection:
            store = Store(folder, connection)
            with store.guarded():
                store._prepare(identity)
            yield store

    @staticmethod
    @contextmanager
    def read(folder: Path) -> Iterator[Store]:
        """Open the store of a folder for reading, also while a driver writes to it."""
        path = folder / STORE
        if not path.is_file():
            expected = f"the folder of a sweep, with a file {STORE}"
            raise FileError(str(folder), expected=expected, got="no such file")
        with closing(_connect(path)) as connection:
            store = Store(folder, connection)
            with store.guarded():
                store._require_format()
            yield store

    def meta(self) -> dict[str, Any]:
        """Return what is stored about the sweep as a whole."""
        with self.guarded():
            rows = self.connection.execute("SELECT name, value FROM meta").fetchall()
        return {name: json.loads(value) for name, value in rows}

    def note(self, **entries: Any) -> None:
        """Store facts about the sweep as a whole."""
        with self.guarded(), self.connection:
            self.connection.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [(name, json.dumps(value)) for name, value in entries.items()],
            )

    def add(self, batch: Batch, cells: Mapping[str, tuple[Parameters, int]]) -> None:
        """Store the outcomes of a group in one transaction; a failed cell may be replaced."""
        versions, finished = json.dumps(batch.versions, sort_keys=True), now()
        with self.guarded(), self.connection as database:
            database.execute("INSERT OR IGNORE INTO versions (text) VALUES (?)", (versions,))
            (number,) = database.execute(
                "SELECT id FROM versions WHERE text = ?", (versions,)
            ).fetchone()
            rows = []
            for outcome in batch.outcomes:
                parameters, seed = cells[outcome.key]
                status = "failed" if outcome.result is None else "done"
                result = None if outcome.result is None else json.dumps(outcome.result)
                text = cell_text(parameters)
                row = (outcome.key, text, seed, status, result, outcome.message)
                about = (outcome.seconds, finished, batch.host, number, _checksum(row))
                rows.append((*row, *about))
            database.executemany(_INSERT, rows)

    def rows(self, status: str | None = None) -> Iterator[Row]:
        """Yield the rows, with their checksums checked; in the order of the keys."""
        with self.guarded():
            # One statement, so that a driver cannot write between two.
            where, values = ("WHERE status = ?", (status,)) if status else ("", ())
            found = self.connection.execute(
                "SELECT cells.*, versions.text FROM cells JOIN versions ON versions.id = "
                f"cells.versions {where} ORDER BY key",
                values,
            )
            for *row, seconds, finished, host, _, checksum, versions in found:
                if _checksum(row) != checksum:
                    got = f"a row that was changed: the checksum of {row[1]} does not match"
                    raise FileError(str(self.path), expected="an undamaged store", got=got)
                yield Row(
                    key=row[0],
                    parameters=json.loads(row[1]),
                    seed=row[2],
                    status=row[3],
                    result=None if row[4] is None else json.loads(row[4]),
                    message=row[5],
                    seconds=seconds,
                    finished=finished,
                    host=host,
                    versions=json.loads(versions),
                )

    def counts(self) -> dict[str, int]:
        """Return the number of done and of failed cells."""
        with self.guarded():
            found = dict(
                self.connection.execute("SELECT status, COUNT(*) FROM cells GROUP BY status")
            )
        return {status: found.get(status, 0) for status in ("done", "failed")}

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an error of SQLite into one sentence."""
        try:
            yield
        except sqlite3.Error as problem:
            raise _error(self.path, problem) from None

    def _prepare(self, identity: Mapping[str, Any]) -> None:
        self.connection.execute("PRAGMA journal_mode=DELETE")
        self.connection.execute("PRAGMA synchronous=FULL")
        tables = self.connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            with self.connection as database:
                database.execute("BEGIN IMMEDIATE")
                for statement in _TABLES.split(";"):
                    database.execute(statement)
                entries = {"format": _FORMAT, "created": now(), **identity}
                database.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [(name, json.dumps(value)) for name, value in entries.items()],
                )
            return
        self._require_format()
        meta = self.meta()
        for name, value in identity.items():
            if meta.get(name) != value:
                expected, got = _difference(name, value, meta)
                raise DomainError(str(self.folder), expected=expected, got=got)

    def _require_format(self) -> None:
        state = self.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if state != "ok":
            raise FileError(str(self.path), expected="an undamaged store", got=state)
        row = self.connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if row is None or row[0] != json.dumps(_FORMAT):
            got = "another kind of database" if row is None else row[0]
            raise FileError(str(self.path), expected=f"the format {_FORMAT!r}", got=got)


def driver_of(folder: Path) -> str | None:
    """Return the process and host of the driver of a folder; None if none is running.

    >>> driver_of(Path("no-such-folder")) is None
    True
    """
    if not (folder / LOCK).is_file():
        return None
    try:
        with closing(_connect(folder / LOCK, patience=0.0)) as connection:
            holder = _holder(connection)
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return holder
            connection.rollback()
    except sqlite3.Error:
        return None
    return None


@contextmanager
def _driver_lock(folder: Path) -> Iterator[None]:
    """Hold the write lock of `driver.lock`, or refuse."""
    path = folder / LOCK
    try:
        # `status` takes the lock for an instant, so one refusal does not mean another driver.
        connection = _connect(path, new=True, patience=1.0)
        connection.execute("CREATE TABLE IF NOT EXISTS driver (who TEXT NOT NULL)")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM driver")
            who = f"process {os.getpid()} on {platform.node() or 'this host'}"
            connection.execute("INSERT INTO driver VALUES (?)", (who,))
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as problem:
        if "locked" in str(problem):
            other = driver_of(folder) or "another process"
            expected = "a folder that no other driver is using"
            raise FileError(str(folder), expected=expected, got=f"{other}") from None
        raise _error(path, problem) from None
    except sqlite3.Error as problem:
        raise _error(path, problem) from None
    try:
        yield
    finally:
        connection.rollback()
        connection.close()


def _holder(connection: sqlite3.Connection) -> str:
    try:
        row = connection.execute("SELECT who FROM driver").fetchone()
    except sqlite3.Error:
        row = None
    return row[0] if row else "another process"


def _connect(path: Path, *, new: bool = False, patience: float = _PATIENCE) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if new else 'rw'}"
    try:
        return sqlite3.connect(uri, uri=True, timeout=patience)
    except sqlite3.Error as problem:
        raise _error(path, problem) from None


def _checksum(row: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16]


def _difference(name: str, value: Any, meta: Mapping[str, Any]) -> tuple[str, str]:
    if name == "fingerprint":
        expected = "the cell function that made the store; for a changed one, another folder"
        return expected, "another function"
    what = {"sweep": "the sweep", "version": "version"}.get(name, name)
    return f"a store of {what} {value!r}", f"one of {what} {meta.get(name)!r}; choose another --out"


def _error(path: Path, problem: sqlite3.Error) -> FileError:
    """Return the error for what SQLite reports: a full disk, no locks, a damaged file."""
    text = str(problem)
    if "full" in text or "disk I/O" in text:
        expected = "room to write the results"
        got = f"{text!r}; the finished cells are stored: free some space and run the same command"
    elif "lock" in text:
        expected = "a file system on which files can be locked"
        got = f"{text!r}; choose a folder on a local disk"
    elif "malformed" in text or "not a database" in text:
        expected, got = "an undamaged store", text
    else:
        expected, got = "a file that can be read and written", text
    return FileError(str(path), expected=expected, got=got)
