"""One thread of torch and of BLAS, and the number of before afterwards."""

from __future__ import annotations

import sys

import pytest
import threadpoolctl
import torch

from posquad.core.threads import one_thread


def blas_threads() -> list[int]:
    info = threadpoolctl.threadpool_info()
    return [pool["num_threads"] for pool in info if pool["user_api"] == "blas"]


@pytest.mark.parametrize("problem", [None, KeyboardInterrupt()])
def test_torch_and_blas_are_limited_and_restored(problem):
    torch.set_num_threads(2)
    try:
        with threadpoolctl.threadpool_limits(2, user_api="blas"):
            before = blas_threads()
            assert before
            try:
                with one_thread():
                    assert torch.get_num_threads() == 1
                    assert set(blas_threads()) == {1}
                    if problem is not None:
                        raise problem
            except KeyboardInterrupt:
                assert problem is not None
            assert torch.get_num_threads() == 2
            assert blas_threads() == before
    finally:
        torch.set_num_threads(1)


def test_without_threadpoolctl_torch_is_limited(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
