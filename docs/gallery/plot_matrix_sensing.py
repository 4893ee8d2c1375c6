"""
Matrix sensing: measurements that are not squares
=================================================

An input x measures a matrix Q by the number :math:`x'Qx = \\langle xx', Q\\rangle`. Other instruments
measure :math:`y_i = \\langle A_i, Q\\rangle` with symmetric matrices :math:`A_i` that are not of this
form: differences of squares, products of two different linear functions, sums over several inputs.
To recover a positive semidefinite Q of low rank from such numbers is called matrix sensing.
:func:`~posquad.recover` takes the matrices as :class:`~posquad.Dense`. This example shows one
recovery from one measurement more than there are unknowns, and how many measurements
:func:`~posquad.recover` and gradient descent need.
"""

# %%
# One call
# --------
# Q is 8 x 8 of rank 2: it has 36 different entries, but only 15 unknowns. Every :math:`A_i` is a
# symmetrised Gaussian matrix.

import matplotlib.pyplot as plt
import numpy as np

import posquad

d, r = 8, 2
p = posquad.geometry.dimension(d, r)


def draw(n, seed):
    """Return Gaussian symmetric matrices, a factor, and its responses."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, d, d))
    A = (A + A.swapaxes(1, 2)) / 2
    U = rng.standard_normal((d, r))
    return A, U, np.einsum("iab,ab->i", A, U @ U.T)


def relative_error(Q, truth):
    """Return the relative error of each matrix in Frobenius norm."""
    return np.linalg.norm(Q - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))


A, U, y = draw(p + 1, seed=2)
found = posquad.recover(posquad.Dense(A), y, rank=r)
print(f"{found.status.name} from {len(y)} measurements of {p} unknowns")
print(f"relative error {relative_error(found.Q.dense(), U @ U.T):.0e}")
print(f"a second solution was sought from {found.second_starts} starts")

# %%
# The way to the answer
# ---------------------
# ``history`` holds the least relative residual at each step. This problem is a hard one: at
# n = p + 1 the first starts end in other minima, where the residual stops falling at 0.003.
# Where it jumps up, new starts begin, one of which reaches the answer. With more measurements the
# first starts suffice.

histories = {}
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for n, words, marker in ((p + 1, "p + 1", "o"), (22, "1.5 p", "s"), (2 * p, "2 p", "^")):
    A, U, y = draw(n, seed=2)
    histories[n] = posquad.recover(posquad.Dense(A), y, rank=r).history
    axes.semilogy(histories[n], marker=marker, markersize=4, label=f"n = {n} ({words})")
axes.axhline(1e-10, color="0.45", linewidth=1, linestyle=":")
axes.text(30, 6e-11, "below: reproduced", color="0.35", ha="center", va="top")
again = 1 + np.diff(np.log(histories[p + 1])).argmax()
axes.text(again, 2.5, "new starts", color="0.35", ha="center", va="bottom")
axes.set(xlabel="step", ylabel="least relative residual", ylim=(1e-17, 100))
axes.set_title("The search, for three numbers of measurements")
axes.legend(loc="center", bbox_to_anchor=(0.47, 0.6))
plt.show()

# %%
# How many measurements?
# ----------------------
# Twelve problems for each n. The matrices of a batch are an array ``[12, n, d, d]``; one call
# solves all its problems. For comparison, gradient descent takes 3000 steps from a random start.

trials = 12
counts = np.array([p - 2, p, p + 1, p + 3, 22, 28, 36])
methods = ("recover: right", "recover: RECOVERED", "gradient descent: right")
shares = {name: [] for name in methods}
wrong = 0
for n in counts:
    problems = [draw(n, seed=[n, trial]) for trial in range(trials)]
    A, U, y = (np.stack(part) for part in zip(*problems, strict=True))
    truth = U @ U.swapaxes(1, 2)
    many = posquad.recover(posquad.Dense(A), y, rank=r)
    right = relative_error(many.Q.dense(), truth) < 1e-6
    sure = np.array([status.name == "RECOVERED" for status in many.status])
    wrong += (sure & ~right).sum()
    objective = posquad.LeastSquares(posquad.Dense(A), y)
    start = np.random.default_rng(n).standard_normal((trials, d, r))
    end = posquad.gradient_descent(objective, start, step=0.01, max_steps=3000).U
    descended = relative_error(end @ end.swapaxes(1, 2), truth) < 1e-4
    for name, share in zip(methods, (right, sure, descended), strict=True):
        shares[name].append(share.mean())

print("n                       " + "".join(f"{n:6d}" for n in counts))
for name in methods:
    print(f"{name:24s}" + "".join(f"{share:6.0%}" for share in shares[name]))
print(f"wrong answers that were called RECOVERED: {wrong}")

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.axvspan(counts[0] - 1, p, color="0.5", alpha=0.12, linewidth=0)
axes.text(p - 0.25, 0.97, "n ≤ p", color="0.35", ha="right", va="top")
styles = (("o", "-", "#56b4e9", 9), ("s", "--", "#0072b2", 5), ("D", "-.", "#d55e00", 5))
for name, (marker, line, colour, size) in zip(methods, styles, strict=True):
    style = {"marker": marker, "markersize": size, "linestyle": line, "color": colour}
    axes.plot(counts, shares[name], label=name, **style)
axes.set(
    xlabel="measurements n",
    ylabel=f"share of {trials} problems",
    xlim=(counts[0] - 1, counts[-1] + 1),
    ylim=(-0.04, 1.06),
    title=f"Rank {r} in {d} dimensions: {p} unknowns",
)
axes.legend(loc="lower right", bbox_to_anchor=(1, 0.08))
plt.show()

# %%
# What to take away
# -----------------
# * As for inputs, one measurement more than unknowns is enough for generic :math:`A_i`. At
#   :math:`n = p` an answer may happen to be right, but nothing checks it: the status is
#   NOT_IDENTIFIED.
# * Rank unknown, noise, weights, other losses, a start and ``certify=True`` are given as for inputs.
#
# What could go wrong: an input :math:`x_i` has d numbers and a matrix :math:`A_i` has :math:`d^2`, so
# that matrices take more memory and time; if they are :math:`x_i x_i'`, pass the inputs. If no
# combination of the :math:`A_i` is positive definite, the fit may improve without end as Q grows;
# the status is then usually STALLED, and ``found.Q`` is large.
