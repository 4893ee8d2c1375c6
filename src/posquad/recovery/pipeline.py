"""The stages of `recover` in order, for one problem or a batch: prepare, search, diagnose."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.problems.measurements import one_design, select_designs
from posquad.recovery import ranks
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import (
    Diagnosis,
    diagnose_any,
    needed_samples,
    status_codes,
    undiagnosed,
)
from posquad.recovery.exclusion import excludes_others
from posquad.recovery.others import Radii, find_second_solution
from posquad.recovery.prepare import has_uneven_rows, looks_nongeneric, normalize_rows, prepare
from posquad.recovery.result import Answers, blank_answers
from posquad.recovery.search import search
from posquad.recovery.shared import Shared
from posquad.recovery.tuning import Tuning


@dataclass
class Pipeline:
    """One call of `recover`: the stages in order, for one problem or a batch.

    Every stage is a function of values: `prepare` gives a `Prepared`, which with everything that
    does not depend on the rank is a `Shared`; `search` gives `Candidates`, `diagnose_any` a
    `Diagnosis`; together they are the answer. What is kept here is for results of one problem, and
    for a call that is interrupted.
    """

    task: Task
    rank: int | None
    max_rank: int | None
    max_starts: int | None
    tuning: Tuning
    start: Tensor | None = None
    diagnose: bool = True
    path: list[tuple[int, float, float]] = field(default_factory=list)  # of the last problem
    farkas: Tensor | None = None  # of the last problem
    inputs: Tensor | None = None  # [B, n, d] of all problems
    current: tuple[Shared, np.ndarray] | None = None  # what is being solved, and its flat indices

    @property
    def budget(self) -> Budget:
        return self.task.history.budget

    @cached_property
    def unfinished(self) -> Answers:
        """Answers that are complete so far; Q = 0 for the others."""
        assert self.inputs is not None, "`answers` knows the problems"
        blank = blank_answers(self.inputs, self.rank or 1)
        blank.codes[:] = Status.INTERRUPTED.code
        blank.residual[:] = 1.0  # of Q = 0
        blank.error[:] = np.nan
        return blank

    def answers(self, X: Tensor, y: Tensor, weights: Tensor | None) -> Answers:
        """Return the answers to all problems, `X[..., n, d]`, as a flat batch."""
        n, d = X.shape[-2:]
        X = _flat(X)
        self.inputs = X if X.ndim == 3 else X[None]
        if X.ndim == 2:
            return self._single(X, y, weights, self.start, 0)
        sizes = self.tuning.sizes
        most = sizes.batch_entries if X.device.type == "cpu" else sizes.batch_entries_elsewhere
        size = max(1, most // (n * d * (self.rank or 1)))
        if self.rank == d and n >= d * (d + 1) // 2 and one_design(X) is not None:
            size = max(1, most // n)  # a problem is its responses
        size = max(1, min(size, sizes.batch_problems))
        flat = [X, y.reshape(-1, n)]
        rest = [
            None if weights is None else weights.reshape(-1, n),
            None if self.start is None else self.start.reshape(-1, *self.start.shape[-2:]),
        ]
        parts = []
        for begin in range(0, len(flat[0]), size):
            part = slice(begin, begin + size)
            w, start = (None if t is None else t[part] for t in rest)
            parts.append(self._batch(flat[0][part], flat[1][part], w, start, begin))
        return Answers.stacked(parts) if parts else self.unfinished

    def unfinished_answers(self) -> Answers:
        """Return the answers that were complete at an interruption, and the best of the others."""
        best = self.task.history.best
        if best is not None and self.current is not None:
            shared, where = self.current
            found = best if best.residual.ndim else best.one()
            U = host(shared.prepared.restore(best.U)).reshape(-1, *best.U.shape[-2:])
            put = self.unfinished.select(where)
            put.U, put.starts = U, found.starts
            put.residual = shared.prepared.given_residual(best.U, best.residual).reshape(-1)
            put.rank = np.where(U.any((-2, -1)), best.rank, 0)
            self.unfinished.put(where, put)
        return self.unfinished

    def _begin(self, shared: Shared, where: np.ndarray) -> None:
        """Remember what is being solved."""
        self.current, self.task.history.best = (shared, where), None

    def _batch(
        self, X: Tensor, y: Tensor, weights: Tensor | None, start: Tensor | None, begin: int
    ) -> Answers:
        """Solve the regular problems of a batch jointly, and the others one by one.

        `begin` is the flat index of the first one.
        """
        n, d = X.shape[-2:]
        answers = blank_answers(X, self.rank or 1)
        special = np.ones(len(X), dtype=bool)
        if n >= needed_samples(d, self.rank or 1) and start is None and len(X):
            inputs = X[:1] if one_design(X) is not None else X
            zero = ~(y != 0).any(-1) | ~(inputs != 0).any(-1).any(-1)
            special = host(has_uneven_rows(X, weights, self.tuning) | zero).copy()
            if self.rank != d or n < d * (d + 1) // 2:  # what is convex has no second solution
                special |= looks_nongeneric(X, self.tuning)
        regular = (~special).nonzero()[0]
        if len(regular):
            taken = torch.from_numpy(regular).to(X.device)
            w = None if weights is None else weights[taken]
            inputs = select_designs(X, taken)
            shared = Shared(prepare(inputs, y[taken], w, self.tuning), self.tuning)
            special[regular] = True
            if self.rank is not None:
                parts = [(self.rank, None, None, np.arange(len(regular)))]
            else:
                parts = self._ranked(shared, begin + regular)
            for rank, first, sure, chosen in parts:
                part = shared
                if len(chosen) < len(regular):
                    part = shared.select(torch.from_numpy(chosen).to(X.device))
                where = regular[chosen]
                self._begin(part, begin + where)
                solved, alone = self._solve_at_rank(part, rank, first, sure)
                done = where[~alone]
                answers.put(done, solved.select(~alone))
                self.unfinished.put(begin + done, answers.select(done))
                special[done] = False
        for index in special.nonzero()[0].tolist():
            w, first = (None if t is None else t[index] for t in (weights, start))
            single = self._single(X[index], y[index], w, first, begin + index)
            answers.put(np.array([index]), single)
            self.unfinished.put(np.array([begin + index]), single)
        return answers

    def _ranked(
        self, shared: Shared, where: np.ndarray
    ) -> list[tuple[int, Tensor, np.ndarray, np.ndarray]]:
        """Choose the ranks; return rank, starts, confidences and indices of each group.

        Problems whose samples do not suffice for a choice are in no group.
        """
        d = shared.problem.d
        enough = (shared.prepared.span == d) & (shared.distinct >= needed_samples(d, 1))
        chosen = enough.nonzero()[0]
        if not len(chosen):
            return []
        part = shared.select(torch.from_numpy(chosen).to(shared.problem.y.device))
        choice = ranks.choose_ranks(
            part,
            self.task,
            self._starts(d, 1),
            self.max_rank,
            lambda few, index: self._begin(few, where[chosen[index]]),
        )
        groups = []
        for rank in choice.rank.unique().tolist():
            members = (choice.rank == rank).nonzero()[:, 0]
            sure, index = host(choice.confidence[members]), chosen[host(members)]
            factors = choice.factors[rank]
            groups.append((rank, factors[members.to(factors.device)], sure, index))
        return groups

    def _solve_at_rank(
        self, shared: Shared, rank: int, start: Tensor | None, sure: np.ndarray | None
    ) -> tuple[Answers, np.ndarray]:
        """Solve regular problems at one rank; also return which of them must be solved alone."""
        d, acceptance = shared.problem.d, self.tuning.acceptance
        alone = (shared.prepared.span < d) | (shared.distinct < needed_samples(d, rank))
        starts = self._starts(d, 1 if self.rank is None else rank)
        found = search(shared, rank, self.task, starts, start)
        squares, residual = found.singular_values**2, found.residual
        full = squares[..., -1] > acceptance.negligible * squares[..., 0]
        reproduced = residual <= self.task.tolerance
        nearly = residual > acceptance.nearly * self.task.tolerance
        repeated = shared.distinct < np.minimum(shared.prepared.count, d * (d + 1) // 2)
        alone = alone | repeated | (reproduced & (~full | nearly))
        if rank == d:
            alone = alone | ~shared.linear
        if self.rank is None and rank > 1:  # whether a lower rank was missed is checked alone
            lower = search(shared, rank - 1, self.task, starts)
            alone = alone | (reproduced & (lower.residual <= self.task.tolerance))
        answers = self._judged(shared, found, 1.0, d, nongeneric=False)
        if sure is not None:
            answers.confidence = np.where(reproduced, 1.0, sure).astype(residual.dtype)
        return answers, alone

    def _single(
        self, X: Tensor, y: Tensor, weights: Tensor | None, start: Tensor | None, index: int
    ) -> Answers:
        """Solve one problem, `X[n, d]`, of this flat index."""
        even = normalize_rows(X, y, weights, self.tuning)
        prepared = prepare(X, y, weights, self.tuning) if even is None else even
        shared = Shared(prepared, self.tuning)
        if not bool(prepared.problem.y.any()) or int(prepared.span) == 0:
            return self._zero(shared, X)
        self._begin(shared, np.array([index]))
        found, sure = self._solved(shared, start)
        reproduced = float(found.residual) <= self.task.tolerance
        if even is not None and not reproduced and not self.budget.spent:
            # No matrix interpolates, so the best fit depends on lengths and weights.
            shared = Shared(prepare(X, y, weights, self.tuning), self.tuning)
            self._begin(shared, np.array([index]))
            found, sure = self._solved(shared, start)
        repeated = int(shared.distinct) < int(shared.prepared.count)
        nongeneric = repeated or bool(looks_nongeneric(X, self.tuning))
        return self._judged(shared, found, sure, X.shape[-1], nongeneric=nongeneric)

    def _starts(self, d: int, rank: int) -> int:
        if self.max_starts is not None:
            return self.max_starts
        return self.tuning.schedule.max_starts(dimension(d, rank))

    def _solved(self, shared: Shared, start: Tensor | None) -> tuple[Candidates, float]:
        """Search at the given or chosen rank; return what was found and the confidence in it."""
        d, task = shared.problem.d, self.task
        first = None if start is None else shared.prepared.enter(start)

        def solve(
            rank: int, starts: int, start: Tensor | None = None, *, rough: bool = False
        ) -> Candidates:
            if start is None and first is not None and first.shape[-1] <= rank:
                start = ranks.with_columns(shared, first, rank)
            return search(shared, rank, task, starts, start, rough=rough)

        if self.rank is None:
            most = self._starts(d, 1)
            choice = ranks.choose_rank(solve, shared, task, most, self.max_rank)
            found, sure, self.path = choice
        else:
            k = min(self.rank, d)
            starts = self._starts(d, k)
            if int(shared.distinct) < needed_samples(d, k):  # not unique: any interpolant will do
                starts = min(starts, self.tuning.schedule.undetermined_starts)
            found, sure = solve(k, starts), 1.0
        found = ranks.lower_if_possible(found, solve, shared, task)
        most = min(self.rank or d, d)
        return ranks.raise_if_better(found, solve, shared, task, most), sure

    def _judged(
        self, shared: Shared, found: Candidates, sure: float, ambient: int, *, nongeneric: bool
    ) -> Answers:
        """Diagnose what was found, and return the answers in the user's coordinates."""
        task, residual = self.task, found.residual
        task.history.best = found
        diagnosis = (diagnose_any if self.diagnose else undiagnosed)(shared, found, self.budget)
        codes = status_codes(diagnosis, found, shared, task, ambient=ambient)
        excluded = self._excluded(shared, found, codes)
        open = (codes == Status.RECOVERED.code) & ~shared.linear & ~excluded
        another, others = self._others(shared, found, diagnosis, open, nongeneric=nongeneric)
        codes[another] = Status.NOT_IDENTIFIED.code
        if self.budget.spent:  # whether there is another solution is not known
            codes[open & ~another] = Status.INTERRUPTED.code
        reproduced = residual <= task.tolerance
        if not self.diagnose:
            codes[codes == Status.NOT_IDENTIFIED.code] = Status.LOSS_REACHED.code
        rank = np.full_like(codes, found.rank)
        if not reproduced.all():
            rank = np.where(reproduced, rank, _numerical_rank(shared, found.singular_values))
        U = host(shared.prepared.restore(found.U))
        given = shared.prepared.given_residual(found.U, residual)
        worse = given > 1  # than Q = 0, in the user's lengths: the search was ended early
        if worse.any():
            U = np.where(worse[..., None, None], 0.0, U)
        # A bound for rows of length one is none for the user's rows.
        even = shared.prepared.rows is not None
        answers = Answers(
            U=U,
            codes=codes,
            residual=np.minimum(given, 1.0),
            rank=np.where(worse, 0, rank),
            confidence=np.full_like(residual, sure),
            curvature=np.stack([diagnosis.low, diagnosis.high], axis=-1),
            error=diagnosis.error,
            samples=shared.distinct,
            needed=np.full_like(rank, diagnosis.needed),
            starts=found.starts,
            excluded=excluded,
            others=others,
            bound=np.zeros_like(residual) if even else found.bound,
        )
        if found.farkas is not None and not residual.ndim and not even:
            self.farkas = found.farkas
        return answers if residual.ndim else answers.one()

    def _excluded(self, shared: Shared, found: Candidates, codes: np.ndarray) -> np.ndarray:
        """Return which of the problems that would be called recovered have no second solution."""
        open = (codes == Status.RECOVERED.code) & ~shared.linear
        if not open.any() or self.budget.spent:
            return np.zeros_like(open)
        if open.ndim == 0:
            return excludes_others(shared, found.U)
        chosen = torch.from_numpy(open.nonzero()[0]).to(found.U.device)
        excluded = np.zeros_like(open)
        excluded[open] = excludes_others(shared.select(chosen), found.U[chosen])
        return excluded

    def _others(
        self,
        shared: Shared,
        found: Candidates,
        diagnosis: Diagnosis,
        open: np.ndarray,
        *,
        nongeneric: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seek a second solution of the problems that are still `open`.

        Return where there is one, and the number of starts.
        """
        another, starts = np.zeros_like(open), np.zeros_like(open, dtype=np.int64)
        if not open.any() or self.budget.spent:
            return another, starts
        apart = np.maximum(100 * diagnosis.error, self.tuning.acceptance.apart)
        near, apart = (torch.as_tensor(v).to(shared.problem.y) for v in (diagnosis.near, apart))
        radii = Radii(near, apart)
        if open.ndim == 0:
            both = find_second_solution(shared, found, self.task, radii, nongeneric=nongeneric)
            return host(both[0]), host(both[1])
        chosen = torch.from_numpy(open.nonzero()[0]).to(found.U.device)
        both = find_second_solution(
            shared.select(chosen),
            found.select(chosen),
            self.task,
            radii.select(chosen),
            nongeneric=False,
        )
        another[open], starts[open] = host(both[0]), host(both[1])
        return another, starts

    def _zero(self, shared: Shared, X: Tensor) -> Answers:
        """Return Q = 0, for responses or inputs that are all zero.

        If `y = 0` and the inputs span the space, Q = 0 is the only answer: Qx_i = 0 for all i.
        """
        prepared = shared.prepared
        answers = blank_answers(X[None], 1)
        answers.samples[:] = shared.distinct
        answers.needed[:] = X.shape[-1]
        if bool(prepared.problem.y.any()):  # the inputs are zero, but not the responses
            answers.residual[:], answers.error[:] = 1.0, np.nan
        spans = int(prepared.span) == X.shape[-1]
        status = Status.RECOVERED if spans else Status.UNDETERMINED
        answers.codes[:] = status.code
        return answers


def _flat(X: Tensor) -> Tensor:
    """Return inputs with one batch dimension; equal inputs become views of one matrix."""
    batch = X.shape[:-2]
    if not batch or batch.numel() < 2 or not X.numel():
        return X if not batch else X.reshape(-1, *X.shape[-2:])
    first, last = X[(0,) * len(batch)], X[(-1,) * len(batch)]
    view = all(X.stride(k) == 0 or batch[k] == 1 for k in range(len(batch)))
    if view or (torch.equal(first, last) and bool((first == X).all())):
        return first.expand(batch.numel(), *first.shape)
    return X.reshape(-1, *X.shape[-2:])


def _numerical_rank(shared: Shared, s: np.ndarray) -> np.ndarray:
    """Return the numerical rank of a factor with singular values `s[..., r]`.

    It is 0 if the predictions are negligible beside the responses.
    """
    problem, negligible = shared.problem, shared.tuning.acceptance.negligible
    squares = s**2
    matters = squares > negligible * squares[..., :1]
    predicted = squares[..., 0] * host(problem.operator.squared_lengths.mean(-1))
    nothing = predicted <= negligible * host(problem.y.abs().mean(-1))
    return np.where(nothing, 0, matters.sum(-1))
