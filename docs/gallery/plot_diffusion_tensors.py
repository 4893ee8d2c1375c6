r"""
Diffusion tensors that are positive
===================================

A diffusion tensor is a positive semidefinite 3 x 3 matrix D, measured by quadratic forms: a
magnetic gradient of direction g and strength b leaves the signal

.. math:: S = S_0 \exp(-b\, g'Dg), \qquad\text{that is}\qquad x'Dx = \log S_0 - \log S
   \quad\text{with } x = \sqrt{b}\, g.

Least squares on the logarithms does not know that D is positive, and noise makes some eigenvalues
negative. The usual repair sets those to zero. :func:`posquad.recover` minimises the same sum of
squares over the positive semidefinite matrices instead, all voxels in one call. Here both are
applied to measured volumes that come with `DIPY <https://dipy.org>`_: how many voxels are
affected, what does clipping cost, and how much time does the constraint take?
"""

import time

import matplotlib.pyplot as plt
import nibabel
import numpy as np
from dipy.core.gradients import gradient_table
from dipy.data import get_fnames
from dipy.io.gradients import read_bvals_bvecs
from dipy.reconst import dti
from matplotlib.collections import EllipseCollection
from threadpoolctl import threadpool_limits

import posquad

# %%
# The data
# --------
# Two small pieces of brain scans come with the package; nothing is downloaded. ``small_64D``
# has 64 directions at b = 1000 s/mm², ``small_101D`` has 101 points of a grid with b from 310 to
# 4065. Each has one image with b below 50, which counts as b = 0. A signal of zero has no
# logarithm. DIPY would put 0.0001 in its place; we leave such voxels out, for every method alike.
# With b in ms/µm², tensors are in µm²/ms.


def load(name):
    image, *tables = map(str, get_fnames(name=name))
    bvals, bvecs = read_bvals_bvecs(*tables)
    gradients = gradient_table(bvals, bvecs=bvecs, b0_threshold=50)
    volume = nibabel.load(image).get_fdata()
    kept = (volume > 0).all(axis=-1)
    print(f"{name}: {kept.size} voxels, {np.sum(~kept)} of them left out for a signal of zero")
    return gradients, np.sqrt(gradients.bvals / 1000)[:, None] * gradients.bvecs, volume[kept], kept


gradients, X, S, kept = load("small_64D")

# %%
# One call
# --------
# First with :math:`S_0` as measured, which gives 64 equations for the six entries of D.
# Where noise lifts S above :math:`S_0` the response is negative. That is allowed: responses are
# fitted, not reproduced, and every status should be ``BEST_FIT``.

at_zero = gradients.b0s_mask
y = np.log(S[:, at_zero].mean(axis=1, keepdims=True) / S[:, ~at_zero])
found = posquad.recover(X[~at_zero], y, rank=3)
print(f"{np.mean(y < 0):.1%} of the responses are negative;", {s.name for s in found.status})

# %%
# Least squares over all symmetric matrices is one linear system for all voxels. Where its solution
# is positive, it is also the best positive one, and ``recover`` returns it. Elsewhere the best
# positive tensor is on the boundary: its rank is 2, 1, or 0 where most signals exceed :math:`S_0`.

i, j = np.triu_indices(3)
system = X[:, i] * X[:, j] * np.where(i == j, 1, 2)
plain = np.zeros((len(S), 3, 3))
plain[:, i, j] = plain[:, j, i] = np.linalg.lstsq(system[~at_zero], y.T, rcond=None)[0].T

eigenvalues, axes = np.linalg.eigh(plain)
clipped = np.einsum("kir,kr,kjr->kij", axes, eigenvalues.clip(min=0), axes)
negative = eigenvalues[:, 0] < 0
optimal = found.Q.dense()
print(f"no positive least squares tensor: {negative.sum()} voxels, {negative.mean():.1%}")
print("voxels there of rank 0, 1, 2:", np.bincount(found.rank[negative]))
print(f"elsewhere the two differ by at most {abs(optimal - plain)[~negative].max():.0e} µm²/ms")

