"""Parallel transport and holonomy: a loop worked by hand, SciPy's connection, exact identities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy
import torch

from posquad.core.errors import (
    DomainError,
    NonFiniteError,
    RankDeficientError,
    ShapeError,
)
from posquad.dynamics import gradient_descent, gradient_flow
from posquad.geometry import (
    holonomy,
    parallel_transport,
    procrustes_alignment,
    procrustes_distance,
    rotation_angle,
)
from posquad.problems import LeastSquares, RankOne

J = np.array([[0.0, -1.0], [1.0, 0.0]])


def turned(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def ellipse(points: int, a: float, b: float) -> np.ndarray:
    """Factors `P(t) diag(a, b)` for t from 0 to pi: half a turn takes the ellipse to itself."""
    return np.stack([turned(t) @ np.diag([a, b]) for t in np.linspace(0, np.pi, points + 1)])


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.5), (2.0, 0.3), (0.7, 0.7)])
def test_the_holonomy_of_a_turning_ellipse_by_hand(a, b):
    """The vertical part of the velocity is `U Omega`, `Omega = 2ab / (a^2 + b^2) J`.

    So the lift is `P(t) diag(a, b) exp(-t Omega)`, and at t = pi, where P = -I, the start has been
    rotated by `pi (1 - 2ab / (a^2 + b^2))`. Three numbers of points, two extrapolations.
    """
    expected = np.pi * (a - b) ** 2 / (a**2 + b**2)
    coarse, middle, fine = (
        np.arctan2(*holonomy(ellipse(points, a, b))[::-1, 0]) for points in (128, 256, 512)
    )
    if a != b:
        order = np.log2((coarse - expected) / (middle - expected))
        assert order == pytest.approx(2, abs=0.01)
    once = [(4 * y - x) / 3 for x, y in ((coarse, middle), (middle, fine))]
    assert (16 * once[1] - once[0]) / 15 == pytest.approx(expected, abs=1e-11)


def loop(t: float | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A closed path of factors with four rows and three columns, `[T, 4, 3]`."""
    base, first, second = rng.normal(size=(3, 4, 3))
    t = np.asarray(t)[..., None, None]
    return 2 * base + first * np.sin(t) + second * (1 - np.cos(t))


@pytest.mark.parametrize("seed", range(2))
def test_the_connection_integrated_by_scipy(seed):
    """`dR/dt = -Omega R`, where Omega solves `S Omega + Omega S = U'dU - dU'U`."""

    def field(t: float, flat: np.ndarray) -> np.ndarray:
        U = loop(t, np.random.default_rng(seed))
        ahead, behind = (loop(t + h, np.random.default_rng(seed)) for h in (np.pi / 2, -np.pi / 2))
        velocity = (ahead - behind) / 2  # exact for sines and cosines of frequency one
        C = U.T @ velocity
        omega = scipy.linalg.solve_sylvester(U.T @ U, U.T @ U, C - C.T)
        return (-omega @ flat.reshape(3, 3)).ravel()

    ode = scipy.integrate.solve_ivp(
        field, (0, 2 * np.pi), np.eye(3).ravel(), "DOP853", rtol=1e-11, atol=1e-12
    )
    expected = ode.y[:, -1].reshape(3, 3)
    assert rotation_angle(expected) > 0.01

    def at(points: int) -> np.ndarray:
        grid = np.linspace(0, 2 * np.pi, points, endpoint=False)
        return holonomy(loop(grid, np.random.default_rng(seed)))

    values = [at(points) for points in (200, 400, 800)]
    errors = [np.linalg.norm(value - expected) for value in values]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.1)
    once = [(4 * y - x) / 3 for x, y in itertools.pairwise(values)]
    assert np.linalg.norm((16 * once[1] - once[0]) / 15 - expected) < 1e-8


@pytest.fixture(scope="module")
def training():
    rng = torch.Generator().manual_seed(3)
    X, U, V = (
        torch.randn(*shape, generator=rng, dtype=torch.float64)
        for shape in ((2, 40, 6), (2, 6, 3), (2, 6, 3))
    )
    return LeastSquares(RankOne(X), RankOne(X).apply_factor(U / 2)), V / 2


def test_a_descent_is_its_own_transport_and_needs_no_factors(training):
    """`U_k'U_{k+1} = U_k'(I - eta G)U_k` is symmetric positive: each step is a geodesic."""
    objective, start = training
    path = gradient_descent(objective, start, step=2e-3, max_steps=60, save_factors=True).factors
    assert (parallel_transport(path) - path).abs().max() < 1e-13
    rng = torch.Generator().manual_seed(1)
    rotations = torch.linalg.qr(torch.randn(len(path), 3, 3, generator=rng).double()).Q
    rotations[0] = torch.eye(3)
    mixed = path @ rotations[:, None]
    assert (parallel_transport(mixed) - path).abs().max() < 1e-13


