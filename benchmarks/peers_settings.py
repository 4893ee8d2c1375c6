"""Rows of the comparison where more is asked: noise and weights, an unknown rank, size."""

from __future__ import annotations

import functools
import time

import cvxpy
import numpy as np
import torch
from torch import Tensor

from peers_recovery import USUAL, D, Fit, R, away, instances
from peers_solvers import FITS, MINIMIZERS, by_cvxpy, by_uno, random_start, responses, squares
from peers_table import Cell, Row, require
from posquad import recover, spectral_initializer
from posquad.geometry import dimension
from recovery_table import problem, spaced


def noise_and_weights() -> Row:
    rng = torch.Generator().manual_seed(5)
    X, U, y = problem(rng, 76, D, [1.0, 0.5])
    y = y * (1 + 0.05 * torch.randn(76, generator=rng, dtype=torch.float64))
    w = torch.rand(76, generator=rng, dtype=torch.float64)
    loss, found = squares(X, y, w), recover(X, y, R, weights=w)
    least = float(loss(found.U))
    said = f"`recover(..., weights=w)`: status {found.status.name}, loss {least:.6e}, error {away(found.Q.dense(), U):.1e}"  # noqa: E501
    cells = {"posquad": Cell("yes", said)}
    U0 = spectral_initializer(X, y, R, kind="bounded")
    for package, name in USUAL.items():
        if name not in MINIMIZERS:
            continue
        value = float(loss(MINIMIZERS[name](loss, U0)))
        require(abs(value / least - 1) < 1e-6, f"{name} reaches the weighted best fit")
        note = f"written into the loss; {name} from the spectral start: loss {value:.6e}"
        cells[package] = Cell("in your loss", note)
    Q = cvxpy.Variable((D, D), PSD=True)
    squared = cvxpy.sum_squares(cvxpy.multiply(w.sqrt().numpy(), responses(Q, X) - y.numpy()))
    cvxpy.Problem(cvxpy.Minimize(squared)).solve(solver=cvxpy.CLARABEL)
    values = np.linalg.eigvalsh(Q.value)
    rank = int((values > 1e-6 * values[-1]).sum())
    require(rank > R, "the convex fit of noisy data has a higher rank")
    half = w.sqrt()
    V = by_uno(w.pow(0.25)[:, None] * X, half * y, U0)  # sqrt(w) x'Qx is a response of w^(1/4) x
    value = float(loss(V))
    require(abs(value / least - 1) < 1e-6, "Uno reaches the weighted best fit")
    cells["CVXPY"] = Cell(
        "in your problem",
        f"written into the loss; Uno from the spectral start: loss {value:.6e}. The convex fit, "
        f"weighted least squares over positive semidefinite Q, cannot bound the rank: rank {rank}, "
        f"error {away(torch.from_numpy(Q.value), U):.1e}",
    )
    run = (
        "One problem, n = 4p, 5% noise, random weights; the loss is weighted and relative to the "
        "responses."
    )
    return Row("noisy responses, weights", run, cells)


def unknown_rank() -> Row:
    trials, n, over = instances(38, 6), 38, 2 * R
    found = [recover(X, y) for X, _, y in trials]
    ours = sum(int(f.rank) == R and away(f.Q.dense(), U) < 1e-6 for f, (_, U, _) in zip(found, trials, strict=True))  # fmt: skip  # noqa: E501
    count = len(trials)
    cells = {"posquad": Cell(f"found ({ours} of {count})", "`recover(X, y)` without a rank")}
    for package, name, r in (("pymanopt", "pymanopt CG", over), ("geomstats", "geomstats L-BFGS-B", over), ("torch", "torch L-BFGS", over)):  # fmt: skip  # noqa: E501
        good = 0
        for X, U, y in trials:
            start = 1e-3 * random_start(X, y, r, torch.Generator().manual_seed(n))
            V = MINIMIZERS[name](squares(X, y), start)
            good += away(V @ V.mT, U) < 1e-6
        cells[package] = Cell(
            f"must be given (twice the rank: {good} of {count})",
            f"{name} with {r} columns from a start of 1e-3: {good} of {count} recovered, error "
            "below 1e-6; to find the rank, inspect the eigenvalues, or fit increasing ranks",
        )
    good = 0
    for X, U, y in trials:
        Q = by_cvxpy(X, y)[0]
        values = torch.linalg.eigvalsh(Q)
        good += int((values > 1e-4 * values[-1]).sum()) == R and away(Q, U) < 1e-6
    cells["CVXPY"] = Cell(
        f"found ({good} of {count})",
        "minimum trace needs no rank; eigenvalues above 1e-4 of the largest counted",
    )
    run = (
        f"{count} problems, n = 2p. Found means rank {R} and an error below 1e-6 when the rank is "
        "not given."
    )
    return Row("unknown rank", run, cells)


