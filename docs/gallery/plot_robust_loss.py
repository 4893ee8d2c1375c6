"""
Bring your own loss: recovery with outliers
===========================================

Least squares trusts every response. If some of them are wrong (a saturated detector, a
transmission error), the fit follows them. :class:`~posquad.SmoothObjective` takes any smooth
loss of :math:`Q = UU'` written with torch, and everything that trains a factor then works with
it: flows, descent, curvature. Here the image of a handwritten digit is found from squared
measurements of which up to 30% are corrupted, with squared, Huber and Cauchy losses. The
example shows how to write a loss, that a convex robust loss is not enough for gross outliers
while a redescending one is, and how to obtain a proof nevertheless. For the usual robust losses,
``recover(..., loss="huber")`` and ``loss="geman-mcclure"`` need no code of yours.
"""

# %%
# The data
# --------
# The digit is real; the corruption is ours, so that the truth is known. Each bad response is
# replaced by a number drawn uniformly up to 20 times the mean response. The rows of ``responses``
# are seven versions of the same data with more and more bad entries.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import posquad

digit = load_digits().images[0].ravel()
digit = digit / np.linalg.norm(digit)
d = digit.size
n = 5 * d

rng = np.random.default_rng(0)
X = rng.standard_normal((n, d))
clean = (X @ digit) ** 2
wild = 20 * clean.mean() * rng.random(n)
order = rng.permutation(n)

shares = np.array([0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30])
responses = np.tile(clean, (len(shares), 1))
for row, share in zip(responses, shares, strict=True):
    bad = order[: round(share * n)]
    row[bad] = wild[bad]
print(f"{d} unknown pixels, {n} responses, of which {[round(s * n) for s in shares]} are bad")

# %%
# The losses
# ----------
# A loss maps matrices ``Q[..., d, d]`` to numbers ``[...]``; ``RankOne.apply`` computes the
# predictions. The leading dimension is the batch of seven data sets, so that one call trains on
# all of them. Huber's loss grows linearly and an outlier keeps a constant pull; Cauchy's grows
# like a logarithm and its pull vanishes.

operator = posquad.RankOne(X)
observed = torch.from_numpy(responses)
scale = 0.5  # residuals beyond this count as large; the mean response is about 1


def huber(Q):
    """Quadratic up to the scale, linear beyond."""
    size = (operator.apply(Q) - observed).abs()
    return torch.where(size < scale, size**2 / 2, scale * (size - scale / 2)).mean(-1)


def cauchy(Q):
    """Quadratic near zero, logarithmic far away."""
    residual = (operator.apply(Q) - observed) / scale
    return scale**2 / 2 * torch.log1p(residual**2).mean(-1)


# %%
# Training
# --------
# All three start from the same place: the spectral initializer of kind "bounded", in which no
# single response can dominate. A redescending loss needs such a start, since it has other minima.

starts = np.stack([posquad.spectral_initializer(X, y, 1, kind="bounded") for y in responses])


def image_error(U):
    """Distance to the digit, whose sign no squared measurement can tell."""
    u = U[..., 0]
    return np.minimum(np.linalg.norm(u - digit, axis=-1), np.linalg.norm(u + digit, axis=-1))


objectives = {
    "squared": posquad.LeastSquares(operator, responses),
    "huber": posquad.SmoothObjective(huber, d),
    "cauchy": posquad.SmoothObjective(cauchy, d),
}
fits = {}
for name, objective in objectives.items():
    path = posquad.gradient_descent(objective, starts, step=0.05, max_steps=600, record_every=600)
    fits[name] = path.U

print("share of outliers  " + "".join(f"{share:8.0%}" for share in shares))
print("error of the start " + "".join(f"{e:8.3f}" for e in image_error(starts)))
for name, U in fits.items():
    print(f"error, {name:12s}" + "".join(f"{e:8.3f}" for e in image_error(U)))

# %%
# An error of 1 is that of an empty image. Least squares is worse than that with one response in
# twenty corrupted.

