"""
How many samples does a proof of uniqueness need?
=================================================

:func:`~posquad.certify` can prove that a matrix of rank r is the only positive semidefinite one
with its measurements. With few samples others exist, and there is nothing to prove. For Gaussian
inputs the mean of the responses fixes the trace, so uniqueness should begin where minimum-trace
recovery begins to succeed, which for large d is predicted to be at
:math:`n = \\alpha(r/d) d^2`. This page shows the results of
``posquad sweep run certifiability``.

Sources: the threshold of minimum-trace recovery follows S. Martin, G. Biroli and F. Bach, JMLR
27(136), 2026, arXiv:2601.10483. That uniqueness has the same transition is an argument of ours,
not a theorem.
"""

# %%
# The results
# -----------
# The full run certified 2,400 true factors, 32 for each number of samples. It took 58 minutes of
# processor time, which is 4 minutes on 16 cores and would be about 30 on two. The verdicts are
# computed: a crossing agrees with the prediction if its 95% interval contains it.

import matplotlib.pyplot as plt

from posquad.sweep.diagrams.results import published_diagram

diagram = published_diagram("certifiability")
print("\n\n".join(diagram.findings))

# %%
# One curve for each shape
# ------------------------
# The share that is proved, against samples per unknown: :math:`p = dr - r(r-1)/2`. Bands are 95%
# Wilson intervals.

diagram.figure("certifiability-shares")
plt.show()

# %%
# The collapse
# ------------
# The same shares against n over the predicted number. If the prediction were exact at every d, all
# curves would cross one half at 1.

diagram.figure("certifiability-collapse")
plt.show()

# %%
# Least trace
# -----------
# The transition that the published prediction is about: the true matrix is proved to have the
# least trace among all interpolants.

diagram.figure("certifiability-trace")
plt.show()

# %%
# What agrees and what does not
# -----------------------------
# * The curves come together: in samples per unknown the crossings differ by 30%, over the predicted
#   number by 8%. They become steeper with d.
# * No crossing agrees with the prediction at a finite d: all lie above it, by 10.5% at d = 10 and
#   by 2.1% at d = 100. The difference becomes smaller along the five shapes, as it should if the
#   prediction is the limit; but the rank share r/d changes along with d, so this is no proof of it.
# * Uniqueness needs more samples than least trace at d = 10, 20 and 40. At d = 100 the two are proved
#   for the same factors.
#
# The share proved is a lower bound of the share that is unique: a proof that was not found is no
# proof of the contrary.
