"""Experiment 2: the effective curvature and the measured rate of the flow (section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posquad import geometry
from posquad.core.errors import DomainError
from posquad.curvature import effective_spectrum
from posquad.experiments.exp2.panels import PANELS, TABLES, describe_finding
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
    paper_parameter,
)
from posquad.experiments.problems import flow_decay, planted, stacked
from posquad.experiments.words import listed
from posquad.problems import LeastSquares, RankOne

__all__ = ["EXPERIMENT", "Curvature", "run"]


@dataclass(frozen=True)
class Curvature(Parameters):
    """Sizes and spectra from the paper; perturbation, window and integrator are our choice."""

    d: int = paper_parameter(8, "input dimension")
    r: int = paper_parameter(2, r"rank; the other eigenvalues equal $\lambda_1$")
    n: int = paper_parameter(800, "samples")
    lambda_r: tuple[float, ...] = paper_parameter(
        (1.0, 0.7, 0.5, 0.35, 0.25), "smallest eigenvalue of $Q_*$"
    )
    lambda_1: float = own_parameter(1.0, "largest eigenvalue of $Q_*$, which the paper keeps fixed")
    seeds: int = own_parameter(128, r"independent problems for each $\lambda_r$")
    perturbation: float = own_parameter(
        1e-3, "distance of the start from $U_*$, along the slow direction"
    )
    window: float = own_parameter(
        3.0,
        r"end of the fitted time window, in units of $1/(4\lambda_r)$, the population time scale",
    )
    records: int = own_parameter(40, "number of recorded times in the window")
    rk4_step: float = own_parameter(0.02, "largest step of the Runge-Kutta method")


def run(parameters: Curvature, progress: ProgressCallback) -> Measured:
    """Perturb along the slow direction, fit the rate of the flow, compare three curvatures.

    >>> measured = run(Curvature(seeds=2, lambda_r=(1.0,)), lambda fraction: None)
    >>> bool(abs(measured["ratio"] - 1).max() < 1e-2)
    True
    """
    q = parameters
    if max(q.lambda_r) > q.lambda_1 or min(q.lambda_r) <= 0:
        expected = f"numbers in (0, lambda_1 = {q.lambda_1:g}]"
        raise DomainError("exp2.lambda_r", expected=expected, got=str(q.lambda_r))
    measured = Measured()
    measured.set_coordinates("lambda_r", q.lambda_r)
    measured.set_coordinates("seed", np.arange(q.seeds))
    measured.set_coordinates("record", np.arange(q.records + 1))
    rows = []
    for position, weakest in enumerate(q.lambda_r):
        spectrum = [q.lambda_1] * (q.r - 1) + [weakest]
        X, U, y = planted(q.seed, "problem", q.n, q.d, spectrum, q.seeds)
        objective = LeastSquares(RankOne(X), y)
        slow = effective_spectrum(objective, U, k=1, which="smallest")
        start = U + q.perturbation * slow.vectors[..., 0, :, :]
        end = q.window / (4 * weakest)
        flow = flow_decay(objective, start, U, end=end, records=q.records, step=q.rk4_step)
        effective = slow.values[..., 0].numpy()
        rows.append(
            {
                "effective": effective,
                "rate": flow.rate,
                "ratio": flow.rate / effective,
                "r2": flow.r2,
                "frobenius": _frobenius_curvature(objective, U),
                "factor": _factor_curvature(objective, U),
                "scaled_time": effective[:, None] * flow.times,
                "scaled_error": flow.error / flow.error[:, :1],
            }
        )
        progress((position + 1) / len(q.lambda_r))
    for name, values in stacked(rows).items():
        dims = ("lambda_r", "seed", "record") if name.startswith("scaled") else ("lambda_r", "seed")
        measured.add(name, values, *dims)
    measured.add("collapse", _collapse(measured))
    measured.add("deviation_max", abs(measured["ratio"] - 1).max(0), "seed")
    measured.add("ratio_lowest", measured["ratio"].min(0), "seed")
    measured.add("ratio_highest", measured["ratio"].max(0), "seed")
    measured.add("r2_min", measured["r2"].min())
    measured.add("factor_max", abs(measured["factor"]).max())
    shares = listed(
        r"{:.2f} of the rate at $\lambda_r = {:g}$",
        np.median(measured["frobenius"] / measured["rate"], 1),
        q.lambda_r,
    )
    measured.remarks.append(
        "The ambient Frobenius metric ignores how far a factor must move for a given change of "
        f"$Q$: it gives {shares}."
    )
    if q.r > 1:
        measured.remarks.append(
            "The factor Hessian has a zero eigenvalue for every infinitesimal rotation of $U$ "
            f"(measured: at most {measured['factor_max']:.0e}); its smallest eigenvalue predicts "
            "no rate."
        )
    measured.remarks.append(
        r"Seed $k$ has the same inputs and frame at every $\lambda_r$; only the spectrum differs."
    )
    return measured


def _frobenius_curvature(objective: LeastSquares, U: Tensor) -> Tensor:
    """Return the smallest `<xi, T_n xi> / ||xi||_F^2` over the tangent space, `[K]`."""
    basis = geometry.horizontal_basis(U)  # [K, p, d, r]
    moved = geometry.differential(U[:, None], basis).flatten(-2)  # [K, p, d d]
    directions = basis.movedim(-3, 0)  # [p, K, d, r]
    products = objective.hessian_product(U, directions).movedim(0, -3)
    quadratic = basis.flatten(-2) @ products.flatten(-2).mT
    root = torch.linalg.cholesky(moved @ moved.mT)
    left = torch.linalg.solve_triangular(root, (quadratic + quadratic.mT) / 2, upper=False)
    both = torch.linalg.solve_triangular(root, left.mT, upper=False)
    return torch.linalg.eigvalsh(both)[..., 0]


def _factor_curvature(objective: LeastSquares, U: Tensor) -> Tensor:
    """Return the smallest eigenvalue of the Hessian of L over all factor directions, `[K]`."""
    d, r = U.shape[-2:]
    directions = torch.eye(d * r, dtype=U.dtype).reshape(d * r, 1, d, r).expand(-1, *U.shape)
    products = objective.hessian_product(U, directions).movedim(0, -3).flatten(-2)  # [K, dr, dr]
    return torch.linalg.eigvalsh((products + products.mT) / 2)[..., 0]


def _collapse(measured: Measured) -> float:
    """Return the largest distance of a rescaled log trajectory from the line -s."""
    gap = np.log(measured["scaled_error"]) + measured["scaled_time"]
    return float(abs(gap - gap[..., :1]).max())


EXPERIMENT = Experiment(
    key="exp2",
    title="Effective curvature and the local training rate",
    question=(
        "How fast does training converge near the solution? The smallest eigenvalue of the "
        "effective Hessian, the Hessian in the quotient metric, should be the rate of the flow "
        "along its slow direction, for every data set; other metrics should not give it."
    ),
    section="subsec:experiment-effective-curvature",
    labels=("thm:effective-hessian",),
    parameters=Curvature,
    quick={"seeds": 16, "records": 20, "rk4_step": 0.04},
    run=run,
    seconds=10,
    quick_seconds=1.5,
    panels=PANELS,
    finding=describe_finding,
    tables=TABLES,
)