colours = {"squared": "#d55e00", "huber": "#8a6d00", "cauchy": "#0072b2"}
markers = {"squared": "s", "huber": "^", "cauchy": "o"}
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, U in fits.items():
    error = image_error(U)
    axes.plot(100 * shares[1:], error[1:], marker=markers[name], color=colours[name], label=name)
axes.plot(100 * shares, image_error(starts), ":", color="0.45", label="spectral start")
axes.axhline(1, color="0.8", linewidth=1, zorder=0)
axes.annotate("an empty image", (0, 0.93), color="0.45", fontsize=9, va="top")
axes.set(
    yscale="log",
    ylim=(3e-3, 4),
    xlabel="corrupted responses (%)",
    ylabel="relative error of the image",
    title="What outliers do to each loss",
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="lower right")
plt.show()

# %%
# The images at 20% outliers:

chosen = 4
pictures = {"truth": digit, "spectral start": starts[chosen][:, 0]}
pictures |= {name: U[chosen][:, 0] for name, U in fits.items()}
figure, panels = plt.subplots(1, len(pictures), figsize=(8.5, 2.3), layout="constrained")
for panel, (name, image) in zip(panels, pictures.items(), strict=True):
    image = image * np.sign(image @ digit)
    panel.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=digit.max())
    panel.set_title(f"{name}\nerror {image_error(image[:, None]):.2f}", fontsize=10)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(True)
plt.show()

# %%
# Without writing a loss
# ----------------------
# :func:`~posquad.recover` has two robust losses: ``loss="huber"``, and the redescending
# ``loss="geman-mcclure"``, which gives gross outliers no weight. It chooses starts and scale by
# itself. With 10% outliers the second finds the image to rounding:

robust = posquad.recover(X, responses[2], rank=1, loss="geman-mcclure", max_starts=20)
print(f"{robust.status.name}, error {image_error(robust.U):.1e}")

# %%
# From robust to certain
# ----------------------
# The robust fit is close but not exact: outliers still have a small influence. But it shows which
# responses are bad: those with a large residual. Left out (weight zero, perhaps a few good ones with them),
# they leave an ordinary problem, whose answer can be proved. How large is large? The scale of the
# loss was our first choice, and keeps some bad responses that fell near the truth; several times
# the median residual is stricter. The status tells the two apart without knowing the truth.

U = fits["cauchy"][chosen]
residual = np.abs(((X @ U) ** 2).sum(1) - responses[chosen])
truly_bad = np.zeros(n, dtype=bool)
truly_bad[order[: round(shares[chosen] * n)]] = True
for threshold in (scale, 5 * np.median(residual)):
    kept = residual < threshold
    missed, wasted = np.sum(kept & truly_bad), np.sum(~kept & ~truly_bad)
    weights = kept.astype(float)
    found = posquad.recover(
        X, responses[chosen], rank=1, weights=weights, max_starts=20, certify=True
    )
    print(
        f"threshold {threshold:.2f}: {missed} bad ones kept, {wasted} good ones left out; ", end=""
    )
    print(f"{found.status.name}, error {image_error(found.U):.1e}")

# %%
# What to take away
# -----------------
# * A loss is a few lines of torch; :func:`~posquad.gradient_descent`,
#   :func:`~posquad.gradient_flow` and :func:`~posquad.effective_spectrum` take it as it is.
# * ``recover(..., loss="geman-mcclure")`` fits in spite of outliers in one call. Huber's loss is
#   biased where they have one sign, as here.
# * Use the robust fit to find outliers, then ``recover(..., weights=...)`` to find the answer. A
#   certificate for the kept responses does not depend on how they were chosen, only on their
#   being right.
#
# What could go wrong: beyond 25% outliers the start is too far away and Cauchy's loss ends in
# another minimum (see 30% above). A bad response that happens to fall near the truth is kept;
# then :func:`~posquad.recover` answers BEST_FIT or STALLED instead of CERTIFIED, and one lowers
# the threshold. :class:`~posquad.SmoothObjective` forms the d x d matrix Q and n predictions from
# it at each step: for d in the thousands, derive from ``posquad.problems.Objective`` and write
# the loss on the factor.
