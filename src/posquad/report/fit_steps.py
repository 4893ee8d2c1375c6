"""What to do next after a fit, for every status: recommendations with their commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from posquad.core.status import Status
from posquad.io.tables import STDIN
from posquad.io.tables.encoding import quoted_names
from posquad.report.fitted_model import NAMED, FittedModel, format_r_squared

__all__ = ["Step", "can_certify", "next_steps", "proportional_columns"]

_NEGATIVE = 0.05  # share of the squared responses that cannot be noise
_GAIN = 0.01  # difference of cross-validated R2 that matters
_OVERDISPERSED = 2.0  # variance over mean of counts at which standard errors are too small
_LITTLE = 0.5  # R² below which a model explains little
_ROBUST = "geman-mcclure"  # outliers of one sign bias the other robust loss


@dataclass(frozen=True)
class Step:
    """A recommendation, with a command if there is one."""

    words: str
    command: str = ""


def next_steps(fit: FittedModel) -> tuple[Step, ...]:
    """Return what to do next, the most important first.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(status_=Status.INTERRUPTED)
    >>> [step.words for step in next_steps(SimpleNamespace(model=model))]
    ['Allow more time (--time-limit), or leave out the limit.']
    """
    steps = {
        Status.CERTIFIED: _certified,
        Status.RECOVERED: _recovered,
        Status.BEST_FIT: _best_fit,
        Status.NOT_IDENTIFIED: _not_identified,
        Status.UNDETERMINED: _undetermined,
        Status.NO_MINIMUM: _no_minimum,
        Status.STALLED: _stalled,
        Status.INTERRUPTED: _interrupted,
    }[fit.model.status_](fit)
    return tuple(step if isinstance(step, Step) else Step(step) for step in steps)


def _predict(fit: FittedModel) -> Step:
    return Step(
        "Predict responses for new data:",
        f"posquad predict {shlex.quote(str(fit.model_path))} NEW_DATA",
    )


def _certified(fit: FittedModel) -> list[str | Step]:
    kept = fit.model_path.with_name(f"{fit.model_path.stem}.certificate.json")
    data = "-" if fit.samples.path == STDIN else str(fit.samples.path)
    again = shlex.join(["posquad", "certify", data, str(kept), *fit.columns])
    return [_predict(fit), Step("Verify the proof again from the data:", again)]


def _recovered(fit: FittedModel) -> list[str | Step]:
    certificate = fit.model.certificate_
    if certificate is None:
        return [_predict(fit), *(["Request a proof with --certify."] if can_certify(fit) else [])]
    reason = certificate.global_uniqueness.reason
    return [
        _predict(fit),
        f"It is not proved that no matrix of higher rank fits too ({reason}). A proof is easier to "
        "find with more samples.",
    ]


def can_certify(fit: FittedModel) -> bool:
    """Tell whether `--certify` would change anything.

    It was not given, Q is not zero, all rows were read into memory, and there is no other term,
    about which nothing can be proved.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(certify=True, rank_=1, fit_intercept=False, linear=False)
    >>> can_certify(SimpleNamespace(model=model, samples=SimpleNamespace(extremes=None)))
    False
    """
    model, in_memory = fit.model, fit.samples.extremes is None
    plain = not (model.certify or model.fit_intercept or model.linear)
    return bool(model.rank_ and in_memory and plain)


def _best_fit(fit: FittedModel) -> list[str | Step]:
    model = fit.model
    steps: list[str | Step] = []
    other = _suits(fit)
    if fit.explained < _LITTLE and not other:
        steps.append(
            f"The model explains little of the responses (R² = {fit.explained:.2g}). Check whether "
            "they are a quadratic function of these columns before you use the model."
        )
    steps += [*_rank_limit(fit), *other, *_outlier_step(fit)]
    offset = float(fit.residuals.mean())
    counts = model.loss == "poisson"
    if counts and model.dispersion_ > _OVERDISPERSED:
        steps.append(
            f"The counts vary more than Poisson counts (dispersion {model.dispersion_:.2g}): the "
            f"standard errors are too small by a factor of {np.sqrt(model.dispersion_):.2g}."
        )
    uneven = abs(offset) > 0.1 * float(fit.residuals.std()) > 0
    if not (fit.has_constant or fit.is_robust) and _beyond_noise(fit):
        count, n = int((fit.observed < 0).sum()), len(fit.observed)
        told = "1 response is" if count == 1 else f"{count} of {n} responses are"
        pronoun = "its" if count == 1 else "their"
        steps.append(f"{told} negative, but x'Qx never is: try --linear, or check {pronoun} sign.")
    elif uneven and not (other or fit.has_constant or fit.is_robust or counts):
        steps.append(f"The residuals have a nonzero mean ({offset:.2g}): try --intercept.")
    if 0 < model.residual_ < 1e-4:
        level = 10 ** np.ceil(np.log10(3 * model.residual_))
        steps.append(
            f"The residual may be caused by rounding in the file: with --tolerance {level:.0e}, "
            "responses count as reproduced up to that level."
        )
    if model.rank is not None:
        steps.append("The rank was given: leave out --rank to have it chosen by the criterion.")
    return [*steps, _predict(fit)]


def _rank_limit(fit: FittedModel) -> list[str | Step]:
    """Name the limit that the user set, if it kept higher ranks from being tried."""
    model = fit.model
    if model.rank is not None or model.rank_ != model.max_rank:
        return []
    if model.rank_ in (0, model.n_features_in_):
        return []
    told = f"Rank {model.rank_} is the best of those tried, and --max-rank {model.max_rank} allowed"
    return [f"{told} no higher one: raise the limit, or leave it out."]


def _suits(fit: FittedModel) -> list[str | Step]:
    """Say whether another kind of model suits the data better."""
    values = np.unique(fit.observed)
    if len(values) == 1 and not fit.has_constant and fit.model.loss != "poisson":
        told = f"Every response is {values[0]:g}: there is nothing to explain but a constant:"
        return [Step(told, _again(fit, "--intercept"))]
    if len(values) == 2:
        return [
            f"The response takes only the values {values[0]:g} and {values[1]:g}: a classifier, "
            "such as logistic regression, suits it better."
        ]
    scores = fit.validation
    if scores is None or fit.is_robust:  # outliers outweigh everything in these scores
        return []
    own, line, better = scores.model, scores.linear_regression, scores.with_linear
    if better is not None and better > max(own, line) + _GAIN and scores.rank_with_linear:
        told = f"With linear terms, cross-validated R² would be {format_r_squared(better)}, now it "
        told += f"is {format_r_squared(own)}:"
        return [Step(told, _again(fit, "--linear"))]
    both = f"cross-validated R² {format_r_squared(line)}, this model {format_r_squared(own)}"
    if better is not None:
        both += f", with --linear {format_r_squared(better)}"
    if max(own, line) < _GAIN:
        return [
            f"Linear regression does not predict better than the mean either ({both}): neither a "
            "positive quadratic form nor a linear function of these columns explains the response."
        ]
    if own < line + _GAIN:
        how = "better" if line > own + _GAIN else "as well"
        told = f"Linear regression predicts {how} ({both}): the quadratic form does not suit these "
        return [f"{told}data."]
    return []


def _again(fit: FittedModel, option: str) -> str:
    """Return the command of this fit with another option."""
    return f"{fit.command} {option}"


def _beyond_noise(fit: FittedModel) -> bool:
    """Tell whether the negative responses are more than noise around zero.

    Without an intercept, the noise estimate includes the negative responses themselves, so their
    share of the squared responses is checked as well.
    """
    scaled = fit.observed * fit.scale
    low = np.minimum(scaled, 0.0)
    far = low.min() < -4 * np.nan_to_num(fit.model.noise_std_)
    return bool(low.any() and (far or low @ low > _NEGATIVE * (scaled @ scaled)))


def _outlier_step(fit: FittedModel) -> list[str | Step]:
    """Name the outliers and recommend a robust loss.

    Where the model explains little even of the other rows, large residuals are no sign of errors
    in the data, and are only counted.
    """
    count = len(fit.outlier_rows)
    if not count:
        return []
    single = count == 1
    robust = Step("", _again(fit, f"--loss {_ROBUST}"))
    stays = fit.samples.extremes is not None  # in its file, where the losses are not to be had
    if not fit.r_squared_inliers >= _LITTLE:
        if fit.is_robust or fit.model.loss == "poisson" or stays:
            return []
        told = "1 residual is" if single else f"{count} residuals are"
        told += " larger than six robust standard deviations: if the responses may be wrong, fit "
        return [replace(robust, words=f"{told}again with a loss that gives them little weight:")]
    more = f" and {count - NAMED} more" if count > NAMED else ""
    names = fit.outlier_names
    told = f"{names[0].upper()}{names[1:]}{more} "
    told += f"{'is an outlier' if single else 'are outliers'}: check for errors"
    rest = "it" if single else "them"
    if fit.is_robust:
        return [f"{told}; the fit gives {rest} little weight."]
    if fit.model.loss == "poisson" or stays:
        return [f"{told}, and fit again without {rest}."]
    return [replace(robust, words=f"{told}, or fit again with a loss that gives {rest} no weight:")]


def _not_identified(fit: FittedModel) -> list[str | Step]:
    model = fit.model
    missing = (fit.needed or 0) - model.n_samples_
    steps: list[str | Step] = []
    if missing > 0:
        steps.append(
            f"Collect at least {missing} more samples: there are {model.n_samples_}, and rank "
            f"{model.rank_} needs {model.needed_}."
        )
    else:
        free = model.kernel_dimension_
        which = f": {free} directions are free" if free > 0 else ": one direction is nearly free"
        which = "" if np.isnan(free) else which
        steps.append(f"Collect samples with more varied inputs{which}.")
    if model.rank_ > 1:
        steps.append(f"Or fit a smaller rank: --rank {model.rank_ - 1}.")
    steps.append("Do not interpret the components: many other choices fit equally well.")
    return steps


def _undetermined(fit: FittedModel) -> list[str | Step]:
    X, n, names = fit.some_inputs, fit.model.n_samples_, fit.samples.features
    least, nothing, shift = X.shape[1], "zero in every row", ""
    if fit.model.linear:  # the constant absorbs shifts of the columns
        X, least = X - X[0], least + 1
        nothing, shift = "the same in every row", " plus a constant"
    steps = _suits(fit)
    if n < least:
        steps.append(
            f"Collect more samples: {n} row{'s' if n > 1 else ''} for {X.shape[1]} columns are too "
            f"few; at least {fit.model.needed_} are needed."
        )
    dead = [name for name, column in zip(names, X.T, strict=True) if not column.any()]
    if dead and n > 1:
        steps.append(
            f"Leave out the columns that are {nothing}: "
            f"--drop {quoted_names(fit.samples.sources(dead))}"
        )
    alike = proportional_columns(X, names)
    if alike and n > least - X.shape[1] + 1:  # fewer rows make all columns alike
        pairs = ", ".join(f"{b} is {how} {a}{shift}" for a, b, how in alike[:NAMED])
        told = f"--drop {quoted_names(fit.samples.sources([b for _, b, _ in alike]))}"
        steps.append(f"Leave out columns that repeat others ({pairs}): {told}")
    return [
        *steps,
        "Leave out columns that are combinations of others, or collect more varied inputs.",
        "Predict only for inputs in the span of the inputs in these data.",
    ]


def proportional_columns(X: np.ndarray, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """List columns that are multiples of an earlier one: earlier column, column, relation.

    >>> X = np.array([[1.0, 2.0, 1.0], [3.0, 6.0, 1.0]])
    >>> proportional_columns(X, ["a", "b", "c"])
    [('a', 'b', '2 times')]
    """
    found: list[tuple[str, str, str]] = []
    seen: dict[str, int] = {}
    for k, column in enumerate(X.T):
        top = column[int(np.abs(column).argmax())]
        if not top:
            continue
        # to 10 digits; minus zero is zero
        shape = sha256((np.round(column / top, 10) + 0.0).tobytes()).hexdigest()
        first = seen.setdefault(shape, k)
        if first != k:
            times = float(top / X[int(np.abs(column).argmax()), first])
            how = "the same as" if times == 1 else f"{times:.6g} times"
            found.append((names[first], names[k], how))
    return found


def _no_minimum(fit: FittedModel) -> list[str | Step]:
    # With linear terms, columns of two values are the cause; with a constant alone, of one.
    most, values = (2, "two values") if fit.model.linear else (1, "one value")
    few = [
        name
        for name, column in zip(fit.samples.features, fit.some_inputs.T, strict=True)
        if len(np.unique(column)) <= most
    ]
    steps = _suits(fit) if fit.model.linear else []
    if not fit.model.linear:
        steps.append(Step("Fit linear terms instead of a constant alone:", _again(fit, "--linear")))
    if few:
        left = quoted_names(fit.samples.sources(few))
        steps.append(f"Leave out the columns that take only {values}: --drop {left}")
    return [*steps, "Do not interpret the components; predictions near these inputs can be used."]


def _stalled(fit: FittedModel) -> list[str | Step]:
    if np.isnan(fit.model.residual_):
        return ["Rounding hides the error of the fit: shuffle the rows, or scale the columns."]
    rank = "Set the rank if you know it (--rank)"
    if fit.model.rank is not None:
        rank = "Leave out --rank to have it chosen, or try the next higher rank"
    steps = [*_rank_limit(fit), *_suits(fit), *_outlier_step(fit)]
    return [*steps, f"{rank}.", "Allow more starts (--max-starts), or add samples."]


def _interrupted(fit: FittedModel) -> list[str | Step]:
    return ["Allow more time (--time-limit), or leave out the limit."]
