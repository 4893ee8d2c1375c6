"""The attributes of a fitted regressor, all computed from the function that a search returned."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from posquad.certificates import certify
from posquad.core.errors import IdentifiabilityWarning, PosquadError
from posquad.core.status import Status
from posquad.estimator._model import Fit, Quadratic, Terms, count_terms, count_unknowns
from posquad.estimator._reweighted import dispersion, fisher_samples, sandwich
from posquad.estimator._samples import WeightedSamples, merged
from posquad.estimator._uncertainty import DENSE_MOST, spectrum_of, uncertainty
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.recovery import UNIQUE, Poisson, Robust, chosen_loss, granted, needed_samples


class FittedAttributes:
    """The part of `PositiveQuadraticRegressor` that sets its fitted attributes."""

    # Options of the regressor, and what scikit-learn sets.
    rank: int | None
    fit_intercept: bool
    linear: bool
    standard_errors: Any
    certify: bool
    loss: str
    scale: float | None
    n_features_in_: int
    identifiable_: bool | None

    @property
    def _terms(self) -> Terms:
        return "linear" if self.linear else "constant" if self.fit_intercept else "none"

    @property
    def _function(self) -> Quadratic:
        return Quadratic(self.components_.T, self.center_, self.center_slope_, self.center_value_)

    def _keep(
        self,
        fit: Fit,
        given: WeightedSamples,
        scale: float = np.nan,
        *,
        brief: bool = False,
    ) -> None:
        """Set the fitted attributes from the returned model; if `brief`, those that are quick."""
        r, function = self._keep_function(fit), self._function
        # The mean of responses to equal inputs would hide their outliers.
        unique = merged(given)[0] if self.loss == "least-squares" else given
        self._measure(unique, function, scale, brief=brief)
        fitted = function.predict(given.X.astype(np.float64, copy=False))
        errors = given.y - fitted
        squares = float(given.mass @ errors**2)
        mean = np.average(given.y, weights=given.mass) if self._terms != "none" else 0.0
        size = float(given.mass @ (given.y - mean) ** 2)
        self.residual_ = float(np.sqrt(squares / size)) if size else 0.0
        if self.loss == "least-squares":
            self.residual_ = fit.residual  # the same, without the rounding of large terms
        spare = self._count(len(given.y), squares)
        if self.loss == "poisson":
            self.noise_std_, self.dispersion_ = 1.0, dispersion(given, fitted, spare)
        elif self.loss != "least-squares":
            self.noise_std_ = scale
        self.certificate_ = None
        if self.certify and r and self._terms == "none" and not brief:
            self._prove(given, fit)

    def _keep_function(self, fit: Fit) -> int:
        """Set the attributes that describe the function and how its search ended; return r."""
        function = fit.function.signed()  # the numbers of U of which the residual is
        self.components_ = function.U.T
        self.center_, self.center_slope_ = function.center, function.slope
        self.center_value_ = float(function.value)
        self.coef_, self.intercept_ = function.linear, function.constant
        r = self.rank_ = function.U.shape[1]
        self.gauge_dimension_ = r * (r - 1) // 2
        self.status_ = fit.status
        self.history_ = np.asarray(fit.history, dtype=np.float64)
        self.history_rank_ = fit.history_rank
        return r

    def _count(self, n: int, squares: float) -> int:
        """Set what follows from the numbers of samples and unknowns and the squared errors.

        Returns the degrees of freedom that are left.
        """
        d, r = self.n_features_in_, self.rank_
        self.n_samples_ = n
        others = count_terms(self._terms, d)
        unknowns = count_unknowns(d, r) + others
        free = self.kernel_dimension_  # NaN if unknown
        if self.uncertainty_ is not None:
            free += others - len(self.uncertainty_.terms)
        # Where it is unknown what the data determine, all unknowns count, which is the safe side.
        spare = n - unknowns + (0 if np.isnan(free) else int(free))
        self.noise_std_ = np.sqrt(squares / spare) if spare > 0 else np.nan
        self.dispersion_ = np.nan
        unsure = (Status.NOT_IDENTIFIED, Status.UNDETERMINED, Status.NO_MINIMUM)
        undetermined = self.status_ in unsure
        # If many ranks fit, the least number of samples is that of the lowest.
        rank = self.rank or (1 if undetermined or not r else r)
        self.needed_ = needed_samples(d, rank) + others
        if undetermined or free > 0 or n <= unknowns:
            self.identifiable_ = False
        else:
            self.identifiable_ = True if free == 0 or self.status_ in UNIQUE else None
        return spare

    def _wants_errors(self, p: int) -> bool:
        return self.standard_errors is True or (self.standard_errors == "auto" and p <= DENSE_MOST)

    def _measure(
        self, samples: WeightedSamples, function: Quadratic, scale: float, *, brief: bool
    ) -> None:
        """Set the effective spectrum, and the arrays for standard errors."""
        loss = chosen_loss(self.loss, self.scale)
        if isinstance(loss, Poisson):
            samples = fisher_samples(samples, function.predict(samples.X))
        r = function.U.shape[1]
        p = count_unknowns(*function.U.shape)
        self.uncertainty_ = None
        if brief:
            self.effective_spectrum_, self.kernel_dimension_ = np.full(p, np.nan), np.nan
            return
        self.effective_spectrum_, self.kernel_dimension_ = np.empty(0), 0
        if r:
            found = spectrum_of(samples, function, self._terms)
            self.effective_spectrum_, self.kernel_dimension_ = found
        if self._wants_errors(p):
            known, free = uncertainty(samples, function, self._terms)
            if not np.isnan(free):  # in other units, it may be known only there
                self.kernel_dimension_ = free
            if isinstance(loss, Robust) and np.isfinite(scale):
                known = sandwich(known, samples, function, self._terms, loss, scale)
            self.uncertainty_ = known

    def _warn(self) -> None:
        """Warn of a fit that cannot be trusted as it is."""
        if self.status_ in (Status.STALLED, Status.INTERRUPTED, Status.NO_MINIMUM):
            warnings.warn(self.status_.value, ConvergenceWarning, stacklevel=3)
        elif self.status_ in (Status.NOT_IDENTIFIED, Status.UNDETERMINED):
            warnings.warn(self.status_.value, IdentifiabilityWarning, stacklevel=3)

    def _prove(self, given: WeightedSamples, fit: Fit) -> None:
        U = self.components_.T
        X, y = given.X.astype(np.float64), given.y.astype(np.float64)
        try:
            self.certificate_ = certify(LeastSquares(RankOne(X), y), U)
        except PosquadError:  # the factor does not have full rank, or is out of range
            return
        if self.certificate_.proved:
            self.status_ = granted(fit.evidence.updated(proved=True))
