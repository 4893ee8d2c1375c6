"""`recover` with another loss than least squares: least squares with changing weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import like
from posquad.core.errors import DomainError, Interrupted
from posquad.core.linalg import eigenvalue_rounding
from posquad.core.status import Status
from posquad.problems.measurements import RankOne
from posquad.recovery.admitted import Admitted, admitted_start
from posquad.recovery.budget import Budget, History
from posquad.recovery.evidence import Evidence
from posquad.recovery.least_squares import recover_by_least_squares
from posquad.recovery.losses import Loss, Poisson, Robust, require_counts
from posquad.recovery.options import Options
from posquad.recovery.result import Recovery, stacked_recoveries, unfinished_answers
from posquad.recovery.reweight import (
    Begin,
    Reweighted,
    Squares,
    fit_by_reweighting,
    relative_residual,
)
from posquad.recovery.robust_starts import robust_factors


def recover_by_reweighting(loss: Loss, given: Admitted, options: Options, level: float) -> Recovery:
    """Recover with another loss than least squares, the problems of a batch one by one.

    Responses count as reproduced at the `level`. Ctrl-C raises `Interrupted` with the best fits so
    far.
    """
    if isinstance(loss, Poisson):
        _require_counts(given)
    budget = Budget(max_steps=options.max_steps, time_limit=options.time_limit)
    if not given.batch:
        return _Reweighting(loss, given, options, level, budget).run()
    parts, start = given.flattened(), options.start
    if not parts:
        history = options.history(None)
        empty = recover_by_least_squares(given, options, level, history, weighted=False)
        return replace(empty, loss=loss.name)
    each = []
    starts = [None] * len(parts)
    if start is not None:
        factors = admitted_start(start, given.operator.d, given.y, options.rank)
        starts = list(factors.reshape(-1, *factors.shape[-2:]))
    for part, own in zip(parts, starts, strict=True):
        alone = replace(options, start=own)
        each.append(_Reweighting(loss, part, alone, level, budget))
    ends: list[Recovery] = []
    try:
        for problem in each:
            ends.append(problem.run())
    except KeyboardInterrupt as stop:
        ends += [problem.unfinished() for problem in each[len(ends) :]]
        raise Interrupted(stacked_recoveries(ends, given.batch, given.model)) from stop
    return stacked_recoveries(ends, given.batch, given.model)


def _require_counts(given: Admitted) -> None:
    """Refuse responses that are no counts, and measurements whose means may be negative."""
    operator = given.operator
    require_counts(operator.data.flatten(-operator.own_dimensions), given.y, given.weights)
    if isinstance(operator, RankOne):
        return
    lowest = torch.linalg.eigvalsh(operator.matrices)[..., 0]
    negative = lowest < -eigenvalue_rounding(operator.d, lowest.dtype) * operator.norms
    if bool(negative.any()):
        expected = "positive semidefinite A_i for loss='poisson', because <A_i, Q> is a mean"
        got = f"a least eigenvalue of {float(lowest[negative].min()):.3g}"
        raise DomainError("A", expected=expected, got=got)


class _Reweighting:
    """The fits to one problem, and the best of them so far."""

    def __init__(
        self, loss: Loss, given: Admitted, options: Options, level: float, budget: Budget
    ) -> None:
        self.loss, self.given, self.level, self.budget = loss, given, level, budget
        self.options, self.rank, self.first = options, options.rank, options.start
        self.history, self.steps = [], 0  # of all fits
        self.best: Reweighted[Recovery] | None = None

    def run(self) -> Recovery:
        """Return the answer."""
        try:
            return self._run()
        except KeyboardInterrupt as stop:
            if self.best is None and isinstance(stop, Interrupted):  # in the first fit
                self._note(self._only(stop.result))
            raise Interrupted(self.unfinished()) from stop

    def _run(self) -> Recovery:
        loss, path = self.loss, None
        if self.rank is None and isinstance(loss, Robust):
            path = self._reweight(loss.for_ranks).answer
            self.rank = max(1, int(path.rank))
            self.first = path.U[:, : self.rank] if int(path.rank) else self.first
        end = self._reweight(loss)
        status = end.status(end.answer.status, interrupted=self.budget.spent)
        found = self._answer(end, status)
        if path is None:
            return found
        return replace(found, rank_path=path.rank_path, rank_confidence=path.rank_confidence)

    def _reweight(self, loss: Loss) -> Reweighted[Recovery]:
        operator, y, w = self.given[:3]
        seed = self.options.seed

        def starts(loss: Robust, found: Recovery) -> list[Begin[Recovery]]:
            rank = self.rank or int(found.rank)
            if not rank:
                return []
            before = self.budget.steps
            factors = robust_factors(operator, y, w, rank, loss, self.level, seed, self.budget)
            self.steps += self.budget.steps - before
            each = list(factors) if self.first is None else [*factors, torch.as_tensor(self.first)]
            near = [
                replace(found, U=like(self.given.model, U.to(y)), rank=U.shape[1]) for U in each
            ]
            return [Begin(answer, self._means(answer)) for answer in near] if len(factors) else []

        return fit_by_reweighting(
            self._fit, loss, y, w, self.level, lambda: self.budget.spent, self._note, starts, seed
        )

    def _note(self, end: Reweighted[Recovery]) -> None:
        self.best = end

    def _fit(
        self, squares: Squares, start: Recovery | None, *, full: bool
    ) -> tuple[Recovery, Tensor]:
        """Fit by least squares with these weights; return the answer and its means."""
        changed: dict[str, Any] = {"rank": self.rank, "start": self.first}
        if start is not None:
            # A positive definite Q is the answer to a convex problem, which needs no start.
            found = int(start.rank)
            warm = 0 < found < self.given.operator.d or (full and found)
            changed["start"] = start.U[:, :found] if warm else None
            if not full:
                changed |= {"rank": self.rank or max(1, found), "max_starts": 1}
        options = replace(self.options, **changed, **self.budget.limits)
        given = self.given._replace(weights=squares.weights, y=squares.responses)
        history = options.history(options.progress)
        found = recover_by_least_squares(given, options, self.level, history, weighted=True)
        self.budget.count(found.steps)
        self.history.append((torch.as_tensor(found.history), torch.as_tensor(found.history_rank)))
        self.steps += found.steps
        return found, self._means(found)

    def _means(self, found: Recovery) -> Tensor:
        U = torch.as_tensor(found.U).to(self.given.y)
        return self.given.operator.apply_factor_kernel(U)

    def _only(self, found: Recovery) -> Reweighted[Recovery]:
        """Return an answer as the end of a reweighting that has hardly begun."""
        y, w = self.given.y, self.given.weights
        mean = self._means(found)
        scale = self.loss.scale(y, mean, w, self.level)
        return Reweighted(found, mean, Squares(w * self.loss.first_weights(y, w), y), scale)

    def unfinished(self) -> Recovery:
        """Return the best fit so far; Q = 0 if there is none."""
        operator, y, model = self.given.operator, self.given.y, self.given.model
        if self.best is None:
            blank = unfinished_answers(y[None], operator.d, self.rank or 1)
            nothing = History(Budget(max_steps=1))
            self.best = self._only(blank.recovery(torch.Size(), model, nothing, operator.n))
        return self._answer(self.best, Status.INTERRUPTED)

    def _answer(self, end: Reweighted[Recovery], status: Status) -> Recovery:
        """Return the answer for this loss, from that of a weighted fit."""
        model, y, w = self.given.model, self.given.y, self.given.weights
        residual = float(relative_residual(y, end.mean, w))
        nothing = [(y.new_zeros(1), torch.zeros(1, dtype=torch.int64))]
        history, ranks = zip(*(self.history or nothing), strict=True)
        return replace(
            end.answer,
            status=status,
            evidence=_of_this_loss(end.answer.evidence, status, residual),
            farkas=None,
            history=like(model, torch.cat(history).to(y)),
            history_rank=like(model, torch.cat(ranks)),
            steps=self.steps,
            loss=self.loss.name,
            scale=None if isinstance(self.loss, Poisson) else like(model, end.scale),
            weights=like(model, end.squares.weights),
        )


def _of_this_loss(evidence: Evidence, status: Status, residual: float) -> Evidence:
    """Return the evidence for an answer, from that of the last weighted fit and the status."""
    known: dict[str, Any] = {"residual": residual, "bound": 0.0}
    if status in (Status.BEST_FIT, Status.STALLED, Status.INTERRUPTED):
        known |= {"reproduced": False, "worst": math.nan, "error": math.nan}
        known |= {"best": status is Status.BEST_FIT, "spent": status is Status.INTERRUPTED}
    return evidence.updated(**known)
