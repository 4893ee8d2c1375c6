"""Rows of the comparison about what a package can express: batches, losses, geometry, tools."""

from __future__ import annotations

import inspect
import subprocess
import sys

import cvxpy
import numpy as np
import pymanopt
import torch
from pymanopt.manifolds import PSDFixedRank
from torch import Tensor

from peers_recovery import D, R, away, instances
from peers_solvers import (
    MINIMIZERS,
    Loss,
    bures_wasserstein,
    by_adam,
    random_start,
    responses,
    squares,
)
from peers_table import Cell, Row, absent, derived, require
from posquad import Status, recover, spectral_initializer

USUAL = {"pymanopt": "pymanopt CG", "geomstats": "geomstats L-BFGS-B", "torch": "torch L-BFGS"}


WITHOUT_TRAPZ = (
    "import numpy; vars(numpy).pop('trapz', None); "
    "numpy.__all__ = [name for name in numpy.__all__ if name != 'trapz']"
)
SOURCES = {
    "posquad": "posquad",
    "pymanopt": "pymanopt",
    "geomstats": "geomstats.backend",
    "torch": "torch",
    "CVXPY": "cvxpy",
}


def batches() -> Row:
    count, rng = 200, torch.Generator().manual_seed(0)
    X = torch.randn(count, 24, 6, generator=rng, dtype=torch.float64)
    U = torch.randn(count, 6, 2, generator=rng, dtype=torch.float64)
    y = (X @ U).square().sum(-1)
    found = recover(X, y, 2)
    ours = sum(s is Status.RECOVERED for s in found.status)
    V = by_adam(squares(X, y), random_start(X, y, 2, rng), steps=3000)
    adam = sum(away(a @ a.mT, b) < 1e-6 for a, b in zip(V, U, strict=True))
    copies = [*inspect.signature(PSDFixedRank).parameters]
    require(copies == ["n", "k"], "PSDFixedRank has no argument for copies")
    distances = bures_wasserstein(6, 2).squared_dist(U @ U.mT, U.flip(0) @ U.flip(0).mT)
    require(distances.shape == (count,), "geomstats measures distances of a batch")
    cells = {
        "posquad": Cell("yes", f"one call of `recover`: {ours} of {count} RECOVERED"),
        "pymanopt": Cell(
            "loop by hand",
            "`PSDFixedRank` takes (n, k) and no number of copies; a `Product` manifold would share "
            "one step size between all problems",
        ),
        "geomstats": Cell(
            "geometry yes, optimizer no",
            f"`squared_dist` of {count} pairs in one call; `ScipyMinimize` minimises one function",
        ),
        "torch": Cell(
            "Adam yes; L-BFGS would share its step",
            f"Adam on a `[{count}, 6, 2]` factor, one start, 3000 steps, "
            f"{adam} of {count} recovered; `torch.optim.LBFGS` has one line search for all",
        ),
        "CVXPY": Cell(
            "loop by hand",
            "a `Parameter` avoids recompilation; problems can be combined into one, block by block",
        ),
    }
    run = f"{count} problems with d = 6, r = 2, n = 24 at once."
    return Row("many problems in one call", run, cells)


