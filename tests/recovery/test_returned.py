"""What `recover` says of an answer is measured on the factor that it returns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from adversarial.rational import form_errors
from posquad import Interrupted, RankOne, Status, recover
from posquad.estimator import PositiveQuadraticRegressor
from posquad.recovery import returned
from posquad.recovery.candidates import Candidates
from posquad.recovery.prepare import normalize_rows, prepare
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.stationarity import relative_offset
from posquad.recovery.weighting import has_stages, weight_stages
from support import gaussian_problem, normal


def rare_column(n=3000):
    """A column in large units, and one that is one in three rows only."""
    rng = np.random.default_rng(0)
    x, rare = rng.normal(size=n), np.arange(n) < 3
    noise = 1e-4 * rng.normal(size=n)
    return np.column_stack([1e4 * x, rare]), x**2 + 3e-3 * rare + noise


def true_residual(X, y, U, weights=None):
    """The relative residual from exact errors."""
    root = np.ones(len(y)) if weights is None else np.sqrt(weights)
    e = root * form_errors(X, U, y)
    return math.sqrt(math.fsum(e**2) / math.fsum((root * y) ** 2))


@pytest.mark.parametrize("rank", [None, 2])
def test_a_weak_direction_in_large_units_is_not_the_one_that_is_dropped(rank):
    """In these units the eigenvalue of the rare column, 3e-3, is 300,000 times the other one."""
    X, y = rare_column()
    found = recover(X, y, rank)
    assert found.status is Status.BEST_FIT
    assert float(found.residual) == pytest.approx(true_residual(X, y, found.U), rel=1e-9)
    assert float(found.residual) < 1e-3
    assert found.residual_bound <= found.residual
    model = PositiveQuadraticRegressor(rank).fit(X, y)
    assert model.score(X, y) > 0.999
    assert model.residual_ == pytest.approx(true_residual(X, y, model.components_.T), rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_change_of_the_factor_at_the_very_end_changes_the_status(noise, monkeypatch):
    """The last step that touches U adds 1e-3 to it: residual and status are those of that U."""
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), 40, 5, 2)
    y = y * (1 + noise * normal(torch.Generator().manual_seed(1), 40))
    whole = recover(X, y, 2)
    assert whole.status is (Status.BEST_FIT if noise else Status.RECOVERED)
    rotate = returned.rotated
    monkeypatch.setattr(returned, "rotated", lambda U, rank: rotate(U, rank) + 1e-3)
    changed = recover(X, y, 2)
    assert changed.status is Status.STALLED
    told, true = float(changed.residual), true_residual(X.numpy(), y.numpy(), changed.U.numpy())
    assert told == pytest.approx(true, rel=1e-9)
    assert told > float(whole.residual)


def candidates(U, residual):
    one = np.array(1)
    return Candidates(U.shape[-1], U, np.array(residual), one, one, one > 0, np.array(0.0))


@pytest.mark.parametrize(
    ("weak", "rank"),
    [(1e-4, 2), (1e-10, 1)],  # squares beside noise of 1e-9: the first one matters
)
def test_a_direction_is_dropped_if_the_residual_is_the_same_without_it(weak, rank):
    X, _, _ = gaussian_problem(torch.Generator().manual_seed(0), 60, 3, 1)
    U = torch.zeros(3, 2, dtype=torch.float64)
    U[0, 0], U[1, 1] = 1.0, weak
    e = 1e-9 * normal(torch.Generator().manual_seed(1), 60)
    y = (X @ U).square().sum(-1) + e
    shared = ProblemCache(prepare(X, y, None))
    working = shared.prepared.enter(U)
    residual = float(shared.problem.relative_residual(working))
    answer = returned.returned_factor(shared, candidates(working, residual), 1e-10)
    assert int(answer.rank) == rank
    Q = answer.U @ answer.U.T
    np.testing.assert_allclose(np.diag(Q)[:2], [1.0, weak**2 if rank == 2 else 0.0], rtol=1e-12)
    true = true_residual(X.numpy(), y.numpy(), answer.U)
    assert float(answer.residual) == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_are_exact_where_large_terms_cancel(weighted):
    """Inputs of condition number 1e6: plain products lose six digits, and say so."""
    rng = np.random.default_rng(3)
    V = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    T = (V * [1.0, 1e-2, 1e-4, 1e-6]) @ V.T
    X, U = rng.normal(size=(30, 4)) @ T, np.linalg.solve(T, rng.normal(size=(4, 2)))
    y = np.square(X @ U).sum(1)
    w = torch.from_numpy(rng.uniform(1, 2, 30)) if weighted else None
    given = prepare(torch.from_numpy(X), torch.from_numpy(y), w).given
    e, bound = given.errors(torch.from_numpy(U))
    rounding = given.rounding(torch.from_numpy(U))
    size = float(torch.linalg.vector_norm(rounding) / torch.linalg.vector_norm(given.y))
    assert size <= float(bound) <= 30 * size
    root = np.ones(30) if w is None else np.sqrt((w / w.mean()).numpy())
    unit = float(given.unit) ** 2
    true = root * form_errors(X, U, y)
    precise = given.precise_errors(torch.from_numpy(U)).numpy() * unit
    np.testing.assert_allclose(precise, true, rtol=1e-9, atol=1e-15 * np.abs(y).max())
    off = np.abs(e.numpy() * unit - true)
    assert 1e-12 < off.max() / np.abs(y).max() < 1e-7
    assert (off <= 4 * rounding.numpy() * unit).all()


def test_a_problem_with_normalized_rows_is_measured_on_the_rows_of_the_user():
    X, U, y = gaussian_problem(torch.Generator().manual_seed(2), 30, 3, 1)
    lengths = torch.logspace(-100, 100, 30, dtype=torch.float64)
    X, y = X * lengths[:, None], y * lengths.square()
    even = normalize_rows(X, y, None)
    assert even is not None
    e, _ = even.given.errors(1.01 * U)
    size = X.square().sum(-1)
    expected = (((1.01 * (X @ U)).square().sum(-1) - y) / size) / float(even.given.unit) ** 2
    torch.testing.assert_close(e, expected, rtol=1e-10, atol=0.0)


# Stationarity.


def projection_share(X, U, y, w):
    """`||P e|| / ||e||` by NumPy, with a basis of the horizontal directions."""
    Z = X @ U
    J = (np.sqrt(w)[:, None, None] * X[:, :, None] * Z[:, None, :]).reshape(len(X), -1)
    left, s, _ = np.linalg.svd(J, full_matrices=False)
    r = U.shape[1]
    left = left[:, : len(s) - r * (r - 1) // 2]  # without the gauge
    e = np.sqrt(w) * (np.square(Z).sum(1) - y)
    return np.linalg.norm(left.T @ e) / np.linalg.norm(e)


def offset_of(X, U, y, w):
    root = torch.from_numpy(w) ** 0.25
    operator = RankOne(root[:, None] * torch.from_numpy(X))
    V = torch.from_numpy(U)
    Z = operator.project(V)
    e = Z.square().sum(-1) - root.square() * torch.from_numpy(y)
    return float(relative_offset(operator, V, Z, e))


@pytest.mark.parametrize("heavy", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_the_offset_is_the_cosine_of_the_errors_and_the_tangent_space(heavy, r):
    rng = np.random.default_rng(r)
    X, U, y = rng.normal(size=(30, 4)), rng.normal(size=(4, r)), rng.normal(size=30)
    w = np.where(np.arange(30) < 3, heavy, 1.0)
    assert offset_of(X, U, y, w) == pytest.approx(projection_share(X, U, y, w), rel=1e-6)
    # It does not depend on the coordinates of the inputs.
    T = rng.normal(size=(4, 4))
    turned = offset_of(X @ T, np.linalg.solve(T, U), y, w)
    assert turned == pytest.approx(offset_of(X, U, y, w), rel=1e-6)


@pytest.mark.parametrize(("sign", "offset"), [(-1.0, 0.0), (1.0, 1.0)])
def test_the_offset_of_zero_is_that_along_the_best_matrix_of_rank_one(sign, offset):
    """No vv' lowers the error of negative responses; of y = (v'x)^2 there is one that takes all."""
    rng = np.random.default_rng(0)
    X, v = rng.normal(size=(400, 3)), np.array([1.0, -2.0, 0.5])
    y = sign * np.square(X @ v)
    found = offset_of(X, np.zeros((3, 0)), y, np.ones(400))
    assert found == pytest.approx(offset, abs=0.02)  # the best v is estimated from the samples


def test_the_estimator_keeps_the_numbers_of_which_the_residual_was_measured():
    """Inputs of condition number 1e7: another rounding of U would be another residual."""
    rng = np.random.default_rng(5)
    V = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    T = (V * np.logspace(0, -7, 4)) @ V.T
    X, U = rng.normal(size=(40, 4)) @ T, np.linalg.solve(T, rng.normal(size=(4, 2)))
    y = np.square(X @ U).sum(1)
    model = PositiveQuadraticRegressor(2, standard_errors=False).fit(X, y)
    true = true_residual(X, y, model.components_.T)
    assert true > 1e-11  # the rounding of U is seen
    assert model.residual_ == pytest.approx(true, rel=1e-6, abs=0)


def test_a_closed_form_is_recorded():
    """The convex fit of these uneven rows takes no step."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) * 10 ** rng.uniform(0, 3, size=(60, 1))
    found = recover(X, np.square(X).sum(1) * (1 + 0.1 * rng.normal(size=60)), 3)
    assert found.history.tolist() == [pytest.approx(float(found.residual), rel=1e-12)]
    assert found.history_rank.tolist() == [3]


