"""The result of a fit in words: the answer, the main numbers, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from posquad.core.status import Status
from posquad.io.tables import STDIN, Samples
from posquad.io.tables.encoding import quoted_names
from posquad.report.fit_certificate import misses_responses

__all__ = [
    "HEADINGS",
    "Answer",
    "FittedModel",
    "Step",
    "answer",
    "can_certify",
    "format_r_squared",
    "proportional_columns",
]

HEADINGS = {
    Status.CERTIFIED: ("Certified", "good", "this is proved to be the only answer"),
    Status.RECOVERED: ("Recovered", "good", "no other matrix of this rank explains the data"),
    Status.BEST_FIT: ("Best fit", "none", "no exact fit was found; this is the closest one"),
    Status.NOT_IDENTIFIED: ("Not identified", "bad", "other answers explain the data equally well"),
    Status.UNDETERMINED: ("Not determined", "bad", "the inputs do not cover all directions"),
    Status.NO_MINIMUM: ("No minimum", "bad", "the error falls as the coefficients grow for ever"),
    Status.STALLED: ("Not settled", "bad", "different starts ended in different answers"),
    Status.INTERRUPTED: ("Not finished", "bad", "the search was stopped; this is the best so far"),
}
_NEGATIVE = 0.05  # share of the squared responses that cannot be noise
_GAIN = 0.01  # difference of cross-validated R2 that matters
_LITTLE = 0.5  # R² below which a model explains little
_NAMED = 10  # maximum number of rows named in a sentence
_OUTLIER = 6.0  # robust standard deviations of an outlier; 1 in 5e8 normal residuals is larger


@dataclass(frozen=True)
class FittedModel:
    """A fitted model with its data: the subject of a report."""

    model: Any  # a fitted PositiveQuadraticRegressor
    samples: Samples
    predicted: np.ndarray  # [n]
    seconds: float
    command: str
    model_path: Path
    columns: tuple[str, ...] = ()  # options that name the columns, as given by the user
    validation: Any = None  # a posquad.estimator.validation.Validation, if it was computed

    @property
    def observed(self) -> np.ndarray:
        """The responses `[n]`."""
        return np.asarray(self.samples.y, dtype=float)

    @cached_property
    def scale(self) -> np.ndarray:
        """Square roots of the normalized weights `[n]`: scaled residuals have equal variance."""
        weights = self.samples.weights
        if weights is None:
            return np.ones(len(self.observed))
        mass = np.asarray(weights, dtype=float)
        return np.sqrt(mass / mass[mass > 0].mean())

    @cached_property
    def residuals(self) -> np.ndarray:
        """Observed minus predicted responses `[n]`, times `scale`."""
        return (self.observed - self.predicted) * self.scale

    @cached_property
    def r_squared(self) -> float:
        """Weighted share of the variance of the responses that the model explains.

        It is NaN for constant responses, which have no variance.
        """
        return self._share(np.ones(len(self.observed), dtype=bool))

    @cached_property
    def r_squared_inliers(self) -> float:
        """The same over the rows that are no outliers: a few wrong rows can lower the other."""
        rows = np.ones(len(self.observed), dtype=bool)
        rows[self.outlier_rows] = False
        return self._share(rows)

    def _share(self, rows: np.ndarray) -> float:
        observed, w = self.observed[rows], np.square(self.scale[rows])
        if observed.min() == observed.max():
            return float("nan")
        mean = np.average(observed, weights=w)
        total = float(w @ np.square(observed - mean))
        left = float(np.square(self.residuals[rows]).sum())
        return 1 - left / total if total else float("nan")

    @cached_property
    def outlier_rows(self) -> np.ndarray:
        """Rows (from 0) with outlying residuals, the largest first."""
        size = np.abs(self.residuals - np.median(self.residuals))
        scale = 1.4826 * float(np.median(size))
        if scale <= 1e-12 * float(np.abs(self.observed).max(initial=0.0)):
            return np.empty(0, dtype=int)
        order = np.argsort(-size, kind="stable")
        return order[size[order] > _OUTLIER * scale]

    @cached_property
    def outlier_names(self) -> list[str]:
        """The first ten outliers by row number, and by line number if it differs."""
        found = self.samples.rows(self.outlier_rows[:_NAMED].tolist())
        return [name.removeprefix("row ") for name in found]


@dataclass(frozen=True)
class Step:
    """A recommendation, with a command if there is one."""

    words: str
    command: str = ""


@dataclass(frozen=True)
class Answer:
    """The result of a fit in words."""

    word: str  # such as "Recovered"
    tone: str  # good, none or bad
    headline: str
    message: str  # cause and remedy, as stated by the status
    facts: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]  # what to do next


def answer(fit: FittedModel) -> Answer:
    """Describe the result of a fit in words.

    >>> from types import SimpleNamespace
    >>> from posquad.io.tables import Samples
    >>> X, y = np.array([[1.0], [2.0]]), np.array([4.0, 16.0])
    >>> model = SimpleNamespace(status_=Status.RECOVERED, rank_=1, n_features_in_=1, n_samples_=1,
    ...     needed_=1, residual_=0.0, intercept_=0.0, noise_std_=0.0, certificate_=None,
    ...     kernel_dimension_=0, rank_confidence_=1.0, fit_intercept=False, linear=False, rank=1,
    ...     certify=True)
    >>> samples = Samples(Path("data.csv"), X, y, None, ("x1",), True, "y")
    >>> answer(FittedModel(model, samples, 4 * X[:, 0] ** 2, 0.1, "posquad fit", Path("fit"))).word
    'Recovered'
    """
    model = fit.model
    word, tone, headline = HEADINGS[model.status_]
    steps = {
        Status.CERTIFIED: _certified,
        Status.RECOVERED: _recovered,
        Status.BEST_FIT: _best_fit,
        Status.NOT_IDENTIFIED: _not_identified,
        Status.UNDETERMINED: _undetermined,
        Status.NO_MINIMUM: _no_minimum,
        Status.STALLED: _stalled,
        Status.INTERRUPTED: _interrupted,
    }[model.status_](fit)
    message = model.status_.value
    sentence = message[0].upper() + message[1:] + "."
    if model.status_ is Status.BEST_FIT and np.isfinite(fit.r_squared):
        sentence = f"The model explains {_percent(fit.r_squared)} of the variance. {sentence}"
    told = tuple(step if isinstance(step, Step) else Step(step) for step in steps)
    return Answer(word, tone, headline, sentence, tuple(_facts(fit)), told)


def _facts(fit: FittedModel) -> list[tuple[str, str]]:
    model = fit.model
    d, needed = fit.samples.X.shape[1], _needed(model)
    of = "of the deviations from the mean" if _has_constant(model) else "of the responses"
    facts = [
        (
            "samples",
            f"{model.n_samples_}"
            + (f"; this rank needs at least {needed}" if needed is not None else ""),
        ),
        ("inputs", f"{d} column{'s' if d > 1 else ''}; response {fit.samples.response!r}"),
        *fit.samples.facts,
        ("rank", f"{model.rank_} ({_rank_note(model)})"),
        ("relative residual", f"{model.residual_:.3g} {of}"),
        ("R²", _r_squared_words(fit)),
    ]
    if fit.validation is not None:
        told = f"R² {format_r_squared(fit.validation.linear_regression)}, cross-validated"
        facts.append(("linear regression", told))
    if _has_constant(model):
        facts.append(("intercept", f"{model.intercept_:.6g}"))
    if model.status_ in (Status.BEST_FIT, Status.STALLED) and np.isfinite(model.noise_std_):
        facts.append(("noise", f"standard deviation {model.noise_std_:.3g}"))
    if model.kernel_dimension_ > 0:
        facts.append(("free directions", str(model.kernel_dimension_)))
    if model.certificate_ is not None:
        proved = "proved" if model.certificate_.proved else "not proved to be the only answer"
        if misses_responses(model.certificate_):
            proved = "not applicable: the responses are not reproduced exactly"
        facts.append(("certificate", proved))
    return facts


def _has_constant(model: Any) -> bool:
    return bool(model.fit_intercept or model.linear)


def _r_squared_words(fit: FittedModel) -> str:
    told = format_r_squared(fit.r_squared)
    if fit.validation is None:
        return told
    outside = format_r_squared(fit.validation.model)
    return f"{told} for these samples; {outside} cross-validated ({fit.validation.folds} folds)"


def _needed(model: Any) -> int | None:
    """Samples needed at the fitted rank; None if the given rank was lowered."""
    lowered = model.rank is not None and model.rank != model.rank_
    return None if lowered or not model.rank_ else model.needed_


def _rank_note(model: Any) -> str:
    if model.rank is not None:
        return "given" if model.rank == model.rank_ else f"given as {model.rank}, lowered"
    sure = model.rank_confidence_
    return f"chosen, confidence {sure:.3g}" if np.isfinite(sure) else "chosen"


def format_r_squared(value: float) -> str:
    """Format R² so that its distance from 1 can be read.

    >>> format_r_squared(0.99954), format_r_squared(1 - 2**-30), format_r_squared(float("nan"))
    ('0.9995', '1 - 9.3e-10', 'undefined (constant responses)')
    """
    if np.isnan(value):
        return "undefined (constant responses)"
    missing = 1 - value
    if 0 < missing < 1e-6:
        return f"1 - {missing:.1e}"
    return f"{value:.{int(np.ceil(-np.log10(missing)))}f}" if 0 < missing < 1e-3 else f"{value:.4g}"


def _percent(share: float) -> str:
    if share <= 0:
        return "none"
    return "more than 99.9%" if share > 0.999 else f"{100 * share:.3g}%"


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

    It was not given, Q is not zero, and there is no other term, about which nothing can be proved.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(certify=True, rank_=1, fit_intercept=False, linear=False)
    >>> can_certify(SimpleNamespace(model=model))
    False
    """
    model = fit.model
    return bool(model.rank_ and not (model.certify or model.fit_intercept or model.linear))