def test_a_flow_ends_away_from_the_closest_point_by_its_holonomy(training):
    objective, start = training
    coarse, fine = (
        gradient_flow(
            objective, start, t_final=0.2, times=np.linspace(0, 0.2, points + 1)[1:], rtol=1e-11,
            save_factors=True,
        ).factors
        for points in (25, 100)
    )  # fmt: skip
    end = fine[-1]
    closest = procrustes_alignment(start, end)
    errors = [float((holonomy(path).mT - closest).abs().max()) for path in (coarse, fine)]
    assert errors[1] < 1e-4
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.1)  # four times the points
    angle = rotation_angle(closest)
    assert (angle > 1e-3).all()
    moved = torch.linalg.matrix_norm(end - start)
    assert (moved > procrustes_distance(start, end) * (1 + 1e-7)).all()


def test_there_and_back_along_a_geodesic_is_the_identity():
    rng = np.random.default_rng(0)
    U = rng.normal(size=(5, 3))
    V = U + 0.3 * rng.normal(size=(5, 3))
    np.testing.assert_allclose(holonomy(np.stack([U, V])), np.eye(3), atol=1e-14)
    np.testing.assert_allclose(holonomy(np.stack([U, V, U])), np.eye(3), atol=1e-14)


def test_rank_one_returns_with_a_sign():
    angles = np.linspace(0, 2 * np.pi, 9)
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)[..., None]
    np.testing.assert_array_equal(holonomy(circle), [[1.0]])
    np.testing.assert_array_equal(holonomy(circle[:5]), [[-1.0]])


def test_another_start_in_the_fiber_conjugates():
    path = loop(np.linspace(0, 6, 50), np.random.default_rng(4))
    R = scipy.stats.ortho_group.rvs(3, random_state=1)
    lifted = parallel_transport(path)
    np.testing.assert_allclose(parallel_transport(path @ R), lifted @ R, atol=1e-12)
    np.testing.assert_allclose(holonomy(path @ R), R.T @ holonomy(path) @ R, atol=1e-12)


def test_batches_types_and_single_points():
    path = loop(np.linspace(0, 6, 20), np.random.default_rng(4))
    both = np.stack([path, path[:, ::-1]], 1)
    lifted = parallel_transport(both)
    np.testing.assert_allclose(lifted[:, 0], parallel_transport(path), atol=1e-14)
    assert holonomy(both).shape == (2, 3, 3)
    tensor = parallel_transport(torch.from_numpy(path).float())
    assert tensor.dtype == torch.float32
    assert parallel_transport(path[:1]).shape == (1, 4, 3)
    np.testing.assert_array_equal(holonomy(path[:1]).round(14), np.eye(3))
    assert holonomy(both[:, :0]).shape == (0, 3, 3)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-5, 1.0, 3.0, np.pi - 1e-9, np.pi])
def test_angles_are_accurate_at_both_ends(angle):
    R = np.eye(3)
    R[:2, :2] = turned(angle)
    assert rotation_angle(R) == pytest.approx(angle, rel=1e-12, abs=3e-16)


def test_the_largest_angle_counts_and_a_reflection_has_a_half_turn():
    R = scipy.linalg.block_diag(turned(0.4), turned(-1.3))
    assert rotation_angle(R) == pytest.approx(1.3, rel=1e-14)
    assert rotation_angle(np.diag([1.0, -1.0])) == pytest.approx(np.pi, rel=1e-15)
    assert rotation_angle(np.stack([R, R.T])).shape == (2,)


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        (np.ones((3, 2)), ShapeError, "path"),
        (np.ones((0, 3, 2)), ShapeError, "path"),
        (np.zeros((2, 3, 2)), RankDeficientError, "path"),
        (np.full((2, 3, 1), np.nan), NonFiniteError, "path"),
        (np.array([[[1.0], [0.0]], [[0.0], [1.0]]]), DomainError, "take more points"),
    ],
)
def test_bad_paths(path, error, words):
    for function in (parallel_transport, holonomy):
        with pytest.raises(error, match=words):
            function(path)


def test_bad_rotations():
    with pytest.raises(ShapeError, match=r"^R:"):
        rotation_angle(np.ones((2, 3)))
    with pytest.raises(DomainError, match="orthogonal"):
        rotation_angle(2 * np.eye(2))
