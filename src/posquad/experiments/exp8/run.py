"""Experiment 8, beyond the paper: how sharp the local guarantees are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from posquad.core.errors import DomainError
from posquad.experiments.exp8.panels import PANELS, TABLES, describe_finding
from posquad.experiments.exp8.sharpness import Kind, Sharpness, compare_starts, fit_growth
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
)
from posquad.geometry import dimension

__all__ = ["EXPERIMENT", "Guarantees", "run"]

_KINDS: tuple[Kind, ...] = ("moment", "bounded")
_SHARE = 0.95  # share of initializers that must lie inside
_REACH = 128  # largest n/p that every size needs before a claim about all sizes is judged
_THETA = 0.1  # theta of Theorem B up to which its step is at least 1/(2 Lam), the step used here
_NEAR = 0.01  # delta below which a rate counts as asymptotic


@dataclass(frozen=True)
class Guarantees(Parameters):
    """All parameters are our choice; the first size is that of the paper's experiment 3."""

    d: tuple[int, ...] = own_parameter((10, 20, 40), "dimensions")
    r: tuple[int, ...] = own_parameter((2, 2, 3), "ranks, one per dimension")
    ratios: tuple[int, ...] = own_parameter(
        (2, 4, 8, 16, 32, 64, 128, 256, 512), "$n/p$, increasing"
    )
    largest_ratios: tuple[int, ...] = own_parameter(
        (512, 256, 128), "largest $n/p$, one per dimension (large problems are expensive)"
    )
    trials: tuple[int, ...] = own_parameter(
        (20, 12, 6), "problems for each $n$, one number per dimension"
    )
    steps: tuple[int, ...] = own_parameter(
        (10, 100), "descent steps after which the shares are measured again"
    )
    smallest: float = own_parameter(
        0.5, "smallest eigenvalue of $Q_*$; eigenvalues are evenly spaced from 1 to this"
    )


def run(parameters: Guarantees, progress: ProgressCallback) -> Measured:
    """Prove constants at planted solutions; measure where initializers and descent lie.

    >>> sizes = {"d": (3,), "r": (1,), "ratios": (64,), "largest_ratios": (64,)}
    >>> small = Guarantees(**sizes, trials=(2,), steps=(20,))
    >>> bool(run(small, lambda fraction: None)["moment_in_paper_basin"] == 0)
    True
    """
    q = parameters
    _check(q)
    results = _results(q, progress)
    measured = Measured()
    measured.set_coordinates("size", [dimension(d, r) for d, r in zip(q.d, q.r, strict=True)])
    measured.set_coordinates("ratio", q.ratios)
    measured.set_coordinates("trial", np.arange(max(q.trials)))
    measured.set_coordinates("kind", np.arange(len(_KINDS)))  # 0: moment, 1: bounded
    measured.set_coordinates("iteration", (0, *q.steps))
    measured.add("d", q.d, "size")
    measured.add("r", q.r, "size")
    _add_constants(measured, results)
    _add_shares(measured, results)
    _add_rates(measured, results)
    _add_growth(measured, results)
    return measured


def _check(q: Guarantees) -> None:
    if not len(q.d) == len(q.r) == len(q.largest_ratios) == len(q.trials):
        lengths = f"{len(q.d)}, {len(q.r)}, {len(q.largest_ratios)}, {len(q.trials)}"
        raise DomainError(
            "exp8.d", expected="the same number of d, r, largest_ratios and trials", got=lengths
        )
    for name, values in (("ratios", q.ratios), ("steps", q.steps)):
        if list(values) != sorted(set(values)):
            raise DomainError(f"exp8.{name}", expected="increasing numbers", got=repr(values))
    if min(q.largest_ratios) < q.ratios[0]:
        raise DomainError(
            "exp8.largest_ratios", expected=f"at least {q.ratios[0]}", got=repr(q.largest_ratios)
        )
    if len({dimension(d, r) for d, r in zip(q.d, q.r, strict=True)}) < len(q.d):
        raise DomainError("exp8.d", expected="sizes of different p", got=repr(q.d))


