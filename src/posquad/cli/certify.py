"""The command `posquad certify`: make a certificate, or verify a saved one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from posquad.certificates import certify, load, save, verify
from posquad.cli.failure import reporting
from posquad.cli.options import (
    DROP,
    ENCODE,
    FILE,
    MISSING,
    columns_option,
    number_options,
    parse_encodings,
    replacing,
    split_names,
)
from posquad.cli.threads import suitable_threads
from posquad.core.errors import DomainError
from posquad.core.files import FileError
from posquad.core.store import pair_paths
from posquad.io.models import columns_for, is_certificate, load_model, table_rules
from posquad.io.tables import PLAIN, Request, TableError, arrays, open_table
from posquad.io.tables.choosing import choose_columns
from posquad.io.tables.encoding import NO_REQUEST
from posquad.io.tables.opening import require_file
from posquad.io.tables.reading import Samples, load_samples
from posquad.problems.measurements import Dense, RankOne
from posquad.problems.objectives import LeastSquares
from posquad.report.fit_certificate import certificate_words, misses_responses

__all__ = ["certify_command"]


@click.command("certify")
@click.argument("data", type=FILE)
@click.argument("model", type=FILE)
@columns_option(
    "--response",
    "Column of the responses.  [default: the column of the model; else y, response or target]",
)
@columns_option("--features", "Columns of the inputs.  [default: the columns of the model]")
@DROP
@columns_option(
    "--weights", "Column of weights; rows with weight zero are left out.  [default: none]"
)
@ENCODE
@MISSING
@number_options("as in the fit")
@click.option(
    "--save",
    "target",
    type=FILE,
    help="Save the certificate as PATH.json and PATH.npz.  [default: only print it]",
)
def certify_command(
    data: Path,
    model: Path,
    response: str | None,
    features: str | None,
    drop: str | None,
    weights: str | None,
    encode: tuple[str, ...],
    missing: str | None,
    decimal: str | None,
    thousands: str | None,
    target: Path | None,
) -> None:
    """Prove what can be proved about the answer MODEL to the measurements DATA.

    DATA is a table as for `posquad fit`, or an .npz file with symmetric matrices A (n, d, d) and
    responses y (n). MODEL is the model.json of a fit (or its folder), or an .npz file with a factor
    U (d, r). A certificate for UU' is made, printed, and saved if --save is given. MODEL can also
    be a saved certificate, a .json file with its .npz file beside it. Its statements are then
    proved again from the data, by code that is independent of the search. A fitted model remembers
    --encode and --missing of its fit; a certificate does not, and needs them again.

    The proof is about the double precision numbers in the file; decimals in a text file are rounded
    to the nearest ones. Rows with weight zero are left out; other weights do not affect the proof.

    Exit status: 0 if UU' is proved to fit the data and to be the only positive semidefinite matrix
    with these measurements; 1 if not; 2 for files that cannot be used; 130 after Ctrl-C.

    \b
    Examples:
      posquad certify data.csv fit/model.json
      posquad certify data.npz model.npz --save answer
      posquad certify data.npz answer.json
    """
    with reporting(f"{data}: the proof needs"):
        column_options = {
            "response": response,
            "features": split_names(features),
            "weights": weights,
        }
        column_options |= {"drop": split_names(drop, "--drop") or ()}
        reading = _Reading(parse_encodings(encode), missing, decimal, thousands)
        if data != Path("-"):
            require_file(data)
        if target is not None:
            _require_own_files(target, data, model)
        if is_certificate(model):
            proved = _prove_again(data, column_options, reading, model, target)
        elif model.suffix.lower() == ".npz":
            proved = _prove(_objective(data, column_options, reading), _factor(model), target)
        else:
            proved = _prove(*_fitted(data, column_options, reading, model), target)
    if not proved:
        raise SystemExit(1)


@dataclass(frozen=True)
class _Reading:
    """The options that say how columns become numbers."""

    encode: Request
    missing: str | None
    decimal: str | None
    thousands: str | None


def _prove(objective: LeastSquares, U: np.ndarray, target: Path | None) -> bool:
    with suitable_threads(_entries(objective)):
        certificate = certify(objective, U)
    click.echo(str(certificate))
    if misses_responses(certificate):
        click.echo(certificate_words(certificate))
    if target is not None:
        replaced = replacing(pair_paths(target, ".json", ".npz")[0])
        try:
            written = save(certificate, target)
        except OSError as problem:
            got = problem.strerror or str(problem)
            expected = "a file that can be written"
            raise FileError(str(target), expected=expected, got=got) from None
        click.echo(f"Saved: {written[0]}, {written[1]}{replaced}")
    return certificate.proved


def _prove_again(
    data: Path,
    column_options: dict[str, Any],
    reading: _Reading,
    model: Path,
    target: Path | None,
) -> bool:
    if target is not None:
        got = f"{model}, which is already a saved certificate"
        raise DomainError("--save", expected="a model to certify", got=got)
    certificate = load(model)
    objective = _objective(data, column_options, reading)
    with suitable_threads(_entries(objective)):
        outcome = verify(objective, certificate)
    for problem in outcome.problems:
        click.echo(f"not confirmed: {problem}")
    for name in outcome.confirmed:
        click.echo(f"proved again: {name}")
    if not outcome.valid:
        click.echo("not valid: the certificate does not hold for these data")
    elif misses_responses(certificate):
        words = certificate_words(certificate)
        click.echo(f"valid, but {words[0].lower()}{words[1:]}")
    elif not certificate.proved:
        click.echo("valid, but it does not prove that the answer is the only one")
    else:
        click.echo("valid: proved to be the only answer")
    return outcome.valid and certificate.proved


def _entries(objective: LeastSquares) -> int:
    measurements = objective.measurements
    return measurements.n * measurements.d


def _fitted(
    data: Path, column_options: dict[str, Any], reading: _Reading, model: Path
) -> tuple[LeastSquares, np.ndarray]:
    """Return the data in the columns of a fitted model, and its factor."""
    fitted = load_model(model)
    if fitted.linear or fitted.intercept_ != 0:
        got = "one with linear terms"
        if not fitted.linear:
            got = f"one with the intercept {fitted.intercept_:.6g}"
        raise TableError(str(model), expected="a model x'Qx without other terms", got=got)
    if not fitted.rank_:
        raise TableError(str(model), expected="a model with a factor", got="Q = 0")
    if reading.encode != NO_REQUEST or reading.missing is not None:
        expected = "neither of them for a fitted model, which remembers what the fit was given"
        got = "--missing" if reading.encode == NO_REQUEST else "--encode"
        raise DomainError("--encode, --missing", expected=expected, got=got)
    rules = table_rules(fitted, model)
    table = open_table(data, rules.numbers.changed(reading.decimal, reading.thousands))
    choice = columns_for(fitted, table, rules=rules, **column_options, optional_response=False)
    samples = load_samples(table, choice, rules=rules, missing=rules.missing, whole=True)
    return _least_squares(samples), fitted.components_.T


def _objective(data: Path, column_options: dict[str, Any], reading: _Reading) -> LeastSquares:
    if data.suffix.lower() == ".npz":
        held = arrays(data)
        if {"A", "y"} <= set(held) and "X" not in held:
            for name, axes in (("A", 3), ("y", 1)):
                held[name].require_axes(data, axes)
            A, y = (held[name].exact(data).astype(float) for name in ("A", "y"))
            return LeastSquares(Dense(A), y)
    table = open_table(data, PLAIN.changed(reading.decimal, reading.thousands))
    choice, missing = choose_columns(table, **column_options), reading.missing or "refuse"
    samples = load_samples(table, choice, encode=reading.encode, missing=missing, whole=True)
    return _least_squares(samples)


def _least_squares(samples: Samples) -> LeastSquares:
    X, y = np.asarray(samples.X, dtype=float), np.asarray(samples.y, dtype=float)
    if samples.weights is not None:
        X, y = X[samples.weights > 0], y[samples.weights > 0]
    return LeastSquares(RankOne(X), y)


def _factor(model: Path) -> np.ndarray:
    require_file(model)
    held = arrays(model)
    if "U" not in held:
        got = ", ".join(list(held)[:8]) or "none"
        raise TableError(str(model), expected="an array U (d, r), the factor", got=got)
    held["U"].require_axes(model, 2)
    return held["U"].exact(model).astype(float)


def _require_own_files(target: Path, *inputs: Path) -> None:
    """Refuse to write over a file that was read."""
    written = {path.resolve() for path in pair_paths(target, ".json", ".npz")}
    for path in inputs:
        if path.resolve() in written:
            got = f"{target}, which would replace {path}"
            raise DomainError("--save", expected="another name", got=got)
