"""The result of a fit in words: the answer, the main numbers, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.report.fit_certificate import misses_responses
from posquad.report.fit_steps import Step, next_steps
from posquad.report.fitted_model import FittedModel, format_r_squared

__all__ = ["HEADINGS", "Answer", "answer"]

HEADINGS = {
    Status.CERTIFIED: ("Certified", "good", "this is proved to be the only answer"),
    Status.RECOVERED: ("Recovered", "good", "no other matrix of this rank explains the data"),
    Status.BEST_FIT: ("Best fit", "none", "no exact fit was found; this is the closest one"),
    Status.NOT_IDENTIFIED: ("Not identified", "bad", "other answers explain the data equally well"),
    Status.UNDETERMINED: ("Not determined", "bad", "the inputs do not cover all directions"),
    Status.NO_MINIMUM: ("No minimum", "bad", "the error falls as the coefficients grow for ever"),
    Status.STALLED: ("Not settled", "bad", "the search did not settle on one answer"),
    Status.INTERRUPTED: ("Not finished", "bad", "the search was stopped; this is the best so far"),
}


# Samples for each unknown below which standard errors at a chosen rank are called approximate.
# Measured by `benchmarks/intervals.py`: 95% intervals cover 91.8% at 4 and 93.3% at 14.
_FEW_SAMPLES = 10
# Mean count below which standard errors of Poisson fits are called approximate. Measured there:
# 92.5% at a mean of 0.5 and 94.9% at 2.
_FEW_COUNTS = 1.0


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
    >>> from pathlib import Path
    >>> from posquad.io.tables import Samples
    >>> X, y = np.array([[1.0], [2.0]]), np.array([4.0, 16.0])
    >>> model = SimpleNamespace(status_=Status.RECOVERED, rank_=1, n_features_in_=1, n_samples_=1,
    ...     needed_=1, residual_=0.0, intercept_=0.0, noise_std_=0.0, certificate_=None,
    ...     kernel_dimension_=0, identifiable_=True, rank_confidence_=1.0,
    ...     fit_intercept=False, linear=False, rank=1, certify=True)
    >>> samples = Samples(Path("data.csv"), X, y, None, ("x1",), True, "y")
    >>> answer(FittedModel(model, samples, 4 * X[:, 0] ** 2, 0.1, "posquad fit", Path("fit"))).word
    'Recovered'
    """
    model = fit.model
    word, tone, headline = HEADINGS[model.status_]
    message = model.status_.value
    sentence = message[0].upper() + message[1:] + "."
    if model.status_ is Status.BEST_FIT and np.isfinite(fit.explained):
        of = "the variance, outliers left out" if fit.is_robust else "the variance"
        sentence = f"The model explains {_percent(fit.explained)} of {of}. {sentence}"
    return Answer(word, tone, headline, sentence, tuple(_facts(fit)), next_steps(fit))


def _facts(fit: FittedModel) -> list[tuple[str, str]]:
    model = fit.model
    d, needed = fit.samples.X.shape[1], fit.needed
    of = "of the deviations from the mean" if fit.has_constant else "of the responses"
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
    if fit.has_constant:
        facts.append(("intercept", f"{model.intercept_:.6g}"))
    if model.status_ in (Status.BEST_FIT, Status.STALLED):
        facts += _noise_facts(fit)
    if model.kernel_dimension_ > 0:
        facts.append(("free directions", str(model.kernel_dimension_)))
    elif model.identifiable_ is None:
        told = "unknown; the data may leave some directions of Q free"
        facts.append(("free directions", told))
    if model.certificate_ is not None:
        proved = "proved" if model.certificate_.proved else "not proved to be the only answer"
        if misses_responses(model.certificate_):
            proved = "not applicable: the responses are not reproduced exactly"
        facts.append(("certificate", proved))
    return facts


def _noise_facts(fit: FittedModel) -> list[tuple[str, str]]:
    """Return the size of the noise, and what was assumed about it."""
    model, facts = fit.model, []
    if model.loss == "poisson" and np.isfinite(model.dispersion_):
        told = f"{model.dispersion_:.3g} (variance over mean; Poisson counts have 1)"
        facts.append(("dispersion", told))
    elif model.loss != "poisson" and np.isfinite(model.noise_std_):
        rest = ", outliers left out" if fit.is_robust else ""
        facts.append(("noise", f"standard deviation {model.noise_std_:.3g}{rest}"))
    facts.append(("likelihood", model.likelihood_))
    reasons = _reasons_for_approximate_errors(fit)
    if reasons and model.uncertainty_ is not None:
        facts.append(("standard errors", f"approximate: {' and '.join(reasons)}"))
    return facts


def _reasons_for_approximate_errors(fit: FittedModel) -> list[str]:
    """Return why intervals cover the truth less often than they say (docs/measured.md)."""
    model, reasons = fit.model, []
    unknowns = dimension(fit.samples.X.shape[1], model.rank_) if model.rank_ else 0
    if model.rank is None and model.n_samples_ < _FEW_SAMPLES * unknowns:
        reasons.append("they do not account for the choice of the rank")
    if (
        model.loss == "poisson"
        and np.average(fit.observed, weights=np.square(fit.scale)) < _FEW_COUNTS
    ):
        reasons.append("the counts are small")
    return reasons


def _r_squared_words(fit: FittedModel) -> str:
    told = format_r_squared(fit.r_squared)
    if fit.validation is None:
        return told
    outside = format_r_squared(fit.validation.model)
    return f"{told} for these samples; {outside} cross-validated ({fit.validation.folds} folds)"


def _rank_note(model: Any) -> str:
    if model.rank is not None:
        return "given" if model.rank == model.rank_ else f"given as {model.rank}, lowered"
    sure = model.rank_confidence_
    return f"chosen, confidence {sure:.3g}" if np.isfinite(sure) else "chosen"


def _percent(share: float) -> str:
    if share <= 0:
        return "none"
    return "more than 99.9%" if share > 0.999 else f"{100 * share:.3g}%"
