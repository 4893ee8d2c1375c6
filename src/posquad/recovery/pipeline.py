"""The stages of `recover` in order, for one problem or a batch: prepare, search, diagnose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.problems.held import HeldMeasurements
from posquad.recovery import ranks
from posquad.recovery.acceptance import Acceptance
from posquad.recovery.answers import diagnosed_answers, zero_answer
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, Task, visible
from posquad.recovery.coordinates import looks_nongeneric, normalize, prepare
from posquad.recovery.costs import BLOCK
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.escape import escape
from posquad.recovery.findings import reproduces
from posquad.recovery.merging import Merged, merge_equal_rows
from posquad.recovery.prepare import Prepared
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.rank_changes import lower_if_possible, lower_together, raise_if_better
from posquad.recovery.result import Answers, blank_answers, unfinished_answers
from posquad.recovery.returned import returned_factor
from posquad.recovery.search import refine_to_the_end, search
from posquad.recovery.split import select_problems, split_batch
from posquad.recovery.staged import better_of, search_in_stages
from posquad.recovery.status import is_recovered
from posquad.recovery.weighting import weight_stages

# Most starts times unknowns, and bounds on the starts. Measured at n = p + 1; in larger problems a
# start is expensive, and there are fewer spurious minima.
_TOTAL_STARTS = 200_000
_LEAST_STARTS, _MOST_STARTS = 20, 2000
# The same if the samples are too few to identify an answer. A choice: any matrix that reproduces
# the responses will do.
_UNDETERMINED_STARTS = 200
# Entries n d r of the problems that are solved together. Derived: 2 MB, the cache, on a CPU, and
# 1 GB, a small share of its memory, on an accelerator.
_BATCH_ENTRIES, _BATCH_ELSEWHERE = 2**18, 2**27
# Most problems that are solved together; on a GPU, the second of convex ones with one design, if
# half of its free memory is enough. Measured on an H200: cuSOLVER fails above 65,535 matrices, and
# its workspace takes half a megabyte for each; a million problems of d = 3 take half the time.
_BATCH_PROBLEMS, _BATCH_PROBLEMS_MOST = 2**14, 2**16 - 1
# Entries of X of one problem up to which it is solved on the CPU, wherever X is. Derived: its many
# small steps cost their calls, which are slower on an accelerator.
_HOST_ENTRIES = 2**14


def max_starts(unknowns: int) -> int:
    """Return the maximum number of starts of a problem.

    >>> max_starts(100), max_starts(1000), max_starts(10**6)
    (2000, 200, 20)
    """
    return max(_LEAST_STARTS, min(_MOST_STARTS, _TOTAL_STARTS // unknowns))


def _most_problems(device: torch.device) -> int:
    """Return how many convex problems with one design are solved together at most."""
    if device.type != "cuda":
        return _BATCH_PROBLEMS
    affordable = torch.cuda.mem_get_info(device)[0] // 2**20  # half a megabyte each, of half
    return max(_BATCH_PROBLEMS, min(_BATCH_PROBLEMS_MOST, affordable))


@dataclass
class Pipeline:
    """One call of `recover`: the stages in order, for one problem or a batch.

    Every stage is a function of values: `prepare` gives a `Prepared`, which with everything that
    does not depend on the rank is a `ProblemCache`; `search` gives `Candidates`, `diagnose_any` a
    `Diagnosis`; together they are the answer. What is kept here is for results of one problem, and
    for a call that is interrupted.
    """

    task: Task
    rank: int | None
    max_rank: int | None
    max_starts: int | None
    acceptance: Acceptance
    start: Tensor | None = None
    diagnose: bool = True
    path: list[tuple[int, float, float]] = field(default_factory=list)  # of the last problem
    farkas: Tensor | None = None  # of the last problem
    merged: Merged | None = None  # of the last problem, if inputs are equal
    given: tuple[Tensor, int] | None = None  # responses [B, n] of all problems, and d
    current: tuple[ProblemCache, np.ndarray] | None = (
        None  # what is being solved, and its flat indices
    )

    @property
    def budget(self) -> Budget:
        return self.task.history.budget

    @cached_property
    def unfinished(self) -> Answers:
        """Answers that are complete so far; Q = 0 for the others."""
        assert self.given is not None, "`answers` knows the problems"
        return unfinished_answers(*self.given, self.rank or 1)

    def answers(self, operator: HeldMeasurements, y: Tensor, weights: Tensor | None) -> Answers:
        """Return the answers to all problems of the operator as a flat batch."""
        n, d = operator.n, operator.d
        operator = operator.flattened()
        self.given = y.reshape(-1, n), d
        if not operator.batch_shape:
            return self._single(operator, y, weights, self.start, 0)
        device = operator.data.device
        elsewhere = None if device.type == "cpu" else _BATCH_ELSEWHERE
        size = (elsewhere or _BATCH_ENTRIES) // max(1, operator.entries * (self.rank or 1))
        most = _BATCH_PROBLEMS
        if self.rank == d and n >= d * (d + 1) // 2 and operator.shared is not None:
            size = (elsewhere or BLOCK) // n  # a problem is its responses
            most = _most_problems(device)
        size = max(1, min(size, most))
        responses = y.reshape(-1, n)
        rest = [
            None if weights is None else weights.reshape(-1, n),
            None if self.start is None else self.start.reshape(-1, *self.start.shape[-2:]),
        ]
        parts = []
        for begin in range(0, len(responses), size):
            part = slice(begin, begin + size)
            w, start = (None if t is None else t[part] for t in rest)
            some = operator.holding(operator.data[part])
            parts.append(self._batch(some, responses[part], w, start, begin))
        return Answers.stacked(parts) if parts else self.unfinished

    def unfinished_answers(self) -> Answers:
        """Return the answers that were complete at an interruption, and the best of the others."""
        best = self.task.history.best
        if best is not None and self.current is not None:
            shared, where = self.current
            answer = returned_factor(shared, best, self.task.tolerance)
            put = self.unfinished.select(where)
            put.U, put.starts = answer.U.reshape(len(where), *answer.U.shape[-2:]), best.starts
            least = shared.prepared.least
            worse = np.reshape(answer.given > least, -1)  # than Q = 0
            put.U[worse] = 0.0
            put.evidence.residual[:] = np.minimum(answer.given, least)
            put.rank[:] = np.where(put.U.any((-2, -1)), answer.rank, 0)
            put.searched[:] = best.rank
            self.unfinished.put(where, put)
        return self.unfinished

    def _begin(self, shared: ProblemCache, where: np.ndarray) -> None:
        """Remember what is being solved."""
        self.current, self.task.history.best = (shared, where), None

    def _batch(
        self,
        operator: HeldMeasurements,
        y: Tensor,
        weights: Tensor | None,
        start: Tensor | None,
        begin: int,
    ) -> Answers:
        """Solve the problems of a batch jointly, and irregular ones one by one.

        `begin` is the flat index of the first one.
        """
        answers = blank_answers(y, operator.d, self.rank or 1)
        left = np.ones(len(y), dtype=bool)
        given = (operator, y, weights, start)
        regular, uneven = split_batch(operator, y, weights, start, self.rank)
        if uneven.any():
            # Those that no matrix interpolates are solved again with the given lengths.
            where, even = select_problems(given, uneven)
            prepared = normalize(*even[:3])
            if prepared is not None:
                misfit = self._jointly(prepared, even[3], where, begin, answers, left, exact=True)
                regular[misfit] = True
        if regular.any():
            where, some = select_problems(given, regular)
            prepared = prepare(*some[:3])
            self._jointly(prepared, some[3], where, begin, answers, left, exact=False)
        for index in left.nonzero()[0].tolist():
            w, first = (None if t is None else t[index] for t in (weights, start))
            one = operator.holding(operator.data[index])
            single = self._single(one, y[index], w, first, begin + index)
            answers.put(np.array([index]), single)
            self.unfinished.put(np.array([begin + index]), single)
        return answers

    def _jointly(
        self,
        prepared: Prepared,
        start: Tensor | None,
        where: np.ndarray,
        begin: int,
        answers: Answers,
        left: np.ndarray,
        *,
        exact: bool,
    ) -> np.ndarray:
        """Solve prepared problems together; put the answers, and say which are not `left`.

        `where` are their indices in the batch. With `exact`, only answers that reproduce the
        responses are taken; return the indices of the problems without such an answer.
        """
        shared = ProblemCache(prepared, self.acceptance)
        if self.rank is not None:
            d = shared.problem.d
            rank = min(self.rank, d)
            chosen = np.arange(len(where))
            if rank == d:
                # Where the best matrices are a continuum, rounding decides which one is found, and
                # it depends on the batch.
                chosen = (shared.distinct >= d * (d + 1) // 2).nonzero()[0]
            first = None
            if start is not None:
                first = ranks.with_columns(shared, prepared.enter(start), rank)[chosen]
            parts = [(rank, first, None, chosen)] if len(chosen) else []
        else:
            parts = self._ranked(shared, begin + where)
        misfits = []
        for rank, first, sure, chosen in parts:
            part = shared
            if len(chosen) < len(where):
                part = shared.select(torch.from_numpy(chosen).to(shared.problem.y.device))
            members = where[chosen]
            self._begin(part, begin + members)
            solved, alone, reproduced = self._solve_at_rank(
                part, rank, first, sure, ambient=answers.U.shape[-2]
            )
            # In the lengths of the user, what interpolates rows of length one may not.
            reproduced = reproduced & (solved.codes != Status.STALLED.code)
            taken = ~alone & reproduced if exact else ~alone
            misfits.append(members[~alone & ~taken])
            if not taken.all():
                members, solved = members[taken], solved.select(taken)
            answers.put(members, solved)
            self.unfinished.put(begin + members, solved)
            left[members] = False
        return np.concatenate(misfits) if misfits else where[:0]

    def _ranked(
        self, shared: ProblemCache, where: np.ndarray
    ) -> list[tuple[int, Tensor, np.ndarray, np.ndarray]]:
        """Choose the ranks; return rank, starts, confidences and indices of each group.

        Problems whose samples do not suffice for a choice are in no group, and neither are those
        of a rank so high that its trials do not begin at one.
        """
        d = shared.problem.d
        enough = (shared.prepared.span == d) & (shared.distinct >= needed_samples(d, 1))
        enough = enough & (shared.visible_rank <= ranks.FEW_RANKS)
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
        self,
        shared: ProblemCache,
        rank: int,
        start: Tensor | None,
        sure: np.ndarray | None,
        *,
        ambient: int,
    ) -> tuple[Answers, np.ndarray, np.ndarray]:
        """Solve problems at one rank; `ambient` is the dimension of the user's inputs.

        Also return which of them must be solved alone, and which are reproduced.
        """
        d, acceptance = shared.problem.d, self.acceptance
        few = shared.distinct < needed_samples(d, rank)
        repeated = shared.distinct < np.minimum(shared.prepared.count, d * (d + 1) // 2)
        alone = shared.prepared.span < d
        if rank < d:
            alone = alone | few | repeated
        starts = self._starts(d, 1 if self.rank is None else rank)
        if few.all():  # one such problem must not take the starts of others
            starts = min(starts, _UNDETERMINED_STARTS)
        found = search(shared, rank, self.task, starts, start)
        reproduced = found.residual <= self.task.tolerance
        if self.rank is None and rank > 1:  # whether a lower rank was missed is checked alone
            lower = search(shared, rank - 1, self.task, starts)
            alone = alone | (reproduced & (lower.residual <= self.task.tolerance))
        answers = self._judged(shared, found, 1.0, ambient, nongeneric=False)
        if sure is not None:
            certain = ~few & (shared.prepared.count > dimension(d, rank))
            answers.confidence = np.where(reproduced, certain, sure).astype(found.residual.dtype)
        vanishing = reproduced & ~visible(found.singular_values, acceptance.negligible)[..., -1]
        residual = found.residual.copy()
        if self.rank is not None and vanishing.any():
            some = (vanishing & ~alone).nonzero()[0]
            for index, lowered in lower_together(found, shared, self.task, some):
                part = shared.select(torch.from_numpy(index).to(found.U.device))
                lower = self._judged(part, lowered, 1.0, ambient, nongeneric=False)
                answers.put(index, lower)
                residual[index], vanishing[index] = lowered.residual, False
        # Whether a higher rank is better is asked alone.
        nearly = residual > acceptance.nearly * self.task.tolerance
        alone = alone | vanishing | (reproduced & nearly & (answers.rank < d))
        if rank == d:  # second solutions of other inputs are sought alone
            recovered = is_recovered(answers.evidence) & ~shared.linear
            if recovered.any():
                nongeneric = repeated | looks_nongeneric(shared.problem.operator)
                alone = alone | (recovered & nongeneric)
        return answers, alone, reproduced

    def _single(
        self,
        operator: HeldMeasurements,
        y: Tensor,
        weights: Tensor | None,
        start: Tensor | None,
        index: int,
    ) -> Answers:
        """Solve one problem of this flat index; a small one on the CPU."""
        if operator.entries <= _HOST_ENTRIES:
            operator, y = operator.cpu(), y.cpu()
            weights, start = (t if t is None else t.cpu() for t in (weights, start))
        self.merged = merge_equal_rows(operator.data.flatten(1), y, weights)
        if self.merged is not None:
            rows, y, weights = self.merged[:3]
            operator = operator.holding(rows.reshape(-1, *operator.data.shape[1:]))
        d = operator.d
        # Where equal inputs have different responses, no matrix interpolates.
        given = operator, y, weights
        even = None if self._is_inconsistent else normalize(*given)
        shared = self._shared(prepare(*given) if even is None else even)
        where = np.array([index])
        if self.rank == 0 or self._needs_no_matrix(shared):
            return self._without_matrix(shared, d)
        self._begin(shared, where)
        stages = self._stages(*given) if even is None else []
        found, sure = self._solved(shared, start, stages)
        if even is not None and not self._reproduces(shared, found) and not self.budget.spent:
            # The best fit depends on lengths and weights.
            before, shared = shared, self._shared(prepare(*given))
            self._begin(shared, where)
            self.task.history.best = better_of(shared, None, before, found)
            found, sure = self._solved(shared, start, self._stages(*given))
        count = int(shared.prepared.count) - shared.other_terms
        repeated = int(shared.distinct) < min(count, d * (d + 1) // 2)
        nongeneric = repeated or bool(looks_nongeneric(operator))
        return self._concluded(shared, found, sure, d, nongeneric=nongeneric)

    def prepared_answer(self, prepared: Prepared) -> Answers:
        """Return the answer to one problem in working coordinates, as a batch of one."""
        d, shared = prepared.transform.shape[-2], self._shared(prepared)
        self.given = prepared.given.y[None], d
        self._begin(shared, np.array([0]))
        if self.rank == 0 or self._needs_no_matrix(shared):
            return self._without_matrix(shared, d)
        found, sure = self._solved(shared, None)
        # Many samples in general position would determine every symmetric matrix.
        nongeneric = shared.has_reflections and not bool(shared.linear)
        return self._concluded(shared, found, sure, d, nongeneric=nongeneric)

    def _concluded(
        self,
        shared: ProblemCache,
        found: Candidates,
        sure: float,
        ambient: int,
        *,
        nongeneric: bool,
    ) -> Answers:
        """Return the answer to one problem, and give its ranks of the path its residual."""
        if not found.rank:
            return zero_answer(shared, ambient, self.task, 0, sure)
        escapes = False
        if not self.budget.spent:
            found, escapes = escape(shared, found, self.task, self.rank or found.rank)
        if escapes:  # it would be refined
            found = replace(found, settled=np.zeros_like(found.settled))
        answers = self._judged(shared, found, sure, ambient, nongeneric=nongeneric)
        answers.evidence.escapes[:] = escapes
        residual, n = float(answers.evidence.residual[0]), int(shared.prepared.count)
        for rank in {found.rank, int(answers.rank[0])}:  # it may lose columns at the end
            measured = rank, residual, ranks.bic(residual, n, shared.unknowns(max(1, rank)))
            self.path = [measured if trial[0] == rank else trial for trial in self.path]
        return answers

    def _without_matrix(self, shared: ProblemCache, ambient: int) -> Answers:
        """Return Q = 0, which reproduces the responses or is the only matrix of rank 0."""
        if self.rank is None:
            self.path = [t[:3] for t in ranks.without_matrix(shared)]
        return zero_answer(shared, ambient, self.task, self.rank)

    def _needs_no_matrix(self, shared: ProblemCache) -> bool:
        """Whether the responses are zero, or those of other terms, or so are the measurements."""
        more = shared.other_terms > 0 or shared.prepared.sums is not None
        least = self.task.tolerance if more else 0.0
        nothing = int(shared.prepared.span) == 0 or (more and int(shared.distinct) == 0)
        return float(shared.prepared.least) <= least or nothing

    def _reproduces(self, shared: ProblemCache, found: Candidates) -> bool:
        """Whether what was found for one problem reproduces the responses."""
        tolerance = self.task.tolerance
        answer = returned_factor(shared, found, tolerance)
        return bool(reproduces(shared.prepared, answer, tolerance))

    @property
    def _is_inconsistent(self) -> bool:
        """Whether equal inputs have different responses."""
        return self.merged is not None and self.merged.within > self.task.tolerance**2

    def _shared(self, prepared: Prepared) -> ProblemCache:
        """Return what is shared by the ranks of one problem, and begin its history."""
        shared = ProblemCache(self._counted(prepared), self.acceptance)
        if self.given is None or len(self.given[0]) == 1:
            self.task.history.restart(shared.prepared.of_all_samples)
        return shared

    def _counted(self, prepared: Prepared) -> Prepared:
        """Return a problem that counts all samples, also equal inputs that were merged."""
        if self.merged is None:
            return prepared
        return replace(prepared, count=np.array(self.merged.samples), within=self.merged.within)

    def _stages(
        self, operator: HeldMeasurements, y: Tensor, weights: Tensor | None
    ) -> list[ProblemCache]:
        """Return the problems with limited weights, by which those of the user are approached."""
        limited = weight_stages(weights)[:-1]
        prepared = [self._counted(prepare(operator, y, w)) for w in limited]
        return [ProblemCache(each, self.acceptance) for each in prepared]

    def _starts(self, d: int, rank: int) -> int:
        if self.max_starts is not None:
            return self.max_starts
        return max_starts(dimension(d, rank))

    def _solved(
        self, shared: ProblemCache, start: Tensor | None, stages: Sequence[ProblemCache] = ()
    ) -> tuple[Candidates, float]:
        """Search at the given or chosen rank; return what was found and the confidence in it.

        Every rank is approached by the `stages`, unless it is d, where the problem is convex.
        """
        d, task = shared.problem.d, self.task
        first = None if start is None else shared.prepared.enter(start)

        def solve(
            rank: int, starts: int, start: Tensor | None = None, *, rough: bool = False
        ) -> Candidates:
            if start is None and first is not None and first.shape[-1] <= rank:
                start = ranks.with_columns(shared, first, rank)
            if not stages or rank == d:
                return search(shared, rank, task, starts, start, rough=rough)
            return search_in_stages(stages, shared, rank, task, starts, start, rough=rough)

        if self.rank is None:
            most = self._starts(d, 1)
            choice = ranks.choose_rank(solve, shared, task, most, self.max_rank, first)
            found, sure, self.path = choice
            if not found.rank:
                return found, sure
        else:
            k = min(self.rank, d)
            starts = self._starts(d, k)
            if not bool(shared.suffices(k)):  # not unique: any interpolant will do
                starts = min(starts, _UNDETERMINED_STARTS)
            found, sure = solve(k, starts), 1.0
        if not found.rank:
            return found, sure
        found = lower_if_possible(found, solve, shared, task)
        most = min(self.rank or d, d)
        return raise_if_better(found, solve, shared, task, most), sure

    def _judged(
        self,
        shared: ProblemCache,
        found: Candidates,
        sure: float,
        ambient: int,
        *,
        nongeneric: bool,
    ) -> Answers:
        """Diagnose what was found, and keep the vector that proves the bound of one problem."""
        found = refine_to_the_end(shared, found, self.task)
        proved = found.farkas is not None and not found.bound.ndim and found.bound > 0
        if proved and shared.prepared.rows is None:
            self.farkas = found.farkas
        elif self._is_inconsistent:  # equal inputs alone prove a bound
            self.farkas = torch.zeros_like(shared.problem.y)
        return diagnosed_answers(
            shared,
            found,
            self.task,
            sure,
            ambient,
            among=self.rank,
            nongeneric=nongeneric,
            diagnose=self.diagnose,
        )
