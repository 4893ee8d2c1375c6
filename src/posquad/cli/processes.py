"""The processes that `torchrun` starts: each fits its part of a large table, and one writes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from posquad.io.tables import Samples

__all__ = ["launched", "own_part"]

_TIMEOUT = timedelta(minutes=10)  # to wait for a process that hangs; one that ended is seen at once


def launched() -> tuple[int, int]:
    """Return the rank of this process and the number of processes; (0, 1) without `torchrun`.

    >>> launched()
    (0, 1)
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def own_part(samples: Samples) -> tuple[Any, Any, Any]:
    """Return the inputs, responses and weights that this process fits.

    They are all of them, unless several processes were launched and the table stays in its file:
    then its rows are shared. Of a smaller table, the first process fits all, and the others end.

    >>> from pathlib import Path
    >>> import numpy as np
    >>> X, y = np.ones((2, 1)), np.ones(2)
    >>> own_part(Samples(Path("a.npy"), X, y, None, ("x1",), False, "y"))[0] is X
    True
    """
    rank, size = launched()
    if size == 1:
        return samples.X, samples.y, samples.weights
    if samples.extremes is None:
        if rank:
            raise SystemExit(0)
        return samples.X, samples.y, samples.weights
    import torch.distributed as distributed

    from posquad.problems import rows

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=_TIMEOUT)
    own = samples.X.part(rank, size)
    n = samples.X.n
    place = slice(n * rank // size, n * (rank + 1) // size)
    weights = None if samples.weights is None else samples.weights[place]
    assert samples.y is not None, "a fit has responses"
    return rows.sharded(own), samples.y[place], weights