def _results(q: Guarantees, progress: ProgressCallback) -> list[list[Sharpness]]:
    """Run all sizes and kinds of initializer; return `[size][kind]`."""
    grids = [[ratio for ratio in q.ratios if ratio <= top] for top in q.largest_ratios]
    costs = [t * sum(g) * d**3 for t, g, d in zip(q.trials, grids, q.d, strict=True)]
    found = []
    for k, grid in enumerate(grids):
        before, own = sum(costs[:k]), costs[k]
        found.append(
            compare_starts(
                q.d[k],
                q.r[k],
                grid,
                _KINDS,
                trials=q.trials[k],
                iterations=(0, *q.steps),
                smallest=q.smallest,
                seed=q.seed,
                progress=lambda part, a=before, b=own: progress(
                    min(1.0, (a + part * b) / sum(costs))
                ),
            )
        )
    return found


def _padded(measured: Measured, name: str, parts: list, *dims: str) -> None:
    """Combine arrays of all sizes, with NaN where a ratio or a trial was not run."""
    shape = tuple(len(measured.coords[dimension]) for dimension in ("size", *dims))
    whole = np.full(shape, math.nan)
    for k, part in enumerate(parts):
        array = np.asarray(part, dtype=float)
        whole[(k, *(slice(0, n) for n in array.shape))] = array
    measured.add(name, whole, "size", *dims)


def _add_constants(measured: Measured, results: list[list[Sharpness]]) -> None:
    first = [kinds[0] for kinds in results]
    for name in ("radius", "rate", "step", "step_limit"):
        _padded(measured, name, [getattr(s, name) for s in first], "ratio", "trial")
    for name in ("paper_radius", "paper_rate", "paper_step"):
        measured.add(name, [getattr(s, name) for s in first], "size")
    measured.add("N_star", [s.paper_sample_size for s in first], "size")
    _padded(measured, "radius_median", [_medians(s.radius) for s in first], "ratio")
    gain = [_medians(s.radius)[-1] / s.paper_radius for s in first]
    measured.add("radius_gain", gain, "size")  # at the largest n


def _add_shares(measured: Measured, results: list[list[Sharpness]]) -> None:
    dims = ("ratio", "kind", "iteration")
    for name in ("inside", "inside_paper"):
        stacked = [np.stack([getattr(s, name) for s in kinds], axis=1) for kinds in results]
        _padded(measured, name, stacked, *dims)
    distances = [np.stack([s.distance for s in kinds], axis=2) for kinds in results]
    _padded(measured, "distance", distances, "ratio", "trial", "kind", "iteration")
    moment = max(float(kinds[0].inside_paper[:, 0].max()) for kinds in results)
    measured.add("moment_in_paper_basin", moment)


def _add_rates(measured: Measured, results: list[list[Sharpness]]) -> None:
    """Divide observed by proved rates, where descent was near enough for the theorem to apply."""
    rows, theorem, limit = [], [], []
    for kinds in results:
        ratio = np.stack([s.observed_rate / s.rate for s in kinds], axis=-1)
        delta = np.stack([s.observed_from / (2 * s.radius) for s in kinds], axis=-1)
        inside = delta <= _THETA  # false for NaN
        guaranteed = (
            (1 - delta) * (1 - 2 * delta) / 2
        )  # share of lam that Theorem B guarantees from there on
        theorem.extend((ratio / guaranteed)[inside])
        limit.extend(ratio[delta <= _NEAR])
        rows.append(_medians(np.where(inside, ratio, math.nan).reshape(len(ratio), -1)))
    _padded(measured, "rate_ratio", rows, "ratio")
    certified = [_medians(kinds[0].step_limit / kinds[0].step) for kinds in results]
    _padded(measured, "step_ratio", certified, "ratio")
    if theorem:
        measured.add("rate_over_theorem", min(theorem))
    if limit:
        measured.add("rate_over_asymptotic", min(limit))
    measured.add("rates_observed", len(theorem))


