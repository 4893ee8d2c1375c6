"""
Implicit bias in pictures: which interpolant does training select?
==================================================================

One equation, three unknowns: a whole triangle of matrices explains the data perfectly, and
gradient flow ends at one of them. Which one depends on where it began, and for commuting
measurements the law is exact: the limit is the Bregman projection of the start onto the set of
interpolants, in the entropy that the factorization :math:`Q = UU'` puts there. Here many initial
scales and shapes are trained, the limits are predicted without training, and the picture shows
why small starts end at minimum trace. The example shows how to read an initialization as a prior.
"""

# %%
# The problem
# -----------
# Diagonal 3 x 3 matrices with eigenvalues q, measured once: :math:`2q_1 + 2q_2 + q_3 = 1`. The
# interpolants :math:`q \ge 0` form a triangle with corners (1/2, 0, 0), (0, 1/2, 0) and (0, 0,
# 1). The trace is 1/2 along the edge between the first two corners, so minimum trace leaves a tie
# along that edge.

import matplotlib.pyplot as plt
import numpy as np

import posquad
from posquad import selection

B = np.array([[2.0, 2.0, 1.0]])
y = np.array([1.0])
multiplicities = np.array([1, 1, 1])

least = selection.minimum_trace(B, y, multiplicities)
print(f"least trace {least.value:.3f} on a face of dimension {least.face.dimension}")
print(f"its point of greatest entropy: {least.q.round(4)}; zero all along: {least.face.vanishing}")

# %%
# Training is a mirror flow
# -------------------------
# The factor below is a full 3 x 3 matrix, rotated at random so that nothing about it looks
# diagonal. Trained by gradient flow on the quadratic network itself, it ends where
# :func:`~posquad.selection.bregman_projection` says, to the accuracy of the integration, and Q is
# diagonal all the way.

rng = np.random.default_rng(0)
measurement = posquad.LeastSquares(posquad.Dense(np.diag(B[0])[None]), y)
q0 = 0.1**2 * np.array([0.30, 0.05, 0.30])
rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0]
flow = posquad.gradient_flow(
    measurement, np.diag(np.sqrt(q0)) @ rotation, t_final=50.0, rtol=1e-11, loss_tolerance=1e-24
)
Q = flow.U @ flow.U.T
predicted = selection.bregman_projection(B, y, multiplicities, q0).q
print(f"trained:   {np.diag(Q).round(8)}")
print(f"predicted: {predicted.round(8)}")
print(f"largest difference {np.abs(np.diag(Q) - predicted).max():.1e}, ", end="")
print(f"largest entry off the diagonal {np.abs(Q - np.diag(np.diag(Q))).max():.1e}")

# %%
# Many initializations
# --------------------
# Seven shapes s, each an interpolant itself, times ten scales: :math:`q_0 = \epsilon^2 s`. With
# :math:`\epsilon = 1` there is nothing to learn. All seventy flows are one call, and so are the
# seventy projections.

mixtures = np.array(
    [
        [0.20, 0.20, 0.60],
        [0.05, 0.15, 0.80],
        [0.15, 0.05, 0.80],
        [0.62, 0.08, 0.30],
        [0.08, 0.62, 0.30],
        [0.02, 0.28, 0.70],
        [0.28, 0.02, 0.70],
    ]
)
shapes = mixtures / B[0]  # [7, 3], 2 q1 + 2 q2 + q3 = 1
scales = np.geomspace(1, 1e-3, 10)
starts = scales[:, None, None] ** 2 * shapes  # [10, 7, 3]

trained = selection.mirror_flow(B, y, multiplicities, starts)
projected = selection.bregman_projection(B, y, multiplicities, starts)
print(f"{trained.q[..., 0].size} flows, largest distance from the prediction: ", end="")
print(f"{np.abs(trained.q - projected.q).max():.1e}")

# %%
# The picture. A point of the triangle stands for the shares :math:`(2q_1, 2q_2, q_3)` of the
# measurement. Every flow moves along one curve of its shape, whatever the scale; a smaller start
# goes further along it before the data are explained, because the directions that the measurement
# sees best grow fastest.

corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def place(q):
    """Coordinates in the plane of the shares of q."""
    shares = q * B[0]
    return shares / shares.sum(-1, keepdims=True) @ corners


