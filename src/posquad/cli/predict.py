"""The command `posquad predict`: apply a model to a data file."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from posquad.cli.failure import reporting
from posquad.cli.options import (
    FILE,
    cache_options,
    chosen_caching,
    columns_option,
    missing_option,
    number_options,
    replacing,
    split_names,
    table_option,
)
from posquad.cli.progress import table_progress
from posquad.cli.threads import require_scale, suitable_threads
from posquad.core.errors import DomainError
from posquad.core.files import FileError
from posquad.io.models import columns_for, load_model, predict, table_rules
from posquad.io.tables import Caching, Rules, Table, TableError, open_table, write_columns
from posquad.io.tables.choosing import Choice
from posquad.io.tables.reading import Samples, load_samples
from posquad.io.tables.writing import require_suffix, text_parts

__all__ = ["predict_command"]


@click.command("predict")
@click.argument("model", type=FILE)
@click.argument("data", type=FILE)
@columns_option(
    "--response", "Column to compare with.  [default: the response of the model, if DATA has it]"
)
@columns_option(
    "--features",
    "Columns of the inputs, in the order of the model's inputs; names may differ.  "
    "[default: the columns of the model, by name]",
)
@missing_option(
    ["refuse", "mean"],
    "Missing values: refuse the table, or fill in the column means of the fitted data.  [default: "
    "mean if the model was fitted so, else refuse]",
)
@number_options("as in the fit")
@cache_options
@table_option("standard output, as CSV")
@click.option(
    "--std/--no-std",
    default=None,
    help="Also write standard errors.  [default: if the model has them]",
)
def predict_command(
    model: Path,
    data: Path,
    response: str | None,
    features: str | None,
    missing: str | None,
    decimal: str | None,
    thousands: str | None,
    cache: Path | None,
    keep_cache: bool,
    out: Path | None,
    std: bool | None,
) -> None:
    """Predict the responses of DATA with MODEL, the model.json of a fit or its folder.

    DATA is a table as for `posquad fit`. Columns are found by name, in any order, and other columns
    are ignored; if the model or the data have no names, columns are found by position, and data
    with as many columns as those of the fit have the response where they had it. Columns that were
    encoded in the fit are encoded in the same way; a value that the fit did not see is refused.

    The output has a column `prediction` and, if the model has them, a column `standard_error` of
    the mean response. It goes to standard output as CSV, or to the file --out, which is written
    completely or not at all. If DATA holds the response too, standard error shows how well the
    predictions match it. The numbers of a large .parquet file are first copied, as by `posquad
    fit`; standard error says where, and what becomes of the copy.

    Exit status: 0; 2 for files that cannot be used; 130 after Ctrl-C.

    \b
    Examples:
      posquad predict fit/model.json new.csv
      posquad predict fit new.parquet --out predictions.parquet
      zcat new.csv.gz | posquad predict fit - > predictions.csv
    """
    with reporting(f"{data}: the predictions need"):
        if out is not None:
            require_suffix(out)
            _require_other(out, data, model)
        fitted = load_model(model)
        rules = table_rules(fitted, model)
        table = open_table(data, rules.numbers.changed(decimal, thousands))
        if missing is None:
            missing = "mean" if rules.missing == "mean" else "refuse"
        choice = columns_for(
            fitted, table, rules=rules, response=response, features=split_names(features)
        )
        caching = chosen_caching(cache, keep_cache)
        samples = _samples(table, choice, rules, missing, caching, required=response is not None)
        if not table.named and choice.response not in (None, response, table.response):
            click.echo(f"{data}: {choice.response!r} is taken as the response", err=True)
        if hasattr(samples.X, "cache"):
            click.echo(f"{data}: read {dict(samples.facts)['read']}", err=True)
        if std is None:
            std = fitted.uncertainty_ is not None and math.isfinite(fitted.noise_std_)
        with suitable_threads(samples.X.size):
            if std:
                values, errors = predict(fitted, samples.X, errors=True)
                columns = {"prediction": values, "standard_error": errors}
            else:
                values = predict(fitted, samples.X)
                columns = {"prediction": values}
        if out is None:
            for part in text_parts(columns):
                click.echo(part, nl=False)
        else:
            replaced = replacing(out)
            write_columns(out, columns)
            click.echo(f"Predictions: {out} ({len(values)} rows{replaced})")
    if samples.y is not None:
        click.echo(_compared(samples, values), err=True)


def _samples(
    table: Table, choice: Choice, rules: Rules, missing: str, caching: Caching, *, required: bool
) -> Samples:
    """Load the inputs, and the response unless it cannot be used and was not asked for."""
    how = {"rules": rules, "missing": missing, "caching": caching}
    load = partial(load_samples, table, **how, keep_rows=True)
    try:
        with table_progress() as report:
            samples = load(choice, report=report)
        require_scale(samples, inputs=False, small=True)
    except TableError as problem:
        if required or choice.response is None:
            raise
        samples = load(replace(choice, response=None))
        click.echo(f"Predictions are not compared with {choice.response!r}: {problem}", err=True)
    require_scale(samples, small=True)
    return samples


def _compared(samples: Samples, values: np.ndarray) -> str:
    observed = np.asarray(samples.y, dtype=float)
    left = float(np.square(observed - values).sum())
    total = float(np.square(observed - observed.mean()).sum())
    share = f"R² {1 - left / total:.4f}, " if total else ""
    root = math.sqrt(left / len(observed))
    return f"Compared with column {samples.response!r}: {share}root mean square error {root:.4g}"


def _require_other(out: Path, data: Path, model: Path) -> None:
    if out.is_dir():
        raise FileError(str(out), expected="a file", got="a folder of that name")
    for path in (data, model):
        if out.resolve() == path.resolve():
            raise DomainError(
                "--out", expected="another file", got=f"{path}, which would be replaced"
            )
