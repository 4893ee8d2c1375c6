"""The report of a fit: one HTML page that starts with the answer in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.certificates.certificate import FINDINGS, Certificate, Verdict
from posquad.report.figures import draw
from posquad.report.fit_answer import answer
from posquad.report.fit_certificate import certificate_words
from posquad.report.fit_figures import eigenvalues, panels
from posquad.report.fit_steps import can_certify
from posquad.report.fitted_model import FittedModel
from posquad.report.page import image, page

__all__ = ["render"]

_SIGNS = {"good": "✓", "none": "≈", "bad": "!"}
_STYLES = {
    Verdict.PROVED: "holds",
    Verdict.NUMERICAL: "not-comparable",
    Verdict.REFUSED: "differs",
}
_INPUTS, _COMPONENTS = 12, 6  # maximum size of the table of components


def render(fit: FittedModel) -> str:
    """Render the page of a fit; every text that comes from the data is escaped.

    >>> from pathlib import Path
    >>> from posquad.estimator import PositiveQuadraticRegressor
    >>> from posquad.io.tables import Samples
    >>> X = np.random.default_rng(0).standard_normal((20, 2))
    >>> model = PositiveQuadraticRegressor(1).fit(X, X[:, 0] ** 2)
    >>> samples = Samples(Path("a.csv"), X, X[:, 0] ** 2, None, ("<b>", "b"), True, "y")
    >>> fit = FittedModel(model, samples, model.predict(X), 0.1, "posquad fit", Path("fit"))
    >>> text = render(fit)
    >>> "Recovered" in text, "<b>" in text
    (True, False)
    """
    said = answer(fit)
    drawings = [(panel, draw(panel, fit, None)) for panel in panels(fit)]
    certificate = fit.model.certificate_
    return page(
        "fit_report.html.j2",
        styles=("report.css", "fit_report.css"),
        answer=said,
        sign=_SIGNS[said.tone],
        model=fit.model,
        samples=fit.samples,
        command=fit.command,
        seconds=fit.seconds,
        panels=[{"panel": p, "words": d.words, "image": image(d.svg)} for p, d in drawings],
        components=_components(fit),
        proof="" if certificate is None else certificate_words(certificate),
        findings=[] if certificate is None else _findings(certificate),
        request=can_certify(fit),
    )


def _components(fit: FittedModel) -> dict[str, Any] | None:
    U = np.asarray(fit.model.components_, dtype=float)  # [r, d]
    linear = np.asarray(fit.model.coef_, dtype=float)
    if not U.any() and not fit.model.linear:
        return None
    shown = U[:_COMPONENTS]
    order, notes = np.arange(U.shape[1]), []
    if len(order) > _INPUTS:
        sizes, meaning = _input_sizes(fit, U, linear)
        order = np.argsort(-sizes, kind="stable")[:_INPUTS]
        told = f"The table shows {_INPUTS} of {U.shape[1]} inputs, those with the largest"
        notes.append(f"{told} {meaning}.")
    if len(shown) < len(U):
        notes.append(f"The table shows the first {len(shown)} components, out of {len(U)}.")
    return {
        "note": " ".join(notes),
        "linear": bool(fit.model.linear),
        "eigenvalues": [f"{value:.4g}" for value in eigenvalues(U)[:_COMPONENTS]],
        "rows": [
            {
                "name": fit.samples.features[k],
                "cells": [f"{value:.4g}" for value in shown[:, k]],
                "linear": f"{linear[k]:.4g}",
            }
            for k in order
        ],
    }


def _input_sizes(fit: FittedModel, U: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, str]:
    """Return how much each input matters by itself, `[d]`, in the unit of the response, in words.

    It does not depend on the units of the inputs, and with linear terms not on their zeros either.
    """
    X = np.asarray(fit.some_inputs, dtype=float)
    mass = np.square(fit.scale[: len(X)])
    mass = mass if mass.any() else np.ones(len(X))
    diagonal = np.square(U).sum(0)  # of Q
    if not fit.model.linear:
        return diagonal * np.average(np.square(X), axis=0, weights=mass), (
            "terms of their own, Q_kk times the mean of x_k²"
        )
    mean = np.average(X, axis=0, weights=mass)
    variance = np.average(np.square(X - mean), axis=0, weights=mass)
    slope = linear + 2 * U.T @ (U @ mean)
    return diagonal * variance + np.abs(slope) * np.sqrt(variance), (
        "effect around the means: Q_kk times the variance of x_k, plus the slope times the "
        "standard deviation"
    )


def _findings(certificate: Certificate) -> list[dict[str, str]]:
    found = [(name, getattr(certificate, name)) for name in FINDINGS]
    return [
        {
            "name": name.replace("_", " "),
            "verdict": finding.verdict.name.lower(),
            "style": _STYLES[finding.verdict],
            "reason": finding.reason,
        }
        for name, finding in found
    ]
