"""What the tests of recovery share: the task of a search, and the error of a factor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from posquad.recovery import costs
from posquad.recovery.budget import Budget, History
from posquad.recovery.candidates import Task


def task_of(tolerance: float = 1e-10, *, seed: int = 0, max_steps: int = 10_000) -> Task:
    return Task(tolerance, seed, History(Budget(max_steps=max_steps)))


@contextmanager
def costs_are(**numbers: float) -> Iterator[None]:
    """Change numbers of `posquad.recovery.costs`, for a block or a decorated test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in numbers.items():
            patch.setattr(costs, name, number)
        yield


def relative_error(Q: Tensor, U_star: Tensor) -> float:
    """`||Q - Q_star|| / ||Q_star||` for `Q_star = U_star U_star'`."""
    Q_star = U_star @ U_star.mT
    return float(torch.linalg.matrix_norm(Q - Q_star) / torch.linalg.matrix_norm(Q_star))
