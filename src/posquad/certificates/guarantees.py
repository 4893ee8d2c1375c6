"""How sharp the local guarantees are: the paper's and the effective ones on the same problems.

Planted Gaussian problems; for each, the constants of Theorem A and B proved at the solution, those
of the paper (`eq:empirical-basin-radius` with m = 1, M = d + 3), and where the moment initializer
and its first descent steps lie. Theorem: inside a proved radius descent converges at the proved
rate. Measurement: how often initializers lie inside, and the observed rates. Pure functions; arrays
in, arrays out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from posquad._arrays import positive_integer
from posquad._results import Result
from posquad.certificates.certifier import proved_constants
from posquad.dynamics import gradient_descent
from posquad.errors import DomainError, RankDeficientError
from posquad.geometry import dimension, procrustes_distance
from posquad.measurements import RankOne
from posquad.objectives import LeastSquares
from posquad.recovery import spectral_initializer
from posquad.sharper import effective_radius, effective_step
from posquad.theory import N_star, Signal, alpha_star, oracle_step, rho_n

__all__ = ["GrowthFit", "Sharpness", "fit_growth", "sharpness"]


@dataclass(frozen=True, eq=False, repr=False)
class Sharpness(Result):
    """Arrays `[ratios, trials]` unless said otherwise; NaN where nothing was proved or found."""

    n: np.ndarray  # [ratios]
    ratio: np.ndarray  # [ratios]  n / p
    radius: np.ndarray  # proved basin radius of Theorem A
    rate: np.ndarray  # proved rate of the flow, lam
    step: np.ndarray  # proved step of Theorem B at theta = 1/4
    step_limit: np.ndarray  # 2 / Lam, beyond which descent is locally unstable
    distance: np.ndarray  # [ratios, trials, iterations]  d_P of the initializer, and after steps
    observed_rate: np.ndarray  # -log of the last contraction a step, over the step
    iterations: tuple[int, ...]  # of the last axis of `distance`
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
        """The least n from which on this share lies inside, `[iterations]`; NaN if none."""
        enough = self.inside >= share
        lasting = np.flip(np.logical_and.accumulate(np.flip(enough, 0), 0), 0)
        first = lasting.argmax(0)
        return np.where(lasting.any(0), self.n[first], np.nan)


def sharpness(
    d: int,
    r: int,
    ratios: Sequence[float],
    *,
    trials: int = 32,
    iterations: Sequence[int] = (0, 10, 100),
    smallest: float = 0.5,
    seed: int = 0,
) -> Sharpness:
    """Measure the guarantees on Gaussian problems with `n = ratio * p` measurements.

    Eigenvalues of Q* run evenly from 1 to `smallest`. Descent for `iterations` takes the step
    `1/(2 Lam)`. Theorems A and B beside `thm:local-secant-regularity` and
    `thm:local-gradient-descent-convergence`.

    >>> result = sharpness(4, 1, [8.0, 256.0], trials=3, iterations=(0, 50))
    >>> result.inside.shape, bool(result.inside[1, 1] == 1.0), float(result.inside_paper[0, 0])
    ((2, 2), True, 0.0)
    """
    p = dimension(d, r)
    trials = positive_integer("trials", trials)
    marks = tuple(positive_integer("iterations", k, zero=True) for k in iterations)
    if not marks or list(marks) != sorted(set(marks)):
        raise DomainError("iterations", expected="increasing step counts", got=repr(iterations))
    sizes = np.array([max(1, round(ratio * p)) for ratio in ratios])
    signal = Signal.from_eigenvalues(d, np.linspace(1.0, smallest, r))
    shape = (len(sizes), trials)
    columns = {
        name: np.full(shape, math.nan) for name in ("radius", "rate", "step", "limit", "seen")
    }
    distance = np.full((*shape, len(marks)), math.nan)
    for i, n in enumerate(sizes):
        for j in range(trials):
            rng = np.random.default_rng([seed, d, r, int(n), j])
            X = rng.standard_normal((n, d))
            U = np.linalg.qr(rng.standard_normal((d, r)))[0]
            U = U * np.sqrt(np.linspace(1.0, smallest, r))
            objective = LeastSquares(RankOne(X), np.square(X @ U).sum(1))
            proved = proved_constants(objective, U)
            if proved is None:
                continue
            lam, Lam, mu = proved
            columns["radius"][i, j] = effective_radius(lam, mu)
            columns["rate"][i, j] = lam
            columns["step"][i, j] = effective_step(0.25, lam, Lam)
            columns["limit"][i, j] = 2 / Lam
            path = _descent(objective, U, r, 1 / (2 * Lam), marks[-1])
            if path is not None:
                distance[i, j] = path[list(marks)]
                columns["seen"][i, j] = _observed(path, 1 / (2 * Lam))
    return Sharpness(
        n=sizes,
        ratio=sizes / p,
        radius=columns["radius"],
        rate=columns["rate"],
        step=columns["step"],
        step_limit=columns["limit"],
        distance=distance,
        observed_rate=columns["seen"],
        iterations=marks,
        paper_radius=rho_n(signal),
        paper_rate=alpha_star(signal, 1.0),
        paper_step=oracle_step(signal, 1.0, d + 3.0),
        paper_sample_size=N_star(signal, 0.05),
    )


@dataclass(frozen=True)
class GrowthFit:
    """`n = constant * p^exponent`, least squares in logarithms."""

    exponent: float
    low: float  # 95% interval of the exponent, Student's t
    high: float
    constant: float


def fit_growth(p: Sequence[float], n: Sequence[float]) -> GrowthFit:
    """Fit how a sample size grows with the number p of degrees of freedom.

    The interval is that of a straight line through the logarithms, with normal errors; it needs at
    least three sizes. Beside it stands `rem:conservative-sample-scale`.

    >>> fit = fit_growth([10, 20, 40], [100, 400, 1600])
    >>> round(fit.exponent, 9), round(fit.constant, 9)
    (2.0, 1.0)
    """
    if len(p) < 3 or len(p) != len(n):
        raise DomainError(
            "p", expected="three or more sizes, one n each", got=f"{len(p)}, {len(n)}"
        )
    line = scipy.stats.linregress(np.log(np.asarray(p, float)), np.log(np.asarray(n, float)))
    width = scipy.stats.t.ppf(0.975, len(p) - 2) * line.stderr
    slope = float(line.slope)
    return GrowthFit(slope, slope - width, slope + width, math.exp(float(line.intercept)))


def _descent(
    objective: LeastSquares, U: np.ndarray, r: int, step: float, steps: int
) -> np.ndarray | None:
    """Distances to U along descent from the moment initializer; None if that loses rank."""
    operator = objective.measurements
    assert isinstance(operator, RankOne)
    try:
        start = spectral_initializer(operator.X.numpy(), objective.y.numpy(), r)
    except RankDeficientError:
        return None
    if steps == 0:
        return np.array([procrustes_distance(start, U)])
    run = gradient_descent(objective, start, step=step, max_steps=steps, save_factors=True)
    distances = np.array([float(procrustes_distance(factor, U)) for factor in run.factors])
    return np.append(distances, np.full(max(0, steps + 1 - len(distances)), distances[-1]))


def _observed(path: np.ndarray, step: float) -> float:
    """The rate of the last steps above rounding, per unit of time."""
    above = path[path > 1e-9]
    if len(above) < 12:
        return math.nan
    return math.log(above[-11] / above[-1]) / (10 * step)
