"""Limit the threads of torch and of BLAS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from posquad.core.errors import MissingExtraError
from posquad.core.extras import import_extra

__all__ = ["map_in_threads", "one_thread", "one_torch_thread"]

_T = TypeVar("_T")
_R = TypeVar("_R")


@contextmanager
def one_thread(*, when: bool = True) -> Iterator[None]:
    """Run with one thread of torch and of BLAS `when` asked to; it is faster for small problems.

    BLAS is limited if threadpoolctl, which scikit-learn installs, is present.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    if not when:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _blas_limit():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_torch_thread(*, when: bool = True) -> Iterator[None]:
    """Run torch on one thread `when` asked to; much cheaper to enter than `one_thread`.

    Small products take longer on several threads than on one, and many times as long if another
    process has the cores.

    >>> with one_torch_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if not when or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(
    function: Callable[[_T], _R], items: Iterable[_T], most: int | None = None
) -> Iterator[_R]:
    """Yield `function(item)` in order, from as many threads as torch has, each with one of torch.

    Threads that divide the work coarsely do not wait for each other at every product, which takes
    many times as long if another process has the cores. At most `most` of them run.

    >>> list(map_in_threads(abs, [-1, -2, -3]))
    [1, 2, 3]
    """
    workers = min(torch.get_num_threads(), torch.get_num_threads() if most is None else most)
    with one_torch_thread():
        if workers <= 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="posquad") as pool:
            waiting: deque[Future[_R]] = deque()
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > workers:  # results that nobody takes would fill the memory
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


@contextmanager
def _blas_limit() -> Iterator[None]:
    try:
        controller = import_extra("threadpoolctl", "lab")
    except MissingExtraError:
        yield
        return
    with controller.threadpool_limits(1):
        yield
