"""The order of awakening: cases worked by hand, SciPy's mirror flow, the growth of R."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from posquad.core.errors import DomainError, InfeasibleError, ShapeError
from posquad.selection import (
    awakening_path,
    dialed_expansion,
    dialed_family,
    first_order_selection,
)


def test_separate_measurements_wake_in_the_order_of_their_responses():
    """s = tau y until the first is fitted at tau = 1; its coordinate of s then stays at 1."""
    y = np.array([1.0, 0.25, 0.5])
    path = awakening_path(np.eye(3), y)
    assert path.order == ((0,), (2,), (1,))
    np.testing.assert_allclose(path.dual, [[0, 0, 0], [1, 0.25, 0.5], [1, 0.5, 1], [1, 1, 1]])
    np.testing.assert_allclose(path.slack, 0, atol=1e-15)
    expected = np.array([[0, 0.375, 0.25], [0.375, 0, 0.25], [0.25, 0.25, 0]])
    np.testing.assert_allclose(path.exponents, expected, atol=1e-15)


def test_one_measurement_has_no_power():
    """The largest coefficient wakes and fits at once; the others end at eps^(1 - c_a / c_max)."""
    path = awakening_path(np.array([[1.0, 4.0, 2.0, -1.0]]), np.array([3.0]))
    assert path.order == ((1,),)
    assert path.support == (1,)
    np.testing.assert_allclose(path.slack, [0.75, 0, 0.5, 1.25])
    assert path.exponents.max() == pytest.approx(0, abs=1e-15)
    assert path.exponents[0, 2] == pytest.approx((0.25 - 0.75 - 0.5) / 2)


def system(seed):
    """The problem of experiment 7 with this seed."""
    V, D, B = (x.numpy() for x in dialed_expansion(4, 5, seed=seed))
    G = torch.randn(
        5, 5, generator=torch.Generator().manual_seed(10_000 + seed), dtype=torch.float64
    )
    y = D @ np.square(V.T @ G.numpy()).sum(-1)
    return D, B, y / np.linalg.norm(y)


@pytest.mark.parametrize("seed", [0, 6])
def test_the_path_of_scipys_mirror_flow_from_a_tiny_start(seed):
    """Divided by log(1/eps) = 500 the logarithms follow the path; in seed 6 one sleeps again."""
    D, _, y = system(seed)
    path, size = awakening_path(D, y), 500.0

    def field(_, logs):
        return -D.T @ (D @ np.exp(np.minimum(logs, 50)) - y)

    def jacobian(_, logs):
        return -D.T @ (D * np.exp(np.minimum(logs, 50)))

    time, ends = 0.0, [0.0]  # the times of the corners: |ds| / |residual| of each piece
    awake = np.zeros(5, dtype=bool)
    for step, woken in zip(np.diff(path.dual, axis=0), path.order, strict=True):
        candidates = np.flatnonzero(awake)
        q = np.zeros(5)
        if len(candidates):
            q[candidates] = scipy.optimize.nnls(D[:, candidates], y)[0]
        residual = y - D @ q
        time += float(step @ residual / (residual @ residual))
        ends.append(time)
        awake = (q > 0) | np.isin(np.arange(5), woken)
    flow = scipy.integrate.solve_ivp(
        field, (0, size * time), np.full(5, -size), "LSODA", jac=jacobian, rtol=1e-6, atol=1e-6,
        t_eval=size * np.array(ends), max_step=1.0,
    )  # fmt: skip
    expected = path.dual @ D - 1
    assert np.abs(flow.y.T / size - expected).max() < 0.03  # of order 1 / 500
    if seed == 6:
        assert len([a for event in path.order for a in event if a == 4]) == 2


def test_the_first_order_change_grows_with_the_predicted_exponent():
    D, B, y = system(5)
    starts = np.array([1e-20, 1e-21])
    law = first_order_selection(D, B, y, starts[:, None] * np.ones(5))
    sizes = np.linalg.norm(law.R, axis=(1, 2))
    predicted = awakening_path(D, y).exponents.max()
    assert np.log10(sizes[1] / sizes[0]) == pytest.approx(predicted, abs=5e-3)


def test_coordinates_that_wake_together():
    path = awakening_path(np.array([[1.0, 1.0]]), np.array([2.0]))
    assert path.order == ((0, 1),)
    np.testing.assert_allclose(path.exponents, 0, atol=1e-15)


def test_types_and_bad_input():
    single = awakening_path(torch.eye(2), torch.tensor([1.0, 0.5]))
    assert single.exponents.dtype == torch.float32
    assert "order=" in repr(single)
    with pytest.raises(ShapeError, match=r"^D:"):
        awakening_path(np.ones(2), np.ones(1))
    with pytest.raises(ShapeError, match=r"^y:"):
        awakening_path(np.eye(2), np.ones(3))
    with pytest.raises(InfeasibleError):
        awakening_path(np.eye(2), np.array([1.0, -1.0]))


def test_expansion_is_the_derivative_of_the_family():
    V, D, B = dialed_expansion(3, 4, seed=5)
    at = {s: V.mT @ dialed_family(3, 4, s, seed=5) @ V for s in (0.0, 1e-3, 2e-3)}
    np.testing.assert_allclose(at[0.0], torch.diag_embed(D), atol=1e-14)
    forward = [(at[s] - at[0.0]) / s for s in (1e-3, 2e-3)]
    extrapolated = 2 * forward[0] - forward[1]  # up to s^2
    assert float((extrapolated - B).abs().max()) < 1e-4
    assert float(B.diagonal(dim1=1, dim2=2).abs().max()) == 0
    with pytest.raises(DomainError, match=r"^n:"):
        dialed_expansion(0, 4)
