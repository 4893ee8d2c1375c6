"""Positive diffusion tensors against DIPY's methods, and batches of `recover`.

    python benchmarks/volumes.py [--quick] [--folder DIR] [--gallery FILE] [--cvxpy PYTHON]

Two data sets: `small_64D`, which comes with DIPY, and a simulated brain of 200,000 voxels, which is
written to a folder and read back. Every method runs through `TensorModel(gtab, fit_method=...)` in
one process and one thread. Times are processor times with everything from the signals to
eigenvalues and eigenvectors. A sample of the voxels is also solved with the constraint that the
tensor is positive by CVXPY, in the environment of `make peers` unless another interpreter is named,
and by Clarabel, the solver that CVXPY calls, directly.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import clarabel
import nibabel
import numpy as np
import scipy.sparse
import torch
from dipy.core.gradients import gradient_table
from dipy.data import get_fnames
from dipy.io.gradients import read_bvals_bvecs
from dipy.reconst import dti
from threadpoolctl import threadpool_limits

from posquad import recover
from posquad.dipy import positive_ols, positive_rwls, positive_wls
from posquad.recovery.pipeline import Pipeline
from timing import machine, write_between
from volumes_data import batch, simulated_brain

BEGIN, END = "# .. begin: benchmarks/volumes.py", "# .. end"
SAMPLE = 400  # voxels that CVXPY and Clarabel solve
PEERS = Path(__file__).parents[1] / ".venv-peers/bin/python"  # of `make peers`
SLOW = {"DIPY NLLS", "DIPY RESTORE"}  # run on a part of the simulated brain
PART = 40_000


@dataclass(frozen=True, eq=False)
class Data:
    """Signals of voxels, and the truth where it is known."""

    name: str
    gtab: object
    signals: np.ndarray
    sigma: float
    fa: np.ndarray | None = None


@dataclass(frozen=True)
class Row:
    """What was measured of one method."""

    name: str
    voxels: int
    microseconds: float
    negative: float  # share of voxels whose tensor was not positive, and was clipped
    residual: float  # root mean square of S - fit, over sigma
    error: float  # mean |FA - truth|; NaN if the truth is not known


def methods(sigma: float) -> dict[str, tuple[object, dict]]:
    return {
        "DIPY OLS": ("OLS", {}),
        "DIPY WLS": ("WLS", {}),
        "DIPY RWLS": ("RWLS", {}),
        "DIPY NLLS": ("NLLS", {}),
        "DIPY RESTORE": ("RESTORE", {"sigma": sigma}),
        "posquad OLS": (positive_ols, {}),
        "posquad WLS": (positive_wls, {}),
        "posquad RWLS": (positive_rwls, {}),
    }


def measured(data: Data, name: str, method: object, options: dict, repeats: int) -> Row:
    signals = data.signals[:PART] if name in SLOW else data.signals
    model = dti.TensorModel(data.gtab, fit_method=method, return_S0_hat=True, **options)
    best = math.inf
    for _ in range(1 if name in SLOW else repeats):
        begin = time.process_time()
        fit = model.fit(signals)
        best = min(best, time.process_time() - begin)
    return row(data, name, fit.evals, fit.evecs, fit.S0_hat, signals, best / len(signals))


def row(data: Data, name: str, evals, evecs, S0, signals, seconds: float) -> Row:
    D = np.einsum("kir,kr,kjr->kij", evecs, evals, evecs)
    bvecs, bvals = data.gtab.bvecs, data.gtab.bvals
    exponent = bvals * np.einsum("gi,kij,gj->kg", bvecs, D, bvecs, optimize=True)
    off = signals - np.asarray(S0).reshape(-1, 1) * np.exp(-exponent)
    clipped = 1e-6 / -dti.design_matrix(data.gtab).min()  # where DIPY sets eigenvalues to this
    ours = name.startswith(("posquad", "Clarabel", "CVXPY"))
    negative = evals.min() < 0 if ours else (evals[:, 2] <= clipped * (1 + 1e-9)).mean()
    fa = dti.fractional_anisotropy(evals)
    error = np.nan if data.fa is None else np.abs(fa - data.fa[: len(fa)]).mean()
    rms = float(np.sqrt((off**2).mean())) / data.sigma
    return Row(name, len(signals), 1e6 * seconds, float(negative), rms, float(error))


def sample(data: Data) -> tuple[Data, np.ndarray, np.ndarray]:
    """Some of the voxels, DIPY's design, and the square roots of its weights."""
    step = max(1, len(data.signals) // SAMPLE)
    signals = data.signals[::step][:SAMPLE]
    truth = None if data.fa is None else data.fa[::step][:SAMPLE]
    design = dti.design_matrix(data.gtab)
    first, _ = dti.ols_fit_tensor(design, signals, return_lower_triangular=True)
    roots = np.exp(first @ design.T)
    part = Data(data.name, data.gtab, signals, data.sigma, truth)
    return part, design, roots / roots.max(1, keepdims=True)


def solved_row(data: Data, name: str, D: np.ndarray, logs: np.ndarray, seconds: float) -> Row:
    """The row of tensors `D[k, 3, 3]` that a solver found, with `log S0`."""
    evals, evecs = np.linalg.eigh(D)
    evals = evals[:, ::-1].clip(min=0)
    return row(data, name, evals, evecs[:, :, ::-1], np.exp(logs), data.signals, seconds / len(D))


def python_with_cvxpy(given: Path | None) -> str | None:
    """An interpreter that has CVXPY: the given one, this one, or that of `make peers`."""
    for python in (given, sys.executable, PEERS):
        if python is not None and Path(python).exists():
            found = subprocess.run([str(python), "-c", "import cvxpy"], capture_output=True)
            if found.returncode == 0:
                return str(python)
    return None


def cvxpy_row(data: Data, python: str | None) -> Row:
    """Weighted least squares over D >= 0 and S0 by CVXPY, voxel by voxel, with DIPY's weights."""
    name = "CVXPY WLS, positive"
    if python is None:
        return Row(f"{name} (not installed)", 0, *[math.nan] * 4)
    part, design, roots = sample(data)
    script = Path(__file__).with_name("volumes_cvxpy.py")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "voxels.npz"), Path(folder, "answers.npz")
        np.savez(source, design=design, roots=roots, logs=np.log(part.signals))
        subprocess.run([python, str(script), str(source), str(target)], check=True)
        with np.load(target) as found:
            x, seconds = found["answers"], float(found["seconds"])
    return solved_row(part, name, dti.from_lower_triangular(x[:, :6]), -x[:, 6], seconds)


