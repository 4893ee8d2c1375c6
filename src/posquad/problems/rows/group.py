"""Rows that the processes of a group hold together, each its own part (`torch.distributed`).

Every process runs the same program and calls the same functions in the same order. Rows stay where
they are; only sums are exchanged. They are added in the order of the ranks, on every rank alike, so
that all ranks see the same bits and take the same decisions. Sums that decide an answer are added
in double-double arithmetic (`Rows.total_twofold`): if the blocks of rows are the same, their number
per rank does not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from posquad.core.arrays import Array, floating_tensor, positive_number
from posquad.core.errors import DomainError, PosquadError, first_line
from posquad.core.progress import Progress
from posquad.core.twofold import Twofold
from posquad.problems.rows.exchange import TIMEOUT, Exchange, GroupError, exchange_of
from posquad.problems.rows.source import Rows, as_rows

__all__ = ["GroupError", "SharedRows", "sharded"]

_T = TypeVar("_T")
_GATHERED = 2**20  # numbers of each rank that are gathered at a time


class SharedRows(Rows):
    """The rows of this process, and how to sum over those of all processes of a group."""

    def __init__(
        self,
        own: Rows | None,
        d: int,
        dtype: torch.dtype,
        counts: list[int],
        exchange: Exchange,
    ) -> None:
        self.exchange, self.counts = exchange, counts
        self.rank = exchange.rank
        self.own = own
        self.root = 0  # the rank that decides for all
        self.n, self.d, self.dtype = sum(counts), d, dtype
        self.device = torch.device("cpu") if own is None else own.device

    @property
    def held(self) -> int:
        return self.counts[self.rank]

    def fingerprint(self) -> list[Any] | None:
        own = [] if self.own is None else self.own.fingerprint()
        return None if own is None else [self.rank, self.counts, own]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        return self._blocks_from(0)

    def _blocks_from(self, begin: int) -> Iterator[tuple[slice, Tensor]]:
        if self.own is None:  # sums over no rows are zero, and have their shape
            yield slice(0, 0), torch.empty(0, self.d, dtype=self.dtype)
            return
        for block in self.own.blocks(begin):
            self.exchange.check()
            yield block

    def total(self, value: Tensor) -> Tensor:
        parts = self.all_gather(value)
        total = parts[0]
        for part in parts[1:]:  # in the order of the ranks
            total = total + part
        return total

    def total_twofold(self, value: Twofold) -> Twofold:
        size = value.high.numel()
        for start in range(0, size, _GATHERED):  # not the sums of all ranks at once
            part = slice(start, min(start + _GATHERED, size))
            said = self.all_gather(
                torch.stack([value.high.view(-1)[part], value.low.view(-1)[part]])
            )
            total = sum((Twofold(*each) for each in said[1:]), Twofold(*said[0]))
            value.high.view(-1)[part], value.low.view(-1)[part] = total
        return value

    def largest(self, value: Tensor) -> Tensor:
        return torch.stack(self.all_gather(value)).amax(0)

    def together(self) -> AbstractContextManager[None]:
        return self.exchange.together()

    @property
    def is_shared(self) -> bool:
        return len(self.counts) > 1

    def check_same(self, problem: PosquadError | None = None, fact: Any = None) -> None:
        said = self.all_gather_object((None if problem is None else str(problem), fact))
        if problem is not None:
            raise problem
        for rank, (wrong, _) in enumerate(said):
            if wrong is not None:
                raise GroupError(f"rank {rank}", expected="its rows to be usable", got=wrong)
        facts = _differing([_stated(other) for _, other in said])
        if len(set(facts)) > 1:
            listed = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(facts))
            raise DomainError("arguments", expected="the same on all ranks", got=listed)

    def broadcast(self, decide: Callable[[], _T]) -> _T:
        said: list[Any] = [None, None]
        problem: BaseException | None = None
        if self.rank == self.root:
            try:
                said[0] = decide()
            except BaseException as found:  # the others must not wait for a decision
                stopped = isinstance(found, KeyboardInterrupt)
                problem, said[1] = found, "Ctrl-C" if stopped else first_line(found)
        root = distributed.get_global_rank(self.exchange.group, self.root)
        self.exchange.call(distributed.broadcast_object_list, said, root)
        if problem is not None:
            raise problem
        if said[1] is not None:
            raise GroupError(f"rank {self.root}", expected="a decision", got=said[1])
        return said[0]

    def leading(self, count: int) -> Tensor:
        before = sum(self.counts[: self.rank])
        return self.first_rows(min(max(count - before, 0), self.held))

    def collect(self, value: Tensor) -> Tensor:
        return torch.cat(self.all_gather_object(value))

    def all_gather_object(self, value: Any) -> list[Any]:
        said: list[Any] = [None] * len(self.counts)
        self.exchange.call(distributed.all_gather_object, said, value)
        return said

    def watched(self, progress: Callable[[Progress], None] | None) -> Any:
        def watch(step: Progress) -> None:
            self.exchange.check()
            if progress is not None:
                progress(step)

        return watch

    def all_gather(self, value: Tensor) -> list[Tensor]:
        own = value.contiguous().cpu()  # the exchange is on gloo
        parts = [torch.empty_like(own) for _ in self.counts]
        self.exchange.call(distributed.all_gather, parts, own)
        return [part.to(value.device) for part in parts]

    def name_row(self, row: int) -> str:
        own = f"row {row}" if self.own is None else self.own.name_row(row)
        return f"{own} of rank {self.rank}"

    def name_column(self, column: int) -> str:
        return super().name_column(column) if self.own is None else self.own.name_column(column)


def _stated(fact: Any) -> dict[str, str]:
    """Return a fact as words: plain values by name, other objects by their type."""
    if not isinstance(fact, dict):
        return {"": str(fact)}
    plain = bool | int | float | str | None
    return {
        name: f"{name}={value!r}" if isinstance(value, plain) else f"{name}={type(value).__name__}"
        for name, value in fact.items()
    }


def _differing(facts: list[dict[str, str]]) -> list[str]:
    """Return, for each rank, the words that are not the same on all ranks."""
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    unequal = [name for name in names if len({fact.get(name) for fact in facts}) > 1]
    return [", ".join(fact[name] for name in unequal if name in fact) for fact in facts]


def sharded(X_local: Array | Rows, group: Any = None, timeout: float = TIMEOUT) -> SharedRows:
    """Return the rows of all processes of a group, of which this one holds `X_local[n_local, d]`.

    Numbers of rows may differ, and a process may hold none (an array of shape `[0, d]`). Responses
    and weights that go with the source are those of the rows held here. A process group must exist
    (`torch.distributed.init_process_group`). All processes must agree on d and the dtype.

    Args:
        X_local: the rows of this process, an array or a source of rows.
        group: the group of the processes (gloo); by default all processes.
        timeout: seconds after which the others end if a process says nothing. A process that only
            takes long is waited for. For a group that is given, this is the timeout that it has.

    >>> import tempfile, torch.distributed as distributed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"init_method": f"file://{folder}/store", "rank": 0, "world_size": 1}
    ...     distributed.init_process_group("gloo", **options)
    ...     print(sharded(torch.ones(3, 2)))
    ...     distributed.destroy_process_group()
    SharedRows(n=3, d=2, float32)
    """
    exchange = exchange_of(group, positive_number("timeout", timeout))
    problem, own, shape, dtype = None, None, (0, 0), torch.float64
    try:
        given = X_local if isinstance(X_local, Rows) else floating_tensor("X_local", X_local)
        if isinstance(given, torch.Tensor) and given.ndim == 2 and not len(given):
            shape, dtype = (0, given.shape[1]), given.dtype
        else:
            own = as_rows(given)
            shape, dtype = (own.held, own.d), own.dtype
    except PosquadError as found:
        got = f"{found.got}, on rank {exchange.rank}"
        problem = type(found)(found.argument, expected=found.expected, got=got)
    said: list[Any] = [None] * exchange.size
    words = None if problem is None else str(problem)
    exchange.call(distributed.all_gather_object, said, (shape, str(dtype), words))
    if problem is not None:
        raise problem
    for rank, (_, _, wrong) in enumerate(said):
        if wrong is not None:
            raise GroupError(f"rank {rank}", expected="its rows to be usable", got=wrong)
    kinds = {f"{shape[1]} columns of {kind.removeprefix('torch.')}" for shape, kind, _ in said}
    if len(kinds) > 1:
        listed = "; ".join(
            f"rank {rank}: {shape[1]} columns of {kind.removeprefix('torch.')}"
            for rank, (shape, kind, _) in enumerate(said)
        )
        raise DomainError("X_local", expected="one d and one dtype on all ranks", got=listed)
    counts = [each[0] for each, _, _ in said]
    if not sum(counts):
        raise DomainError("X_local", expected="at least one row in all", got="none")
    return SharedRows(own, shape[1], dtype, counts, exchange)
