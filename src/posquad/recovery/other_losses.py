"""`recover` with another loss than least squares: calls of `recover` with changing weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import Array, like
from posquad.core.errors import Interrupted
from posquad.core.status import Status
from posquad.recovery.budget import Budget, History
from posquad.recovery.evidence import Evidence
from posquad.recovery.losses import Loss, Poisson, Robust, require_counts
from posquad.recovery.result import Recovery, stacked_recoveries, unfinished_answers
from posquad.recovery.reweight import Begin, Reweighted, Squares, relative_residual, reweight
from posquad.recovery.robust_starts import robust_factors

Given = tuple[Array, Tensor, Tensor, Tensor]  # X as the user gave it; checked X, y and weights


def recover_by_reweighting(
    recover: Callable[..., Recovery],
    loss: Loss,
    given: Given,
    options: dict[str, Any],
) -> Recovery:
    """Recover with another loss than least squares, the problems of a batch one by one.

    `options` are the other arguments of `recover`; `tolerance` is a number. Ctrl-C raises
    `Interrupted` with the best fits so far.
    """
    model, X, y, w = given
    if isinstance(loss, Poisson):
        require_counts(X, y, w)
    limits = {name: options.pop(name) for name in ("max_steps", "time_limit")}
    budget = Budget(**limits)
    if y.ndim == 1:
        return _Reweighting(recover, loss, given, options, budget).run()
    (n, d), batch, start = X.shape[-2:], y.shape[:-1], options.pop("start")
    flat = list(zip(X.reshape(-1, n, d), y.reshape(-1, n), w.reshape(-1, n), strict=True))
    starts = None
    if start is not None:
        factors = torch.as_tensor(start).to(X)
        starts = factors.expand(*batch, *factors.shape[-2:]).reshape(-1, *factors.shape[-2:])
    if not flat:
        empty = recover(like(model, X), like(model, y), **options)
        return replace(empty, loss=loss.name)
    each = [
        _Reweighting(
            recover,
            loss,
            (like(model, x), x, responses, weights),
            options | {"start": None if starts is None else like(model, starts[k])},
            budget,
        )
        for k, (x, responses, weights) in enumerate(flat)
    ]
    parts: list[Recovery] = []
    try:
        for problem in each:
            parts.append(problem.run())
    except KeyboardInterrupt as stop:
        parts += [problem.unfinished() for problem in each[len(parts) :]]
        raise Interrupted(stacked_recoveries(parts, batch, model)) from stop
    return stacked_recoveries(parts, batch, model)


class _Reweighting:
    """The fits to one problem, `X[n, d]`, and the best of them so far."""

    def __init__(
        self,
        recover: Callable[..., Recovery],
        loss: Loss,
        given: Given,
        options: dict[str, Any],
        budget: Budget,
    ) -> None:
        self.recover, self.loss, self.given, self.budget = recover, loss, given, budget
        self.options, self.rank, self.first = options, options["rank"], options["start"]
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
        _, X, y, w = self.given
        level, seed = self.options["tolerance"], self.options["seed"]

        def starts(loss: Robust, found: Recovery) -> list[Begin[Recovery]]:
            rank = self.rank or int(found.rank)
            if not rank:
                return []
            before = self.budget.steps
            factors = robust_factors(X, y, w, rank, loss, level, seed, self.budget)
            self.steps += self.budget.steps - before
            each = list(factors) if self.first is None else [*factors, torch.as_tensor(self.first)]
            near = [replace(found, U=like(self.given[0], U.to(X)), rank=U.shape[1]) for U in each]
            return [Begin(answer, self._means(answer)) for answer in near] if len(factors) else []

        return reweight(
            self._fit, loss, y, w, level, lambda: self.budget.spent, self._note, starts, seed
        )

    def _note(self, end: Reweighted[Recovery]) -> None:
        self.best = end

    def _fit(
        self, squares: Squares, start: Recovery | None, *, full: bool
    ) -> tuple[Recovery, Tensor]:
        """Fit by least squares with these weights; return the answer and its means."""
        model, X, _, _ = self.given
        changed: dict[str, Any] = {"rank": self.rank, "start": self.first}
        if start is not None:
            # A positive definite Q is the answer to a convex problem, which needs no start.
            found = int(start.rank)
            warm = 0 < found < X.shape[-1] or (full and found)
            changed["start"] = start.U[:, :found] if warm else None
            if not full:
                changed |= {"rank": self.rank or max(1, found), "max_starts": 1}
        weights, responses = (like(model, t) for t in squares)
        changed |= {"weights": weights, **self.budget.limits}
        found = self.recover(model, responses, **self.options | changed)
        self.budget.count(found.steps)
        self.history.append((torch.as_tensor(found.history), torch.as_tensor(found.history_rank)))
        self.steps += found.steps
        return found, self._means(found)

    def _means(self, found: Recovery) -> Tensor:
        X = self.given[1]
        return (X @ torch.as_tensor(found.U).to(X)).square().sum(-1)

    def _only(self, found: Recovery) -> Reweighted[Recovery]:
        """Return an answer as the end of a reweighting that has hardly begun."""
        _, _, y, w = self.given
        mean = self._means(found)
        scale = self.loss.scale(y, mean, w, self.options["tolerance"])
        return Reweighted(found, mean, Squares(w * self.loss.first_weights(y, w), y), scale)

    def unfinished(self) -> Recovery:
        """Return the best fit so far; Q = 0 if there is none."""
        model, X, y, _ = self.given
        if self.best is None:
            blank = unfinished_answers(y[None], X.shape[-1], self.rank or 1)
            nothing = History(Budget(max_steps=1))
            self.best = self._only(blank.recovery(torch.Size(), model, nothing))
        return self._answer(self.best, Status.INTERRUPTED)

    def _answer(self, end: Reweighted[Recovery], status: Status) -> Recovery:
        """Return the answer for this loss, from that of a weighted fit."""
        model, _, y, w = self.given
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
