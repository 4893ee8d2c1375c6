"""Fits with unconstrained terms: `x'Qx + c`, and `x'Qx + b'x + c`, for rows in memory.

The other terms are eliminated from the measurements (`posquad.problems.projected`), and the matrix
is found by the stages of `recover`. With linear terms, the inputs are centred: that changes linear
terms and the constant, not the matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import Array
from posquad.core.errors import Interrupted, ShapeError
from posquad.core.ranges import tiny
from posquad.core.threads import one_torch_thread
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import RankOne
from posquad.problems.moments import Terms
from posquad.problems.projected import Projected
from posquad.recovery.acceptance import DEFAULT
from posquad.recovery.admitted import admitted, admitted_start
from posquad.recovery.candidates import Task
from posquad.recovery.costs import BLOCK
from posquad.recovery.in_memory import recover_in_memory
from posquad.recovery.options import Options
from posquad.recovery.pipeline import Pipeline
from posquad.recovery.ranks import RankPath
from posquad.recovery.result import Answers, Recovery
from posquad.recovery.returned import rotated

__all__ = ["FoundFunction", "recover_with_terms"]

# Errors relative to the largest response that are rounding errors. A choice: 45 eps.
_ROUNDING = 1e-14
# Size of a deviation from the mean, in units of eps of the inputs, that is rounding. A choice: that
# of `posquad.recovery.streams.compressed`.
_RESOLVED = 450
# Ratio of second moments up to which they show all directions. A choice: half of the digits of the
# inputs are left.
_CLOSE = 1e-10
# Relative difference of residuals that does not count. A choice: that of the searches.
_SAME = 1e-9
# Length of a column, relative to the longest, whose square is rounding. A choice: the root of eps.
_NEGLIGIBLE_LENGTH = 1e-8
# Share of the responses that are near the median, and by how many tolerances of their own spread
# their errors may exceed it. A choice: a tenth of the responses may be of any size.
_MOST = 0.9
_TOLERANCES = 10


@dataclass(frozen=True)
class FoundFunction:
    """The function `||U'(x - m)||^2 + s'(x - m) + v` that was found."""

    recovery: Recovery  # of U; residuals are relative to the deviations of y from its mean
    center: np.ndarray  # [d]  m, which is zero without linear terms
    slope: np.ndarray  # [d]  s
    value: float  # v


def recover_with_terms(
    X: Array, y: Array, weights: Array | None, terms: Terms, options: Options
) -> FoundFunction:
    """Return the function of least squared error without, with a constant or with linear terms.

    `options.rank` may be 0, for the other terms alone, which are also among the ranks that are
    tried if none is given. The function is not worse than that without a constant, nor than the
    other terms alone. Ctrl-C raises `Interrupted` with the best function so far.

    >>> x = np.linspace(-2.0, 2.0, 9)
    >>> found = recover_with_terms(x[:, None], (x - 1) ** 2 - 5, None, "linear", Options(1))
    >>> found.recovery.status.name, round(found.value, 9), found.slope.round(9)
    ('RECOVERED', -4.0, array([-2.]))
    """
    if terms == "none":
        try:
            return _form(recover_in_memory(X, y, weights, options))
        except Interrupted as stop:
            raise Interrupted(_form(stop.result)) from stop
    given = admitted(X, y, weights, options.precision, widened=True)
    if given.batch:
        raise ShapeError("X", expected="shape (n, d)", got=f"batch {tuple(given.batch)}")
    assert isinstance(given.operator, RankOne), "made of rows"
    checked = replace(options, rank=options.rank or None)
    level = checked.wanted.level(given.operator.d, narrow=given.is_narrow)
    kept = given.weights > 0
    w = None if weights is None else given.weights[kept]
    call = _Call(given.operator.X[kept], given.y[kept], w, terms, options, level)
    small = given.operator.entries <= BLOCK
    with torch.no_grad(), one_torch_thread(when=small):
        return call.run()


def _form(found: Recovery) -> FoundFunction:
    """Return a form without other terms."""
    zero = np.zeros(len(found.U))
    return FoundFunction(found, zero, zero, 0.0)


def _spread_out(inputs: Tensor, root: Tensor) -> Tensor | None:
    """Return `T[d, k]` with which inputs of very different lengths have covariance I, else None.

    The second moments of such inputs have lost the digits of the short ones.
    """
    rows = root[:, None] * inputs
    values = torch.linalg.eigvalsh(rows.mT @ rows)
    if values[0] > _CLOSE * values[-1] or not bool(values[-1] > 0):
        return None
    _, s, right = torch.linalg.svd(rows, full_matrices=False)
    seen = s > max(*rows.shape, _RESOLVED) * torch.finfo(s.dtype).eps * s[0]
    return right[seen].mT / s[seen] * len(rows) ** 0.5


class _Call:
    """A fit to samples of positive weight."""

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        weights: Tensor | None,
        terms: Terms,
        options: Options,
        level: float,
    ) -> None:
        self.X, self.y, self.weights, self.options, self.level = X, y, weights, options, level
        self.history = options.history(options.progress)
        self.linear = terms == "linear"
        mass = y.new_ones(len(y)) if weights is None else weights / weights.mean()
        self.root, total = mass.sqrt(), mass.sum()
        self.mean = float(mass @ y / total)
        left = y - self.mean
        # A power of 4 changes no digit of the responses, nor its root of the factor.
        largest = float(left.abs().max()) or 1.0
        self.unit = 2.0 ** round(math.log2(largest) / 2)
        self.left = left / self.unit / self.unit
        scale = X.abs().amax(0)
        self.scale = torch.where(scale > 0, scale, 1.0)
        self.center = X.new_zeros(X.shape[1])
        if self.linear:
            self.center = mass @ (X / self.scale) / total * self.scale
        inputs = X - self.center
        if self.linear:  # what is left of a constant input is rounding
            rounding = _RESOLVED * torch.finfo(X.dtype).eps * self.scale
            inputs = torch.where(inputs.abs().amax(0) > rounding, inputs, 0.0)
        self.T = _spread_out(inputs / self.scale, self.root)
        self.inputs = inputs if self.T is None else inputs / self.scale @ self.T
        constant, unit = y.new_ones(len(y), 1), self.scale if self.T is None else 1.0
        columns = [self.inputs / unit, constant] if self.linear else [constant]
        self.operator = Projected(RankOne.of_checked(self.inputs), torch.cat(columns, dim=1))
        # Responses far from zero are rounded, however little they differ.
        spread = float(torch.linalg.vector_norm(self.root * self.left))
        rounding = _ROUNDING * float((y / self.unit / self.unit).abs().max()) * float(total) ** 0.5
        self.tolerance = max(level, rounding / spread) if spread else level

    def run(self) -> FoundFunction:
        """Return the function; one with a constant is compared with that without it."""
        options, start = self.options, None
        if options.start is not None:
            start = admitted_start(options.start, self.X.shape[1], self.y, options.rank)
        if self.linear or options.rank == 0:
            return self._fitted(options.rank, start)
        if options.rank is not None:
            return self._fitted(options.rank, self._plain(options.rank) if start is None else start)
        found = self._fitted(None, start)
        rank = int(found.recovery.rank)
        plain = self._plain(rank) if rank else None
        if plain is None or not self._residual(self._inside(plain)) < found.recovery.residual:
            return found
        better = self._fitted(rank, plain)
        kept = {
            "rank_path": found.recovery.rank_path,
            "rank_confidence": found.recovery.rank_confidence,
        }
        return replace(better, recovery=replace(better.recovery, **kept))

    def _plain(self, rank: int) -> Tensor | None:
        """Return the factor of the best fit without a constant; None if that is Q = 0."""
        task = Task(self.level, self.options.seed, self.history)
        call = self._pipeline(task, rank, None, diagnose=False)
        plain = RankOne.of_checked(self.X)
        answers = self._answers(call, plain, self.y)
        U = torch.from_numpy(answers.U[0][:, : int(answers.rank[0])])
        return U if U.numel() else None

    def _residual(self, U: Tensor) -> float:
        """Return the relative residual of a factor, as in the search, with the best other terms."""
        forms = (self.inputs @ U).square().sum(-1)
        weighted = self.operator.weighted(self.root)
        e = weighted.eliminated(self.root * (forms - self.left))
        size = torch.linalg.vector_norm(self.root * self.left)
        return float(torch.linalg.vector_norm(e) / torch.where(size > 0, size, 1.0))

    def _fitted(self, rank: int | None, start: Tensor | None) -> FoundFunction:
        """Return the function at a rank, or at the one that is chosen."""
        start = None if start is None else self._inside(start)
        task = Task(self.tolerance, self.options.seed, self.history)
        call = self._pipeline(task, rank, start, diagnose=self.options.diagnose)
        answers = self._answers(call, self.operator, self.left)
        if start is not None and not answers.rank[0] and self._does_as_well(start, answers):
            answers.U, answers.rank[:] = start[None].numpy(), start.shape[-1]
        found = self._function(answers, interrupted=False)
        if not call.path:
            return found
        path = [np.array(column) for column in zip(*call.path, strict=True)]
        # Scores are those of residuals relative to the responses, not to their deviations.
        size = torch.linalg.vector_norm(self.root * (self.y / self.unit / self.unit))
        spread = torch.linalg.vector_norm(self.root * self.left)
        path[2] += 2 * len(self.y) * float(torch.log(spread / size))
        return replace(found, recovery=replace(found.recovery, rank_path=RankPath(*path)))

    def _does_as_well(self, start: Tensor, nothing: Answers) -> bool:
        """Tell whether a factor, which may be that without a constant, fits as well as none."""
        least = float(nothing.evidence.residual[0])
        return least > 0 and self._residual(start) <= (1 + _SAME) * least

    def _pipeline(
        self, task: Task, rank: int | None, start: Tensor | None, *, diagnose: bool
    ) -> Pipeline:
        options = self.options
        acceptance = options.acceptance or DEFAULT
        return Pipeline(
            task, rank, options.max_rank, options.max_starts, acceptance, start, diagnose
        )

    def _answers(self, call: Pipeline, operator: HeldMeasurements, y: Tensor) -> Answers:
        try:
            return call.answers(operator, y, self.weights)
        except KeyboardInterrupt as stop:
            if call.given is None:
                raise
            answers = call.unfinished_answers()
            if operator is not self.operator:  # without a constant
                answers.U = self._inside(torch.from_numpy(answers.U)).numpy()
            raise Interrupted(self._function(answers, interrupted=True)) from stop

    def _function(self, answers: Answers, *, interrupted: bool) -> FoundFunction:
        """Return the function of a matrix, in the user's coordinates."""
        U = torch.from_numpy(answers.U[0])
        forms = (self.inputs @ U).square().sum(-1)
        columns, root = self.operator.Z, self.root
        system, right = root[:, None] * columns, root * (self.left - forms)
        b = torch.linalg.lstsq(system, right[:, None], driver="gelsd").solution[:, 0]
        e = forms + columns @ b - self.left
        evidence, size = answers.evidence, float(torch.linalg.vector_norm(root * self.left))
        own = float(torch.linalg.vector_norm(root * e)) / (size or 1.0)
        reproduced = bool(evidence.reproduced[0])
        if interrupted:
            evidence.residual[:] = own
        elif reproduced and not answers.rank[0] and own > self.tolerance:  # all inputs are equal
            evidence.residual[:], evidence.reproduced[:], evidence.best[:] = own, False, True
        elif reproduced and not self._reproduces_most(e):
            evidence.reproduced[:] = False
        answers.U = answers.U * self.unit
        slope, value = b[:-1] * self.unit * self.unit, b[-1] * self.unit * self.unit
        if self.T is not None:
            answers.U = rotated((self.T / self.scale[:, None]).numpy() @ answers.U, answers.rank)
            answers.evidence.spans[:] &= self.T.shape[-1] == len(self.T)
            slope = self.T @ slope if self.linear else slope
        lengths = np.linalg.norm(answers.U[0] * self.scale.numpy()[:, None], axis=0)
        seen = lengths > _NEGLIGIBLE_LENGTH * lengths.max(initial=0.0)
        answers.U, answers.rank[:] = np.where(seen, answers.U, 0.0), seen.sum()
        answers.require_range()
        found = answers.recovery(torch.Size(), np.empty(0), self.history, len(self.y))
        slope = slope / self.scale if self.linear else torch.zeros_like(self.center)
        return FoundFunction(found, self.center.numpy(), slope.numpy(), float(value) + self.mean)

    def _inside(self, U: Tensor) -> Tensor:
        """Return a factor in the coordinates and units of the search."""
        if self.T is not None:
            U = torch.linalg.pinv(self.T) @ (U * self.scale[:, None])
        return U / self.unit

    def _reproduces_most(self, e: Tensor) -> bool:
        """Tell whether responses near the median are reproduced on their own scale too.

        A few responses that are far larger hide the errors of all others in the residual, and
        inputs as large hide their digits when they are centred.
        """
        y = (self.y / self.unit / self.unit).numpy()  # `left` has lost digits if the mean is large
        distance = np.abs(y - np.median(y))
        most = distance <= np.quantile(distance, _MOST)
        mass = self.root.square().numpy()[most]
        spread, error = (
            float(np.sqrt(mass @ v[most] ** 2 / max(mass.sum(), tiny())))
            for v in (distance, e.numpy())
        )
        if not spread:  # most responses are equal
            return True
        size = float(np.median(np.abs(y)))
        return error <= max(_TOLERANCES * self.level * spread, _ROUNDING * size)
