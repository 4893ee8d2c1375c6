"""Limit the threads of torch and of BLAS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posquad.core.errors import MissingExtraError
from posquad.core.extras import import_extra

__all__ = ["one_thread", "one_torch_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run with one thread of torch and of BLAS, which is faster for small problems.

    BLAS is limited if threadpoolctl, which scikit-learn installs, is present.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
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


@contextmanager
def _blas_limit() -> Iterator[None]:
    try:
        controller = import_extra("threadpoolctl", "lab")
    except MissingExtraError:
        yield
        return
    with controller.threadpool_limits(1):
        yield
