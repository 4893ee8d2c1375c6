"""Experiment 8, beyond the paper: how sharp the local guarantees are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from posquad.core.errors import DomainError
from posquad.experiments.exp8.panels import PANELS, TABLES
from posquad.experiments.exp8.sharpness import Kind, Sharpness, compare_starts, fit_growth
from posquad.experiments.framework import Experiment, Measured, Parameters, Tell, chosen
from posquad.geometry import dimension

__all__ = ["EXPERIMENT", "Guarantees", "run"]

_KINDS: tuple[Kind, ...] = ("moment", "bounded")
_SHARE = 0.95  # of initializers that must lie inside
_REACH = 128  # n/p to which every size must be run before "nowhere certified" means anything
_THETA = 0.1  # of Theorem B: up to it, its step is at least the 1/(2 Lam) taken here
_NEAR = 0.01  # delta from which on a rate counts as asymptotic


@dataclass(frozen=True)
class Guarantees(Parameters):
    """Everything is ours; the first size is that of the paper's experiment 3."""

    d: tuple[int, ...] = chosen((10, 20, 40), "dimensions")
    r: tuple[int, ...] = chosen((2, 2, 3), "ranks, one a dimension")
    ratios: tuple[int, ...] = chosen((2, 4, 8, 16, 32, 64, 128, 256, 512), "n/p, increasing")
    tops: tuple[int, ...] = chosen((512, 256, 128), "largest n/p, one a dimension: they are dear")
    trials: tuple[int, ...] = chosen((20, 12, 6), "problems of each n, one a dimension")
    steps: tuple[int, ...] = chosen((10, 100), "descent steps after which shares are taken again")
    smallest: float = chosen(0.5, "eigenvalues of Q* run evenly from 1 to this")


def run(parameters: Guarantees, tell: Tell) -> Measured:
    """Constants proved at planted solutions, and where initializers and descent lie beside them.

    >>> small = Guarantees(d=(3,), r=(1,), ratios=(64,), tops=(64,), trials=(2,), steps=(20,))
    >>> bool(run(small, lambda fraction: None)["moment_in_paper_basin"] == 0)
    True
    """
    q = parameters
    _check(q)
    results = _results(q, tell)
    measured = Measured()
    measured.along("size", [dimension(d, r) for d, r in zip(q.d, q.r, strict=True)])
    measured.along("ratio", q.ratios)
    measured.along("trial", np.arange(max(q.trials)))
    measured.along("kind", np.arange(len(_KINDS)))  # 0: moment, 1: bounded
    measured.along("iteration", (0, *q.steps))
    measured.add("d", q.d, "size")
    measured.add("r", q.r, "size")
    _add_constants(measured, results)
    _add_shares(measured, results)
    _add_rates(measured, results)
    _add_growth(measured, results)
    return measured


def _check(q: Guarantees) -> None:
    if not len(q.d) == len(q.r) == len(q.tops) == len(q.trials):
        lengths = f"{len(q.d)}, {len(q.r)}, {len(q.tops)}, {len(q.trials)}"
        raise DomainError("exp8.d", expected="as many of r, tops and trials", got=lengths)
    for name, values in (("ratios", q.ratios), ("steps", q.steps)):
        if list(values) != sorted(set(values)):
            raise DomainError(f"exp8.{name}", expected="increasing numbers", got=repr(values))
    if min(q.tops) < q.ratios[0]:
        raise DomainError("exp8.tops", expected=f"at least {q.ratios[0]}", got=repr(q.tops))
    if len({dimension(d, r) for d, r in zip(q.d, q.r, strict=True)}) < len(q.d):
        raise DomainError("exp8.d", expected="sizes of different p", got=repr(q.d))


def _results(q: Guarantees, tell: Tell) -> list[list[Sharpness]]:
    """`[size][kind]`."""
    grids = [[ratio for ratio in q.ratios if ratio <= top] for top in q.tops]
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
                progress=lambda part, a=before, b=own: tell(min(1.0, (a + part * b) / sum(costs))),
            )
        )
    return found


def _padded(measured: Measured, name: str, parts: list, *dims: str) -> None:
    """Keep arrays of the sizes as one, NaN where a ratio or a trial was not run."""
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
    """Observed over proved rates, where descent was near enough for the theorem to speak."""
    rows, theorem, limit = [], [], []
    for kinds in results:
        ratio = np.stack([s.observed_rate / s.rate for s in kinds], axis=-1)
        delta = np.stack([s.observed_from / (2 * s.radius) for s in kinds], axis=-1)
        inside = delta <= _THETA  # not so where NaN
        guaranteed = (1 - delta) * (1 - 2 * delta) / 2  # of lam: Theorem B, from there on
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
    """The least n of the grid with 95% inside, where between the grid it is, and its growth."""
    p = measured["size"].astype(float)
    certified = np.array([[s.sample_size(_SHARE) for s in kinds] for kinds in results])
    crossing = np.array([[s.crossing(_SHARE) for s in kinds] for kinds in results])
    measured.add("certified_n", certified, "size", "kind", "iteration")
    measured.add("crossing_n", crossing, "size", "kind", "iteration")
    start = certified[:, :, 0]
    below = np.isfinite(start).all() and (start < measured["N_star"][:, None]).all()
    if min(kinds[0].ratio[-1] for kinds in results) >= _REACH:  # else it was not looked for
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
        "Theorem: radius, rate and step, proved at each solution with every rounding error bounded "
        "(Theorems A and B of docs/theory.md). Measurement: where initializers lie, observed "
        "rates, the sample sizes and their growth."
    )
    known = np.isfinite(measured["growth_exponent"][:, 0])
    if not known.any():
        measured.remarks.append(
            "No growth of the certified sample size is fitted: that takes three sizes at which 95% "
            "of the initializers of some kind lie inside."
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
        f"Exponents of p in the certified sample size, with 95% intervals: {' and '.join(shown)}. "
        f"They rest on {len(p)} sizes, few trials at the larger ones, and on a grid of n/p by "
        "factors of 2 that is interpolated; what is known without interpolating leaves room for "
        f"exponents {width:.2f} apart."
    )


def _medians(values: np.ndarray) -> np.ndarray:
    """Medians of the rows without NaN; NaN of a row of nothing else."""
    known = [row[np.isfinite(row)] for row in values]
    return np.array([np.median(row) if len(row) else math.nan for row in known])


EXPERIMENT = Experiment(
    key="exp8",
    title="Beyond the paper: how sharp are the guarantees",
    question=(
        "The paper's basin of guaranteed convergence takes bounds on all symmetric matrices and "
        "about 1e16 samples to be entered. Curvature along the quotient alone proves a wider one. "
        "How wide, how often do initializers lie inside, and how far are the guaranteed rate and "
        "step from what is observed? The constants are theorems, the shares measurements."
    ),
    section="",
    labels=(
        "thm:local-secant-regularity",
        "thm:initialization-enters-basin",
        "thm:local-gradient-descent-convergence",
        "thm:end-to-end-gaussian-recovery",
    ),
    parameters=Guarantees,
    quick={"tops": (128, 64, 32), "trials": (4, 3, 2)},
    run=run,
    seconds=55,
    quick_seconds=6,
    panels=PANELS,
    tables=TABLES,
)
