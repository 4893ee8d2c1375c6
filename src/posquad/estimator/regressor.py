"""`PositiveQuadraticRegressor`: positive quadratic networks as a scikit-learn estimator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted, validate_data

from posquad.core.arguments import require_boolean
from posquad.core.errors import DomainError, Interrupted
from posquad.core.progress import Progress
from posquad.estimator import _files
from posquad.estimator._arguments import (
    checked_names,
    checked_weights,
    integer_seed,
    real_responses,
    require_choices,
)
from posquad.estimator._model import count_unknowns
from posquad.estimator._rank_choice import Solver, fit_at_rank
from posquad.estimator._reweighted import fit_with_loss
from posquad.estimator._samples import ordered, weighted_samples
from posquad.estimator._streaming import StreamFits
from posquad.estimator._uncertainty import standard_errors
from posquad.problems.rows import Rows
from posquad.recovery import (
    Checkpoint,
    LossName,
    Poisson,
    chosen_loss,
    describe_likelihood,
    require_counts,
)

__all__ = ["PositiveQuadraticRegressor"]


class PositiveQuadraticRegressor(
    StreamFits,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    RegressorMixin,
    BaseEstimator,
):
    """Regression on a positive quadratic form of low rank: `f(x) = x'Qx + b'x + c`.

    `Q = UU'` is positive semidefinite of rank r. By default b and c are zero, and
    `posquad.recover` finds Q; `fit_intercept` adds c, and `linear` adds b and c, both free.
    `predict` returns `f(x)`. `transform` returns the r features `U'x` in descending order of
    strength; the sum of their squares is `x'Qx`.

    Units of the columns do not matter. Centring the inputs gives a different model unless `linear`.
    A column of ones is not the same as `linear`: there b lies in the range of Q, and the constant
    is at least `b'Q^+b / 4`, because the sum is a positive form of (x, 1).

    A fit that stalled, was interrupted or has no minimum issues a `ConvergenceWarning`, and one
    whose predictor the data do not determine an `IdentifiabilityWarning`; `status_` says how the
    fit ended. Ctrl-C raises `posquad.Interrupted`, with the best fit so far as its `result`.

    Args:
        rank: rank of Q; None chooses it by `criterion`, and `rank_path_` holds the ranks tried.
            Standard errors do not account for the choice: with 30 noisy samples of four columns,
            95% intervals contain the truth in 92% of the cases (`benchmarks/intervals.py`).
        fit_intercept: whether to fit a constant c, of either sign; otherwise c = 0.
        linear: whether to fit linear terms b and a constant c, whatever `fit_intercept` is.
        criterion: for rank=None, "bic" (Bayesian information criterion) or "cv"
            (cross-validated squared error).
        cv: folds for criterion="cv", a number or a scikit-learn splitter.
        max_rank: highest rank tried; by default as high as the columns and samples allow.
        standard_errors: whether to prepare for `predict(return_std=True)`; "auto" does so up to
            p = 1000 unknowns, because it takes p^2 memory and p passes over the data.
        certify: whether to try to prove that Q is the only answer (`posquad.certify`).
        max_starts: maximum number of starts of a search; None uses the default of
            `posquad.recover`, up to 2000, which is useful for few samples without noise.
        tolerance: relative residual at which responses count as reproduced, as in
            `posquad.recover`.
        max_steps: maximum number of steps of a search.
        time_limit: time limit in seconds for all searches together, excluding standard errors and
            certificates.
        random_state: seed of the restarts; an integer makes the fit reproducible.
        loss: "least-squares"; "huber" or "geman-mcclure" for responses with outliers; "poisson"
            for counts with means `x'Qx`, without c and b. See `posquad.recover`. With counts of
            mean 0.5, 95% intervals contain the truth in 92% of the cases.
        scale: standard deviation of the noise without outliers, for a robust loss; by default it
            is estimated (MAD).

    Attributes:
        components_: `[rank_, d]`, the rows of U', orthogonal and of descending norm; the largest
            entry of each row is positive.
        intercept_: the constant c; 0 if it is not fitted.
        coef_: the linear coefficients b, `[d]`; zeros if they are not fitted.
        center_, center_slope_, center_value_: the mean m of the inputs, the gradient of f and its
            value there; `predict` uses them, because terms cancel less about m than about zero.
            Without linear terms, m and the gradient are zero.
        rank_: rank found; it may be lower than the given one, and is 0 if Q = 0 fits best.
        rank_path_: dictionary of arrays `rank`, `residual`, `score` (lower is better) and, for
            cross-validation, `standard_error`; empty if the rank was given.
        rank_confidence_: weight of the rank among those tried; 1 if given, NaN if chosen by
            cross-validation or if c is fitted.
        effective_spectrum_: eigenvalues of the effective Hessian (Theorem 3.1,
            `thm:effective-hessian`) for the fitted responses, ascending; only the two ends if
            p > 1000. NaN if the columns of X differ so much in size (1e16) that U does not have
            full rank, or if they are out of range.
        gauge_dimension_: r(r-1)/2, the number of rotations, which the spectrum leaves out.
        kernel_dimension_: number of directions that the data leave free; NaN if it was not
            computed, or if rounding hides it.
        identifiable_: whether the data determine the predictor, at least locally. True: there are
            more samples than unknowns, and no direction is free. False: there are too few samples,
            or a direction is free. None: unknown, because `kernel_dimension_` is NaN and `status_`
            is neither RECOVERED nor CERTIFIED, for which the search excludes free directions.
        noise_std_: standard deviation of the noise, `sqrt(RSS / (n - p))`, for a sample of mean
            weight; p counts the unknowns that the data determine, and all of them where
            `kernel_dimension_` is NaN. NaN unless n > p. For a robust
            loss it is the scale, and for "poisson" 1, in units of the root of the mean.
        dispersion_: variance of the counts over their mean, by Pearson's statistic; far above 1,
            the standard errors of "poisson" are too small. NaN for other losses.
        uncertainty_: arrays used by `predict(return_std=True)`; None if not prepared.
        certificate_: `Certificate` if requested; None otherwise, and if rank_ is 0 or c or b are
            fitted, for which certificates are not defined.
        status_: `Status` that says how the fit ended; its value explains cause and remedy.
        residual_: `||f(X) - y|| / ||y||`, weighted; if c is fitted, y is replaced in the
            denominator by its deviations from the mean.
        history_: least relative residual at each step on the way to the answer.
        history_rank_: rank of the fit at each of these steps; 0 if it is not known.
        n_iter_: steps of all searches together.
        response_name_: name of the responses, if they have one.
        table_rules_: how `posquad fit` turned the columns of a table into numbers; None for arrays.
        n_samples_, needed_: samples of positive weight, and samples needed to identify this rank.

    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.standard_normal((200, 6)), rng.standard_normal((6, 2))
    >>> y = ((X @ U) ** 2).sum(axis=1) + 0.1 * rng.standard_normal(200)
    >>> model = PositiveQuadraticRegressor().fit(X, y)
    >>> model.rank_, model.identifiable_, round(model.score(X, y), 3)
    (2, True, 1.0)
    >>> mean, error = model.predict(X[:1], return_std=True)
    >>> bool(abs(mean[0] - (U.T @ X[0]) @ (U.T @ X[0])) < 3 * error[0])
    True
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        rank: int | None = None,
        *,
        fit_intercept: bool = False,
        linear: bool = False,
        criterion: Literal["bic", "cv"] = "bic",
        cv: Any = 5,
        max_rank: int | None = None,
        standard_errors: bool | Literal["auto"] = "auto",
        certify: bool = False,
        tolerance: float | None = None,
        max_starts: int | None = 50,
        max_steps: int = 100_000,
        time_limit: float | None = None,
        random_state: Any = 0,
        loss: LossName = "least-squares",
        scale: float | None = None,
    ) -> None:
        self.rank = rank
        self.fit_intercept = fit_intercept
        self.linear = linear
        self.criterion = criterion
        self.cv = cv
        self.max_rank = max_rank
        self.standard_errors = standard_errors
        self.certify = certify
        self.tolerance = tolerance
        self.max_starts = max_starts
        self.max_steps = max_steps
        self.time_limit = time_limit
        self.random_state = random_state
        self.loss = loss
        self.scale = scale

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        feature_names: Sequence[str] | None = None,
        response_name: str | None = None,
        progress: Callable[[Progress], None] | None = None,
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    ) -> Self:
        """Fit to inputs `X[n, d]` and responses `y[n]`.

        Args:
            X: array or data frame; float32 is fitted in float64, to a looser tolerance. Or a source
                of rows (`posquad.problems.rows`), which need not fit into memory.
            y: real responses; negative ones are fitted by least squares like all others. None
                takes responses, and weights, of a source that has them (`rows.from_iterator`).
            sample_weight: weights of the squared errors. In the fit, a weight of 2 equals a
                repeated sample, and 0 leaves a sample out. Standard errors treat weights as
                inverse variances, up to a factor.
            feature_names, response_name: names, for arrays that carry none.
            progress: called with a `Progress` at every step of every search.
            checkpoint: a file in which the state of long work on the rows of a file is saved, from
                which the same call goes on after it was killed; as for `posquad.recover`.
        """
        name = getattr(y, "name", None) if response_name is None else response_name
        self.response_name_ = name if isinstance(name, str) else None
        self.table_rules_ = None
        self._stream = None
        if isinstance(X, Rows):
            return self._fit_source(X, y, sample_weight, feature_names, progress, checkpoint)
        if checkpoint is not None:
            expected = "None unless X is a source of rows in files (posquad.problems.rows)"
            raise DomainError("checkpoint", expected=expected, got=type(X).__name__)
        X, y = validate_data(
            self, X, y, dtype=[np.float64, np.float32], y_numeric=True, multi_output=False
        )
        weights = None if sample_weight is None else checked_weights(sample_weight, X)
        if feature_names is not None:
            self.feature_names_in_ = checked_names(feature_names, X.shape[1])
        require_choices(self, X.shape[1])
        self._fit_rows(X, real_responses(y, X.dtype), weights, progress)
        self._warn()
        return self

    def _fit_rows(
        self,
        X: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """Fit to checked samples, all of them in memory."""
        given = weighted_samples(X, y, weights)
        solve = Solver(
            terms=self._terms,
            max_rank=self.max_rank,
            max_starts=self.max_starts,
            time_limit=self.time_limit,
            tolerance=self.tolerance,
            max_steps=self.max_steps,
            seed=integer_seed(self.random_state),
            progress=progress,
        )
        loss, scale = chosen_loss(self.loss, self.scale), np.nan
        counted = given.counted()
        if isinstance(loss, Poisson):
            used = None if given.weights is None else np.flatnonzero(given.weights > 0)
            held = [torch.from_numpy(a) for a in (counted.X, counted.y, counted.mass)]
            require_counts(*held, rows=used)
        samples = ordered(counted) if loss is None else counted
        how: dict[str, Any] = {"criterion": self.criterion, "cv": self.cv}
        try:
            if loss is None:
                fit, path, confidence = fit_at_rank(solve, self.rank, given, samples, **how)
            else:
                fit, path, confidence, scale = fit_with_loss(solve, loss, self.rank, samples, **how)
        except Interrupted as stop:
            best = stop.result
            self.rank_path_, self.rank_confidence_, self.n_iter_ = {}, np.nan, max(1, solve.steps)
            self._keep(best, counted, brief=True)
            raise Interrupted(self) from stop
        self.rank_path_, self.rank_confidence_ = path, confidence
        self.n_iter_ = max(1, solve.steps)
        self._keep(fit, counted, scale)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predictions `x_i'Qx_i + b'x_i + c`, `[n]`; with `return_std` also standard errors.

        The standard error is that of the mean response `f(x)`, to first order and given the rank:
        `noise_std_ * sqrt(g(x)' (J'WJ)^-1 g(x))`. g and J are the derivatives of predictions along
        horizontal directions, so the rotation of U does not matter. For a new response, add the
        variance `noise_std_ ** 2` (for "poisson", the prediction). For a robust loss the covariance
        is a sandwich of the derivatives of the loss in place of `(J'WJ)^-1`. `likelihood_` says
        what is assumed. The standard error is infinite if the data do not determine the
        prediction, and NaN if no samples are left to estimate the noise. At rank 0 it is that of
        the other terms, because the first-order term of the form vanishes.
        """
        check_is_fitted(self, "components_")
        require_boolean(return_std=return_std)
        if return_std and self.uncertainty_ is None:
            p = count_unknowns(self.n_features_in_, self.rank_)
            expected = "a model fitted with standard_errors=True"
            raise DomainError(
                "return_std", expected=expected, got=f"one without, for p = {p} unknowns"
            )
        if not isinstance(X, Rows):
            return self._predicted(self._inputs(X), return_std)
        if X.d != self.n_features_in_:
            expected = f"{self.n_features_in_} columns, as in the fit"
            raise DomainError("X", expected=expected, got=str(X.d))
        parts = [self._predicted(block.double().numpy(), return_std) for _, block in X.blocks()]
        if not return_std:
            return np.concatenate(parts)
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def _predicted(self, X: np.ndarray, return_std: bool) -> Any:
        mean = self._function.predict(X)
        if not return_std or self.uncertainty_ is None:
            return mean
        with np.errstate(invalid="ignore"):
            error = standard_errors(self.uncertainty_, X, self.components_.T)
        return mean, self.noise_std_ * error

    def transform(self, X: Any) -> np.ndarray:
        """Return the features `U'x_i`, `[n, rank_]`; their squares sum to `x_i'Qx_i`."""
        check_is_fitted(self, "components_")
        return self._inputs(X) @ self.components_.T

    def save(self, path: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write `path.json`, `path.safetensors` and the certificate, if any; return the paths.

        The samples of `partial_fit` are kept with the model, or alone if it is not fitted yet. No
        pickle is used. Each file is written atomically, the JSON file last. It holds the
        checksum of the other files, so that `load` refuses an incomplete model.

        >>> import tempfile
        >>> X = np.random.default_rng(0).standard_normal((20, 2))
        >>> model = PositiveQuadraticRegressor(rank=1).fit(X, X[:, 0] ** 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = model.save(f"{folder}/model")
        ...     again = PositiveQuadraticRegressor.load(f"{folder}/model")
        >>> bool((again.predict(X) == model.predict(X)).all())
        True
        """
        if getattr(self, "_stream", None) is None:
            check_is_fitted(self, "components_")
        return _files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; `path` may have a suffix, or be a `posquad fit` folder.

        Files that are damaged, incomplete or of another kind raise `DomainError`.
        """
        return _files.load(cls, path)

    @property
    def likelihood_(self) -> str:
        """What the fit and its standard errors assume about the responses, in words."""
        check_is_fitted(self, "components_")
        scale = self.noise_std_ if np.isfinite(self.noise_std_) else None
        noise = describe_likelihood(self.loss, scale, given=self.scale is not None)
        if self.loss in ("least-squares", "poisson"):
            return noise
        return f"{noise}; standard errors hold for any symmetric noise (sandwich)"

    @property
    def _n_features_out(self) -> int:
        return self.rank_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # The checks of scikit-learn use linear responses, which a quadratic form fits badly.
        tags.regressor_tags.poor_score = True
        return tags

    def _inputs(self, X: Any) -> np.ndarray:
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return X.astype(np.float64, copy=False)
