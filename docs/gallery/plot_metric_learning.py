"""
Metric learning: a distance that knows the classes
==================================================

A positive semidefinite Q is a squared distance, :math:`d(a, b) = (a - b)'Q(a - b)`, and a
quadratic network on differences :math:`x = a - b` learns one from pairs that should be near or
far apart. Here the target of a pair is 0 if both samples are of one class and 1 if not; the factor
U then maps samples to r coordinates in which Euclidean distance is the learned one, and nearest
neighbours can use it. Everything uses the interface of scikit-learn:
:class:`~posquad.estimator.PositiveQuadraticRegressor` is part of a pipeline that is cross-validated.
The example shows how to use the estimator as a transformer and, on two data sets, when such a
simple target is good enough.
"""

# %%
# A transformer that learns from pairs
# ------------------------------------
# The regressor needs pairs; a pipeline passes samples. A dozen lines of code connect them: draw pairs among
# the training samples, fit, and map samples by ``components_``.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from posquad.estimator import PositiveQuadraticRegressor


class PairMetric(TransformerMixin, BaseEstimator):
    """Coordinates in which samples of different classes are at squared distance about 1."""

    def __init__(self, rank=2, pairs=1000, random_state=0):
        self.rank = rank
        self.pairs = pairs
        self.random_state = random_state

    def fit(self, X, y):
        """Fit the distance to random pairs of rows of X."""
        rng = np.random.default_rng(self.random_state)
        first, second = np.triu_indices(len(X), 1)
        drawn = rng.permutation(len(first))[: self.pairs]
        first, second = first[drawn], second[drawn]
        different = (y[first] != y[second]).astype(float)
        self.regressor_ = PositiveQuadraticRegressor(self.rank, max_starts=3, standard_errors=False)
        self.regressor_.fit(X[first] - X[second], different)
        return self

    def transform(self, X):
        """The learned coordinates of the rows of X."""
        return X @ self.regressor_.components_.T


# %%
# A closer look at one fit
# ------------------------
# Wine: 178 bottles of three growers, 13 chemical measurements.

wine = load_wine()
scaled = StandardScaler().fit_transform(wine.data)
metric = PairMetric().fit(scaled, wine.target)
regressor = metric.regressor_
print(f"{regressor.status_.name}: relative residual {regressor.residual_:.2f}")
for number, weights in enumerate(regressor.components_, start=1):
    strongest = np.argsort(-np.abs(weights))[:3]
    print(
        f"coordinate {number}: "
        + ", ".join(f"{weights[j]:+.2f} {wine.feature_names[j]}" for j in strongest)
    )

# %%
# The residual is large, since no quadratic form equals 0 or 1 on all pairs; nearest neighbours
# need only the order of the distances. For comparison, PCA does not know the classes:

colours, markers = ("#0072b2", "#d55e00", "#009e73"), "os^"
views = {
    "PCA, 2 components": PCA(2).fit_transform(scaled),
    "learned metric, rank 2": metric.transform(scaled),
}
figure, panels = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
for panel, (title, points) in zip(panels, views.items(), strict=True):
    for group in range(3):
        chosen = points[wine.target == group]
        panel.scatter(
            *chosen.T,
            s=26,
            c=colours[group],
            marker=markers[group],
            alpha=0.75,
            edgecolor="white",
            linewidth=0.5,
            label=f"grower {group + 1}",
        )
    panel.set_title(title)
    panel.set_aspect("equal", adjustable="datalim")
    panel.spines[["top", "right"]].set_visible(False)
panels[1].legend(frameon=False)
figure.suptitle("Wine: all samples, including those used in the fit")
plt.show()

# %%
# Results on unseen samples
# -------------------------
# Five nearest neighbours, five folds, repeated twice; every step is fitted inside the fold. The
# second data set is breast cancer (569 samples, 30 measurements, two classes). Linear discriminants (LDA) and
# neighbourhood components (NCA) are scikit-learn's own ways to learn such a map.

steps = {
    "raw measurements": [],
    "standardized": [StandardScaler()],
    "PCA, 2": [StandardScaler(), PCA(2)],
    "LDA": [StandardScaler(), LinearDiscriminantAnalysis()],
    "NCA, 2": [StandardScaler(), NeighborhoodComponentsAnalysis(2, random_state=0)],
    "pair metric, rank 1": [StandardScaler(), PairMetric(1)],
    "pair metric, rank 2": [StandardScaler(), PairMetric(2)],
    "pair metric, rank 4": [StandardScaler(), PairMetric(4)],
}
folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
scores = {}
for data in ("wine", "breast cancer"):
    X, y = {"wine": load_wine, "breast cancer": load_breast_cancer}[data](return_X_y=True)
    for name, before in steps.items():
        model = make_pipeline(*before, KNeighborsClassifier(5))
        scores[data, name] = 1 - cross_val_score(model, X, y, cv=folds)

print(f"{'errors (%)':22s}{'wine':>14s}{'breast cancer':>18s}")
for name in steps:
    cells = [scores[data, name] * 100 for data in ("wine", "breast cancer")]
    print(f"{name:22s}" + "".join(f"{c.mean():10.1f} ± {c.std():3.1f}" for c in cells))

# %%
figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for panel, data in zip(panels, ("wine", "breast cancer"), strict=True):
    for row, name in enumerate(steps):
        error = 100 * scores[data, name]
        colour = "#d55e00" if name.startswith("pair") else "#0072b2"
        panel.plot(error, np.full(len(error), row), "o", color=colour, alpha=0.18, markersize=5)
        panel.plot(error.mean(), row, "|", color=colour, markersize=18, markeredgewidth=3)
    panel.set(title=data, xlabel="errors of 5 nearest neighbours (%)")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="0.92")
panels[0].set_yticks(range(len(steps)), steps)
panels[0].invert_yaxis()
plt.show()

# %%
# What to take away
# -----------------
# * :class:`~posquad.estimator.PositiveQuadraticRegressor` is an estimator like any other: it is
#   cloned, searched and cross-validated, and ``components_`` is a linear map that later steps can
#   use.
# * On wine the learned distance is among the best, with two coordinates or four; one is too few
#   for three classes (of 178 bottles, one more or fewer is half a percent: the leading methods
#   cannot be distinguished). On breast cancer it is not: plain standardized distance, LDA and NCA make
#   fewer errors, and a higher rank does not help. A likely reason, not tested here: a squared
#   loss on 0 and 1 also punishes different samples for being far apart.
#
# What could go wrong: pairs are not independent samples (each row of X is in many), so standard
# errors of the regressor would be too small and are switched off here. ``status_`` may be
# STALLED: the starts do not agree on one best fit, and the map is one of several about equally
# good ones. Scale first: the distance is learned, but a low rank cannot repair units that differ
# a thousandfold.