def _best_fit(fit: FittedModel) -> list[str | Step]:
    model = fit.model
    steps: list[str | Step] = []
    other = _suits(fit)
    if fit.r_squared < _LITTLE and not other:
        steps.append(
            f"The model explains little of the responses (R² = {fit.r_squared:.2g}). Check whether "
            "they are a quadratic function of these columns before you use the model."
        )
    steps += [*other, *_outlier_step(fit)]
    offset = float(fit.residuals.mean())
    uneven = abs(offset) > 0.1 * float(fit.residuals.std()) > 0
    if not _has_constant(model) and _beyond_noise(fit):
        count, n = int((fit.observed < 0).sum()), len(fit.observed)
        told = "1 response is" if count == 1 else f"{count} of {n} responses are"
        pronoun = "its" if count == 1 else "their"
        steps.append(f"{told} negative, but x'Qx never is: try --linear, or check {pronoun} sign.")
    elif uneven and not other and not _has_constant(model):
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


def _suits(fit: FittedModel) -> list[str | Step]:
    """Say whether another kind of model suits the data better."""
    values = np.unique(fit.observed)
    if len(values) == 1 and not _has_constant(fit.model):
        told = f"Every response is {values[0]:g}: there is nothing to explain but a constant:"
        return [Step(told, _again(fit, "--intercept"))]
    if len(values) == 2:
        return [
            f"The response takes only the values {values[0]:g} and {values[1]:g}: a classifier, "
            "such as logistic regression, suits it better."
        ]
    scores = fit.validation
    if scores is None:
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