# %%
# That these are the best positive tensors can be checked without trusting any solver. The sum of
# squares is convex with gradient 2G at D, :math:`G = \sum e_i x_i x_i'`, so that it is at least
# :math:`\|e\|^2 + 2\langle G, P - D\rangle` at every other P; and the best positive P predicts
# responses no longer than y, which bounds its trace. Together this bounds any possible gain.

directions = X[~at_zero]
e = np.einsum("ni,kij,nj->kn", directions, optimal, directions) - y
G = np.einsum("kn,ni,nj->kij", e, directions, directions)
shortest = np.linalg.eigvalsh(directions.T @ directions)[0]
trace = np.sqrt(len(directions)) * np.linalg.norm(y, axis=1) / shortest
gain = (G * optimal).sum(axis=(1, 2)) + trace * np.maximum(0, -np.linalg.eigvalsh(G)[:, 0])
print(f"a better tensor lowers a sum of squares by {np.max(2 * gain / (e**2).sum(1)):.0e} at most")

# %%
# Clipping is not the best positive tensor
# ----------------------------------------
# Clipping finds the positive matrix nearest to the least squares one, not the one that fits the
# data best: when an eigenvalue rises to zero, the other entries should give way. The mean
# diffusivity comes out larger.


def log_residual(D):
    return np.linalg.norm(np.einsum("ni,kij,nj->kn", directions, D, directions) - y, axis=1)


excess = log_residual(clipped)[negative] / log_residual(optimal)[negative] - 1
print(f"excess residual of clipping: median {np.median(excess):.1%}, largest {excess.max():.1%}")
larger = np.trace((clipped - optimal)[negative], axis1=1, axis2=2) > 0
print(f"clipping gives the larger mean diffusivity in {larger.sum()} of {larger.size} voxels")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
left.bar(range(len(excess)), 100 * np.sort(excess), color="C0")
left.set(title="Clipping fits worse", ylabel="excess residual [%]", yscale="log")
left.set_xlabel("voxels without a positive least squares tensor, sorted")
before = np.trace(plain[negative], axis1=1, axis2=2) / 3
for label, D, color in (("clipped", clipped, "C1"), ("recover", optimal, "C0")):
    after = np.trace(D[negative], axis1=1, axis2=2) / 3
    right.plot(before, after, "o", color=color, alpha=0.8, label=label)
right.axline((0, 0), slope=1, color="0.6", lw=1, label="unchanged")
right.set(title="Clipping adds diffusivity", ylabel="of the positive tensor [µm²/ms]")
right.set_xlabel("mean diffusivity of the indefinite tensor [µm²/ms]")
_ = right.legend(frameon=False)

# %%
# Inside DIPY
# -----------
# DIPY fits :math:`S_0` too: :math:`\log S_0` is a seventh unknown, and the image at b = 0 one
# equation more. :mod:`posquad.dipy` has fit methods for its ``TensorModel`` that minimise the same
# sums of squares over positive tensors and all :math:`S_0`: :func:`~posquad.dipy.positive_ols`,
# :func:`~posquad.dipy.positive_wls` with weights of :math:`S^2` taken from a first fit, and
# :func:`~posquad.dipy.positive_rwls`, which leaves out outliers. Maps and tractography work on the
# result as they do for DIPY's own methods, which clip eigenvalues at the end.

model = dti.TensorModel(gradients, fit_method=posquad.dipy.positive_wls)
fit = model.fit(S)
print(
    f"FA from {fit.fa.min():.2f} to {fit.fa.max():.2f}; smallest eigenvalue {fit.evals.min():.1e}"
)


def dipy_tensors(gradients, S, method):
    return 1000 * dti.TensorModel(gradients, fit_method=method).fit(S).quadratic_form


def is_negative(gradients, S):
    entries, _ = dti.ols_fit_tensor(dti.design_matrix(gradients), S, return_lower_triangular=True)
    return np.linalg.eigvalsh(dti.from_lower_triangular(entries))[:, 0] < 0


# %%
# Every tensor is judged by the same two numbers, whatever it was made to minimise: the root mean
# square residual of log S, and that of S in per cent of the mean :math:`S_0`, each with the
# :math:`S_0` that suits the tensor best. Times are processor times on one thread, the best of
# several runs, in units of DIPY's OLS. They include everything between the signals and the
# tensors.