figure, axes = plt.subplots(figsize=(7, 5.4), layout="constrained")
shade = axes.tricontourf(
    *corners.T, [0.5, 0.5, 1.0], levels=np.linspace(0.5, 1, 11), cmap="Greys", alpha=0.5
)
axes.plot(*corners[[0, 1]].T, color="#009e73", linewidth=4, clip_on=False)
for curve in place(trained.path[:, -1]).swapaxes(0, 1):  # the smallest start of each shape
    axes.plot(*curve.T, color="0.35", linewidth=1)


def mark(points, marker, size, colour, edge, label):
    """Draw points on top of everything so far."""
    x, y = place(points).reshape(-1, 2).T
    style = {"color": colour, "markeredgecolor": edge, "markeredgewidth": 0.8, "clip_on": False}
    axes.plot(x, y, marker, markersize=size, label=label, **style)


mark(shapes, "D", 8, "#d55e00", "white", "shape of the start")
mark(trained.q[1:], "o", 6.5, "#0072b2", "white", "limits of training")
mark(projected.q[1:], "o", 2.5, "white", "#0072b2", "Bregman projections")
mark(least.q, "*", 17, "#009e73", "black", "greatest entropy")

for corner, label in zip(corners, ["(1/2, 0, 0)", "(0, 1/2, 0)", "(0, 0, 1)"], strict=True):
    shift = (0, 10) if corner[1] else (0, -16)
    axes.annotate(label, corner, shift, textcoords="offset points", ha="center", va="center")
axes.text(0.3, -0.055, "least trace", ha="center", color="#00694d")
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(-0.06, 1.0))
figure.colorbar(shade, ax=axes, shrink=0.6, label="trace", ticks=[0.5, 0.75, 1.0])
axes.set_aspect("equal")
axes.set_axis_off()
plt.show()

# %%
# How fast, and to which point of the edge
# ----------------------------------------
# The gap to the least trace falls with eps. The paper's bound :math:`C / \log(1/\epsilon^2)`
# holds for every problem. Here it is far from tight: q3, which every point of least trace has
# zero, falls like a power of eps, and the power is twice the slack of its constraint in the dual
# linear program. The shape matters where the trace does not decide: among the points of
# least trace the limit keeps the proportion of :math:`s_1` to :math:`s_2`. Only a start with
# :math:`s_1 = s_2` tends to the point of greatest entropy.

tiny = selection.bregman_projection(B, y, multiplicities, 1e-12 * shapes).q
print(
    "first share of the edge:  start "
    + " ".join(f"{s:.3f}" for s in shapes[:, 0] / shapes[:, :2].sum(1))
)
print(
    "                          limit "
    + " ".join(f"{s:.3f}" for s in tiny[:, 0] / tiny[:, :2].sum(1))
)

gap = trained.q.sum(-1) - least.value  # [10, 7]
bound = [selection.trace_gap_bound(least.constant, eps) for eps in scales[1:]]
slope = np.polyfit(np.log(scales[-4:]), np.log(gap[-4:, 0]), 1)[0]
print(f"the gap falls like eps^{slope:.3f}; twice the slack is {2 * least.slack[2]:.3f}")
even = selection.bregman_projection(B, y, multiplicities, scales[:, None] ** 2 * np.ones(3))

figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
axes.loglog(
    scales[1:], bound, "--", color="0.4", label=r"bound $C/\log(1/\epsilon^2)$ for $s = (1, 1, 1)$"
)
labels = ["seven shapes, trained", *[None] * 6]
axes.loglog(scales, gap, "o-", color="#0072b2", alpha=0.6, markersize=4, linewidth=1, label=labels)
gap_even = even.q.sum(-1)[1:] - least.value
axes.loglog(scales[1:], gap_even, "s-", color="#009e73", markersize=4, label="$s = (1, 1, 1)$")
axes.invert_xaxis()
axes.set(
    xlabel=r"scale $\epsilon$ of the start",
    ylabel="trace above the least",
    title="Small starts reach minimum trace",
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="lower left")
plt.show()

# %%
# What to take away
# -----------------
# * An initialization is a prior: training returns the interpolant closest to it in relative
#   entropy.
# * A small start selects minimum trace first; its shape decides what the trace leaves open.
# * :func:`~posquad.selection.bregman_projection` gives the limit without training, in one call
#   for all starts.
#
# What could go wrong: the law is for measurement matrices that commute. For others the flow's
# limit leaves its natural analogue (``posquad.experiments.exp7.run`` measures by how much). A coordinate that
# starts at zero stays at zero, so a rank-deficient start may have no limit that interpolates.
# Gradient descent with a finite step selects another point, at a distance of first order in the
# step (:func:`~posquad.selection.descent_limit`).
