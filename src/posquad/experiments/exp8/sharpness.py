"""How sharp the local guarantees are: those of the paper and the effective ones, compared.

On planted Gaussian problems, the constants of Theorems A and B are proved at the solution and
compared with those of the paper (`eq:empirical-basin-radius` with m = 1, M = d + 3), and with the
positions of spectral initializers and their first descent steps. Theorem: inside a proved radius
descent converges at the proved rate. Measurement: how often initializers lie inside, and the
observed rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from posquad.certificates import proved_constants
from posquad.core.arrays import positive_integer
from posquad.core.errors import DomainError, RankDeficientError
from posquad.core.results import Result
from posquad.dynamics import gradient_descent
from posquad.geometry import dimension, procrustes_distance
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.recovery import spectral_initializer
from posquad.theory import N_star, Signal, alpha_star, oracle_step, rho_n
from posquad.theory.effective import effective_radius, effective_step

__all__ = ["GrowthFit", "Sharpness", "compare_starts", "fit_growth"]

Kind = Literal["moment", "bounded"]

_WINDOW = 10  # steps over which a rate is observed
_ROUNDING = 1e-9  # smaller distances are not used for a rate


@dataclass(frozen=True, eq=False, repr=False)
class Sharpness(Result):
    """Arrays `[ratios, trials]` unless noted otherwise; NaN where nothing was proved or found."""

    n: np.ndarray  # [ratios]
    ratio: np.ndarray  # [ratios]  n / p
    radius: np.ndarray  # proved basin radius of Theorem A
    rate: np.ndarray  # proved rate of the flow, lam
    step: np.ndarray  # proved step of Theorem B at theta = 1/4
    step_limit: np.ndarray  # 2 / Lam, beyond which descent is locally unstable
    distance: np.ndarray  # [ratios, trials, iterations]  d_P at the start and after steps
    observed_rate: np.ndarray  # mean -log of the last contractions, divided by the step
    observed_from: np.ndarray  # d_P at the first of these steps
    iterations: tuple[int, ...]  # step counts of the last axis of `distance`
    paper_radius: float
    paper_rate: float
    paper_step: float
    paper_sample_size: float  # N_star at delta = 0.05

    @property
    def inside(self) -> np.ndarray:
        """Share of trials inside the proved basin, `[ratios, iterations]`."""
        return (self.distance < self.radius[..., None]).mean(1)

    @property
    def inside_paper(self) -> np.ndarray:
        """Share of trials inside the paper's basin, `[ratios, iterations]`."""
        return (self.distance < self.paper_radius).mean(1)

    def sample_size(self, share: float = 0.95) -> np.ndarray:
        """Return the smallest n from which on this share is inside, `[iterations]`; or NaN."""
        enough = self.inside >= share
        lasting = np.flip(np.logical_and.accumulate(np.flip(enough, 0), 0), 0)
        first = lasting.argmax(0)
        return np.where(lasting.any(0), self.n[first], np.nan)

    def crossing(self, share: float = 0.95) -> np.ndarray:
        """Return the n at which exactly this share lies inside, `[iterations]`; NaN if none.

        It is interpolated between `sample_size` and the next smaller n, where the quantile of
        distance over radius is assumed to be a power of n.
        """
        scaled = np.sort(np.nan_to_num(self.distance / self.radius[..., None], nan=np.inf), axis=1)
        needed = math.ceil(share * scaled.shape[1] - 1e-9)
        found = self.sample_size(share)
        for k in np.flatnonzero(np.isfinite(found)):
            i = int(np.flatnonzero(self.n == found[k])[0])
            before, after = (scaled[max(j, 0), needed - 1, k] for j in (i - 1, i))
            if i and np.isfinite(before) and after > 0:
                part = np.log(before) / np.log(before / after)
                found[k] = self.n[i - 1] * (self.n[i] / self.n[i - 1]) ** part
        return found


