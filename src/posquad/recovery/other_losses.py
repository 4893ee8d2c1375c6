"""`recover` with another loss than least squares: calls of `recover` with changing weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import Array, like, positive_integer, positive_number
from posquad.recovery.losses import Loss, Poisson, Robust, require_counts
from posquad.recovery.result import Recovery, stacked_recoveries
from posquad.recovery.reweight import Squares, relative_residual, reweight


def recover_by_reweighting(
    recover: Callable[..., Recovery],
    loss: Loss,
    given: tuple[Array, Tensor, Tensor, Tensor],
    options: dict[str, Any],
) -> Recovery:
    """Recover with another loss than least squares, the problems of a batch one by one.

    `given` are X as the user gave it, and the checked X, y and weights of one batch. `options` are
    the other arguments of `recover`; `tolerance` is a number.
    """
    model, X, y, w = given
    if isinstance(loss, Poisson):
        require_counts(X, y, w)
    budget = _Budget(options.pop("max_steps"), options.pop("time_limit"))
    if y.ndim == 1:
        return _one(recover, loss, given, options, budget)
    (n, d), batch, start = X.shape[-2:], y.shape[:-1], options.pop("start")
    flat = zip(X.reshape(-1, n, d), y.reshape(-1, n), w.reshape(-1, n), strict=True)
    starts = None
    if start is not None:
        factors = torch.as_tensor(start).to(X)
        starts = factors.expand(*batch, *factors.shape[-2:]).reshape(-1, *factors.shape[-2:])
    parts = [
        _one(
            recover,
            loss,
            (like(model, x), x, responses, weights),
            options | {"start": None if starts is None else like(model, starts[k])},
            budget,
        )
        for k, (x, responses, weights) in enumerate(flat)
    ]
    if not parts:
        empty = recover(like(model, X), like(model, y), **options)
        return replace(empty, loss=loss.name)
    return stacked_recoveries(parts, batch, model)


class _Budget:
    """Steps and seconds of all calls of `recover` together."""

    def __init__(self, max_steps: int, time_limit: float | None) -> None:
        self.steps = positive_integer("max_steps", max_steps)
        limit = None if time_limit is None else positive_number("time_limit", time_limit)
        self.end = None if limit is None else time.perf_counter() + limit

    @property
    def spent(self) -> bool:
        late = self.end is not None and time.perf_counter() > self.end
        return late or self.steps <= 0

    @property
    def limits(self) -> dict[str, Any]:
        left = None if self.end is None else max(1e-3, self.end - time.perf_counter())
        return {"max_steps": max(1, self.steps), "time_limit": left}


def _one(
    recover: Callable[..., Recovery],
    loss: Loss,
    given: tuple[Array, Tensor, Tensor, Tensor],
    options: dict[str, Any],
    budget: _Budget,
) -> Recovery:
    """Recover one problem, `X[n, d]`."""
    model, X, y, w = given
    rank, first, parts = options["rank"], options["start"], []

    def fit(squares: Squares, start: Recovery | None, *, full: bool) -> tuple[Recovery, Tensor]:
        changed: dict[str, Any] = {"start": first}
        if start is not None:
            # A positive definite Q is the answer to a convex problem, which needs no start.
            found = int(start.rank)
            warm = 0 < found < X.shape[-1] or (full and found)
            changed["start"] = start.U[:, :found] if warm else None
            if not full:
                changed |= {"rank": rank or max(1, found), "max_starts": 1}
        weights, responses = (like(model, t) for t in squares)
        changed |= {"weights": weights, **budget.limits}
        found = recover(model, responses, **options | changed)
        budget.steps -= found.steps
        parts.append(found)
        return found, (X @ torch.as_tensor(found.U).to(X)).square().sum(-1)

    path = None
    if rank is None and isinstance(loss, Robust):
        chosen = reweight(fit, loss.for_ranks, y, w, options["tolerance"], _spent(budget))
        path, rank = chosen.answer, max(1, int(chosen.answer.rank))
        options = options | {"rank": rank}
        first = chosen.answer.U[:, :rank] if int(chosen.answer.rank) else first
    end = reweight(fit, loss, y, w, options["tolerance"], _spent(budget))
    found = end.answer
    if path is not None:
        found = replace(found, rank_path=path.rank_path, rank_confidence=path.rank_confidence)
    return replace(
        found,
        status=end.status(found.status, interrupted=budget.spent),
        residual=like(model, relative_residual(y, end.mean, w)),
        residual_bound=like(model, torch.zeros_like(end.scale)),
        farkas=None,
        history=like(model, torch.cat([torch.as_tensor(part.history).to(y) for part in parts])),
        steps=sum(part.steps for part in parts),
        loss=loss.name,
        scale=None if isinstance(loss, Poisson) else like(model, end.scale),
        weights=like(model, end.squares.weights),
    )


def _spent(budget: _Budget) -> Callable[[], bool]:
    return lambda: budget.spent
