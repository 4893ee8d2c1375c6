"""Rows that the processes of a group hold together, each its own part (`torch.distributed`).

Every process runs the same program and calls the same functions in the same order. Rows stay where
they are; only sums are exchanged. They are added in the order of the ranks, on every rank alike, so
that all ranks see the same bits and take the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from posquad.core.arrays import Array
from posquad.core.errors import DomainError, PosquadError
from posquad.problems.rows.source import Rows, as_rows

__all__ = ["GroupError", "SharedRows", "sharded"]

_T = TypeVar("_T")


class GroupError(PosquadError, RuntimeError):
    """Another process of the group failed or ended."""

    exit_code = 1  # of a command that it ends


class SharedRows(Rows):
    """The rows of this process, and how to sum over those of all processes of a group."""

    def __init__(self, own: Rows | None, d: int, dtype: torch.dtype, counts: list[int], group: Any):
        self.group, self.counts = group, counts
        self.rank = distributed.get_rank(group)
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
        if self.own is not None:
            yield from self.own.blocks(begin)
        else:  # sums over no rows are zero, and have their shape
            yield slice(0, 0), torch.empty(0, self.d, dtype=self.dtype)

    def total(self, value: Tensor) -> Tensor:
        parts = self.gathered(value)
        total = parts[0]
        for part in parts[1:]:  # in the order of the ranks
            total = total + part
        return total

    def largest(self, value: Tensor) -> Tensor:
        return torch.stack(self.gathered(value)).amax(0)

    @property
    def is_shared(self) -> bool:
        return len(self.counts) > 1

    def agree(self, problem: PosquadError | None = None, fact: Any = None) -> None:
        said: list[Any] = [None] * len(self.counts)
        words = None if problem is None else str(problem)
        _communicate(distributed.all_gather_object, said, (words, fact), self.group)
        if problem is not None:
            raise problem
        for rank, (wrong, _) in enumerate(said):
            if wrong is not None:
                raise GroupError(f"rank {rank}", expected="its rows to be usable", got=wrong)
        if len({repr(other) for _, other in said}) > 1:
            listed = "; ".join(f"rank {rank}: {other}" for rank, (_, other) in enumerate(said))
            raise DomainError("arguments", expected="the same on all ranks", got=listed)

    def decided(self, decide: Callable[[], _T]) -> _T:
        said: list[Any] = [None, None]
        problem: BaseException | None = None
        if self.rank == self.root:
            try:
                said[0] = decide()
            except BaseException as found:  # the others must not wait for a decision
                problem, said[1] = found, str(found) or type(found).__name__
        root = self.root
        if self.group is not None:
            root = distributed.get_global_rank(self.group, root)
        _communicate(distributed.broadcast_object_list, said, root, self.group)
        if problem is not None:
            raise problem
        if said[1] is not None:
            raise GroupError(f"rank {self.root}", expected="a decision", got=said[1])
        return said[0]

    def leading(self, count: int) -> Tensor:
        before = sum(self.counts[: self.rank])
        return self.first_rows(min(max(count - before, 0), self.held))

    def collect(self, value: Tensor) -> Tensor:
        parts: list[Any] = [None] * len(self.counts)
        _communicate(distributed.all_gather_object, parts, value, self.group)
        return torch.cat(parts)

    def gathered(self, value: Tensor) -> list[Tensor]:
        value = value.contiguous()
        parts = [torch.empty_like(value) for _ in self.counts]
        _communicate(distributed.all_gather, parts, value, self.group)
        return parts

    def name_row(self, row: int) -> str:
        own = f"row {row}" if self.own is None else self.own.name_row(row)
        return f"{own} of rank {self.rank}"


def sharded(X_local: Array | Rows, group: Any = None) -> SharedRows:
    """Return the rows of all processes of a group, of which this one holds `X_local[n_local, d]`.

    Numbers of rows may differ, and a process may hold none (an array of shape `[0, d]`). Responses
    and weights that go with the source are those of the rows held here. A process group must exist
    (`torch.distributed.init_process_group`); its timeout says how long the others wait for one
    that has ended. All processes must agree on d and the dtype.

    >>> import tempfile, torch.distributed as distributed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"init_method": f"file://{folder}/store", "rank": 0, "world_size": 1}
    ...     distributed.init_process_group("gloo", **options)
    ...     print(sharded(torch.ones(3, 2)))
    ...     distributed.destroy_process_group()
    SharedRows(n=3, d=2, float32)
    """
    if not distributed.is_available() or not distributed.is_initialized():
        expected = "a process group (torch.distributed.init_process_group)"
        raise DomainError("group", expected=expected, got="none")
    problem, own, shape, dtype = None, None, (0, 0), torch.float64
    try:
        if not isinstance(X_local, Rows) and len(X_local) == 0 and X_local.ndim == 2:
            shape, dtype = (0, X_local.shape[1]), torch.as_tensor(X_local).dtype
        else:
            own = as_rows(X_local)
            shape, dtype = (own.held, own.d), own.dtype
    except PosquadError as found:
        problem = found
    said: list[Any] = [None] * distributed.get_world_size(group)
    words = None if problem is None else str(problem)
    _communicate(distributed.all_gather_object, said, (shape, str(dtype), words), group)
    if problem is not None:
        raise problem
    for rank, (_, _, wrong) in enumerate(said):
        if wrong is not None:
            raise GroupError("X_local", expected="rows on every rank", got=f"on {rank}: {wrong}")
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
    return SharedRows(own, shape[1], dtype, counts, group)


def _communicate(function: Any, *arguments: Any) -> None:
    """Call a collective; if it fails, say that another process ended."""
    try:
        function(*arguments[:-1], group=arguments[-1])
    except (RuntimeError, distributed.DistBackendError):
        expected = "all processes of the group to go on"
        raise GroupError("group", expected=expected, got="one that ended or hangs") from None