def residuals(D, X, S):
    exponent = np.einsum("ni,kij,nj->kn", X, D, X)
    e = np.log(S) + exponent
    model = np.exp(-exponent)
    best_S0 = (S * model).sum(axis=1, keepdims=True) / (model**2).sum(axis=1, keepdims=True)
    return e - e.mean(axis=1, keepdims=True), S - best_S0 * model


def compare(gradients, X, S, repeats):
    methods = {
        "DIPY OLS": lambda: dipy_tensors(gradients, S, "OLS"),
        "DIPY WLS": lambda: dipy_tensors(gradients, S, "WLS"),
        "DIPY NLLS": lambda: dipy_tensors(gradients, S, "NLLS"),
        "positive OLS": lambda: dipy_tensors(gradients, S, posquad.dipy.positive_ols),
        "positive WLS": lambda: dipy_tensors(gradients, S, posquad.dipy.positive_wls),
    }
    tensors, seconds = {}, {name: [] for name in methods}
    with threadpool_limits(limits=1):
        for name, method in methods.items():
            while len(seconds[name]) < repeats or sum(seconds[name]) < 0.2:
                start = time.process_time()
                tensors[name] = method()
                seconds[name].append(time.process_time() - start)
    percent = 100 / S[:, gradients.b0s_mask].mean()
    negative = is_negative(gradients, S)
    groups = {"all voxels": ...}
    if negative.any():
        groups[f"{negative.sum()} not positive"] = negative
    print(f"{'':22}" + "".join(f"{group:^20}" for group in groups))
    print(f"{'':22}" + f"{'log S':>9}{'S [%]':>9}  " * len(groups) + f"{'time':>9}")
    for name, D in tensors.items():
        row = f"{name:22}"
        for group in groups.values():
            in_log, in_signal = (np.sqrt(np.mean(e[group] ** 2)) for e in residuals(D, X, S))
            row += f"{in_log:9.4f}{percent * in_signal:9.3f}  "
        print(row + f"{min(seconds[name]) / min(seconds['DIPY OLS']):8.0f}x")
    print(f"1x is {1e6 * min(seconds['DIPY OLS']) / len(S):.1f} µs per voxel")
    return tensors, negative


tensors, negative = compare(gradients, X, S, repeats=2)

# %%
# Each method wins by its own measure: over all voxels positive OLS has the least residual of log S
# of all positive tensors, and NLLS the least residual of S. The differences are small, because most
# voxels need no constraint. In those that need it, positive WLS has less residual of S than NLLS
# has: NLLS finds the best indefinite tensor and then clips it.
#
# One slice of the volume shows what the difference looks like. Ellipses are projections of the
# tensors onto the slice, coloured by the longest axis (red, green and blue for the three
# coordinates) and pale where nearly round. In the framed voxels least squares gives no positive
# tensor. Some of them have two negative eigenvalues: clipped, those tensors are needles, yet the
# best positive tensor has rank 2.

level = 7
voxels = np.argwhere(kept)
there = voxels[:, 2] == level
places = voxels[there, :2]
figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.95), layout="constrained")
for panel, name in zip(panels, ("DIPY OLS", "positive OLS"), strict=True):
    D = tensors[name][there]
    widths, turns = np.linalg.eigh(D[:, :2, :2])
    widths = 0.53 * np.sqrt(widths.clip(min=1e-4))
    eigenvalues, axes = np.linalg.eigh(D)
    anisotropy = dti.fractional_anisotropy(eigenvalues.clip(min=1e-9))[:, None]
    colors = 0.85 * (1 - anisotropy) + anisotropy * abs(axes[:, :, 2])
    angles = np.degrees(np.arctan2(turns[:, 1, 1], turns[:, 0, 1]))
    ellipses = EllipseCollection(
        widths[:, 1], widths[:, 0], angles, units="xy", offsets=places,
        offset_transform=panel.transData, facecolors=colors, edgecolors="0.25", linewidths=0.4,
    )  # fmt: skip
    panel.add_collection(ellipses)
    panel.plot(*places[negative[there]].T, "s", ms=26, mfc="none", mec="k", mew=1)
    panel.set(title=name, aspect="equal", xlim=(-0.7, 9.7), ylim=(-0.7, 9.7), xticks=[], yticks=[])

