"""Experiment 2: the effective curvature and the measured rate of the flow (section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posquad import geometry
from posquad.core.errors import DomainError
from posquad.curvature import effective_spectrum
from posquad.dynamics import gradient_flow
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ReportTable,
    Tell,
    chosen,
    stated,
)
from posquad.experiments.problems import line_fit, planted
from posquad.problems import LeastSquares, RankOne
from posquad.report.palette import COLOURS, INK, MARKERS, mark_values, series
from posquad.report.panel import Panel

__all__ = ["EXPERIMENT", "Curvature", "run"]


@dataclass(frozen=True)
class Curvature(Parameters):
    """Sizes and spectra from the paper; perturbation, window and integrator are ours."""

    d: int = stated(8, "input dimension")
    r: int = stated(2, "rank; the other eigenvalues equal lambda_1")
    n: int = stated(800, "samples")
    lambda_r: tuple[float, ...] = stated((1.0, 0.7, 0.5, 0.35, 0.25), "smallest eigenvalue of Q*")
    lambda_1: float = chosen(1.0, "largest eigenvalue of Q* (the paper: fixed)")
    seeds: int = chosen(128, "independent problems for each lambda_r")
    perturbation: float = chosen(1e-3, "distance of the start from U*, along the slow direction")
    window: float = chosen(
        3.0, "the rate is fitted from time 0 to this over 4 lambda_r, the population's rate"
    )
    records: int = chosen(40, "recorded times in the window")
    rk4_step: float = chosen(0.02, "largest step of the Runge-Kutta method")


def run(parameters: Curvature, tell: Tell) -> Measured:
    """Perturb along the slow direction, follow the flow, fit its rate; compare three curvatures.

    >>> measured = run(Curvature(seeds=2, lambda_r=(1.0,)), lambda fraction: None)
    >>> bool(abs(measured["ratio"] - 1).max() < 1e-2)
    True
    """
    q = parameters
    if max(q.lambda_r) > q.lambda_1 or min(q.lambda_r) <= 0:
        expected = f"numbers in (0, lambda_1 = {q.lambda_1:g}]"
        raise DomainError("exp2.lambda_r", expected=expected, got=str(q.lambda_r))
    measured = Measured()
    measured.along("lambda_r", q.lambda_r)
    measured.along("seed", np.arange(q.seeds))
    measured.along("record", np.arange(q.records + 1))
    columns: dict[str, list[np.ndarray]] = {}
    for position, weakest in enumerate(q.lambda_r):
        spectrum = [q.lambda_1] * (q.r - 1) + [weakest]
        X, U, y = planted(q.seed, "problem", q.n, q.d, spectrum, q.seeds)
        objective = LeastSquares(RankOne(X), y)
        slow = effective_spectrum(objective, U, k=1, which="smallest")
        unit = 1 / (4 * weakest)
        times = torch.linspace(0, q.window * unit, q.records + 1, dtype=torch.float64)
        flow = gradient_flow(
            objective,
            U + q.perturbation * slow.vectors[..., 0, :, :],
            t_final=float(times[-1]),
            times=times[1:],
            method="rk4",
            step=q.rk4_step,
            observables={"error": lambda V, U=U: geometry.procrustes_distance(V, U)},
        )
        t, error = flow.times.mT.numpy(), flow.observables["error"].mT.numpy()
        slope, _, r2 = line_fit(t, np.log(error))
        effective = slow.values[..., 0].numpy()
        row = {
            "effective": effective,
            "rate": -slope,
            "ratio": -slope / effective,
            "r2": r2,
            "frobenius": _frobenius_curvature(objective, U),
            "factor": _factor_curvature(objective, U),
            "scaled_time": effective[:, None] * t,
            "scaled_error": error / error[:, :1],
        }
        for name, values in row.items():
            columns.setdefault(name, []).append(np.asarray(values))
        tell((position + 1) / len(q.lambda_r))
    for name, rows in columns.items():
        dims = ("lambda_r", "seed", "record") if name.startswith("scaled") else ("lambda_r", "seed")
        measured.add(name, np.stack(rows), *dims)
    measured.add("collapse", _collapse(measured))
    measured.add("deviation_max", abs(measured["ratio"] - 1).max(0), "seed")
    measured.add("ratio_lowest", measured["ratio"].min(0), "seed")
    measured.add("ratio_highest", measured["ratio"].max(0), "seed")
    measured.add("r2_min", measured["r2"].min())
    measured.add("factor_max", abs(measured["factor"]).max())
    measured.remarks.append(
        "The ambient Frobenius metric leaves out how far a factor must move for a given change of "
        f"Q: it gives {_frobenius_ratios(measured)}."
    )
    if q.r > 1:
        measured.remarks.append(
            "The factor Hessian has a zero eigenvalue for every infinitesimal rotation of U "
            f"(measured: at most {measured['factor_max']:.0e}); its smallest eigenvalue predicts "
            "no rate."
        )
    measured.remarks.append(
        "Seed k has the same inputs and the same frame at every lambda_r; the spectrum differs."
    )
    return measured


def _frobenius_curvature(objective: LeastSquares, U: Tensor) -> Tensor:
    """Smallest `<xi, T_n xi> / ||xi||_F^2` over the tangent space: the ambient metric, `[K]`."""
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
    """Smallest eigenvalue of the Hessian of L over all factor directions, `[K]`."""
    d, r = U.shape[-2:]
    directions = torch.eye(d * r, dtype=U.dtype).reshape(d * r, 1, d, r).expand(-1, *U.shape)
    products = objective.hessian_product(U, directions).movedim(0, -3).flatten(-2)  # [K, dr, dr]
    return torch.linalg.eigvalsh((products + products.mT) / 2)[..., 0]


def _collapse(measured: Measured) -> float:
    """Largest distance of the logarithm of a rescaled trajectory from the line -s."""
    gap = np.log(measured["scaled_error"]) + measured["scaled_time"]
    return float(abs(gap - gap[..., :1]).max())


def _frobenius_ratios(measured: Measured) -> str:
    ratios = np.median(measured["frobenius"] / measured["rate"], 1)
    return ", ".join(
        f"{ratio:.2f} of the rate at lambda_r = {weakest:g}"
        for ratio, weakest in zip(ratios, measured["lambda_r"], strict=True)
    )


def _rows(measured: Measured) -> list[list[str]]:
    rows = []
    for k, weakest in enumerate(measured["lambda_r"]):
        cells = [f"{weakest:g}"]
        for name, digits in (("effective", 4), ("rate", 4), ("ratio", 6)):
            low, middle, high = np.quantile(measured[name][k], (0.05, 0.5, 0.95))
            cells.append(f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]")
        rows.append(cells)
    return rows


def _draw_rates(axes, measured: Measured) -> None:
    for k, weakest in enumerate(measured["lambda_r"]):
        axes.plot(measured["effective"][k], measured["rate"][k], ls="", marker=MARKERS[k % 6],
                  ms=4, color=COLOURS[k % 6], alpha=0.6,
                  label=rf"$\lambda_r={weakest:g}$")  # fmt: skip
    ends = np.array([measured["effective"].min() * 0.9, measured["effective"].max() * 1.1])
    axes.plot(ends, ends, color=INK, lw=1, ls=":", label="equal")
    axes.set(xscale="log", yscale="log", xlabel=r"$\lambda_{\min}^{\mathrm{eff}}$",
             ylabel=r"measured rate $\hat\lambda_{\mathrm{flow}}$")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        marks = np.array([0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50])
        mark_values(axis, marks[(marks > ends[0]) & (marks < ends[1])])
    axes.legend()


def _draw_metrics(axes, measured: Measured) -> None:
    names = (
        ("rate", "measured rate"),
        ("effective", "quotient metric"),
        ("frobenius", "ambient Frobenius metric"),
    )
    for k, (name, words) in enumerate(names):
        values = measured[name]
        low, middle, high = (np.quantile(values, p, axis=1) for p in (0.05, 0.5, 0.95))
        spread = abs(np.stack([middle - low, high - middle]))
        axes.errorbar(measured["lambda_r"] + 0.008 * (k - 1), middle, spread, capsize=2,
                      **series(k), label=words)  # fmt: skip
    floor = np.full(len(measured["lambda_r"]), measured["factor_max"])
    axes.plot(measured["lambda_r"], floor, **series(3), label="factor Hessian")
    axes.set(xlabel=r"$\lambda_r(Q_*)$", ylabel="smallest curvature")
    mark_values(axes.xaxis, measured["lambda_r"])
    axes.legend()


def _draw_collapse(axes, measured: Measured) -> None:
    for k, weakest in enumerate(measured["lambda_r"]):
        width = 7 * 0.7**k  # thinner on top, so that every one is seen though they coincide
        for j in range(min(4, len(measured["seed"]))):
            axes.plot(measured["scaled_time"][k, j], measured["scaled_error"][k, j], lw=width,
                      color=COLOURS[k % 6], solid_capstyle="butt",
                      label=rf"$\lambda_r={weakest:g}$" if j == 0 else None)  # fmt: skip
    s = np.linspace(0, measured["scaled_time"].max(), 50)
    axes.plot(s, np.exp(-s), color=INK, lw=1, ls=":", label=r"$e^{-s}$")
    axes.set(yscale="log", xlabel=r"rescaled time $s=\lambda_{\min}^{\mathrm{eff}}t$",
             ylabel=r"$d_P(U(t),U_*)\,/\,d_P(U(0),U_*)$")  # fmt: skip
    axes.legend()


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
    panels=(
        Panel(
            key="exp2-rate",
            title="Measured rate and effective curvature",
            caption="One point for each data set: the fitted rate against the smallest effective "
            "eigenvalue, computed before any training.",
            draw=_draw_rates,
            describe=lambda m: (
                f"{m['rate'].size} points beside the diagonal; rate over curvature ranges from "
                f"{m['ratio'].min():.6f} to {m['ratio'].max():.6f}."
            ),
            label="fig:exp2-rate-vs-curvature",
        ),
        Panel(
            key="exp2-metrics",
            title="Curvature in different metrics",
            caption="Smallest curvature in three metrics beside the measured rate (median and "
            "central 90% over data sets).",
            draw=_draw_metrics,
            describe=lambda m: (
                f"The quotient metric gives {np.median(m['effective'] / m['rate']):.4f} of the "
                f"rate in the median; the ambient Frobenius metric {_frobenius_ratios(m)}; the "
                f"factor Hessian's smallest eigenvalue is at most {m['factor_max']:.0e}."
            ),
            label="fig:exp2-metric-comparison",
        ),
        Panel(
            key="exp2-collapse",
            title="Trajectories in rescaled time",
            caption="Distance to the solution against time multiplied by the effective curvature.",
            draw=_draw_collapse,
            describe=lambda m: (
                "The logarithms of the trajectories differ from the line -s by at most "
                f"{m['collapse']:.1e}."
            ),
            label="fig:exp2-scaled-trajectories",
        ),
    ),
    tables=(
        ReportTable(
            key="exp2-rates",
            title="Effective curvature and measured rate: median over seeds, central 90%",
            header=("λ_r(Q*)", "λ_min^eff", "λ̂_flow", "ratio"),
            rows=_rows,
            label="tab:effective-curvature-rates",
        ),
    ),
)  # fmt: skip