def test_negative_responses_have_zero_as_their_best_fit():
    X = np.random.default_rng(7).standard_normal((80, 2))
    model = PositiveQuadraticRegressor().fit(X, -np.square(X).sum(1))
    assert model.status_ is Status.BEST_FIT
    assert model.rank_ == 0


def test_the_offset_is_unknown_where_heavy_rows_hide_the_others():
    rng = np.random.default_rng(0)
    X, U, y = rng.normal(size=(30, 4)), rng.normal(size=(4, 2)), rng.normal(size=30)
    assert offset_of(X, U, y, np.where(np.arange(30) < 3, 1e30, 1.0)) == math.inf


def test_the_offset_of_a_batch_and_of_a_large_problem(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    X, U, y = normal(rng, 5, 30, 4), normal(rng, 5, 4, 2), normal(rng, 5, 30)
    operator = RankOne(X)
    Z = operator.project(U)
    e = Z.square().sum(-1) - y
    together = relative_offset(operator, U, Z, e)
    for k in range(5):
        alone = relative_offset(RankOne(X[k]), U[k], Z[k], e[k])
        torch.testing.assert_close(together[k], alone, rtol=1e-10, atol=0.0)
    monkeypatch.setattr("posquad.recovery.stationarity.is_quick", lambda operations: False)
    by_gradients = relative_offset(operator, U, Z, e)
    assert bool((by_gradients <= together * (1 + 1e-10)).all())
    assert bool((by_gradients >= 0.9 * together).all())


# Weights of very different sizes.


def unit_diagonal(heavy, seed, d=15):
    """Sixty noisy rows, and the rows e_i with a large weight."""
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((d, 2))
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    X = np.concatenate([rng.standard_normal((60, d)), np.eye(d)])
    y = np.square(X @ U).sum(1)
    y[:60] += 0.5 * rng.standard_normal(60)
    return X, y, np.where(np.arange(60 + d) < 60, 1.0, heavy)


@pytest.mark.parametrize("heavy", [1e10, 1e12, 1e14, 1e20])
@pytest.mark.parametrize("seed", range(2))
def test_heavy_samples_do_not_hide_that_a_fit_is_not_stationary(heavy, seed):
    """SciPy's Levenberg-Marquardt, from the answer, finds no lower loss."""
    X, y, w = unit_diagonal(heavy, seed)
    found = recover(X, y, 2, weights=w)
    assert found.status is Status.BEST_FIT

    def residuals(u):
        return np.sqrt(w) * (np.square(X @ u.reshape(15, 2)).sum(1) - y)

    def jacobian(u):
        Z = X @ u.reshape(15, 2)
        rows = 2 * np.sqrt(w)[:, None, None] * X[:, :, None] * Z[:, None, :]
        return rows.reshape(75, 30)

    start = np.ascontiguousarray(found.U).ravel()
    ends = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    end = least_squares(residuals, start, jac=jacobian, method="lm", **ends)
    assert 2 * end.cost == pytest.approx(np.square(residuals(start)).sum(), rel=1e-6)
    assert np.abs(np.square(found.U).sum(1) - 1).max() < 1 / math.sqrt(heavy)
    together = recover(X, np.array([y, y]), 2, weights=w)
    assert together.status == [Status.BEST_FIT] * 2
    np.testing.assert_allclose(together.residual, found.residual, rtol=1e-9)


def weights_of_all_sizes(seed):
    """Noisy rows, and weights that span up to ten decades evenly."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 9))
    r = int(rng.integers(1, min(d, 4)))
    n = int(rng.integers(2, 6)) * d * r
    X, U = rng.normal(size=(n, d)), rng.normal(size=(d, r))
    y = np.square(X @ U).sum(1) * (1 + 0.2 * rng.normal(size=n))
    return X, y, 10.0 ** rng.uniform(0, [8.7, 10, 12][seed % 3], size=n), r


@pytest.mark.parametrize(("seed", "least"), [(44, 0.019611), (18, 0.005690)])
def test_the_best_fit_for_limited_weights_is_not_the_only_one_that_is_followed(seed, least):
    """SciPy reaches these residuals from random starts; followed alone, the stages end higher."""
    X, y, w, r = weights_of_all_sizes(seed)
    found = recover(X, y, r, weights=w)
    assert found.status is Status.BEST_FIT
    assert float(found.residual) <= least
    assert float(found.history[-1]) == pytest.approx(float(found.residual), rel=1e-9)


def test_the_rank_is_chosen_for_the_weights_of_the_user():
    for seed in range(6):
        X, y, w, _ = weights_of_all_sizes(seed)
        found = recover(X, y, weights=w)
        path = dict(zip(found.rank_path.rank, found.rank_path.residual, strict=True))
        assert path[int(found.rank)] == pytest.approx(float(found.residual), rel=1e-9)


def test_equal_inputs_with_different_responses_do_not_keep_heavy_samples_from_stages():
    X, y, w = unit_diagonal(1e13, 0)
    X[1] = X[0]
    merged = np.delete(X, 1, 0), np.append((y[0] + y[1]) / 2, y[2:]), np.append(2.0, w[2:])
    found, other = recover(X, y, 2, weights=w), recover(*merged[:2], 2, weights=merged[2])
    assert found.status is other.status is Status.BEST_FIT
    np.testing.assert_allclose(found.Q.dense(), other.Q.dense(), atol=1e-6)


@pytest.mark.parametrize("together", [False, True])
def test_a_weighted_fit_that_is_interrupted_in_a_stage_is_measured_with_the_weights(together):
    X, y, w, r = weights_of_all_sizes(44)
    y = np.array([y, y]) if together else y

    def press(progress):
        if progress.time >= 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        recover(X, y, r, weights=w, progress=press)
    found = caught.value.result
    one, U = (found.residual[0], found.U[0]) if together else (found.residual, found.U)
    first = y[0] if together else y
    assert float(one) == pytest.approx(min(1.0, true_residual(X, first, U, w)), rel=1e-9)


@pytest.mark.parametrize("size", [1e300, 9e307])
def test_the_largest_weights_are_as_good_as_others(size):
    rng = np.random.default_rng(0)
    X, y = np.repeat(rng.normal(size=(20, 3)), 2, 0), rng.random(40)
    found, plain = recover(X, y, 2, weights=np.full(40, size)), recover(X, y, 2)
    assert found.status is plain.status
    assert float(found.residual) == pytest.approx(float(plain.residual), rel=1e-12)


def test_a_ratio_of_weights_that_rounding_does_not_resolve_is_not_called_a_best_fit():
    X, y, w = unit_diagonal(1e28, 0)
    assert recover(X, y, 2, weights=w).status is Status.STALLED


def test_stages_of_weights():
    w = torch.tensor([0.0, 1e-3, 1.0, 1e9], dtype=torch.float64)
    first, last = weight_stages(w)
    assert first.tolist() == [0.0, 1e-3, 1.0, 1e5]
    assert last is w
    assert weight_stages(None) == [None]
    even = torch.tensor([1.0, 1e8], dtype=torch.float64)
    assert weight_stages(even) == [even]
    assert has_stages(torch.stack([even, 2 * even, even * even])).tolist() == [False, False, True]
