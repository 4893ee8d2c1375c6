"""
Covariance sketching: components from squares
=============================================

A stream of images passes, too many to keep, and the d x d covariance is too large to store. Keep
n numbers instead: for random directions :math:`a_i`, the mean of :math:`(a_i'x)^2` over the
stream. Each is a quadratic measurement :math:`y_i = a_i'S a_i` of the covariance S, and
:func:`~posquad.recover` finds the S of low rank behind them. Here the stream is scikit-learn's
digits. The covariance of real images is not of low rank, and the example shows the consequences: how few
sketches suffice when the model is exact, what the ignored components do when it is not, and which
rank to fit then.
"""

# %%
# The stream
# ----------
# 1797 images of 8 x 8 pixels. Four components hold half of the variance; the other half is spread
# over 57. Sketches are sums, so that one pass over the images is enough; the directions need no
# storage, since they can be generated again from their seed.

import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import subspace_angles
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import posquad
from posquad.recovery import population_lbfgs

images = load_digits().data
centred = images - images.mean(axis=0)
d, k = 64, 4
numbers = d * (d + 1) // 2
pca = PCA(n_components=k).fit(images)
leading = pca.components_.T  # [64, 4]
print(f"variance in {k} components: {pca.explained_variance_ratio_.sum():.0%}")

rng = np.random.default_rng(0)
directions = rng.standard_normal((2000, d))
sketches = np.mean((centred @ directions.T) ** 2, axis=0)
unknowns = posquad.geometry.dimension(d, k)
print(f"the covariance has {numbers} numbers, a matrix of rank {k} has {unknowns}")

# %%
# When the model is exact
# -----------------------
# First the ideal case: sketches of the images projected on their four leading components. Then S
# has rank 4 exactly.


def largest_angle(U):
    """Degrees between the span of the leading k directions of UU' and that of PCA: 0 is perfect."""
    return np.rad2deg(subspace_angles(np.linalg.svd(U)[0][:, :k], leading)[0])


ideal = np.mean((centred @ leading @ (leading.T @ directions.T)) ** 2, axis=0)
for n in (300, 400):
    found = posquad.recover(directions[:n], ideal[:n], rank=k)
    print(f"{n} sketches, {n / numbers:.0%} of the covariance: {found.status.name}, ", end="")
    print(f"largest angle {largest_angle(found.U):.1e} degrees")

# %%
# When it is not
# --------------
# Now the original images. For a fit of rank 4 the other half of the variance is noise, as large
# as the signal, and it biases the best fit. :func:`~posquad.recover` reports that no matrix of
# rank 4 reproduces the sketches:

found = posquad.recover(directions, sketches, rank=k)
print(f"{found.status.name} at rank {k}: relative residual {found.residual:.2f}")

# %%
# Three remedies: more sketches; a fit of higher rank, of which only the leading part is read; or
# no model at all, the symmetric matrix of least norm that reproduces the sketches
# (:func:`~posquad.spectral_initializer` of kind "interpolant", a linear solve). The fits are by
# :func:`~posquad.recovery.population_lbfgs`, the solver that :func:`~posquad.recover` uses for
# large problems, from one start: recover itself would try many, in search of an exact answer.

counts = np.array([300, 600, 1000, 1400, 1700, 2000])
methods = ("least norm", "rank 4", "rank 20")
fits = {}
for n in counts:
    A, y = directions[:n], sketches[:n]
    fits["least norm", n] = posquad.spectral_initializer(A, y, k, kind="interpolant")
    for rank in (4, 20):
        start = posquad.spectral_initializer(A, y, rank, kind="interpolant")
        fits[f"rank {rank}", n] = population_lbfgs(A, y, start, max_steps=250).U
angles = {name: [largest_angle(fits[name, n]) for n in counts] for name in methods}

print(f"a matrix of rank 20 has {posquad.geometry.dimension(d, 20)} unknowns")
print("sketches   " + "".join(f"{n:7d}" for n in counts))
for name, values in angles.items():
    print(f"{name:10s} " + "".join(f"{angle:6.0f}°" for angle in values))

# %%
# With fewer sketches than unknowns, a fit of rank 20 reproduces them all, which proves nothing: it
# is one of many, and no better than the matrix of least norm. With more, it is the best of the
# three for a while; with almost all 2080 numbers at hand the linear solve needs no model and
# catches up. The fit of rank 4 improves slowly. (This is one draw of the directions, and rank 20
# was picked by looking at such angles for ranks from 4 to 24. Without PCA to compare with, one
# would hold some sketches out and choose the rank that predicts them.)

colours = dict(zip(methods, ("0.5", "#d55e00", "#0072b2"), strict=True))
markers = dict(zip(methods, "Dso", strict=True))
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, values in angles.items():
    axes.plot(counts, values, marker=markers[name], color=colours[name], label=name)
ideal_style = {"color": "#009e73", "markersize": 13, "clip_on": False}
axes.plot([300, 400], [0, 0], "*", label="rank 4, ideal sketches", **ideal_style)
axes.set(
    xlabel="sketches (the covariance has 2080 numbers)",
    ylabel="largest angle to PCA's leading 4 (degrees)",
    ylim=(0, 92),
    title="The components that are left out act as noise",
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, title="fit")
plt.show()

# %%
# These are the components from 1400 sketches. The basis of a subspace is a matter of choice: each
# recovered set is rotated to PCA's as far as its span allows, and under each image is the angle
# that remains.


def aligned(U):
    """Unit vectors nearest to PCA's components within the leading span of UU'."""
    span = np.linalg.svd(U)[0][:, :k]
    nearest = span @ (span.T @ leading)
    return nearest / np.linalg.norm(nearest, axis=0)


shown = 1400
rows = {"PCA": leading} | {name: aligned(fits[name, shown]) for name in ("rank 4", "rank 20")}
figure, panels = plt.subplots(len(rows), k, figsize=(7, 5.9), layout="constrained")
for line, (name, vectors) in zip(panels, rows.items(), strict=True):
    for panel, vector, reference in zip(line, vectors.T, leading.T, strict=True):
        panel.imshow(vector.reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
        angle = np.rad2deg(np.arccos(min(1.0, vector @ reference)))
        panel.set(xticks=[], yticks=[], xlabel="" if name == "PCA" else f"{angle:.0f}°")
        panel.spines[:].set_visible(True)
    line[0].set_ylabel(name, fontsize=12)
figure.suptitle(f"Leading components, from the images and from {shown} sketches")
plt.show()

# %%
# What to take away
# -----------------
# * Where the covariance has rank r, little more than dr numbers replace :math:`d(d+1)/2`, and the
#   answer is exact.
# * Where it does not, the components left out act as noise of their own size. Fit as high a rank
#   as the number of sketches allows and read the leading part; the rank to *read* is not the rank
#   to *fit*.
# * With d = 64 the two numbers are close, and the saving on these images is modest. The difference
#   grows with d: :math:`d(d+1)/2` against a multiple of d.
#
# What could go wrong: below about ten sketches per pixel no fit here is good, and a low-rank fit,
# which relies on a wrong model, is worse than the linear solve. Read the status before the
# components: BEST_FIT or STALLED with a large residual says that the rank is too low or the data
# are noisy. Components whose eigenvalues are close mix; compare spans, not vectors.
