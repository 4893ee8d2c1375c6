"""Certificates on disk: a readable JSON file and an npz file with the arrays, without pickle."""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from posquad._version import __version__
from posquad.certificates import words
from posquad.certificates.certificate import FINDINGS, Certificate, Finding, Verdict
from posquad.certificates.proofs.claims import Claims, Witness
from posquad.core.errors import DomainError
from posquad.core.store import StoreError, pair_paths, read_arrays, read_body, save_pair

__all__ = ["load", "save"]

_FORMAT = "posquad certificate 1"
_ARRAYS = ("U", "z", "dual")
_UNREADABLE = (
    *(ValueError, KeyError, TypeError, ArithmeticError, OSError, EOFError, MemoryError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),  # NotImplementedError is a RuntimeError
)
_KEYS = {"format", "library", "fingerprint", "claims", "findings", "sha256"}
_KEYS |= {"arrays_bytes", "arrays_sha256"}


def save(certificate: Certificate, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write two files, `path` with the suffixes `.json` and `.npz`, and return their paths.

    The JSON file holds findings and claims, the npz file the witnesses U, z and dual. Each file is
    written atomically and has a SHA-256 checksum, which reveals damage; only `verify` shows that
    the content is right. The statements are those of `docs/theory.md`.

    >>> import tempfile
    >>> from posquad import LeastSquares, RankOne, certify
    >>> X = np.random.default_rng(0).standard_normal((9, 2))
    >>> certificate = certify(LeastSquares(RankOne(X), X[:, 0] ** 2), np.eye(2, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load(save(certificate, f"{folder}/answer")[0]).proved
    True
    """
    if not isinstance(certificate, Certificate):
        raise DomainError("certificate", expected="a Certificate", got=type(certificate).__name__)
    json_path, npz_path = pair_paths(path, ".json", ".npz")
    given = {name: getattr(certificate.witness, name) for name in _ARRAYS}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in given.items() if array is not None})
    arrays = buffer.getvalue()
    body: dict[str, Any] = {
        "format": _FORMAT,
        "library": __version__,
        "fingerprint": certificate.fingerprint,
        "claims": {name: _number(v) for name, v in asdict(certificate.claims).items()},
        "findings": {name: _plain(getattr(certificate, name)) for name in FINDINGS},
    }
    save_pair(json_path, body, npz_path, arrays)
    return json_path, npz_path


def load(path: str | os.PathLike[str]) -> Certificate:
    """Read the files that `save` wrote; `path` may have a suffix or none.

    Files that are damaged, incomplete or of another kind raise `DomainError`. A certificate from a
    file proves nothing until `verify` has confirmed it, and says so when printed. The reasons of
    its PROVED findings are written again from their numbers. The statements are those of
    `docs/theory.md`.

    >>> load("no/such/file")
    Traceback (most recent call last):
    posquad.core.errors.DomainError: no/such/file.json: expected a certificate; got no such file
    """
    json_path, npz_path = pair_paths(path, ".json", ".npz")
    for needed in (json_path, npz_path):
        if not needed.is_file():
            _refuse(needed, "no such file")
    try:
        body = read_body(json_path, _FORMAT, parse_int=_integer)
        arrays = read_arrays(npz_path, body)
    except StoreError as problem:
        _refuse(problem.path, problem.got)
    if set(body) | {"arrays_bytes"} != _KEYS:  # older files do not hold the size
        _refuse(json_path, f"a file that is not of the format {_FORMAT!r}")
    try:
        with np.load(io.BytesIO(arrays), allow_pickle=False) as stored:
            held = {name: stored[name] for name in stored.files}
        if not {"U"} <= set(held) <= set(_ARRAYS):
            raise ValueError(f"arrays {sorted(held)}")
        return Certificate(
            **{name: _finding(name, body["findings"][name]) for name in FINDINGS},
            claims=_claims(body["claims"]),
            witness=Witness(**held),
            fingerprint=str(body["fingerprint"]),
            loaded=True,
        )
    except _UNREADABLE as error:
        _refuse(npz_path, f"content that cannot be used: {error}")


def _refuse(path: Path, got: str) -> NoReturn:
    raise DomainError(path.as_posix(), expected="a certificate", got=got) from None


def _integer(digits: str) -> int:
    """Parse a count; integers of more than 15 digits may not fit a float."""
    if len(digits) > 15:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "value": _number(finding.value),
        "margin": _number(finding.margin),
        "verdict": finding.verdict.name,
        "reason": finding.reason,
        "details": {k: _number(v) for k, v in finding.details.items()},
    }


def _number(value: Any) -> Any:
    """Replace infinities by None, since JSON cannot hold them and they prove nothing."""
    if isinstance(value, Mapping):
        return {k: _number(v) for k, v in value.items()}
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def _finding(name: str, plain: Mapping[str, Any]) -> Finding:
    value, margin, verdict = plain["value"], plain["margin"], Verdict[plain["verdict"]]
    for number in (value, margin):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise ValueError(f"{number!r} where a number was expected")
    if not isinstance(plain["details"], dict):
        raise ValueError("the details are not an object")
    reason = str(plain["reason"])
    if verdict is Verdict.PROVED:
        reason = words.sentence(name, value, plain["details"])
    return Finding(value, margin, verdict, reason, plain["details"])


def _claims(plain: Mapping[str, Any]) -> Claims:
    names = {f.name for f in fields(Claims)}
    if set(plain) != names:
        raise ValueError(f"claims {sorted(set(plain) ^ names)}")
    for name, value in plain.items():
        if name == "route":
            good = value in ("gram", "monomials", "moment")
        else:
            optional = name in ("lam", "Lam", "mu", "beta", "excess")
            good = (value is None and optional) or type(value) in (int, float)
        if not good:
            raise ValueError(f"claim {name} = {value!r}")
    numbers: dict[str, Any] = {k: float(v) if type(v) is int else v for k, v in plain.items()}
    return Claims(**numbers)
