"""
Phase retrieval with a certificate
==================================

A detector that counts photons sees squares: :math:`y_i = (a_i'x)^2`, and the sign of
:math:`a_i'x` is lost. Finding the image x from such data is real phase retrieval, the positive
quadratic network of rank r = 1: the data :math:`y_i = a_i'Q a_i` are linear in the matrix
:math:`Q = xx'`. Here a photograph is recovered, and the answer comes with a proof that no other
positive semidefinite matrix of any rank explains the data. The example shows how many
measurements recovery needs, how many more the proof needs, and what the proof says about noise.
"""

# %%
# A photograph, measured
# ----------------------
# The photograph comes with scikit-learn: a temple, in grey, averaged down to 16 x 16 pixels. Each
# of the 768 measurements is the square of one random combination of all 256 pixels.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

import posquad


def photograph(side):
    """A square part of the photograph, averaged over blocks to side x side pixels."""
    block = 320 // side
    part = load_sample_image("china.jpg").mean(axis=-1)[20:, 40:][: block * side, : block * side]
    return part.reshape(side, block, side, block).mean(axis=(1, 3)) / 255


image = photograph(16)
x = image.ravel()
d = x.size
n = 3 * d
A = np.random.default_rng(0).standard_normal((n, d))
y = (A @ x) ** 2

# %%
# Recover and certify
# -------------------
# No starting point, step or tolerance is needed.

found = posquad.recover(A, y, rank=1, certify=True)
print(found.status.name)
print(found.certificate)

# %%
# The factor found is the image up to its sign, which the data do not determine (pixels are
# positive, which fixes it).

recovered = found.U[:, 0] * np.sign(found.U.sum())
print(f"largest error of a pixel: {np.abs(recovered - x).max():.1e}, pixels between 0 and 1")

# %%
# For comparison: the spectral initializer, which is the eigenvector of a weighted covariance and
# the usual start of iterative methods; and the least-squares image for random signs, which is
# the result of ignoring the problem.

rng = np.random.default_rng(1)
spectral = posquad.spectral_initializer(A, y, 1, kind="bounded")[:, 0]
guessed = np.linalg.lstsq(A, np.sqrt(y) * rng.choice([-1, 1], n), rcond=None)[0]
pictures = {
    "photograph": x,
    "signs guessed": guessed * np.sign(guessed.sum()),
    "spectral start": spectral * np.sign(spectral.sum()),
    f"recover: {found.status.name}": recovered,
}
figure, panels = plt.subplots(1, 4, figsize=(9, 2.8), layout="constrained")
for panel, (name, pixels) in zip(panels, pictures.items(), strict=True):
    panel.imshow(pixels.reshape(image.shape), cmap="gray", vmin=0, vmax=1)
    error = np.linalg.norm(pixels - x) / np.linalg.norm(x)
    panel.set_title(f"{name}\nerror {error:.2g}", fontsize=10)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(True)
plt.show()

# %%
# What the proof says about noise
# -------------------------------
# The certificate bounds how far any explanation of the data, of any rank and found by any method,
# can be from this one, given how well it fits. The bound is a guarantee, not an estimate: it is
# proportional to the misfit, and its constant is large.

for misfit in (1e-6, 1e-4, 1e-3):
    bound = found.certificate.error_bound(misfit=misfit) / np.linalg.norm(x) ** 2
    print(f"root mean square misfit {misfit:.0e}: Q within {bound:.1e} of this one (relative)")

# %%
# How many measurements?
# ----------------------
# The same photograph at 6 x 6 pixels, eight random sets of measurements for each number n.
# Recovery is attempted from a few starts only (the default allows more); then
# :func:`~posquad.certify` tries to prove what was found.

small = photograph(6).ravel()
ratios = np.array([1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0])
trials = 8
right = np.zeros(len(ratios), dtype=int)
proved = np.zeros(len(ratios), dtype=int)
for k, ratio in enumerate(ratios):
    for trial in range(trials):
        a = np.random.default_rng(trial).standard_normal((round(ratio * small.size), small.size))
        answer = posquad.recover(a, (a @ small) ** 2, rank=1, max_starts=10, certify=True)
        right[k] += np.abs(answer.Q.dense() - np.outer(small, small)).max() < 1e-8
        proved[k] += answer.status.name == "CERTIFIED"
print("n / d     " + " ".join(f"{ratio:4.2f}" for ratio in ratios))
print("recovered " + " ".join(f"{count:4d}" for count in right) + f"   of {trials}")
print("proved    " + " ".join(f"{count:4d}" for count in proved) + f"   of {trials}")

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(ratios, right / trials, "o-", color="#0072b2", label="recovered")
axes.plot(ratios, proved / trials, "s--", color="#009e73", label="recovered and proved")
axes.fill_between(ratios, proved / trials, right / trials, color="#0072b2", alpha=0.1, linewidth=0)
axes.set(
    xlabel="measurements per pixel, n / d",
    ylabel=f"share of {trials} trials",
    title="The proof needs more measurements than the answer",
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="lower right")
plt.show()

# %%
# What to take away
# -----------------
# * Here recovery needs fewer than two measurements per pixel and the proof about two and a half.
#   The proof is about all positive semidefinite matrices of any rank, and with few measurements
#   there may well be others, of higher rank.
# * Between the two, the status is RECOVERED: all checks indicate that this is the only answer of
#   rank one, but nothing proves it.
#
# What could go wrong: measurements of an instrument are structured (Fourier rows, masks), not
# Gaussian; then more of them are needed, and symmetries (shifts, reflections) may remain, which
# :func:`~posquad.recover` reports as NOT_IDENTIFIED where it finds another answer. With noise
# there is nothing to reproduce exactly: the status is BEST_FIT; the certificate may still prove
# global uniqueness, and then ``error_bound`` holds for the noisy data too. The certificate takes
# several times as long as the recovery: ask for it last.