def clarabel_row(data: Data) -> Row:
    """The same by Clarabel without CVXPY."""
    part, design, roots = sample(data)
    order, scale = [0, 1, 2, 3, 4, 5], np.array([1, 2**-0.5, 1, 2**-0.5, 2**-0.5, 1])
    unit = np.abs(design).max()
    A = np.column_stack([design[:, order] * scale / unit, -design[:, 6:]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.PSDTriangleConeT(3)]
    positive = scipy.sparse.csc_matrix(np.hstack([-np.eye(6), np.zeros((6, 1))]))
    answers = []
    begin = time.process_time()
    for root, log in zip(roots, np.log(part.signals), strict=True):
        system, right = root[:, None] * A, root * log
        P = scipy.sparse.csc_matrix(np.triu(system.T @ system))
        solver = clarabel.DefaultSolver(
            P, -system.T @ right, positive, np.zeros(6), cones, settings
        )
        answers.append(solver.solve().x)
    seconds = time.process_time() - begin
    x = np.array(answers)
    D = dti.from_lower_triangular(x[:, :6] * scale / unit)
    return solved_row(part, "Clarabel WLS, positive", D, x[:, 6], seconds)


def small_64D() -> Data:
    image, *tables = map(str, get_fnames(name="small_64D"))
    bvals, bvecs = read_bvals_bvecs(*tables)
    gtab = gradient_table(bvals, bvecs=bvecs, b0_threshold=50)
    signals = nibabel.load(image).get_fdata()
    signals = signals[(signals > 0).all(-1)]
    # The noise is estimated from the residuals of a fit, over its degrees of freedom.
    fit = dti.TensorModel(gtab, return_S0_hat=True).fit(signals)
    off = signals - fit.predict(gtab)
    sigma = float(np.sqrt((off**2).sum() / off[:, 7:].size))
    return Data("small_64D", gtab, signals, sigma)


def brain(folder: Path) -> Data:
    made = simulated_brain(folder)
    bvals, bvecs = read_bvals_bvecs(str(made.bval), str(made.bvec))
    gtab = gradient_table(bvals, bvecs=bvecs, b0_threshold=50)
    mask = np.asarray(nibabel.load(made.mask).dataobj) > 0
    signals = nibabel.load(made.image).get_fdata()[mask]
    fa = dti.fractional_anisotropy(np.linalg.eigvalsh(made.tensors))
    order = np.random.default_rng(0).permutation(len(fa))  # so that a part is a sample
    return Data("simulated brain", gtab, signals[order], made.sigma, fa[order])


def race(data: Data, repeats: int, python: str | None) -> list[Row]:
    rows = []
    for name, (method, options) in methods(data.sigma).items():
        rows.append(measured(data, name, method, options, repeats))
        show(rows[-1])
    for one in (cvxpy_row(data, python), clarabel_row(data)):
        rows.append(one)
        show(one)
    return rows


def show(row: Row) -> None:
    error = "" if math.isnan(row.error) else f"{row.error:9.4f}"
    print(
        f"{row.name:24}{row.voxels:8d}{row.microseconds:9.1f}{row.negative:9.2%}"
        f"{row.residual:9.4f}{error}",
        flush=True,
    )


def recover_batches(quick: bool) -> None:
    """Times of `recover` for one design, and the share of problems that it solves one by one."""
    alone = 0
    single = Pipeline._single

    def counted(self, *arguments):
        nonlocal alone
        alone += 1
        return single(self, *arguments)

    Pipeline._single = counted
    print("\nrecover, one design: d, n, problems, boundary, us, us undiagnosed, alone")
    sizes = (
        ("5% noise, weak direction", 3, 64, 20_000, 0.003, 0.05, 1.0),
        ("5% noise", 3, 64, 20_000, 1.0, 0.05, 1.0),
        ("5% noise, weak direction", 6, 100, 2_000, 0.005, 0.05, 1.0),
        ("exact, rank d - 1", 3, 64, 20_000, 0.0, 0.0, 1.0),
        ("exact, uneven rows", 3, 64, 20_000, 1.0, 0.0, 100.0),
        ("5% noise, uneven rows", 3, 64, 20_000, 1.0, 0.05, 100.0),
    )
    for kind, d, n, count, weak, noise, uneven in sizes:
        X, y = batch(d, n, count // 10 if quick else count, weak, noise=noise, uneven=uneven)
        times = {}
        for diagnose in (True, False):
            best = math.inf
            for _ in range(3):
                alone = 0
                begin = time.process_time()
                found = recover(X, y, rank=d, diagnose=diagnose)
                best = min(best, time.process_time() - begin)
            times[diagnose] = 1e6 * best / len(y)
        boundary = float((found.rank < d).mean())
        print(
            f"{kind:26}{d:3d}{n:5d}{len(y):8d}{boundary:9.2%}{times[True]:9.1f}{times[False]:9.1f}"
            f"{alone / len(y):9.2%}"
        )
    Pipeline._single = single


def gallery_table(races: dict[str, list[Row]]) -> str:
    """The table as comments of a gallery script, in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    head = ["method"]
    for name in races:
        head += [f"{name}: µs per voxel", "not positive", "residual"]
    head.append("error of FA")
    rows = [head]
    for several in zip(*races.values(), strict=True):
        cells = [several[0].name]
        for one in several:
            cells += [f"{one.microseconds:.1f}", f"{one.negative:.1%}", f"{one.residual:.4f}"]
        cells.append(f"{several[-1].error:.4f}")
        cells = ["" if cell.startswith("nan") else cell for cell in cells]
        rows.append(cells)
    for cells in rows:
        lines += [f"   {'*' if k == 0 else ' '} - {cell}" for k, cell in enumerate(cells)]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small_64D and small batches only")
    parser.add_argument("--folder", type=Path, help="where the simulated brain is written")
    parser.add_argument("--cvxpy", type=Path, help="a Python interpreter that has CVXPY")
    parser.add_argument("--gallery", type=Path, help="gallery script whose table is renewed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"posquad and DIPY, {machine()}")
    with threadpool_limits(1), tempfile.TemporaryDirectory() as temporary:
        makers: list[Callable[[], Data]] = [small_64D]
        if not options.quick:
            makers.append(lambda: brain(options.folder or Path(temporary)))
        races, python = {}, python_with_cvxpy(options.cvxpy)
        for make in makers:
            data = make()
            print(f"\n{data.name}: method, voxels, us, not positive, residual, error of FA")
            races[data.name] = race(data, 5 if data.name == "small_64D" else 2, python)
            rows = {row.name: row for row in races[data.name]}
            ratio = rows["posquad WLS"].microseconds / rows["DIPY WLS"].microseconds
            print(f"positive WLS takes {ratio:.2f} times as long as DIPY's WLS")
        recover_batches(options.quick)
    if options.gallery is not None:
        write_between(options.gallery, BEGIN, END, f"#\n{gallery_table(races)}\n#")


if __name__ == "__main__":
    main()