def gpu() -> Row:
    """Runs on a GPU where there is one; elsewhere says what could not be tried."""
    kinds: list[str] = []

    def watched(U: Tensor) -> Tensor:
        kinds.append(U.device.type)
        return U.square().sum()

    manifold = PSDFixedRank(4, 2)
    task = pymanopt.Problem(manifold, pymanopt.function.pytorch(manifold)(watched))
    point = pymanopt.optimizers.SteepestDescent(verbosity=0, max_iterations=2).run(task).point
    require(isinstance(point, np.ndarray) and set(kinds) == {"cpu"}, "pymanopt points are NumPy's")
    require(hasattr(cvxpy, "CUCLARABEL"), "CVXPY knows the solver CuClarabel")
    installed = "CUCLARABEL" in cvxpy.installed_solvers()
    follows = "computes on the device of its tensors"
    tried = "no GPU on the machine that made this page"
    if torch.cuda.is_available():
        X, U, y = (t.cuda() for t in instances(38, 1)[0])
        found, V = recover(X, y, R), MINIMIZERS["torch L-BFGS"](squares(X, y), U + 0.1)
        require(found.U.is_cuda and V.is_cuda, "answers stay on the GPU")
        tried = f"run on {torch.cuda.get_device_name()}, error {away(found.Q.dense(), U):.0e}"
    cells = {
        "posquad": Cell("yes", f"{follows} (`tests/test_devices.py`); {tried}"),
        "pymanopt": Cell(
            "no",
            f"`result.point` is a NumPy array, and the loss gets tensors on {kinds[0]}; a loss can "
            "move them to a GPU and its value back, by hand",
        ),
        "geomstats": Cell(
            "not in its optimizer",
            "`ScipyMinimize` hands NumPy arrays to SciPy; its PyTorch backend computes on tensors",
        ),
        "torch": Cell("yes", f"{follows}; {tried}"),
        "CVXPY": Cell(
            "with CuClarabel",
            f"`cvxpy.CUCLARABEL` exists; {'' if installed else 'not '}installed here, not run",
        ),
    }
    return Row("GPU", "The device on which the iterates are stored.", cells)


def single_precision() -> Row:
    X, U, y = instances(76, 1)[0]
    narrow_X, narrow_y = X.float(), y.float()
    wide, kept = recover(narrow_X, narrow_y, R), recover(narrow_X, narrow_y, R, precision="input")
    require(kept.U.dtype == torch.float32, "precision='input' keeps float32")
    shown = {
        "posquad": f"computes in {_kind(wide.U)} by default: error "
        f"{away(wide.Q.dense().double(), U):.0e}; with `precision='input'` in float32: "
        f"{away(kept.Q.dense().double(), U):.0e}; statuses {wide.status.name}, {kept.status.name}"
    }
    kinds = {"posquad": "yes"}
    U0 = spectral_initializer(X, y, R, kind="bounded").float()
    for package, name in USUAL.items():
        try:
            V = MINIMIZERS[name](squares(narrow_X, narrow_y), U0)
            shown[package] = (
                f"{name}: answer in {_kind(V)}, error {away((V @ V.mT).double(), U):.0e}"
            )
            kinds[package] = "yes" if V.dtype == torch.float32 else "widened to float64"
        except (RuntimeError, TypeError) as problem_of_peer:
            reason = str(problem_of_peer).splitlines()[0][:120]
            shown[package] = f"{name} on float32 data: {type(problem_of_peer).__name__}: {reason}"
            kinds[package] = "no: its iterates are float64"
    variable = cvxpy.Variable((D, D), PSD=True)
    squared = cvxpy.sum_squares(responses(variable, narrow_X) - narrow_y.numpy())
    cvxpy.Problem(cvxpy.Minimize(squared)).solve(solver=cvxpy.CLARABEL)
    Q = torch.from_numpy(variable.value)
    shown["CVXPY"] = f"least squares: answer in {_kind(Q)}, error {away(Q.double(), U):.0e}"
    kinds["CVXPY"] = "widened to float64"
    cells = {package: Cell(kinds[package], shown[package]) for package in shown}
    return Row("float32 data", "One problem, n = 4p, data rounded to float32.", cells)


def _kind(U: Tensor) -> str:
    return str(U.dtype).removeprefix("torch.")


def _huber(X: Tensor, y: Tensor, delta: float = 1e-3) -> Loss:
    def loss(U: Tensor) -> Tensor:
        return torch.nn.functional.huber_loss((X @ U).square().sum(-1), y, delta=delta) / delta

    return loss


