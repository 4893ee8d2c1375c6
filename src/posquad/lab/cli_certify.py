"""The command `posquad certify`: make a certificate for a factor, or prove a saved one again."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import click
import numpy as np

from posquad.certificates import certify, load, save, verify
from posquad.errors import PosquadError
from posquad.lab.cli_failure import Failure
from posquad.measurements import Dense, RankOne
from posquad.objectives import LeastSquares

__all__ = ["certify_command"]

_FILE = click.Path(path_type=Path)


@click.command("certify", short_help="Prove that an answer is the only one, or check a proof.")
@click.argument("data", type=_FILE)
@click.argument("model", type=_FILE)
@click.option("--save", "target", type=_FILE, help="Keep the certificate as PATH.json and .npz.")
def certify_command(data: Path, model: Path, target: Path | None) -> None:
    """Say what is proved about the answer MODEL to the measurements DATA.

    DATA is an .npz file with inputs X (n, d), or symmetric matrices A (n, d, d), and responses y
    (n). MODEL is an .npz file with a factor U (d, r): a certificate for UU' is made, printed and,
    with --save, kept. Or MODEL is a kept certificate, .json with its .npz beside it: then what it
    says is proved again from the data, by code that shares nothing with the search.

    Exit status: 0 if UU' is proved to fit the data and to be the only positive semidefinite matrix
    with its measurements, 1 if not, 2 for files that cannot be used.

    \b
    Examples:
      posquad certify data.npz model.npz
      posquad certify data.npz model.npz --save answer
      posquad certify data.npz answer.json
    """
    try:
        objective = _objective(data)
        proved = (
            _prove_again(objective, model, target)
            if model.suffix.lower() == ".json"
            else _prove(objective, data, model, target)
        )
    except PosquadError as problem:
        raise Failure(str(problem)) from None
    if not proved:
        raise SystemExit(1)


def _prove(objective: LeastSquares, data: Path, model: Path, target: Path | None) -> bool:
    (U,) = _arrays(model, (("U",),))
    _require_axes(model, "U", U, 2)
    if target is not None:
        _require_own_files(target, data, model)
    certificate = certify(objective, U)
    click.echo(str(certificate))
    if target is not None:
        try:
            written = save(certificate, target)
        except OSError as problem:
            raise Failure(f"{target}: cannot be written ({problem.strerror})") from None
        click.echo(f"Saved: {written[0]}, {written[1]}")
    return certificate.proved


def _prove_again(objective: LeastSquares, model: Path, target: Path | None) -> bool:
    if target is not None:
        raise Failure(f"--save: {model} is a kept certificate already; give an .npz file with U")
    try:
        certificate = load(model)
    except OSError as problem:
        raise Failure(f"{model}: cannot be read ({problem.strerror})") from None
    outcome = verify(objective, certificate)
    for problem in outcome.problems:
        click.echo(f"wrong: {problem}")
    for name in outcome.confirmed:
        click.echo(f"proved again: {name}")
    if not outcome.valid:
        click.echo("not valid: the certificate does not hold for these data")
    elif not certificate.proved:
        click.echo("valid, but it does not say that the answer is the only one")
    else:
        click.echo("valid: proved to be the only answer")
    return outcome.valid and certificate.proved


def _objective(path: Path) -> LeastSquares:
    inputs, y = _arrays(path, (("X", "y"), ("A", "y")))
    _require_axes(path, "y", y, 1)
    if inputs.ndim == 3:
        return LeastSquares(Dense(inputs), y)
    _require_axes(path, "X", inputs, 2)
    return LeastSquares(RankOne(inputs), y)


def _require_axes(path: Path, name: str, array: np.ndarray, axes: int) -> None:
    if array.ndim != axes:
        raise Failure(f"{path}: {name} must have {axes} axes; it has shape {array.shape}")


def _require_own_files(target: Path, *inputs: Path) -> None:
    """What is written must not replace what was read."""
    stem = target.with_suffix("") if target.suffix in (".json", ".npz") else target
    for path in inputs:
        if path.resolve() in {Path(f"{stem}{end}").resolve() for end in (".json", ".npz")}:
            raise Failure(f"--save: {target} would replace {path}; choose another name")


def _arrays(path: Path, choices: tuple[tuple[str, ...], ...]) -> list[np.ndarray]:
    """The arrays of the first choice of names that the file has, exactly, in double precision."""
    try:
        stored = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise Failure(f"{path}: is one array, not an .npz file of named arrays")
        with stored:
            names = next((names for names in choices if set(names) <= set(stored.files)), None)
            if names is None:
                wanted = " or ".join(" and ".join(names) for names in choices)
                held = ", ".join(sorted(stored.files)[:8]) or "none"
                raise Failure(f"{path}: arrays {wanted} are needed; it holds {held}")
            return [_exact(path, name, stored[name]) for name in names]
    except FileNotFoundError:
        raise Failure(f"{path}: no such file") from None
    except _UNREADABLE as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise Failure(f"{path}: cannot be read as .npz without pickle ({reason})") from None


# What NumPy and zipfile raise at files that are damaged, encrypted, too large or of another kind.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, SyntaxError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
)


def _exact(path: Path, name: str, array: np.ndarray | bytes) -> np.ndarray:
    if isinstance(array, bytes):  # what NumPy returns for a member of the archive that is no array
        raise Failure(f"{path}: {name} is no array")
    if array.dtype.kind not in "fiu":
        raise Failure(f"{path}: {name} must hold real numbers; its type is {array.dtype}")
    with np.errstate(over="ignore"):
        wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise Failure(f"{path}: {name} holds NaN, an infinity or a number beyond double precision")
    exact = wide == array if array.dtype.kind == "f" else abs(wide) < 2.0**53
    if not exact.all():
        raise Failure(f"{path}: {name} has entries that are no double precision numbers")
    return wide
