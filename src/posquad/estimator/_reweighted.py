"""Fits of the regressor with another loss than least squares, and their standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.core.linalg import eigenvalue_rounding
from posquad.estimator._model import Fit, Quadratic, Terms, form
from posquad.estimator._rank_choice import RankTable, Solver, fit_at_rank
from posquad.estimator._samples import WeightedSamples, weighted_samples
from posquad.estimator._uncertainty import Uncertainty, generators
from posquad.problems.measurements import RankOne
from posquad.recovery import (
    Begin,
    Loss,
    Poisson,
    Reweighted,
    Robust,
    Squares,
    fit_by_reweighting,
    robust_factors,
)

# Highest leverage that is corrected for in full. A choice: beyond it, the first order says little;
# where psi' < 0 for some samples, that of others may even exceed 1.
_LEVERAGE_MOST = 0.9


def fit_with_loss(
    solve: Solver,
    loss: Loss,
    rank: int | None,
    samples: WeightedSamples,
    *,
    criterion: str,
    cv: Any,
) -> tuple[Fit, RankTable, float, float]:
    """Return the fit with this loss, the ranks tried, the confidence in the rank, and the scale.

    The rank is chosen by the criterion of least squares, for the weights of the answer.
    """
    X = samples.X.astype(np.float64, copy=False)
    y, w = torch.from_numpy(samples.y.astype(np.float64)), torch.from_numpy(samples.relative)
    tried: list[tuple[RankTable, float]] = [({}, 1.0)]

    def fit(squares: Squares, start: Fit | None, *, full: bool) -> tuple[Fit, Tensor]:
        weights, responses = (t.numpy() for t in squares)
        changed = weighted_samples(samples.X, responses, weights).counted()
        if start is None or full:
            found, table, sure = fit_at_rank(
                solve, rank, changed, changed, criterion=criterion, cv=cv
            )
            if rank is None:
                tried.append((table, sure))
        else:
            found = solve.continued(changed, start, rank)
        return found, torch.from_numpy(found.predict(X))

    def end_of(loss: Loss) -> Reweighted[Fit]:
        level = solve.level(samples)

        def starts(loss: Robust, found: Fit) -> list[Begin[Fit]]:
            columns = rank or found.function.U.shape[1]
            if solve.terms != "none" or not columns:
                return []
            with solve.counted() as budget:
                rows = torch.from_numpy(X)
                factors = robust_factors(
                    RankOne(rows), y, w, columns, loss, level, solve.seed, budget
                )
            near = [found._replace(function=form(U.numpy())) for U in factors]
            return [Begin(each, torch.from_numpy(each.predict(X))) for each in near]

        return fit_by_reweighting(
            fit, loss, y, w, level, lambda: solve.stopped, starts=starts, seed=solve.seed
        )

    if rank is None and isinstance(loss, Robust):
        chosen = end_of(loss.for_ranks).answer.function.U.shape[1]
        rank = max(chosen, 1 if solve.terms == "none" else 0)
    end = end_of(loss)
    found = end.answer
    status = end.status(found.status, interrupted=solve.stopped)
    return found._replace(reweighted=status), *tried[-1], float(end.scale)


def fisher_samples(samples: WeightedSamples, mean: np.ndarray) -> WeightedSamples:
    """Return samples whose mass is the expected curvature of the Poisson loss at these means."""
    curvature = Poisson().expected_weights(torch.from_numpy(samples.y), torch.from_numpy(mean))
    return samples._replace(weights=samples.mass * curvature.numpy(), unit=1.0)


def dispersion(samples: WeightedSamples, mean: np.ndarray, spare: int) -> float:
    """Return Pearson's statistic over the degrees of freedom, 1 for Poisson counts."""
    squares = fisher_samples(samples, mean).mass @ (samples.y - mean) ** 2
    return float(squares / spare) if spare > 0 else np.nan


def sandwich(
    known: Uncertainty,
    samples: WeightedSamples,
    function: Quadratic,
    terms: Terms,
    loss: Robust,
    scale: float,
) -> Uncertainty:
    """Return the sandwich covariance of a robust fit, in units of the squared scale.

    With slopes g_i of the predictions and derivatives psi of the loss in `e / s`, it is
    `A^-1 B A^-1` for `A = sum_i w_i psi'_i g_i g_i'` and `B = sum_i (w_i psi_i / (1 - h_i))^2 g_i
    g_i'` (Huber 1967), where the leverage `h_i = w_i psi'_i g_i'A^-1 g_i` accounts for the pull of
    a sample on its own error: to first order, leaving the sample out moves the answer by
    `A^-1 g_i w_i psi_i / (1 - h_i)`, so that this is the jackknife (HC3 of MacKinnon and White, J.
    Econometrics 29, 1985). A factor n / (n - p) instead would spread the pull evenly, and samples
    of quadratic models differ much in leverage. The given covariance is `(sum_i w_i g_i g_i')^-1`.
    If A is not positive definite, the mean of psi' is used instead.
    """
    y, w = samples.y.astype(np.float64), samples.mass
    mean = function.predict(samples.X.astype(np.float64, copy=False))
    slopes = loss.slopes(torch.from_numpy(y), torch.from_numpy(mean), torch.tensor(scale))
    psi, slope = (t.numpy() for t in slopes)
    G, directions, shares = generators(known, samples.X, function.U, terms)
    A = G.T @ ((w * slope)[:, None] * G)
    values = np.linalg.eigvalsh(A) if len(A) else np.ones(1)
    if values[0] <= max(1e-3, eigenvalue_rounding(len(A))) * values[-1]:
        A = np.eye(len(A)) * np.average(slope, weights=w)
    moves = np.linalg.solve(A, G.T)  # [q, n]
    leverage = w * slope * np.einsum("nq,qn->n", G, moves)
    pull = w * psi / (1 - leverage.clip(0.0, _LEVERAGE_MOST))
    half = (pull if len(y) > len(A) else np.full_like(pull, np.nan)) * moves  # [q, n]
    root = np.linalg.qr(half.T, mode="r") if len(A) else half[:, :0].T
    return known._replace(
        root=np.tensordot(root, directions, axes=1),
        shares=root @ shares,
        terms=np.zeros_like(known.terms),  # the other terms move with the directions
    )