def _own_losses(X: Tensor, U: Tensor, y: Tensor, plain: float) -> Cell:
    """Huber and Geman-McClure by `recover`; Poisson on counts of the same problem."""
    huber, redescending = (recover(X, y, R, loss=name) for name in ("huber", "geman-mcclure"))
    errors = [away(found.Q.dense(), U) for found in (huber, redescending)]
    require(max(errors) < 1e-6 < plain, "recover with a robust loss ignores the outliers")
    rng = torch.Generator().manual_seed(0)
    counts = torch.poisson(100 * (X @ U).square().sum(-1), generator=rng)
    counted, squared = (recover(X, counts, R, loss=name) for name in ("poisson", "least-squares"))
    poisson, least = (away(found.Q.dense() / 100, U) for found in (counted, squared))
    require(poisson < least, "counts are fitted better by their own likelihood")
    note = (
        f"`recover(..., loss='huber')`: error {errors[0]:.0e}, `loss='geman-mcclure'`: "
        f"{errors[1]:.0e}, least squares: {plain:.0e}; counts with means up to "
        f"{100 * float((X @ U).square().sum(-1).max()):.0f} by `loss='poisson'`: {poisson:.0e}, "
        f"least squares: {least:.0e}; any smooth loss by `SmoothObjective` and `gradient_descent`"
    )
    return Cell("Huber, Geman-McClure, Poisson; others by gradient descent", note)


def other_losses() -> Row:
    X, U, y = instances(152, 1)[0]
    y = y.clone()
    y[::10] += 5.0
    loss, U0 = _huber(X, y), spectral_initializer(X, y, R, kind="bounded")
    squared = recover(X, y, R)
    plain = away(squared.Q.dense(), U)
    cells = {"posquad": _own_losses(X, U, y, plain)}
    for package, name in USUAL.items():
        V = MINIMIZERS[name](loss, U0)
        cells[package] = Cell("yes", f"{name} from the same start: error {away(V @ V.mT, U):.0e}")
        require(away(V @ V.mT, U) < plain / 10, f"{name} minimises a Huber loss")
    Q = cvxpy.Variable((D, D), PSD=True)
    absolute = cvxpy.norm1(responses(Q, X) - y.numpy())
    cvxpy.Problem(cvxpy.Minimize(absolute)).solve(solver=cvxpy.CLARABEL)
    error = away(torch.from_numpy(Q.value), U)
    note = (
        f"`norm1` over positive semidefinite Q: error {error:.0e}; for nonconvex losses, see other "
        "models"
    )
    cells["CVXPY"] = Cell("convex, or smooth with an NLP solver", note)
    run = (
        "n = 8p, every tenth response is too large by 5; a Huber loss with threshold 1e-3, for "
        "posquad with its own scale."
    )
    return Row("another loss, for outliers", run, cells)


def constraints() -> Row:
    X, U, y = instances(24, 1)[0]
    bound = 0.95 * float((U @ U.mT).diagonal().max())
    Q = cvxpy.Variable((D, D), PSD=True)
    bounds = [responses(Q, X) == y.numpy(), cvxpy.diag(Q) <= bound]
    task = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(Q)), bounds)
    task.solve(solver=cvxpy.CLARABEL)
    require(task.status == "optimal", "CVXPY solves it with bounds on the diagonal")
    worst = float(np.diag(Q.value).max())
    arguments = ", ".join(inspect.signature(recover).parameters)
    cells = {
        "posquad": Cell("no", f"`recover` takes {arguments}: no constraints"),
        "pymanopt": Cell(
            "penalty by hand",
            f"{absent('pymanopt', ['constraint', 'penalt', 'lagrang'])}; constraints that are not "
            "manifolds go "
            "into the loss",
        ),
        "geomstats": Cell(
            "penalty by hand",
            "`ScipyMinimize` passes `constraints` on to SciPy, for the entries of the factor",
        ),
        "torch": Cell(
            "penalty by hand", absent("torch.optim", ["constraint", "penalt", "lagrang"])
        ),
        "CVXPY": Cell("yes", f"`diag(Q) <= {bound:.4f}` added: largest entry {worst:.4f}"),
    }
    from geomstats.numerics.optimization import ScipyMinimize

    require("constraints" in inspect.signature(ScipyMinimize).parameters, "SciPy's constraints")
    cells["geomstats"] = Cell("SciPy's, on the factor", cells["geomstats"].note)
    run = "n = 1.25p, the diagonal of Q bounded above."
    return Row("further constraints on Q", run, cells)


