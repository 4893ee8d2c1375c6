"""Panels and sentences of the sweep `ellipsoid`."""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.report.palette import INK, REFERENCE, legend_below, series
from posquad.report.panel import Panel
from posquad.sweep.crossing import Crossing
from posquad.sweep.diagrams.shares import crossing_words, draw_share, verdict_words
from posquad.sweep.table import Table
from posquad.sweep.thresholds import ellipsoid_error, ellipsoid_threshold

__all__ = ["findings", "panels"]

_KAPPA = {"gaussian": 3.0, "uniform": 1.8, "sign-like": 1.2, "laplace": 6.0}


def findings(table: Table) -> list[str]:
    """Return what was found, from the numbers.

    >>> row = {"coordinates": "gaussian", "d": 10, "alpha": 0.2, "fits": 1, "refuted": 0}
    >>> findings(Table({name: np.array([value]) for name, value in row.items()}))[0]
    'All of the 1 designs are decided with a proof: 1 have a fit, 0 have none.'
    """
    fits, refuted = int(table["fits"].sum()), int(table["refuted"].sum())
    undecided = len(table) - fits - refuted
    share = "All" if not undecided else f"All but {undecided}"
    words = [
        f"{share} of the {len(table)} designs are decided with a proof: {fits} have a fit, "
        f"{refuted} have none."
    ]
    for kind in _kinds(table):
        predicted = ellipsoid_threshold(_KAPPA[kind])
        found = _crossings(table, kind)
        lines = [
            f"{crossing_words(c)} for d = {d}, {verdict_words(c, predicted)}"
            for d, c in found.items()
        ]
        words.append(
            f"{kind.capitalize()} coordinates: half of the designs have a fit at alpha = "
            f"{'; '.join(lines)}. The limit for large d is predicted as {predicted:.4f}"
            f"{_drift_words(found, predicted)}."
        )
    return words


def _crossings(table: Table, kind: str) -> dict[int, Crossing | None]:
    rows = table.where(coordinates=kind)
    return {d: rows.where(d=d).crossing("alpha", "fits") for d in rows.values("d")}


def _drift_words(found: dict[int, Crossing | None], predicted: float) -> str:
    """Say how far the crossings at the smallest and at the largest d are from the prediction."""
    known = [(d, c.value - predicted) for d, c in found.items() if c is not None and c.bracketed]
    if len(known) < 2:
        return ""
    (d, first), (D, last) = known[0], known[-1]
    return f"; the crossing differs from it by {first:+.4f} at d = {d} and {last:+.4f} at d = {D}"


def _kinds(table: Table) -> list[str]:
    return [kind for kind in _KAPPA if kind in set(table["coordinates"].tolist())]


def _draw_shares(axes: Any, table: Table) -> None:
    gaussian = table.where(coordinates="gaussian")
    for k, d in enumerate(gaussian.values("d")):
        draw_share(axes, gaussian.where(d=d).rates("alpha", "fits"), f"d = {d}", k)
    axes.axvline(ellipsoid_threshold(3.0), **REFERENCE)
    axes.set(xlabel=r"$\alpha = n/d^2$", ylabel="share of designs with a fit")
    axes.legend()


def _describe_shares(table: Table) -> str:
    found = _crossings(table, "gaussian")
    words = [f"{crossing_words(c)} for d = {d}" for d, c in found.items()]
    return f"Half at alpha = {'; '.join(words)}."


def _draw_drift(axes: Any, table: Table) -> None:
    for k, kind in enumerate(_kinds(table)):
        found = _crossings(table, kind).items()
        shown = [(d, c) for d, c in found if c is not None and c.bracketed]
        x = np.array([1 / d for d, _ in shown])
        values = np.array([c.value for _, c in shown])
        ends = np.array([[c.value - c.low, c.high - c.value] for _, c in shown]).reshape(-1, 2).T
        axes.errorbar(x, values, yerr=ends, **series(k), capsize=3, label=kind)
        axes.plot([0], [ellipsoid_threshold(_KAPPA[kind])], marker="*", ms=11, ls="",
                  color=series(k)["color"], mec=INK, mew=0.5, clip_on=False)  # fmt: skip
    axes.set(xlabel=r"$1/d$", ylabel=r"$\alpha$ at which half have a fit", xlim=(0, None))
    legend_below(axes, 4)


def _describe_drift(table: Table) -> str:
    return "Predicted limits: " + ", ".join(
        f"{ellipsoid_threshold(_KAPPA[kind]):.4f} ({kind})" for kind in _kinds(table)
    ) + "."  # fmt: skip


def _draw_error(axes: Any, table: Table) -> None:
    gaussian = table.where(coordinates="gaussian", refuted=1)
    alphas = np.linspace(0.25, float(table["alpha"].max()), 60)
    for k, d in enumerate(gaussian.values("d")):
        rows = gaussian.where(d=d)
        x, place = np.unique(rows["alpha"], return_inverse=True)
        total = np.bincount(place, weights=d * np.square(rows["residual"]))
        count = np.bincount(place)
        often = count >= 6
        style = series(k) | {"linestyle": ""}
        axes.plot(x[often], (total / count)[often], **style, label=f"d = {d}")
    axes.plot(alphas, [ellipsoid_error(a, 3.0) for a in alphas], color=INK, lw=1, label="predicted")
    axes.set(xlabel=r"$\alpha = n/d^2$", ylabel=r"$d\,\times$ mean squared error")
    axes.legend()


def _describe_error(table: Table) -> str:
    gaussian = table.where(coordinates="gaussian", refuted=1)
    words = []
    for alpha in (0.3, 0.4, 0.5):
        rows = gaussian.where(alpha=alpha)
        if len(rows):
            d = rows.values("d")[-1]
            largest = rows.where(d=d)
            value = d * float(np.square(largest["residual"]).mean())
            words.append(
                f"at alpha = {alpha}, {value:.4f} for d = {d} and "
                f"{ellipsoid_error(alpha, 3.0):.4f} predicted"
            )
    return f"d times the mean squared error: {'; '.join(words)}." if words else ""


_PANELS: tuple[Panel[Table], ...] = (
    Panel(
        "ellipsoid-shares",
        "Share of Gaussian designs with a fit",
        "Each answer is proved. The dotted line is the predicted limit $\\alpha_* = 1/4$; bands "
        "are 95% Wilson intervals.",
        draw=_draw_shares,
        describe=_describe_shares,
    ),
    Panel(
        "ellipsoid-drift",
        "The crossing and its drift with the dimension",
        "Where half of the designs have a fit, with 95% intervals; stars are the predicted limits "
        "$\\alpha_*(\\kappa)$.",
        draw=_draw_drift,
        describe=_describe_drift,
    ),
    Panel(
        "ellipsoid-error",
        "The least error above the threshold",
        "Gaussian designs without a fit: $d$ times the least mean squared error of $x'Rx = 1$, "
        "against its predicted limit.",
        draw=_draw_error,
        describe=_describe_error,
    ),
)


def panels(table: Table) -> tuple[Panel[Table], ...]:
    """Return the panels of the report.

    >>> [panel.key for panel in panels(Table({}))][0]
    'ellipsoid-shares'
    """
    return _PANELS
