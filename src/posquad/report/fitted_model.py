"""A fitted model with its data, which the words, the figures and the page of a fit describe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from posquad.io.tables import Samples

__all__ = ["FittedModel", "format_r_squared"]

NAMED = 10  # maximum number of rows or columns named in a sentence
_FIRST = 100_000  # rows of a table that stays in its file in which columns are compared
_OUTLIER = 6.0  # robust standard deviations of an outlier; 1 in 5e8 normal residuals is larger


@dataclass(frozen=True)
class FittedModel:
    """A fitted model with its data: the subject of a report."""

    model: Any  # a fitted PositiveQuadraticRegressor
    samples: Samples
    predicted: np.ndarray  # [n]
    seconds: float
    command: str
    model_path: Path
    columns: tuple[str, ...] = ()  # options that name the columns, as given by the user
    validation: Any = None  # a posquad.estimator.validation.Validation, if it was computed

    @property
    def observed(self) -> np.ndarray:
        """The responses `[n]`."""
        return np.asarray(self.samples.y, dtype=float)

    @property
    def some_inputs(self) -> np.ndarray:
        """The inputs `[n, d]`; of a table that stays in its file, the first rows."""
        if self.samples.extremes is None:
            return self.samples.X
        return self.samples.X.first_rows(_FIRST).numpy()

    @cached_property
    def scale(self) -> np.ndarray:
        """Square roots of the normalized weights `[n]`: scaled residuals have equal variance."""
        weights = self.samples.weights
        if weights is None:
            return np.ones(len(self.observed))
        mass = np.asarray(weights, dtype=float)
        return np.sqrt(mass / mass[mass > 0].mean())

    @cached_property
    def residuals(self) -> np.ndarray:
        """Observed minus predicted responses `[n]`, times `scale`."""
        return (self.observed - self.predicted) * self.scale

    @cached_property
    def r_squared(self) -> float:
        """Weighted share of the variance of the responses that the model explains.

        It is NaN for constant responses, which have no variance.
        """
        return self._share(np.ones(len(self.observed), dtype=bool))

    @cached_property
    def r_squared_inliers(self) -> float:
        """The same over the rows that are no outliers: a few wrong rows can lower the other."""
        rows = np.ones(len(self.observed), dtype=bool)
        rows[self.outlier_rows] = False
        return self._share(rows)

    def _share(self, rows: np.ndarray) -> float:
        observed, w = self.observed[rows], np.square(self.scale[rows])
        if observed.min() == observed.max():
            return float("nan")
        mean = np.average(observed, weights=w)
        total = float(w @ np.square(observed - mean))
        left = float(np.square(self.residuals[rows]).sum())
        return 1 - left / total if total else float("nan")

    @cached_property
    def outlier_rows(self) -> np.ndarray:
        """Rows (from 0) with outlying residuals, the largest first."""
        size = np.abs(self.residuals - np.median(self.residuals))
        scale = 1.4826 * float(np.median(size))
        if scale <= 1e-12 * float(np.abs(self.observed).max(initial=0.0)):
            return np.empty(0, dtype=int)
        order = np.argsort(-size, kind="stable")
        return order[size[order] > _OUTLIER * scale]

    @cached_property
    def outlier_names(self) -> str:
        """The first ten outliers, such as "lines 4, 18" of a text file; there is at least one."""
        found = [name.split() for name in self.samples.rows(self.outlier_rows[:NAMED].tolist())]
        unit = found[0][0] if len(found) == 1 else f"{found[0][0]}s"
        return f"{unit} {', '.join(number for _, number in found)}"

    @property
    def is_robust(self) -> bool:
        """Whether the loss bounds the influence of outliers."""
        return self.model.loss in ("huber", "geman-mcclure")

    @property
    def explained(self) -> float:
        """The share of the variance by which a fit is judged; without outliers if it is robust."""
        return self.r_squared_inliers if self.is_robust else self.r_squared

    @property
    def has_constant(self) -> bool:
        """Whether a constant is fitted, alone or with linear terms."""
        return bool(self.model.fit_intercept or self.model.linear)

    @property
    def needed(self) -> int | None:
        """Samples needed at the fitted rank; None if the given rank was lowered."""
        model = self.model
        lowered = model.rank is not None and model.rank != model.rank_
        return None if lowered or not model.rank_ else model.needed_


def format_r_squared(value: float) -> str:
    """Format R² so that its distance from 1 can be read.

    >>> format_r_squared(0.99954), format_r_squared(1 - 2**-30), format_r_squared(float("nan"))
    ('0.9995', '1 - 9.3e-10', 'undefined (constant responses)')
    """
    if np.isnan(value):
        return "undefined (constant responses)"
    missing = 1 - value
    if 0 < missing < 1e-6:
        return f"1 - {missing:.1e}"
    return f"{value:.{int(np.ceil(-np.log10(missing)))}f}" if 0 < missing < 1e-3 else f"{value:.4g}"
