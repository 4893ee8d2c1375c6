"""The fitted function `f(x) = ||U'(x - m)||^2 + s'(x - m) + v`, and how its search ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.problems.moments import Terms
from posquad.recovery import Evidence, FoundFunction, Recovery, granted, rotated


def count_terms(terms: Terms, d: int) -> int:
    """Return the number of unconstrained coefficients for d inputs."""
    return {"none": 0, "constant": 1, "linear": d + 1}[terms]


def count_unknowns(d: int, rank: int) -> int:
    """Return the number of unknowns of a form of this rank in d inputs; 0 for rank 0."""
    return dimension(d, rank) if rank else 0


class Quadratic(NamedTuple):
    """A quadratic function about a centre m, which is zero unless there are linear terms.

    About the mean of the inputs, the linear and the quadratic part do not cancel.
    """

    U: np.ndarray  # [d, r]
    center: np.ndarray  # [d]  m
    slope: np.ndarray  # [d]  gradient at m
    value: float  # f(m)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return `f(x_i)` for the rows of X, `[n]`."""
        X = X - self.center
        return ((X @ self.U) ** 2).sum(axis=1) + X @ self.slope + self.value

    def ordered(self) -> Quadratic:
        """Return the same function, U with orthogonal columns of descending norm."""
        return self._replace(U=rotated(self.U, np.array(self.U.shape[1])))

    def signed(self) -> Quadratic:
        """Return the same function; the largest entry of each column of U is positive."""
        largest = np.take_along_axis(self.U, np.abs(self.U).argmax(axis=0)[None], axis=0)
        return self._replace(U=self.U * np.where(largest < 0, -1.0, 1.0))

    @property
    def linear(self) -> np.ndarray:
        """The coefficients b of `x'Qx + b'x + c`, `[d]`."""
        return self.slope - 2 * self.U @ (self.center @ self.U)

    @property
    def constant(self) -> float:
        """The constant c of `x'Qx + b'x + c`."""
        return float(self.value - self.center @ self.slope + ((self.center @ self.U) ** 2).sum())


def form(U: np.ndarray) -> Quadratic:
    """Return `||U'x||^2` without other terms."""
    nothing = np.zeros(len(U))
    return Quadratic(U, nothing, nothing, 0.0)


class Fit(NamedTuple):
    """A fitted function with the outcome of its search."""

    function: Quadratic
    evidence: Evidence
    residual: float  # relative to y, or to its deviations from the mean with other terms
    history: np.ndarray  # least relative residual at each step
    found: Recovery | None = None  # of a fit to rows in memory
    reweighted: Status | None = None  # the status of a fit with another loss

    @property
    def status(self) -> Status:
        """How the search ended."""
        return self.reweighted or granted(self.evidence)

    @property
    def recovery(self) -> Recovery:
        """What was found in memory."""
        assert self.found is not None, "the rows are in memory"
        return self.found

    @property
    def history_rank(self) -> np.ndarray:
        """The rank at each step of the history; 0 if it is not known."""
        known = None if self.found is None else np.asarray(self.found.history_rank)
        return np.zeros(len(self.history), dtype=np.int64) if known is None else known

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions for the rows of X, `[n]`."""
        return self.function.predict(X)


def from_function(found: FoundFunction) -> Fit:
    """Return a function that was found as a fit."""
    fit = from_recovery(found.recovery)
    return fit._replace(function=Quadratic(fit.function.U, found.center, found.slope, found.value))


def from_recovery(found: Recovery) -> Fit:
    """Return what `recover` found as a fit."""
    U = np.asarray(found.U, dtype=np.float64)[:, : int(found.rank)]
    history = np.asarray(found.history)
    return Fit(form(U), found.evidence, float(found.residual), history, found)
