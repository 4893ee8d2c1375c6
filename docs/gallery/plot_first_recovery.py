"""
First steps: recover a predictor
================================

We take twenty-four quadratic measurements :math:`y_i = x_i'Qx_i` of a matrix of rank two with ten rows. That is fewer than half
of the 55 entries of :math:`Q`, and five more than its 19 unknowns at rank two. :func:`posquad.recover` finds it.
"""

import textwrap

import matplotlib.pyplot as plt
import numpy as np

import posquad

# %%
# The predictor :math:`Q = UU'` has eigenvalues 1 and 1/2. We draw it at random and measure it.

rng = np.random.default_rng(0)
U = np.linalg.qr(rng.standard_normal((10, 2)))[0] * np.sqrt([1.0, 0.5])
X = rng.standard_normal((24, 10))
y = ((X @ U) ** 2).sum(axis=1)

# %%
# One call recovers it. The status says whether the answer is the only one.

found = posquad.recover(X, y, rank=2)
print(found.status.name, f"from {found.samples} samples; {found.needed} are needed")
print(textwrap.fill(found.status.value, 90))

# %%
# The spectrum is recovered to the last digits, and so is every entry.

true_spectrum = np.linalg.eigvalsh(U @ U.T)[::-1]
recovered = np.linalg.eigvalsh(found.Q.dense())[::-1]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2))
position = np.arange(1, 11)
left.bar(position, true_spectrum, width=0.62, alpha=0.35, label="true")
left.plot(position, recovered, "o", color="C1", label="recovered")
left.set(xlabel="position", ylabel="eigenvalue", xticks=position, title="Spectrum of Q")
left.legend()
error = np.abs(found.Q.dense() - U @ U.T)
image = right.imshow(np.log10(np.maximum(error, 1e-18)), cmap="cividis", vmin=-18, vmax=-14)
right.set(title="Error of each entry", xticks=[], yticks=[])
right.grid(False)
figure.colorbar(image, label="log10 of the error")
plt.show()

# %%
# With one sample fewer than unknowns, the data can still be reproduced, but not only by the true predictor, and the status says so.

few = posquad.recover(X[:18], y[:18], rank=2)
print(few.status.name, f"relative residual {few.residual:.0e}")