def largest(limit: float = 2.0, top: int = 640) -> Row:
    """Double d until a problem of n = 4p takes more than the limit."""
    solvers = {
        "posquad": lambda X, y, _: recover(X, y, R).Q.dense(),
        "pymanopt": functools.partial(_from, FITS["pymanopt trust regions"]),
        "geomstats": functools.partial(_from, FITS["geomstats L-BFGS-B"]),
        "torch": functools.partial(_from, FITS["torch L-BFGS"]),
        "CVXPY": lambda X, y, _: by_cvxpy(X, y)[0],
        "CVXPY with Uno": functools.partial(_from, by_uno),
    }
    formed = {
        "posquad": "X and factors; n x n matrices only up to n = 1500",
        "pymanopt": "X and factors, because the loss is written that way",
        "geomstats": "X and factors, because the loss is written that way",
        "torch": "X and factors, because the loss is written that way",
        "CVXPY": "the n x d(d+1)/2 matrix of constraints",
        "CVXPY with Uno": "the Hessian, dr x dr",
    }
    reaches, shown = {}, {}
    for package, solve in solvers.items():
        d, reached, times = 10, 0, []
        while d <= top:
            X, U, y = problem(torch.Generator().manual_seed(d), 4 * dimension(d, R), d, spaced(d, R, 2.0))  # fmt: skip  # noqa: E501
            U0 = spectral_initializer(X, y, R, kind="bounded")
            begin = time.process_time()
            error = away(solve(X, y, U0), U)
            seconds = time.process_time() - begin
            times.append(f"{d}: {seconds:.2g} s" + ("" if error < 1e-6 else f", error {error:.0e}"))
            if seconds > limit or error >= 1e-6:
                break
            reached, d = d, 2 * d
        memory = ""
        if package == "CVXPY":
            entries = 4 * dimension(1000, R) * 1000 * 1001 // 2
            memory = f" (at d = 1000 that would be {entries * 8 / 2**30:.0f} GiB)"
        reaches[package] = reached
        shown[package] = f"{'; '.join(times)}. Formed: {formed[package]}{memory}"
    shown["CVXPY"] = f"minimum trace: {shown['CVXPY']}. Uno: {shown.pop('CVXPY with Uno')}"
    reaches["CVXPY"] = max(reaches["CVXPY"], reaches.pop("CVXPY with Uno"))
    cells = {
        package: Cell(f"d = {reached}" + " or more" * (reached == top), shown[package])
        for package, reached in reaches.items()
    }
    run = (
        f"r = {R}, n = 4p, kappa = 2, d doubled from 10 to {top}: processor seconds, until a "
        "problem takes "
        f"over {limit:g} s or the error is above 1e-6. One thread. pymanopt "
        "(trust regions), geomstats, torch (L-BFGS) and Uno start from posquad's spectral "
        "initializer, not counted."
    )
    return Row(f"largest problem within {limit:g} s", run, cells)


def _from(fit: Fit, X: Tensor, y: Tensor, U0: Tensor) -> Tensor:
    U = fit(X, y, U0)
    return U @ U.mT


ROWS = [noise_and_weights, unknown_rank, largest]
