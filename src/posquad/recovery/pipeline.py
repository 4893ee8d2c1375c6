"""The stages of `recover` in order, for one problem or a batch: prepare, search, diagnose."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

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
from posquad.recovery.prepare import (
    has_uneven_rows,
    largest_entry,
    looks_nongeneric,
    normalize_rows,
    prepare,
)
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
    current: tuple[Shared, Tensor] | None = None  # what is being solved, and its flat indices
    unfinished: Answers | None = None  # those that are complete so far

    @property
    def budget(self) -> Budget:
        return self.task.history.budget

    def answers(self, X: Tensor, y: Tensor, weights: Tensor | None) -> Answers:
        """Return the answers to all problems, `X[..., n, d]`, as a flat batch."""
        n, d = X.shape[-2:]
        X = _flat(X)
        unfinished = blank_answers(X if X.ndim == 3 else X[None], self.rank or 1)
        unfinished.codes[:] = Status.INTERRUPTED.code
        unfinished.residual[:] = 1.0  # of Q = 0
        unfinished.error[:] = torch.nan
        self.unfinished = unfinished
        if X.ndim == 2:
            return self._single(X, y, weights, self.start, 0)
        sizes = self.tuning.sizes
        elsewhere = None if X.device.type == "cpu" else sizes.batch_entries_elsewhere
        size = (elsewhere or sizes.batch_entries) // (n * d * (self.rank or 1))
        if self.rank == d and n >= d * (d + 1) // 2 and one_design(X) is not None:
            size = (elsewhere or sizes.batch_responses) // n  # a problem is its responses
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
        return Answers.stacked(parts) if parts else unfinished

    def unfinished_answers(self) -> Answers:
        """Return the answers that were complete at an interruption, and the best of the others."""
        assert self.unfinished is not None, "an interruption is one of `answers`"
        best = self.task.history.best
        if best is not None and self.current is not None:
            shared, where = self.current
            found = best if best.residual.ndim else best.one()
            U = shared.prepared.restore(best.U)
            put = blank_answers(U.reshape(-1, *U.shape[-2:]).mT, best.rank)
            put.U, put.starts = U.reshape(put.U.shape), found.starts
            put.residual = shared.prepared.given_residual(best.U, best.residual).reshape(-1)
            put.rank = torch.where(put.U.any(-1).any(-1), best.rank, 0)
            put.error, put.codes = put.curvature[:, 0], put.codes * 0 + Status.INTERRUPTED.code
            self.unfinished.put(where, put)
        return self.unfinished

    def _begin(self, shared: Shared, where: Tensor) -> None:
        """Remember what is being solved."""
        self.current, self.task.history.best = (shared, where), None

    def _finish(self, where: Tensor, answers: Answers) -> None:
        """Remember answers that are complete."""
        assert self.unfinished is not None, "`answers` makes room for them"
        self.unfinished.put(where, answers)

    def _batch(
        self, X: Tensor, y: Tensor, weights: Tensor | None, start: Tensor | None, begin: int
    ) -> Answers:
        """Solve the regular problems of a batch jointly, and the others one by one.

        `begin` is the flat index of the first one.
        """
        n, d = X.shape[-2:]
        answers = blank_answers(X, self.rank or 1)
        special = torch.ones(len(X), dtype=torch.bool, device=X.device)
        if n >= needed_samples(d, self.rank or 1) and start is None and len(X):
            special = has_uneven_rows(X, weights, self.tuning)
            if self.rank != d or n < d * (d + 1) // 2:  # what is convex has no second solution
                special = special | looks_nongeneric(X, self.tuning)
            inputs = X[:1] if one_design(X) is not None else X
            special = special | (largest_entry(y) == 0) | (largest_entry(inputs).amax(-1) == 0)
        regular = (~special).nonzero()[:, 0]
        if len(regular):
            few = len(regular) < len(X)
            w = weights[regular] if few and weights is not None else weights
            inputs, responses = (select_designs(X, regular), y[regular]) if few else (X, y)
            shared = Shared(prepare(inputs, responses, w, self.tuning), self.tuning)
            special[regular] = True
            if self.rank is not None:
                parts = [(self.rank, None, None, torch.arange(len(regular), device=X.device))]
            else:
                parts = self._ranked(shared, begin + regular)
            for rank, first, sure, chosen in parts:
                part = shared if len(chosen) == len(regular) else shared.select(chosen)
                where = regular[chosen]
                self._begin(part, begin + where)
                solved, alone = self._solve_at_rank(part, rank, first, sure)
                if bool(alone.any()):
                    where, solved = where[~alone], solved.select(~alone)
                answers.put(where, solved)
                self._finish(begin + where, solved)
                special[where] = False
        for index in special.nonzero()[:, 0].tolist():
            w, first = (None if t is None else t[index] for t in (weights, start))
            single = self._single(X[index], y[index], w, first, begin + index)
            answers.put(torch.tensor([index], device=X.device), single)
            self._finish(torch.tensor([begin + index], device=X.device), single)
        return answers

    def _ranked(self, shared: Shared, where: Tensor) -> list[tuple[int, Tensor, Tensor, Tensor]]:
        """Choose the ranks; return rank, starts, confidences and indices of each group.

        Problems whose samples do not suffice for a choice are in no group.
        """
        d = shared.problem.d
        enough = (shared.prepared.span == d) & (shared.distinct >= needed_samples(d, 1))
        chosen = enough.nonzero()[:, 0]
        if not len(chosen):
            return []
        part = shared.select(chosen)
        choice = ranks.choose_ranks(
            part,
            self.task,
            self._starts(d, 1),
            self.max_rank,
            lambda few, index: self._begin(few, where[chosen[index]]),
        )
        groups = []
        for rank in choice.rank.unique().tolist():
            members = (choice.rank == rank).nonzero()[:, 0].to(chosen.device)
            sure = choice.confidence[members.cpu()].to(shared.problem.y)
            groups.append((rank, choice.factors[rank][members], sure, chosen[members]))
        return groups

    def _solve_at_rank(
        self, shared: Shared, rank: int, start: Tensor | None, sure: Tensor | None
    ) -> tuple[Answers, Tensor]:
        """Solve regular problems at one rank; also return which of them must be solved alone."""
        d, acceptance = shared.problem.d, self.tuning.acceptance
        alone = (shared.prepared.span < d) | (shared.distinct < needed_samples(d, rank))
        starts = self._starts(d, 1 if self.rank is None else rank)
        found = search(shared, rank, self.task, starts, start)
        squares = found.singular_values.square()
        full = squares[..., -1] > acceptance.negligible * squares[..., 0]
        reproduced = found.residual <= self.task.tolerance
        nearly = found.residual > acceptance.nearly * self.task.tolerance
        repeated = shared.distinct < shared.prepared.count.clamp_max(d * (d + 1) // 2)
        alone = alone | repeated | (reproduced & (~full | nearly))
        if rank == d:
            alone = alone | ~shared.linear
        if self.rank is None and rank > 1:  # whether a lower rank was missed is checked alone
            lower = search(shared, rank - 1, self.task, starts)
            alone = alone | (reproduced & (lower.residual <= self.task.tolerance))
        answers = self._judged(shared, found, 1.0, d, nongeneric=False)
        if sure is not None:
            answers.confidence = torch.where(reproduced, 1.0, sure)
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
        self._begin(shared, torch.tensor([index], device=X.device))
        found, sure = self._solved(shared, start)
        reproduced = float(found.residual) <= self.task.tolerance
        if even is not None and not reproduced and not self.budget.spent:
            # No matrix interpolates, so the best fit depends on lengths and weights.
            shared = Shared(prepare(X, y, weights, self.tuning), self.tuning)
            self._begin(shared, torch.tensor([index], device=X.device))
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
        codes = torch.where(another, Status.NOT_IDENTIFIED.code, codes)
        if self.budget.spent:  # whether there is another solution is not known
            codes = torch.where(open & ~another, Status.INTERRUPTED.code, codes)
        reproduced = residual <= task.tolerance
        if not self.diagnose:
            reached = codes == Status.NOT_IDENTIFIED.code
            codes = torch.where(reached, Status.LOSS_REACHED.code, codes)
        rank = torch.full_like(codes, found.rank)
        if not bool(reproduced.all()):
            rank = torch.where(reproduced, rank, _numerical_rank(shared, found.singular_values))
        U = shared.prepared.restore(found.U)
        given = shared.prepared.given_residual(found.U, residual)
        worse = given > 1  # than Q = 0, in the user's lengths: the search was ended early
        U = torch.where(worse[..., None, None], 0.0, U)
        # A bound for rows of length one is none for the user's rows.
        even = shared.prepared.rows is not None
        answers = Answers(
            U=U,
            codes=codes,
            residual=given.clamp_max(1.0),
            rank=torch.where(worse, 0, rank),
            confidence=torch.full_like(residual, sure),
            curvature=torch.stack([diagnosis.low, diagnosis.high], dim=-1),
            error=diagnosis.error,
            samples=shared.distinct,
            needed=torch.full_like(rank, diagnosis.needed),
            starts=found.starts,
            excluded=excluded,
            others=others,
            bound=torch.zeros_like(found.bound) if even else found.bound,
        )
        if found.farkas is not None and not residual.ndim and not even:
            self.farkas = found.farkas
        return answers if residual.ndim else answers.one()

    def _excluded(self, shared: Shared, found: Candidates, codes: Tensor) -> Tensor:
        """Return which of the problems that would be called recovered have no second solution."""
        open = (codes == Status.RECOVERED.code) & ~shared.linear
        if not bool(open.any()) or self.budget.spent:
            return torch.zeros_like(open)
        if open.ndim == 0:
            return excludes_others(shared, found.U)
        chosen = open.nonzero()[:, 0]
        excluded = excludes_others(shared.select(chosen), found.U[chosen])
        return torch.zeros_like(open).index_copy(0, chosen, excluded)

    def _others(
        self,
        shared: Shared,
        found: Candidates,
        diagnosis: Diagnosis,
        open: Tensor,
        *,
        nongeneric: bool,
    ) -> tuple[Tensor, Tensor]:
        """Seek a second solution of the problems that are still `open`.

        Return where there is one, and the number of starts.
        """
        count = torch.zeros_like(open, dtype=torch.int64)
        none = torch.zeros_like(open)
        if not bool(open.any()) or self.budget.spent:
            return none, count
        apart = torch.clamp_min(100 * diagnosis.error, self.tuning.acceptance.apart)
        radii = Radii(diagnosis.near, apart)
        if open.ndim == 0:
            return find_second_solution(shared, found, self.task, radii, nongeneric=nongeneric)
        chosen = open.nonzero()[:, 0]
        part = shared.select(chosen)
        another, starts = find_second_solution(
            part, found.select(chosen), self.task, radii.select(chosen), nongeneric=False
        )
        return none.index_copy(0, chosen, another), count.index_copy(0, chosen, starts)

    def _zero(self, shared: Shared, X: Tensor) -> Answers:
        """Return Q = 0, for responses or inputs that are all zero.

        If `y = 0` and the inputs span the space, Q = 0 is the only answer: Qx_i = 0 for all i.
        """
        prepared = shared.prepared
        answers = blank_answers(X[None], 1)
        answers.samples = shared.distinct[None]
        answers.needed = torch.full_like(answers.rank, X.shape[-1])
        if bool(prepared.problem.y.any()):  # the inputs are zero, but not the responses
            answers.residual = torch.ones_like(answers.residual)
            answers.error = torch.full_like(answers.error, torch.nan)
        spans = int(prepared.span) == X.shape[-1]
        status = Status.RECOVERED if spans else Status.UNDETERMINED
        answers.codes = torch.full_like(answers.rank, status.code)
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


def _numerical_rank(shared: Shared, s: Tensor) -> Tensor:
    """Return the numerical rank of a factor with singular values `s[..., r]`.

    It is 0 if the predictions are negligible beside the responses.
    """
    problem, negligible = shared.problem, shared.tuning.acceptance.negligible
    squares = s.square()
    matters = squares > negligible * squares[..., :1]
    predicted = squares[..., 0] * problem.operator.squared_lengths.mean(-1)
    mean = torch.linalg.vector_norm(problem.y, 1, dim=-1) / problem.n  # without a copy
    nothing = predicted <= negligible * mean
    return torch.where(nothing, 0, matters.sum(-1))
