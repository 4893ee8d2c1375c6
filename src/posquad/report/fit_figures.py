"""The figures of a fit, with captions that say what to look for."""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.core.ranges import tiny
from posquad.geometry import dimension
from posquad.report.fitted_model import FittedModel, format_r_squared
from posquad.report.palette import COLOURS, INK, MARKERS, legend_below
from posquad.report.panel import Panel

__all__ = ["POINTS", "eigenvalues", "panels", "shown_rows"]

POINTS = 2000  # maximum number of rows that are drawn
_BLUE, _RED = COLOURS[:2]
_LABELS = 8  # maximum number of ranks that are marked


def panels(fit: FittedModel) -> list[Panel[FittedModel]]:
    """Return the panels that apply to this fit.

    >>> from types import SimpleNamespace
    >>> nothing = SimpleNamespace(rank_=0, rank_path_={}, history_=[], effective_spectrum_=[])
    >>> [panel.key for panel in panels(SimpleNamespace(model=nothing))]
    ['predicted', 'residuals', 'histogram']
    """
    chosen = [_EIGENVALUES] if fit.model.rank_ else []
    if len(fit.model.rank_path_.get("rank", ())) > 1:
        chosen.append(_RANKS)
    if len(fit.model.effective_spectrum_):
        chosen.append(_SPECTRUM)
    chosen += [_PREDICTED, _RESIDUALS, _HISTOGRAM]
    if len(fit.model.history_) > 1:
        chosen.append(_CONVERGENCE)
    return chosen


def eigenvalues(components: np.ndarray) -> np.ndarray:
    """Return the nonzero eigenvalues of Q in decreasing order, from its factor.

    >>> eigenvalues(np.array([[3.0, 0.0], [0.0, 1.0]]))
    array([9., 1.])
    """
    return np.square(np.linalg.svd(np.atleast_2d(components), compute_uv=False))


def shown_rows(fit: FittedModel) -> np.ndarray:
    """Choose the rows to draw: all, or evenly spaced ones and those with the largest residuals.

    >>> from types import SimpleNamespace
    >>> len(shown_rows(SimpleNamespace(residuals=np.arange(9.0))))
    9
    """
    n = len(fit.residuals)
    if n <= POINTS:
        return np.arange(n)
    even = np.linspace(0, n - 1, POINTS - 50).astype(int)
    return np.union1d(even, np.argsort(-np.abs(fit.residuals))[:50])


def _rows_note(fit: FittedModel) -> str:
    n, seen = len(fit.residuals), len(shown_rows(fit))
    return "" if seen == n else f" It shows {seen} of {n} rows, including the largest residuals."


def _draw_eigenvalues(axes: Any, fit: FittedModel) -> None:
    values = eigenvalues(fit.model.components_)
    if values[-1] > 0 and values[0] > 100 * values[-1]:
        axes.set_yscale("log")  # a log scale cannot show the zeros
    else:
        values = np.pad(values, (0, min(fit.model.n_features_in_, 20) - min(len(values), 20)))
    axes.bar(np.arange(1, len(values) + 1), values, color=_BLUE, width=0.6)
    axes.set_xlim(0.4, max(len(values), 4) + 0.6)
    axes.set(xlabel="number", ylabel="eigenvalue of Q")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _describe_eigenvalues(fit: FittedModel) -> str:
    values = eigenvalues(fit.model.components_)
    rest = fit.model.n_features_in_ - len(values)
    shown = ", ".join(f"{value:.4g}" for value in values[:6]) + (", ..." if len(values) > 6 else "")
    return f"Nonzero eigenvalues: {shown}; the other {rest} are zero."


def _draw_ranks(axes: Any, fit: FittedModel) -> None:
    path = fit.model.rank_path_
    ranks, score = np.asarray(path["rank"]), np.asarray(path["score"], dtype=float)
    axes.plot(ranks, score, color=_BLUE, marker=MARKERS[0], markersize=4.5, linewidth=1.6)
    best = ranks == fit.model.rank_
    axes.plot(
        ranks[best], score[best], color=_RED, marker=MARKERS[3], markersize=9, linestyle="none"
    )
    axes.set(xlabel="rank", ylabel="criterion")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _describe_ranks(fit: FittedModel) -> str:
    path = fit.model.rank_path_
    pairs = zip(path["rank"], path["score"], strict=True)
    shown = ", ".join(f"{score:.4g} at rank {rank}" for rank, score in list(pairs)[:8])
    return f"The criterion is {shown}; rank {fit.model.rank_} was chosen."


