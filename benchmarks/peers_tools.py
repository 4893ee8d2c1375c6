"""Rows of the comparison about tools beside the solution: distance, curvature, bias, estimators."""

from __future__ import annotations

import cvxpy
import numpy as np
import scipy.linalg
import torch
from pymanopt.manifolds import PSDFixedRank

import posquad
from peers_recovery import D, R, instances
from peers_solvers import bures_wasserstein
from peers_table import PACKAGES, Cell, Row, absent, derived, require


def distance() -> Row:
    """||U R - V|| least over orthogonal R, against SciPy's orthogonal_procrustes."""
    count, rng = 200, np.random.default_rng(0)
    U, V = rng.standard_normal((2, count, 6, 2))
    pairs = list(zip(U, V, strict=True))
    true = np.array([np.linalg.norm(a @ scipy.linalg.orthogonal_procrustes(a, b)[0] - b) for a, b in pairs])  # fmt: skip  # noqa: E501
    Q, P = (torch.from_numpy(W @ W.swapaxes(-1, -2)) for W in (U, V))
    manifold = PSDFixedRank(6, 2)
    measured = {
        "posquad": posquad.geometry.procrustes_distance(U, V),
        "pymanopt": np.array([manifold.dist(a, b) for a, b in pairs]),
        "geomstats": bures_wasserstein(6, 2).squared_dist(Q, P).sqrt().numpy(),
    }
    right = {k: int((np.abs(v - true) < 1e-6).sum()) for k, v in measured.items()}
    worst = float((measured["geomstats"] / true).max())
    require((measured["geomstats"] > true - 1e-6).all(), "geomstats' other distances are too large")
    require(right["posquad"] == right["pymanopt"] == count, "posquad and pymanopt agree with SciPy")
    from geomstats.geometry.rank_k_psd_matrices import PSDMatrices

    dimension = PSDMatrices(6, 2, equip=False).dim
    cells = {
        "posquad": Cell(
            "yes", f"`geometry.procrustes_distance`: {right['posquad']} of {count} agree"
        ),
        "pymanopt": Cell("yes", f"`PSDFixedRank.dist`: {right['pymanopt']} of {count} agree"),
        "geomstats": Cell(
            f"{right['geomstats']} of {count} right",
            f"`PSDBuresWassersteinMetric.squared_dist`: {right['geomstats']} of {count} agree, the "
            f"others are too large, up to {worst:.2f} times: it aligns in SO(r) (`Matrices."
            f"align_matrices`), without reflections; `PSDMatrices(6, 2).dim` is {dimension}, and "
            "dr - r(r-1)/2 is 11",
        ),
        "torch": Cell("by hand", "one `torch.linalg.svdvals` and three norms"),
        "CVXPY": Cell("no", absent("cvxpy", ["procrustes", "geodesic", "bures", "wasserstein"])),
    }
    svd = torch.linalg.svdvals(torch.from_numpy(U).mT @ torch.from_numpy(V)).sum(-1)
    norms = torch.from_numpy((U**2).sum((1, 2)) + (V**2).sum((1, 2)))
    by_hand = (norms - 2 * svd).sqrt().numpy()
    require(np.abs(by_hand - true).max() < 1e-6, "the formula by hand")
    run = f"{count} random pairs of factors 6 x 2, against `scipy.linalg.orthogonal_procrustes`."
    return Row("distance between answers, modulo O(r)", run, cells)


def spectrum() -> Row:
    X, U, y = instances(76, 1)[0]
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    found = posquad.effective_spectrum(objective, U)
    hessian = torch.func.hessian(lambda W: objective.loss(W))(U).reshape(D * R, D * R)
    values = torch.linalg.eigvalsh(hessian)
    gap = float((values[1:] - found.values).abs().max() / values[-1])
    require(abs(values[0]) < 1e-12 * values[-1] and gap < 1e-12, "torch's Hessian has the same")
    words = ["spectrum", "gauge", "eigenvalues"]
    cells = {
        "posquad": Cell(
            "yes",
            f"`effective_spectrum`: {len(found.values)} values from {found.values[0]:.3f}, gauge "
            f"of dimension {found.gauge_dimension} removed; dense or matrix-free",
        ),
        "pymanopt": Cell(
            "by hand",
            f"{absent('pymanopt', words)}; evaluating `Problem.riemannian_hessian` on a basis "
            "gives it",
        ),
        "geomstats": Cell(
            "by hand",
            f"{absent('geomstats', words)}; its curvatures are those of the space, not of a loss",
        ),
        "torch": Cell(
            "by hand",
            f"`torch.func.hessian` gives the same values to {gap:.0e} and a zero for the gauge",
        ),
        "CVXPY": Cell(
            "no",
            f"{absent('cvxpy', ['spectrum', 'gauge'])}; its interface to NLP solvers evaluates "
            "Hessians, but only for those solvers",
        ),
    }
    run = "Curvature at the answer with the rotation removed: rates of training, identifiability."
    return Row("effective spectrum of the loss", run, cells)


def selection() -> Row:
    B, y, d = np.array([[1.0, 1, 1, 0], [0, 0, 1, 1]]), np.array([1.0, 0.3]), np.array([1, 1, 2, 3])
    q0 = 1e-2 * np.ones(4)
    ours = posquad.selection.bregman_projection(B, y, d, q0).q
    limit = posquad.selection.mirror_flow(B, y, d, q0).q
    q = cvxpy.Variable(4)
    distance = d @ cvxpy.kl_div(q, q0)
    cvxpy.Problem(cvxpy.Minimize(distance), [B @ q == y]).solve(solver=cvxpy.CLARABEL)
    gap, flow = np.abs(q.value - ours).max(), np.abs(limit - ours).max()
    require(gap < 1e-3 and flow < 1e-8, "CVXPY solves the projection that the flow ends in")
    words = ["bregman", "mirror", "implicit"]
    cells = {
        "posquad": Cell("yes", f"`mirror_flow` ends within {flow:.0e} of `bregman_projection`"),
        "pymanopt": Cell("no", absent("pymanopt", words)),
        "geomstats": Cell("no", absent("geomstats", words)),
        "torch": Cell("by training", f"{absent('torch.optim', words)}; a long run shows the limit"),
        "CVXPY": Cell(
            "the projection, by hand",
            f"`kl_div` under `B q == y`: within {gap:.0e} of it; no flow, no finite steps",
        ),
    }
    run = "The paper's experiment 6 from q0 = 0.01: which interpolant does training pick?"
    return Row("implicit bias: which interpolant", run, cells)


def estimators() -> Row:
    cells = {}
    for package in PACKAGES:
        source = {"torch": "torch.optim"}.get(package, package.lower())
        names = derived(source, "BaseEstimator")
        if package == "posquad" and names:
            cells[package] = Cell("yes", ", ".join(f"`{name}`" for name in names))
        elif names:
            note = (
                f"{len(names)} classes (means, clustering, regression on manifolds), none for this "
                "problem"
            )
            cells[package] = Cell("for other problems", note)
        else:
            cells[package] = Cell("no", f"no public class of {source} derives from `BaseEstimator`")
    run = "Classes derived from `sklearn.base.BaseEstimator`, counted in the source."
    return Row("scikit-learn estimator", run, cells)


ROWS = [distance, spectrum, selection, estimators]