def _outlier_step(fit: FittedModel) -> list[str]:
    """Name the outliers, unless the model explains little even of the other rows.

    Where the model is wrong, large residuals are no sign of errors in the data.
    """
    if not len(fit.outlier_rows) or fit.r_squared_inliers < _LITTLE:
        return []
    rows = ", ".join(fit.outlier_names)
    more = f" and {len(fit.outlier_rows) - _NAMED} more" if len(fit.outlier_rows) > _NAMED else ""
    noun = "Row" if len(fit.outlier_rows) == 1 else "Rows"
    verb = "is an outlier" if len(fit.outlier_rows) == 1 else "are outliers"
    rest = "it" if len(fit.outlier_rows) == 1 else "them"
    return [f"{noun} {rows}{more} {verb}: check for errors, and fit again without {rest}."]


def _not_identified(fit: FittedModel) -> list[str | Step]:
    model = fit.model
    missing = (_needed(model) or 0) - model.n_samples_
    steps: list[str | Step] = []
    if missing > 0:
        steps.append(
            f"Collect at least {missing} more samples: there are {model.n_samples_}, and rank "
            f"{model.rank_} needs {model.needed_}."
        )
    else:
        free = model.kernel_dimension_
        which = f"{free} directions are free" if free > 0 else "one direction is nearly free"
        steps.append(f"Collect samples with more varied inputs: {which}.")
    if model.rank_ > 1:
        steps.append(f"Or fit a smaller rank: --rank {model.rank_ - 1}.")
    steps.append("Do not interpret the components: many other choices fit equally well.")
    return steps


def _undetermined(fit: FittedModel) -> list[str | Step]:
    X, n, names = fit.samples.X, fit.model.n_samples_, fit.samples.features
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
        pairs = ", ".join(f"{b} is {how} {a}{shift}" for a, b, how in alike[:_NAMED])
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
        for name, column in zip(fit.samples.features, fit.samples.X.T, strict=True)
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
    rank = "Set the rank if you know it (--rank)"
    if fit.model.rank is not None:
        rank = "Leave out --rank to have it chosen, or try the next higher rank"
    steps = [*_suits(fit), *_outlier_step(fit)]
    return [*steps, f"{rank}.", "Allow more starts (--max-starts), or add samples."]


def _interrupted(fit: FittedModel) -> list[str | Step]:
    return ["Allow more time (--time-limit), or leave out the limit."]