def _add_growth(measured: Measured, results: list[list[Sharpness]]) -> None:
    """Add the least n with 95% inside, on the grid and interpolated, and fit its growth."""
    p = measured["size"].astype(float)
    certified = np.array([[s.sample_size(_SHARE) for s in kinds] for kinds in results])
    crossing = np.array([[s.crossing(_SHARE) for s in kinds] for kinds in results])
    measured.add("certified_n", certified, "size", "kind", "iteration")
    measured.add("crossing_n", crossing, "size", "kind", "iteration")
    start = certified[:, :, 0]
    below = np.isfinite(start).all() and (start < measured["N_star"][:, None]).all()
    if min(kinds[0].ratio[-1] for kinds in results) >= _REACH:  # otherwise it was not tested
        measured.add("certified_below_N_star", bool(below))
    shape = certified.shape[1:]
    fits = {name: np.full(shape, math.nan) for name in ("exponent", "low", "high", "constant")}
    for at in np.ndindex(shape):
        if len(p) >= 3 and np.isfinite(crossing[(slice(None), *at)]).all():
            fit = fit_growth(list(p), list(crossing[(slice(None), *at)]))
            for name, column in fits.items():
                column[at] = getattr(fit, name)
    for name, column in fits.items():
        measured.add(f"growth_{name}", column, "kind", "iteration")
    _remark(measured, p)


def _remark(measured: Measured, p: np.ndarray) -> None:
    measured.remarks.append(
        "The radius, rate and step are theorems: they are proved at each solution, with every "
        "rounding error bounded (Theorems A and B of docs/theory.md). The positions of "
        "initializers, the observed rates, and the sample sizes with their growth are measurements."
    )
    known = np.isfinite(measured["growth_exponent"][:, 0])
    if not known.any():
        measured.remarks.append(
            "The growth of the certified sample size is not fitted: a fit needs three sizes at "
            "which 95% of the initializers of some kind lie inside."
        )
        return
    centred = np.log(p) - np.log(p).mean()
    # The slope is linear in log n, which is known up to an interval of length log 2 at each size.
    width = float(np.abs(centred).sum() / np.square(centred).sum() * math.log(2))
    shown = [
        f"{measured['growth_exponent'][k, 0]:.2f} [{measured['growth_low'][k, 0]:.2f}, "
        f"{measured['growth_high'][k, 0]:.2f}] for the {kind} initializer"
        for k, kind in enumerate(_KINDS)
        if known[k]
    ]
    measured.remarks.append(
        "Exponents of $p$ in the certified sample size, with 95% intervals: "
        f"{' and '.join(shown)}. "
        f"They rest on {len(p)} sizes, few trials at the larger ones, and interpolation on a grid "
        "of $n/p$ with factors of 2; without interpolation the exponents are known only up to an "
        f"interval of length {width:.2f}."
    )


def _medians(values: np.ndarray) -> np.ndarray:
    """Return the medians of the rows, ignoring NaN; NaN for a row of NaN."""
    known = [row[np.isfinite(row)] for row in values]
    return np.array([np.median(row) if len(row) else math.nan for row in known])


EXPERIMENT = Experiment(
    key="exp8",
    title="Beyond the paper: how sharp are the guarantees",
    question=(
        "The paper's basin of guaranteed convergence uses bounds on all symmetric matrices, and "
        "about 1e16 samples are needed to enter it. Curvature along the quotient alone proves a "
        "wider basin. How wide is it, how often do initializers lie inside, and how far are the "
        "guaranteed rate and step from the observed ones? The constants are theorems, the shares "
        "are measurements."
    ),
    section="",
    labels=(
        "thm:local-secant-regularity",
        "thm:initialization-enters-basin",
        "thm:local-gradient-descent-convergence",
        "thm:end-to-end-gaussian-recovery",
    ),
    parameters=Guarantees,
    quick={"largest_ratios": (128, 64, 32), "trials": (4, 3, 2)},
    run=run,
    seconds=28,
    quick_seconds=6,
    panels=PANELS,
    finding=describe_finding,
    tables=TABLES,
)