def _kernel(fit: FittedModel) -> tuple[int, bool]:
    """Return the number of directions marked as not identified, and whether it is known."""
    dimension = fit.model.kernel_dimension_
    known = not np.isnan(dimension)
    return int(dimension) if known else 0, known


def _draw_spectrum(axes: Any, fit: FittedModel) -> None:
    values = np.asarray(fit.model.effective_spectrum_, dtype=float)
    (kernel, known), gauge = _kernel(fit), fit.model.gauge_dimension_
    seen = values[kernel:]
    seen = seen[seen > 0]
    floor = seen.min() / 10 if len(seen) else 1e-3
    kinds = (
        ("gauge", gauge, np.full(gauge, floor), INK, "x"),
        ("not identified", kernel, np.full(kernel, floor), _RED, MARKERS[4]),
        ("identified" if known else "computed", len(seen), seen, _BLUE, MARKERS[0]),
    )
    start = 1
    for label, count, heights, colour, marker in kinds:
        if count:
            places = np.arange(start, start + count)
            style = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "none"}
            axes.plot(places, heights, label=f"{label} ({count})", **style)
            start += count
    axes.set_yscale("log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="direction", ylabel="effective eigenvalue")
    if start > 1:
        legend_below(axes, 3)


def _describe_spectrum(fit: FittedModel) -> str:
    values = np.asarray(fit.model.effective_spectrum_, dtype=float)
    (kernel, known), gauge = _kernel(fit), fit.model.gauge_dimension_
    unknowns = dimension(fit.model.n_features_in_, fit.model.rank_)
    count = f"{kernel} of them not identified" if known else "the number not identified is unknown"
    noun = "direction" if gauge == 1 else "directions"
    words = f"{unknowns} directions, {count}, and {gauge} gauge {noun}."
    if len(values) < unknowns:
        ends = f"{values[0]:.3g} and {values[-1]:.3g}"
        return f"{words} Only the smallest and the largest eigenvalue were computed: {ends}."
    seen = values[kernel:]
    if len(seen) and seen[0] > 0:
        which = "The identified ones" if known else "The eigenvalues"
        words += f" {which} range from {seen[0]:.3g} to {seen[-1]:.3g}."
    return words


def _draw_predicted(axes: Any, fit: FittedModel) -> None:
    rows = shown_rows(fit)
    observed, predicted = fit.observed[rows], fit.predicted[rows]
    ends = [min(observed.min(), predicted.min()), max(observed.max(), predicted.max())]
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle="--")
    _scatter(axes, fit, rows, observed, predicted)
    axes.set(xlabel="observed", ylabel="predicted")


def _describe_predicted(fit: FittedModel) -> str:
    with np.errstate(invalid="ignore", divide="ignore"):
        flat = fit.observed.std() == 0 or fit.predicted.std() == 0
        words = (
            "" if flat else f"Correlation {np.corrcoef(fit.observed, fit.predicted)[0, 1]:.4f}; "
        )
    return f"{words}R² {format_r_squared(fit.r_squared)}.{_rows_note(fit)}"


def _draw_residuals(axes: Any, fit: FittedModel) -> None:
    rows = shown_rows(fit)
    axes.axhline(0, color=INK, linewidth=1, linestyle="--")
    _scatter(axes, fit, rows, fit.predicted[rows], fit.residuals[rows])
    axes.set(xlabel="predicted", ylabel=_residual_name(fit))


