"""The command `posquad fit`: fit a model to a data file and write a report."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from posquad.cli.checkpoints import checkpoint_options, fit_checkpoint, keeping
from posquad.cli.failure import reporting
from posquad.cli.fit_output import print_answer, require_place, write_fit
from posquad.cli.options import (
    DROP,
    ENCODE,
    FILE,
    MISSING,
    cache_options,
    chosen_caching,
    columns_option,
    folder_option,
    number_options,
    parse_encodings,
    seed_option,
    split_names,
)
from posquad.cli.processes import Processes, launched
from posquad.cli.progress import fit_progress, table_progress
from posquad.cli.threads import require_scale, suitable_threads
from posquad.core.arrays import positive_number
from posquad.core.errors import (
    DomainError,
    IdentifiabilityWarning,
    Interrupted,
    PosquadError,
    RowError,
    first_line,
)
from posquad.core.extras import import_extra
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.io.models import MODEL, predict
from posquad.io.tables import PLAIN, Samples, TableError, read_samples
from posquad.recovery.losses import LOSS_NAMES
from posquad.report.fit_answer import answer
from posquad.report.fit_report import render
from posquad.report.fitted_model import FittedModel

__all__ = ["fit_command"]

_COPIES = 6  # peak memory of a fit in copies of X, measured at 400,000 x 100
_QUICK = 20.0  # seconds of a fit up to which it is cross-validated by default
_PROVABLE = 5_000_000  # entries of X times unknowns up to which a proof takes seconds


@click.command("fit")
@click.argument("data", type=FILE)
@columns_option("--response", "Column of the responses.  [default: y, response or target]")
@columns_option("--weights", "Column of weights of the squared errors.  [default: equal weights]")
@columns_option("--features", "Columns of the inputs.  [default: all other columns]")
@DROP
@ENCODE
@MISSING
@number_options(".")
@click.option(
    "--rank", type=click.IntRange(min=1), help="Rank of Q.  [default: chosen by the criterion]"
)
@click.option(
    "--criterion",
    type=click.Choice(["bic", "cv"]),
    default="bic",
    show_default=True,
    help="Criterion for the rank: information criterion or cross-validation.",
)
@click.option(
    "--max-rank",
    type=click.IntRange(min=1),
    help="Highest rank to try.  [default: as high as columns and rows allow]",
)
@click.option("--intercept", is_flag=True, help="Add a constant to x'Qx.")
@click.option("--linear", is_flag=True, help="Add linear terms and a constant to x'Qx.")
@click.option(
    "--loss",
    type=click.Choice(LOSS_NAMES),
    default=LOSS_NAMES[0],
    show_default=True,
    help="Loss of the errors: huber or geman-mcclure for outliers, poisson for counts.",
)
@click.option(
    "--scale",
    type=float,
    help="Standard deviation of the noise without outliers, for huber and geman-mcclure.  "
    "[default: estimated]",
)
@click.option(
    "--validate/--no-validate",
    default=None,
    help="Cross-validate the model and linear regression.  [default: if the fit is quick]",
)
@click.option(
    "--certify/--no-certify",
    default=None,
    help="Try to prove that the answer is the only one.  [default: only for small problems]",
)
@click.option(
    "--tolerance",
    type=float,
    help="Relative residual below which responses count as reproduced.  [default: rounding error]",
)
@click.option(
    "--max-starts",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Maximum number of starts of the search.",
)
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="Stop the search after this time with the best answer.  [default: no limit]",
)
@checkpoint_options
@cache_options
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="With torchrun: end if another process gives no sign of life for this time.",
)
@seed_option("Seed of the random starts; the same seed gives the same answer.")
@folder_option("fit", "Folder of the model and the report.")
def fit_command(
    data: Path,
    response: str | None,
    weights: str | None,
    features: str | None,
    drop: str | None,
    encode: tuple[str, ...],
    missing: str | None,
    decimal: str | None,
    thousands: str | None,
    certify: bool | None,
    validate: bool | None,
    checkpoint: bool | None,
    cache: Path | None,
    keep_cache: bool,
    timeout: float,
    out: Path,
    **options: Any,
) -> None:
    """Find a low-rank positive semidefinite Q with x'Qx close to the responses in DATA.

    With --intercept the model is x'Qx + c, and with --linear x'Qx + b'x + c, where b and c are
    free. The errors are least squares unless --loss says otherwise.

    DATA is a table: .csv, .tsv or .txt (separated by commas, semicolons, tabs or blanks, with or
    without a header; also compressed, .gz or .zst), - for such text on standard input, .xlsx (the
    first sheet), .parquet, .npy (rows are samples), or .npz. An .npz file holds X (n, d), y (n) and
    optionally weights (n), or one array for each column.

    A .npy file with 256 MB of numbers or more (of 8 bytes each), and a .parquet file of which that
    much is used, are read block by block, whatever their size. The columns that are used must then
    hold numbers, or true and false for 1 and 0, and be complete: --missing does not apply, and
    --certify, --validate, --criterion cv and --loss are refused. Other files, and columns for
    --encode, must fit into memory. The numbers of such a .parquet file are first copied to a hidden
    file of their size beside it, or in --cache, which is deleted at the end unless --keep-cache is
    given.

    Columns of text, yes/no or percentages are read with --encode. The model remembers their values,
    the column means and the format of numbers, and `posquad predict` applies them. Text becomes one
    column of 0 and 1 for each value. These add up to 1 in every row, which gives the model a
    constant and linear terms; so with --intercept or --linear, and for every further column of
    text, the first value gets no column.

    The fit of a table that is read block by block saves its state into the output folder every few
    minutes. If it is killed, the same command goes on from there, to the same answer; a changed
    table or other options begin anew. The state is deleted when the model is written.

    The command prints how certain the answer is and what to do next. When everything is computed,
    it writes model.json, model.safetensors, report.html and, if one was made, the certificate
    into the output folder. Each file is written completely or not at all.

    Exit status: 0 if a model was written, whatever its status; 1 if another process of torchrun
    ended; 2 for data or options that cannot be used; 130 after Ctrl-C, which writes the best model
    so far (without a report, if that is not ready), unless the folder holds an earlier one, which
    is kept.

    \b
    Examples:
      posquad fit data.csv
      posquad fit data.csv --response height --features age,weight --rank 2 --out heights
      posquad fit data.parquet --linear --criterion cv
      posquad fit people.csv --encode sex,city --encode size=S,M,L --drop date --missing drop
      zcat data.csv.gz | posquad fit - --decimal ,
      torchrun --nproc-per-node 2 -m posquad fit big.npy --response x41
    """
    began = time.monotonic()
    columns = {"response": response, "weights": weights, "features": features, "drop": drop}
    columns |= {"missing": missing, "decimal": decimal, "thousands": thousands}
    processes = launched(timeout)
    rank = processes.rank
    processes.heed_signals()
    with reporting(f"{data}: the fit needs"):
        positive_number("--timeout", timeout)
        for name in ("tolerance", "time_limit", "scale", "checkpoint_every"):
            if options[name] is not None:
                positive_number(f"--{name.replace('_', '-')}", options[name])
        caching = chosen_caching(cache, keep_cache)
        new = [] if rank else require_place(data, out)
        try:
            with processes.joint_work():
                with table_progress() as report:
                    samples = read_samples(
                        data,
                        response=response,
                        weights=weights,
                        features=split_names(features),
                        drop=split_names(drop, "--drop") or (),
                        encode=parse_encodings(encode),
                        missing=missing or "refuse",
                        numbers=PLAIN.changed(decimal, thousands),
                        constant=options["intercept"] or options["linear"],
                        copies=_COPIES,
                        report=report,
                        share=processes,
                        caching=caching,
                    )
                _require_rows(samples, options, certify=certify, validate=validate)
                saved = fit_checkpoint(samples, checkpoint, options["checkpoint_every"], out)
                options["checkpoint"] = saved
                with suitable_threads(samples.X.size), keeping(saved):
                    model, stopped = _fitted(samples, certify, options, out, processes)
            if rank:  # the first process writes and prints
                raise SystemExit(0)
            model.table_rules_ = samples.rules.to_json()
            replaced = (out / f"{MODEL}.json").exists()
            said = text = None
            with suitable_threads(samples.X.size), keeping(saved):
                try:
                    validation, stopped = _validated(
                        model, samples, validate, began, stopped, replaced
                    )
                    fit = FittedModel(
                        model=model,
                        samples=samples,
                        predicted=predict(model, samples.X),
                        seconds=time.monotonic() - began,
                        command=shlex.join(["posquad", *sys.argv[1:]]),
                        model_path=out / f"{MODEL}.json",
                        validation=validation,
                        columns=tuple(
                            word
                            for name, text in [*columns.items(), *(("encode", e) for e in encode)]
                            if text is not None
                            for word in (f"--{name}", text)
                        ),
                    )
                    said, text = answer(fit), render(fit)
                except KeyboardInterrupt:  # the model is complete, or the best so far
                    if replaced:
                        raise
                    said, stopped = None, True
            write_fit(out, model, text)
            if saved is not None and not stopped:
                saved.remove()
        finally:
            for folder in new:  # remove new folders that stayed empty
                with suppress(OSError):
                    folder.rmdir()
    kept = "the best model so far" if model.status_ is Status.INTERRUPTED else "the model"
    told = f"Interrupted: {kept} was written{'' if said else ', without its report'}."
    try:
        print_answer(said, out, replaced)
    except KeyboardInterrupt:
        stopped = True
    if stopped:
        click.echo(told, err=True)
        if saved is not None and saved.path.exists():
            click.echo(f"The same command goes on from {saved.path}.", err=True)
        raise SystemExit(130)


def _fitted(
    samples: Samples,
    certify: bool | None,
    options: dict[str, Any],
    out: Path,
    processes: Processes,
) -> tuple[Any, bool]:
    """Fit the model; return it, and whether Ctrl-C ended the search.

    Ctrl-C before anything was found, or with an earlier model in the folder, is not handled here.
    """
    estimator = import_extra("posquad.estimator", "lab")
    n, d = samples.X.shape
    rank, others = options["rank"], options["intercept"] or options["linear"]
    if rank is not None and rank > d:
        where = f"{samples.path}: --rank"
        raise DomainError(where, expected=f"at most {d}, the number of inputs", got=str(rank))
    if certify and others:
        expected = "no --intercept and no --linear, because a certificate is about x'Qx alone"
        raise DomainError("--certify", expected=expected, got="both")
    if certify is None:
        certify = not others and n * d * dimension(d, min(d, rank or 3)) <= _PROVABLE
    model = estimator.PositiveQuadraticRegressor(
        rank,
        fit_intercept=options["intercept"],
        linear=options["linear"],
        criterion=options["criterion"],
        max_rank=options["max_rank"],
        certify=certify,
        tolerance=options["tolerance"],
        max_starts=options["max_starts"],
        time_limit=options["time_limit"],
        random_state=options["seed"],
        loss=options["loss"],
        scale=options["scale"],
    )
    names = list(samples.features) if samples.named else None
    require_scale(samples)
    X, y, weights = processes.own_part(samples)
    with fit_progress() as progress, warnings.catch_warnings():
        # the answer reports it in its own words
        warnings.simplefilter("ignore", IdentifiabilityWarning)
        warnings.simplefilter(
            "ignore", import_extra("sklearn.exceptions", "lab").ConvergenceWarning
        )
        try:
            model.fit(
                X,
                y,
                weights,
                feature_names=names,
                response_name=samples.response if samples.named else None,
                progress=progress,
                checkpoint=options["checkpoint"],
            )
        except Interrupted as stop:
            if (out / f"{MODEL}.json").exists() or not stop.result.rank_:
                raise
            return stop.result, True
        except RowError as problem:  # which counts rows from 0
            [place] = samples.rows([problem.row])
            column = f", column {samples.response!r}" if problem.argument == "y" else ""
            where = f"{samples.path}: {place}{column}"
            raise TableError(where, expected=problem.expected, got=problem.found) from None
        except PosquadError:
            raise
        except (ValueError, ArithmeticError, RuntimeError) as problem:  # from sklearn, torch
            got = first_line(problem)
            raise TableError(str(samples.path), expected="data to fit", got=got) from None
    return model, False


def _validated(
    model: Any, samples: Samples, wanted: bool | None, began: float, stopped: bool, replaces: bool
) -> tuple[Any, bool]:
    """Cross-validate the model; return the scores, if any, and whether Ctrl-C was pressed.

    Ctrl-C is not handled here if the model would replace an earlier one.
    """
    reproduced = model.status_ in (Status.RECOVERED, Status.CERTIFIED)
    few = reproduced and len(samples.X) < 2 * model.needed_  # parts of them determine nothing
    quick = time.monotonic() - began < _QUICK and samples.extremes is None
    if stopped or wanted is False or (wanted is None and (few or not quick)):
        return None, stopped
    validation = import_extra("posquad.estimator.validation", "lab")
    with fit_progress("cross-validating") as progress:
        try:
            found = validation.cross_validated(
                model, samples.X, samples.y, samples.weights, progress=progress
            )
        except KeyboardInterrupt:  # the model itself is complete
            if replaces:
                raise
            return None, True
    return found, False


def _require_rows(samples: Samples, options: dict[str, Any], **wanted: bool | None) -> None:
    """Refuse what needs all rows in memory, for a table that stays in its file."""
    if samples.extremes is None:
        return
    folds = options["criterion"] == "cv" and options["rank"] is None
    wanted |= {"criterion cv": folds, f"loss {options['loss']}": options["loss"] != LOSS_NAMES[0]}
    for name, value in wanted.items():
        if value:
            where, expected = f"--{name}", "a smaller table, all of which is read into memory"
            raise DomainError(where, expected=expected, got=f"{samples.X.n} rows")
