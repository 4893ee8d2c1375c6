"""Recovery from Dask collections: a real cluster of two processes, against `recover` in memory."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from distributed import Client, LocalCluster
from posquad import recover
from posquad.distributed import dask_recover

N, D, RANK = 5000, 5, 2
ROUNDING = 1e-12  # relative: the sums are over other blocks than in memory


@pytest.fixture(scope="module")
def client():
    """Two workers, each a process of one thread."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, RANK))
    y = ((X @ U) ** 2).sum(1)
    return X, y + 0.1 * y.std() * rng.standard_normal(N), rng.random(N)


def assert_same(found, expected):
    assert found.status is expected.status
    assert found.rows == expected.rows
    difference = np.linalg.norm(found.Q.dense() - expected.Q.dense())
    assert difference < ROUNDING * np.linalg.norm(expected.Q.dense())
    np.testing.assert_allclose(found.residual, expected.residual, rtol=1e-10)


def test_an_array_in_uneven_chunks(client, samples):
    """X has chunks along the columns and an empty one; y has other chunks, weights are NumPy's."""
    X, y, w = samples
    found = dask_recover(
        client,
        da.from_array(X, chunks=((1000, 0, 3000, 1000), (2, 3))),
        da.from_array(y, chunks=700),
        RANK,
        weights=w,
    )
    assert_same(found, recover(X, y, RANK, weights=w))
