"""Fits to rows that are not all in memory: a stream of samples, or a source of rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import validate_data
from torch import Tensor

from posquad.core.arguments import require_boolean
from posquad.core.errors import DomainError, Interrupted
from posquad.core.progress import Progress
from posquad.estimator._arguments import (
    checked_names,
    checked_weights,
    integer_seed,
    real_responses,
    require_choices,
    require_least_squares,
)
from posquad.estimator._fitted import FittedAttributes
from posquad.estimator._model import Fit, Quadratic, count_unknowns, from_recovery
from posquad.estimator._moments import moment_spectrum, moment_uncertainty
from posquad.estimator._stream import Stream, require_same
from posquad.problems.moments import Moments
from posquad.problems.rows import Rows
from posquad.recovery import (
    MOMENT_MOST,
    Budget,
    Checkpoint,
    History,
    SearchOptions,
    admitted_checkpoint,
    admitted_responses,
    fit_moments,
    gather_moments,
    kept_rows,
    moments_pay,
    open_writer,
    own_responses,
    recover,
)

# The source of rows, the responses and the weights of a fit.
Given = tuple[Rows, Tensor, Tensor | None]


class StreamFits(FittedAttributes):
    """The part of `PositiveQuadraticRegressor` that fits to streams and sources."""

    # Options of the regressor, and its methods that return them and that fit to rows in memory.
    max_rank: int | None
    criterion: str
    max_starts: int | None
    max_steps: int
    time_limit: float | None
    tolerance: float | None
    random_state: Any
    get_params: Callable[..., dict[str, Any]]
    _fit_rows: Callable[..., None]
    predict: Callable[..., Any]
    _stream: Stream | None

    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        refit: bool = True,
        progress: Callable[[Progress], None] | None = None,
    ) -> Self:
        """Add samples `X[n, d]` and `y[n]` to those of earlier calls, and fit to all of them.

        The answer, standard errors included, is that of `fit` to all samples, up to rounding, in
        whatever pieces and order they come. Rows are kept while they are few, at most 4096 or
        d(d+1); then they are replaced by their fourth moments, which take d^4 / 3 bytes for large
        d. `save` keeps them too, so that a stream can be resumed by another process. Equal inputs
        are then counted as often as they come, and there is no certificate. Samples should come in
        no particular order: moments are converted when later rows are unlike the first, and if
        rounding then hides how well the answer fits, the status is STALLED, `residual_` and
        `noise_std_` are NaN, and a warning says so. A call that raises an error adds no samples.

        Args:
            X, y, sample_weight: as for `fit`.
            refit: False only adds the samples; a later call fits. `save` keeps them before that,
                too.
            progress: called with a `Progress` at every step of the search.

        >>> from posquad.estimator import PositiveQuadraticRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, U = rng.standard_normal((9000, 3)), rng.standard_normal((3, 1))
        >>> y = (X @ U)[:, 0] ** 2
        >>> model = PositiveQuadraticRegressor(rank=1)
        >>> for part in np.split(np.arange(9000), 3):
        ...     _ = model.partial_fit(X[part], y[part])
        >>> model.status_.name, model.n_samples_, bool(np.allclose(model.predict(X), y))
        ('RECOVERED', 9000, True)
        """
        require_boolean(refit=refit)
        if isinstance(X, Rows):
            expected = "an array, because a stream is read once; fit takes a source of rows"
            raise DomainError("X", expected=expected, got=type(X).__name__)
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is None:
            name = getattr(y, "name", None)
            self.response_name_ = name if isinstance(name, str) else None
            self.table_rules_ = None
        X, y = validate_data(
            self,
            X,
            y,
            reset=stream is None,
            dtype=[np.float64, np.float32],
            y_numeric=True,
            multi_output=False,
        )
        weights = None
        if sample_weight is not None:
            none = np.size(sample_weight) == len(X) and not np.any(sample_weight)
            weights = np.zeros(len(X)) if none else checked_weights(sample_weight, X)
        require_choices(self, X.shape[1])
        require_least_squares(self, "a stream of samples")
        if stream is None:
            stream = Stream(X.shape[1], self._terms)
        require_same(stream.terms, self._terms)
        before = stream.held.copy(), stream.narrow, stream.moments
        try:
            stream.add(X, real_responses(y, X.dtype), weights)
            if (begun := stream.begun()) is not None:
                self._refer(begun, stream)
                stream.compress(begun)
            if refit and stream.moments is not None:
                self._fit_moments(stream.moments, progress)
            elif refit:
                self._fit_rows(*stream.weighted_samples(), progress)
        except BaseException:
            stream.held, stream.narrow, stream.moments = before
            raise
        self._stream = stream
        if refit:
            self._warn()
        return self

    def _refer(self, begun: Moments, stream: Stream) -> None:
        """Give moments the fit to the rows held as their reference, where that is not determined.

        The error of an answer far from the reference is lost in the rounding of the sums, and a
        linear fit to rows that leave symmetric matrices free is far from any answer.
        """
        if not begun.free:
            return
        first = clone(self).set_params(standard_errors=False, certify=False)  # type: ignore[type-var]
        first.n_features_in_ = stream.d
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first._fit_rows(*stream.weighted_samples(), None)
        function = first._function
        U, center, slope = (torch.from_numpy(np.array(part)) for part in function[:3])
        begun.refer_to(U, center, slope, function.value)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R², the share of the variance of `y[n]` that predictions for `X[n, d]` explain.

        If X is a source of rows that several processes hold, each passes the responses and weights
        of its own rows, and all of them return the score of all rows. y and the weights may be
        those of the source, as for `fit`.

        >>> from posquad.estimator import PositiveQuadraticRegressor
        >>> from posquad.problems import rows
        >>> X = np.random.default_rng(0).standard_normal((20, 2))
        >>> model = PositiveQuadraticRegressor(rank=1).fit(X, X[:, 0] ** 2)
        >>> round(model.score(rows.in_memory(X), X[:, 0] ** 2), 12)
        1.0
        """
        if not isinstance(X, Rows):
            return super().score(X, y, sample_weight)  # type: ignore[misc]
        with X.together():
            y, sample_weight = own_responses(X, y, sample_weight)
            responses, weights = admitted_responses(X, y, sample_weight)
            y = responses.double()
            w = torch.ones_like(y) if weights is None else weights.double()
            mass, first = X.total(torch.stack([w.sum(), w @ y])).tolist()
            errors = y - torch.from_numpy(self.predict(X))
            squares = torch.stack([w @ errors**2, w @ (y - first / mass) ** 2])
            left, total = X.total(squares).tolist()
        if not total:  # as in scikit-learn
            return 0.0 if left else 1.0
        return 1.0 - left / total

    def _fit_source(
        self,
        source: Rows,
        y: Any,
        sample_weight: Any,
        feature_names: Sequence[str] | None,
        progress: Callable[[Progress], None] | None,
        checkpoint: Checkpoint | str | os.PathLike[str] | None,
    ) -> Self:
        """Fit to a source of rows: in memory if it is small, otherwise from its moments."""
        with source.together():
            source.check_same(fact=self.get_params())
            progress = source.watched(progress)
            if not source.is_shared:
                checkpoint = admitted_checkpoint(checkpoint, source)
            given, source = source, source.to(device="cpu")
            y, sample_weight = own_responses(given, y, sample_weight)
            responses, weights = admitted_responses(source, y, sample_weight)
            self.n_features_in_ = source.d
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            if feature_names is not None:
                self.feature_names_in_ = checked_names(feature_names, source.d)
            require_choices(self, source.d)
            if source.n <= kept_rows(source.d, self._terms) and not source.is_shared:
                X = source.read_all()
                source.require_finite(slice(0, len(X)), X)
                w = None if weights is None else weights.double().numpy()
                self._fit_rows(X.numpy(), responses.numpy(), w, progress)
            elif self.loss != "least-squares":
                require_least_squares(self, "rows that are not kept in memory")
            elif not moments_pay(source, needed=self._needs_moments):
                self._fit_passes(given, responses, weights, progress, checkpoint)
            else:
                self._require_no_folds()
                seed = integer_seed(self.random_state)
                names = ("rank", "max_rank", "max_starts", "max_steps", "tolerance")
                options = {name: getattr(self, name) for name in names} | {
                    "call": "fit",
                    "seed": seed,
                }
                options |= {"terms": self._terms}
                writer = open_writer(checkpoint, source, responses, weights, options)
                moments = gather_moments(
                    source, responses, weights, terms=self._terms, progress=progress, writer=writer
                )
                rows = source, responses, weights
                self._fit_moments(moments, progress, rows, seed)
                writer.end()
        self._warn()
        return self

    def _fit_passes(
        self,
        source: Rows,
        y: Tensor,
        weights: Tensor | None,
        progress: Callable[[Progress], None] | None,
        checkpoint: Checkpoint | str | os.PathLike[str] | None,
    ) -> None:
        """Fit to a source of many columns by passes over it, without standard errors."""
        self._require_no_folds()
        for name, wanted in (("standard_errors", self.standard_errors is True), *self._extras()):
            if wanted:
                expected = f"at most {MOMENT_MOST} columns of a source for this option"
                raise DomainError(name, expected=expected, got=f"{source.d} columns")
        w = torch.ones_like(y) if weights is None else weights
        sums = torch.stack([(w * y * y).sum(), w.sum(), (w > 0).sum()]).double()
        squares, mass, count = source.total(sums).tolist()
        stopped = None
        try:
            found = recover(
                source,
                y.numpy(),
                self.rank,
                weights=None if weights is None else weights.numpy(),
                seed=integer_seed(self.random_state),
                tolerance=self.tolerance,
                max_rank=self.max_rank,
                max_starts=self.max_starts,
                max_steps=self.max_steps,
                time_limit=self.time_limit,
                progress=progress,
                checkpoint=checkpoint,
            )
        except Interrupted as stop:
            found, stopped = stop.result, stop
        tried = found.rank_path
        self.rank_path_ = {} if tried is None else dict(vars(tried))
        self.rank_confidence_, self.n_iter_ = float(found.rank_confidence), max(1, found.steps)
        self._keep_function(from_recovery(found))
        self.effective_spectrum_ = np.full(2, np.nan)
        self.uncertainty_, self.kernel_dimension_ = None, np.nan
        self.residual_ = float(found.residual)
        self._count(int(count), self.residual_**2 * squares * count / mass)
        self.certificate_ = None
        if stopped is not None:
            raise Interrupted(self) from stopped

    @property
    def _needs_moments(self) -> bool:
        """Whether an option asks for what passes over the rows do not give."""
        return self.standard_errors is True or self._terms != "none"

    def _extras(self) -> list[tuple[str, bool]]:
        return [("fit_intercept", self._terms == "constant"), ("linear", self._terms == "linear")]

    def _fit_moments(
        self,
        moments: Moments,
        progress: Callable[[Progress], None] | None,
        rows: Given | None = None,
        seed: int | None = None,
    ) -> None:
        """Fit to the samples of which these are the moments, and set the fitted attributes.

        `rows` are the source, the responses and the weights, unless they are gone. If the rows are
        shared, one process searches for all of them.
        """
        self._require_no_folds()
        budget = Budget(max_steps=self.max_steps, time_limit=self.time_limit)
        seed = integer_seed(self.random_state) if seed is None else seed
        wanted = SearchOptions(self.rank, self.max_rank, self.max_starts, seed, self.tolerance)
        level = wanted.level(moments.d, narrow=moments.narrow)
        history, stopped = History(budget, progress), None
        try:
            problem, found = fit_moments(moments, wanted, level, history, rows)
        except Interrupted as stop:
            (problem, found), stopped = stop.result, stop
        answers, evidence = found.answers, found.evidence
        names = ("rank", "residual", "score")
        columns = dict(zip(names, np.array(found.path).T, strict=True)) if found.path else {}
        self.rank_path_ = {k: v.astype(int) if k == "rank" else v for k, v in columns.items()}
        self.rank_confidence_ = float(answers.confidence[0])
        self.n_iter_ = max(1, history.budget.steps)
        residual, steps = float(evidence.residual), history.least_residuals()[0]
        U, center, slope, value = problem.answer(found.U)
        function = Quadratic(U, center, slope, value).ordered()
        r = self._keep_function(Fit(function, evidence, residual, np.array(steps)))
        p, U = count_unknowns(problem.d, r), self.components_.T
        self.effective_spectrum_ = moment_spectrum(problem, U) if r else np.empty(0)
        self.uncertainty_, self.kernel_dimension_ = None, np.nan
        if self._wants_errors(p):
            self.uncertainty_ = moment_uncertainty(problem, U)
            self.kernel_dimension_ = p - len(self.uncertainty_.root)
        self.residual_ = residual
        self._count(problem.count, problem.squared_error(residual))
        self.certificate_ = None
        if stopped is not None:
            raise Interrupted(self) from stopped

    def _require_no_folds(self) -> None:
        if self.criterion == "cv" and self.rank is None:
            expected = "'bic' for many rows that are not kept in memory"
            raise DomainError("criterion", expected=expected, got="'cv'")