def manifolds() -> Row:
    counts = {package: derived(package, "Manifold") for package in ("pymanopt", "geomstats")}
    require(len(counts["geomstats"]) > len(counts["pymanopt"]) > 5, "both have many manifolds")
    cells = {
        "posquad": Cell("this quotient only", "`posquad.geometry`: factors modulo rotation"),
        **{
            package: Cell(
                f"yes, {len(names)} classes",
                f"{len(names)} public classes derive from `Manifold`, such as "
                f"{', '.join(f'`{name}`' for name in names[:: len(names) // 4][:4])}",
            )
            for package, names in counts.items()
        },
        "torch": Cell(
            "a few, as parametrizations",
            "`torch.nn.utils.parametrizations.orthogonal`; "
            f"{absent('torch.optim', ['manifold', 'riemann', 'stiefel'])}",
        ),
        "CVXPY": Cell("no", absent("cvxpy", ["manifold", "riemann", "stiefel"])),
    }
    require(hasattr(torch.nn.utils.parametrizations, "orthogonal"), "torch parametrizations")
    return Row("other manifolds", "Classes counted in the source.", cells)


def models() -> Row:
    x, rng = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None], torch.Generator()
    weights = torch.randn(3, 10, 1, generator=rng.manual_seed(0), dtype=torch.float64)

    def loss(W: Tensor) -> Tensor:
        return (torch.tanh(x @ W[0].mT + W[1].mT) @ W[2] - x.sin()).square().mean()

    before, after = float(loss(weights)), float(loss(MINIMIZERS["torch L-BFGS"](loss, weights)))
    require(after < 1e-4 < before, "torch trains a network of two layers")
    text = "a smooth function of points on its manifolds, through its automatic differentiation"
    cells = {
        "posquad": Cell("no", "x'UU'x only; losses of Q through `SmoothObjective`"),
        "pymanopt": Cell("yes", text),
        "geomstats": Cell("with `ScipyMinimize`", "any function of an array, through SciPy"),
        "torch": Cell("yes", f"tanh network, L-BFGS: mean square {before:.0e} to {after:.0e}"),
        "CVXPY": Cell("convex, or smooth with an NLP solver", _not_convex()),
    }
    run = "Models other than positive quadratic networks."
    return Row("other models", run, cells)


def _not_convex() -> str:
    U = cvxpy.Variable((D, R))
    task = cvxpy.Problem(cvxpy.Minimize(cvxpy.square(cvxpy.sum_squares(U) - 1)))
    require(not task.is_dcp() and task.is_dnlp(), "the loss of the factor is smooth, not convex")
    solvers = [name for name in ("IPOPT", "KNITRO", "UNO", "COPT") if hasattr(cvxpy, name)]
    return (
        "the squared loss of the factor has `is_dcp()` False and `is_dnlp()` True: "
        f"`solve(nlp=True)` passes it to {', '.join(solvers)}, whichever is installed"
    )


def recent_numpy() -> Row:
    """Imports each package where numpy.trapz, removed in NumPy 2.4, does not exist."""
    cells = {}
    for package, name in SOURCES.items():
        code = f"{WITHOUT_TRAPZ}; import {name}"
        ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)  # fmt: skip  # noqa: E501
        last = (ended.stderr.strip().splitlines() or [""])[-1].split(" (")[0]
        cells[package] = Cell("yes", "imports") if not ended.returncode else Cell("no", f"`{last}`")
    require(cells["posquad"].short == "yes", "posquad imports with NumPy 2.4")
    run = (
        "NumPy 2.4 removed `numpy.trapz`. Each package is imported with that name removed; this "
        "page was made with an older NumPy for this reason."
    )
    return Row("imports with NumPy 2.4", run, cells)


ROWS = [
    batches,
    gpu,
    single_precision,
    other_losses,
    constraints,
    manifolds,
    models,
    recent_numpy,
]