def _scatter(axes: Any, fit: FittedModel, rows: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    outlying = np.isin(rows, fit.outlier_rows)
    size = 3.5 if len(rows) <= 300 else 2
    plain = {"linestyle": "none", "marker": "o", "markersize": size, "markeredgewidth": 0}
    axes.plot(x[~outlying], y[~outlying], color=_BLUE, **plain)
    if outlying.any():
        label = f"outliers ({len(fit.outlier_rows)})"
        style = {"color": _RED, "marker": MARKERS[3], "markersize": 5, "linestyle": "none"}
        axes.plot(x[outlying], y[outlying], label=label, **style)
        legend_below(axes, 1)


def _residual_name(fit: FittedModel) -> str:
    return "residual" if fit.samples.weights is None else "weighted residual"


def _describe_residuals(fit: FittedModel) -> str:
    values = fit.residuals
    words = f"Mean {values.mean():.3g}, standard deviation {values.std():.3g}, "
    [row] = fit.samples.rows([int(np.abs(values).argmax())])
    words += f"largest {np.abs(values).max():.3g} in {row}."
    return words + _rows_note(fit)


def _draw_histogram(axes: Any, fit: FittedModel) -> None:
    values = fit.residuals
    width = np.ptp(values)
    narrow = width <= 1e8 * tiny()  # the widths of bins would not be normal numbers
    bins: Any = 1 if narrow or not np.isfinite(width) else min(40, 5 + int(len(values) ** 0.5))
    axes.hist(values, bins=bins, color=_BLUE)
    axes.set(xlabel=_residual_name(fit), ylabel="rows")


def _describe_histogram(fit: FittedModel) -> str:
    low, middle, high = np.quantile(fit.residuals, [0.05, 0.5, 0.95])
    return f"Median {middle:.3g}; 90% lie between {low:.3g} and {high:.3g}."


def _convergence(fit: FittedModel) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the least residual so far at each step, and the first step of each rank."""
    history = np.minimum.accumulate(np.asarray(fit.model.history_, dtype=float))
    ranks = np.asarray(fit.model.history_rank_)
    if not ranks.all():  # not known: higher ranks may have been tried as well
        history, ranks = np.maximum(history, fit.model.residual_), ranks[:0]
    begins = [k for k in range(len(ranks)) if k == 0 or ranks[k] != ranks[k - 1]]
    return history, [(k, int(ranks[k])) for k in begins]


def _draw_convergence(axes: Any, fit: FittedModel) -> None:
    history, ranks = _convergence(fit)
    axes.plot(np.arange(len(history)), history, color=_BLUE, linewidth=1.6)
    if (history > 0).any():
        axes.set_yscale("log")
    for step, rank in ranks[:: -(-len(ranks) // _LABELS)] if len(ranks) > 1 else []:
        axes.axvline(step, color=INK, alpha=0.25, linewidth=0.8)
        where = {"xytext": (3, -2), "textcoords": "offset points", "va": "top", "fontsize": 8}
        axes.annotate(f"rank {rank}", (step, 1), xycoords=("data", "axes fraction"), **where)
    axes.set(xlabel="step", ylabel="least relative residual so far")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _describe_convergence(fit: FittedModel) -> str:
    history, ranks = _convergence(fit)
    told = f"From {history[0]:.3g} to {history[-1]:.3g} in {len(history) - 1} steps"
    if len(ranks) < 2:
        return f"{told}."
    return f"{told}, over the ranks {', '.join(str(rank) for _, rank in ranks)}."


_EIGENVALUES = Panel[FittedModel](
    "eigenvalues",
    "Eigenvalues of Q",
    "A gap shows how many components matter. A last bar near zero suggests a smaller rank.",
    _draw_eigenvalues,
    _describe_eigenvalues,
)
_RANKS = Panel[FittedModel](
    "ranks",
    "Choice of the rank",
    "The lowest point is chosen (diamond). A flat minimum means that the data hardly decide.",
    _draw_ranks,
    _describe_ranks,
)
_SPECTRUM = Panel[FittedModel](
    "spectrum",
    "Effective spectrum",
    "How strongly the data determine each direction of Q, on a log scale. Gauge directions "
    "(rotations of the components) change no prediction. Directions that are not identified "
    "change predictions, but not for these data. Both have eigenvalue zero and are drawn at the "
    "bottom.",
    _draw_spectrum,
    _describe_spectrum,
    label="thm:effective-hessian",
)
_PREDICTED = Panel[FittedModel](
    "predicted",
    "Predicted against observed",
    "Points on the dashed line are predicted exactly. A bend suggests another kind of model.",
    _draw_predicted,
    _describe_predicted,
)
_RESIDUALS = Panel[FittedModel](
    "residuals",
    "Residuals",
    "Observed minus predicted. Look for outliers, a slope or a funnel. If the noise grows with the "
    "response, use weights.",
    _draw_residuals,
    _describe_residuals,
)
_HISTOGRAM = Panel[FittedModel](
    "histogram",
    "Distribution of the residuals",
    "A single peak around zero is noise. A second peak or a long tail suggests unusual rows.",
    _draw_histogram,
    _describe_histogram,
)
_CONVERGENCE = Panel[FittedModel](
    "convergence",
    "Convergence",
    "The least relative residual so far on the way to the answer, over all starts. Lines mark "
    "where a higher rank begins; a plateau above rounding error is the noise floor.",
    _draw_convergence,
    _describe_convergence,
)