# %%
# The second volume
# -----------------
# In ``small_101D`` every least squares tensor is positive, and the positive methods agree with
# DIPY's OLS and WLS. What matters here are the weights: with b up to 4065 the signal
# does not decay as one exponential, and without weights the small signals decide.

gradients, X, S, _ = load("small_101D")
_ = compare(gradients, X, S, repeats=1)

# %%
# Standard errors
# ---------------
# :func:`~posquad.dipy.fit_tensors` takes the same design matrix and also returns standard errors of
# the tensor, of the mean diffusivity and of FA, by the delta method on the tensors of the rank that
# was found. In the voxels with an active constraint they are those of the constrained estimate, and
# approximate: if the true tensor has rank one, 95% intervals of FA contain the truth in 87% of the cases.

design = dti.design_matrix(gradients)
fits = posquad.dipy.fit_tensors(design, S, errors=True)
print(f"FA {np.median(fits.fa):.3f}, standard error {np.median(fits.errors.fa):.3f} (medians)")

# %%
# Whole volumes
# -------------
# The command ``posquad dti dwi.nii.gz dwi.bval dwi.bvec`` does this for an image and writes maps of
# everything, with a report. The following table is written by ``benchmarks/volumes.py``: every
# method through ``TensorModel`` on one thread, on ``small_64D`` and on a simulated brain of 200,000
# voxels (64 directions at b = 1000, 6 images at b = 0, Rician noise, SNR 20). "Not positive" is the
# share of voxels whose eigenvalues DIPY clips. The residual of S is in units of the noise, and the
# error of FA is the mean distance from the truth. NLLS and RESTORE run on 40,000 voxels of the
# brain; CVXPY, and Clarabel, the interior point solver that it calls, on 400.
#
# .. begin: benchmarks/volumes.py
#
# .. list-table::
#    :header-rows: 1
#
#    * - method
#      - small_64D: µs per voxel
#      - not positive
#      - residual
#      - simulated brain: µs per voxel
#      - not positive
#      - residual
#      - error of FA
#    * - DIPY OLS
#      - 3.2
#      - 2.8%
#      - 0.9520
#      - 1.8
#      - 1.4%
#      - 0.9548
#      - 0.0243
#    * - DIPY WLS
#      - 37.2
#      - 2.8%
#      - 0.9446
#      - 21.0
#      - 1.1%
#      - 0.9467
#      - 0.0230
#    * - DIPY RWLS
#      - 148.7
#      - 2.9%
#      - 0.9481
#      - 124.0
#      - 1.1%
#      - 0.9500
#      - 0.0237
#    * - DIPY NLLS
#      - 236.5
#      - 3.0%
#      - 0.9309
#      - 140.5
#      - 1.0%
#      - 0.9445
#      - 0.0228
#    * - DIPY RESTORE
#      - 280.3
#      - 3.0%
#      - 0.9317
#      - 158.6
#      - 1.1%
#      - 0.9457
#      - 0.0231
#    * - posquad OLS
#      - 13.1
#      - 0.0%
#      - 0.9447
#      - 3.3
#      - 0.0%
#      - 0.9547
#      - 0.0243
#    * - posquad WLS
#      - 16.9
#      - 0.0%
#      - 0.9372
#      - 5.4
#      - 0.0%
#      - 0.9466
#      - 0.0230
#    * - posquad RWLS
#      - 38.5
#      - 0.0%
#      - 0.9407
#      - 22.5
#      - 0.0%
#      - 0.9498
#      - 0.0237
#    * - CVXPY WLS, positive (not installed)
#      -
#      -
#      -
#      -
#      -
#      -
#      -
#    * - Clarabel WLS, positive
#      - 358.9
#      - 0.0%
#      - 0.9400
#      - 231.1
#      - 0.0%
#      - 0.9460
#      - 0.0237
#
# .. end

# sphinx_gallery_thumbnail_number = 2
