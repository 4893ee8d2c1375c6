"""How each package minimises a loss of the factor, or the trace, in its own natural way.

The peers get settings that favour them: tolerances tightened until they stop gaining, a random
start of the right size or posquad's spectral start, derivatives by their automatic differentiation.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pymanopt
import torch
from pymanopt.manifolds import PSDFixedRank
from pymanopt.optimizers import ConjugateGradient, TrustRegions
from torch import Tensor

os.environ.setdefault("GEOMSTATS_BACKEND", "pytorch")  # read when geomstats is first imported

Loss = Callable[[Tensor], Tensor]
Minimizer = Callable[[Loss, Tensor], Tensor]


def squares(X: Tensor, y: Tensor, weights: Tensor | None = None) -> Loss:
    """Mean squared error of the responses, relative to their size."""
    w = torch.ones_like(y) if weights is None else weights
    size = (w * y.square()).sum(-1)
    return lambda U: (w * ((X @ U).square().sum(-1) - y).square()).sum(-1) / size


def random_start(X: Tensor, y: Tensor, r: int, rng: torch.Generator) -> Tensor:
    """Gaussian, of the size at which the mean response is right for standard Gaussian inputs."""
    d = X.shape[-1]
    scale = (y.mean(-1) / (d * r)).sqrt()[..., None, None]
    return scale * torch.randn(*y.shape[:-1], d, r, generator=rng, dtype=X.dtype)


def by_pymanopt(kind: type) -> Minimizer:
    def run(loss: Loss, U0: Tensor) -> Tensor:
        manifold = PSDFixedRank(*U0.shape)
        cost = pymanopt.function.pytorch(manifold)(lambda U: loss(U))
        settings = {"verbosity": 0, "max_time": 20.0, "min_gradient_norm": 1e-12}
        settings |= {"max_iterations": 200 if kind is TrustRegions else 2000}
        optimizer = kind(min_step_size=1e-16, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optimizer.run(pymanopt.Problem(manifold, cost), initial_point=U0.numpy())
        return torch.from_numpy(found.point)

    return run


def by_geomstats(loss: Loss, U0: Tensor) -> Tensor:
    """`ScipyMinimize` on the entries of the factor: the one optimizer that takes any function."""
    logging.disable(logging.WARNING)
    from geomstats.numerics.optimization import ScipyMinimize

    settings = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-30, "gtol": 1e-14}
    optimizer = ScipyMinimize(method="L-BFGS-B", autodiff_jac=True, options=settings)
    found = optimizer.minimize(lambda u: loss(u.reshape(U0.shape)), U0.flatten().numpy())
    return torch.as_tensor(found.x).reshape(U0.shape)


def bures_wasserstein(n: int, k: int) -> Any:
    """geomstats' metric of positive semidefinite n x n matrices of rank k."""
    from geomstats.geometry.rank_k_psd_matrices import PSDBuresWassersteinMetric, PSDMatrices

    space = PSDMatrices(n, k, equip=False)
    space.equip_with_metric(PSDBuresWassersteinMetric)
    return space.metric


def by_lbfgs(loss: Loss, U0: Tensor) -> Tensor:
    U = U0.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [U], max_iter=600, history_size=20, tolerance_grad=1e-14, tolerance_change=1e-30,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(U)
        value.backward()
        return value

    optimizer.step(closure)
    return U.detach()


def by_adam(loss: Loss, U0: Tensor, steps: int = 10_000) -> Tensor:
    """Entries do not see each other: a batch of problems runs as it would one by one."""
    U = U0.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([U], lr=5e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(U).sum().backward()
        optimizer.step()
        schedule.step()
    return U.detach()


def responses(Q: cvxpy.Expression, X: Tensor) -> cvxpy.Expression:
    return cvxpy.sum(cvxpy.multiply(X.numpy() @ Q, X.numpy()), axis=1)


def by_cvxpy(X: Tensor, y: Tensor, rank: int = 0) -> tuple[Tensor, cvxpy.Problem]:
    """Minimise the trace over positive semidefinite Q.

    Given the rank, do so up to 20 times, the trace weighted by `(Q + eps)^-1` of the time before,
    eps the largest eigenvalue that should be zero: the log-det heuristic.
    """
    d = X.shape[-1]
    Q = cvxpy.Variable((d, d), PSD=True)
    weight = cvxpy.Parameter((d, d), PSD=True, value=np.eye(d))
    task = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(weight @ Q)), [responses(Q, X) == y.numpy()])
    tight = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
    for _ in range(20 if rank else 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "inaccurate": asked for more digits than there are
            task.solve(solver=cvxpy.CLARABEL, **tight)
        values, vectors = np.linalg.eigh(Q.value)
        if values[-1 - rank] < 1e-6 * values[-1]:
            break
        inverse = (vectors / (values.clip(0) + values[-1 - rank])) @ vectors.T
        weight.value = (inverse + inverse.T) / (2 * np.linalg.norm(inverse, 2))
    return torch.from_numpy(Q.value), task


def by_uno(X: Tensor, y: Tensor, U0: Tensor, starts: int = 1) -> Tensor:
    """The squared loss of the factor, which is not convex, with CVXPY's interface to Uno.

    More than one start are CVXPY's own `best_of`, uniform in a box of the size of U0; it raises
    `SolverError` when one of them fails. Of a single start that fails, the start comes back.
    """
    U = cvxpy.Variable(U0.shape)
    residual = cvxpy.sum(cvxpy.square(X.numpy() @ U), axis=1) - y.numpy()
    task = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(residual)))
    settings = {"solver": cvxpy.UNO, "logger": "SILENT", "dual_tolerance": 1e-10}
    if starts == 1:
        U.value = U0.numpy()
        try:
            task.solve(nlp=True, **settings)
        except cvxpy.SolverError:
            return U0
    else:
        half = float(3**0.5 * U0.square().mean().sqrt())  # of the standard deviation of U0
        U.sample_bounds = (np.full(U.shape, -half), np.full(U.shape, half))
        np.random.seed(0)  # noqa: NPY002  CVXPY draws its starts from the global generator
        task.solve(nlp=True, best_of=starts, **settings)
    return torch.from_numpy(U.value)


def of_squares(minimize: Minimizer) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda X, y, U0: minimize(squares(X, y), U0)


MINIMIZERS: dict[str, Minimizer] = {
    "pymanopt trust regions": by_pymanopt(TrustRegions),
    "pymanopt CG": by_pymanopt(ConjugateGradient),
    "geomstats L-BFGS-B": by_geomstats,
    "torch L-BFGS": by_lbfgs,
}
FITS = {name: of_squares(minimize) for name, minimize in MINIMIZERS.items()}
FITS["CVXPY with Uno"] = by_uno