def compare_starts(
    d: int,
    r: int,
    ratios: Sequence[float],
    kinds: Sequence[Kind],
    *,
    trials: int = 32,
    iterations: Sequence[int] = (0, 10, 100),
    smallest: float = 0.5,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[Sharpness]:
    """Measure several initializers on the same problems, whose constants are proved once.

    `progress` is called with the finished share of the work. The paper's initializer is that of
    Theorem 3.4 (`thm:initialization-enters-basin`).

    >>> moment, bounded = compare_starts(4, 1, [64.0], ("moment", "bounded"), trials=2)
    >>> bool((moment.radius == bounded.radius).all())
    True
    """
    p = dimension(d, r)
    trials = positive_integer("trials", trials)
    marks = tuple(positive_integer("iterations", k, zero=True) for k in iterations)
    if not marks or list(marks) != sorted(set(marks)):
        raise DomainError("iterations", expected="increasing step counts", got=repr(iterations))
    sizes = np.array([max(1, round(ratio * p)) for ratio in ratios])
    values = np.linspace(1.0, smallest, r)
    signal = Signal.from_eigenvalues(d, values)
    shape = (len(sizes), trials)
    constants = np.full((3, *shape), math.nan)  # lam, Lam, mu
    distance = np.full((len(kinds), *shape, len(marks)), math.nan)
    seen = np.full((2, len(kinds), *shape), math.nan)
    work, done = float(sizes.sum()) * trials, 0.0
    for i, n in enumerate(sizes):
        X, U = np.empty((trials, n, d)), np.empty((trials, d, r))
        for j in range(trials):
            rng = np.random.default_rng([seed, d, r, int(n), j])
            X[j] = rng.standard_normal((n, d))
            U[j] = np.linalg.qr(rng.standard_normal((d, r)))[0] * np.sqrt(values)
            objective = LeastSquares(RankOne(X[j]), np.square(X[j] @ U[j]).sum(1))
            constants[:, i, j] = proved_constants(objective, U[j]) or math.nan
            done += float(n)
            if progress is not None:
                progress(done / work)
        known = np.isfinite(constants[:, i]).all(0)
        if not known.any():
            continue
        step = 1 / (2 * constants[1, i, known])
        for k, kind in enumerate(kinds):
            path = _descent(X[known], U[known], kind, step, marks[-1])
            distance[k, i, known] = path[list(marks)].T
            for j, row in zip(np.flatnonzero(known), range(len(step)), strict=True):
                seen[:, k, i, j] = _observed(path[:, row], step[row])
    lam, Lam, mu = constants
    proved = np.isfinite(lam)
    radius, certified = np.full(shape, math.nan), np.full(shape, math.nan)
    for at in zip(*np.nonzero(proved), strict=True):
        radius[at] = effective_radius(float(lam[at]), float(mu[at]))
        certified[at] = effective_step(0.25, float(lam[at]), float(Lam[at]))
    return [
        Sharpness(
            n=sizes,
            ratio=sizes / p,
            radius=radius,
            rate=lam,
            step=certified,
            step_limit=2 / Lam,
            distance=distance[k],
            observed_rate=seen[0, k],
            observed_from=seen[1, k],
            iterations=marks,
            paper_radius=rho_n(signal),
            paper_rate=alpha_star(signal, 1.0),
            paper_step=oracle_step(signal, 1.0, d + 3.0),
            paper_sample_size=N_star(signal, 0.05),
        )
        for k in range(len(kinds))
    ]


@dataclass(frozen=True)
class GrowthFit:
    """`n = constant * p^exponent`, least squares in logarithms."""

    exponent: float
    low: float  # 95% interval of the exponent, Student's t
    high: float
    constant: float


def fit_growth(p: Sequence[float], n: Sequence[float]) -> GrowthFit:
    """Fit the growth of a sample size with the number p of degrees of freedom.

    The interval assumes a line in logarithms with normal errors, and needs at least three sizes.
    Compare Remark 3.5 (`rem:conservative-sample-scale`).

    >>> fit = fit_growth([10, 20, 40], [100, 400, 1600])
    >>> round(fit.exponent, 9), round(fit.constant, 9)
    (2.0, 1.0)
    """
    if len(p) < 3 or len(p) != len(n):
        raise DomainError(
            "p", expected="three or more sizes, with one n each", got=f"{len(p)}, {len(n)}"
        )
    line = scipy.stats.linregress(np.log(np.asarray(p, float)), np.log(np.asarray(n, float)))
    width = scipy.stats.t.ppf(0.975, len(p) - 2) * line.stderr
    slope = float(line.slope)
    return GrowthFit(slope, slope - width, slope + width, math.exp(float(line.intercept)))


def _descent(X: np.ndarray, U: np.ndarray, kind: Kind, step: np.ndarray, steps: int) -> np.ndarray:
    """Return distances to U along descent from initializers, `[steps + 1, T]`.

    The problems `X[T, n, d]` are one batch. One whose initializer has lost rank gives NaN.
    """
    y = np.square(X @ U).sum(-1)
    start, missing = U.copy(), np.zeros(len(U), dtype=bool)
    for j in range(len(U)):
        try:
            start[j] = spectral_initializer(X[j], y[j], U.shape[-1], kind=kind)
        except RankDeficientError:
            missing[j] = True
    factors = start[None]
    if steps:
        objective = LeastSquares(RankOne(X), y)
        run = gradient_descent(objective, start, step=step, max_steps=steps, save_factors=True)
        factors = np.asarray(run.factors)
    distances = np.asarray(procrustes_distance(factors, U))
    short = steps + 1 - len(distances)
    distances = np.concatenate([distances, np.repeat(distances[-1:], max(0, short), axis=0)])
    return np.where(missing, math.nan, distances)


def _observed(path: np.ndarray, step: float) -> tuple[float, float]:
    """Return the rate of the last steps above rounding error, and their first distance."""
    above = path[path > _ROUNDING]
    if len(above) < _WINDOW + 2:
        return math.nan, math.nan
    begin = float(above[-_WINDOW - 1])
    return math.log(begin / above[-1]) / (_WINDOW * step), begin
