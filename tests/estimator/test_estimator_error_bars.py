"""Standard errors of predictions: against a covariance without a quotient, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, t

from posquad.estimator import PositiveQuadraticRegressor

# Whether the data determine the predictor is asserted through `status_` and `identifiable_`.
pytestmark = pytest.mark.filterwarnings("ignore::posquad.IdentifiabilityWarning")


def problem(rng, n=40, d=4, r=2, noise=0.3):
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    truth = ((X @ U) ** 2).sum(axis=1)
    return X, U, truth + noise * rng.standard_normal(n)


def raw_jacobian(X, U, intercept):
    """Derivative of predictions in all d*r entries of U, and in the constant, by differences.

    A central difference of a quadratic is exact but for rounding.
    """
    d, r = U.shape
    step = 1e-3 * np.abs(U).max()

    def predict(V):
        return ((X @ V) ** 2).sum(axis=1)

    columns = []
    for i in range(d):
        for j in range(r):
            moved = np.zeros((d, r))
            moved[i, j] = step
            columns.append((predict(U + moved) - predict(U - moved)) / (2 * step))
    return np.column_stack([*columns, np.ones(len(X))] if intercept else columns)


def raw_errors(X, y, weights, U, c, intercept, at):
    """`sigma sqrt(g' (J'WJ)^+ g)`, with the pseudoinverse over all entries of U."""
    J = raw_jacobian(X, U, intercept)
    d, r = U.shape
    p = d * r - r * (r - 1) // 2 + intercept
    _, s, right = np.linalg.svd(np.sqrt(weights)[:, None] * J, full_matrices=False)
    assert (s > 1e-8 * s[0]).sum() == p
    residual = y - ((X @ U) ** 2).sum(axis=1) - c
    sigma = np.sqrt(weights @ residual**2 / (len(y) - p))
    g = raw_jacobian(at, U, intercept)
    return sigma * np.linalg.norm(g @ right[:p].T / s[:p], axis=1)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("d", "r"), [(1, 1), (4, 1), (4, 2), (3, 3)])
def test_standard_errors_are_those_of_the_raw_factor(d, r, weighted, intercept):
    """Standard errors are the same with and without the quotient by rotations of U."""
    rng = np.random.default_rng(20 * d + r)
    X, _, y = problem(rng, n=60, d=d, r=r)
    y = y + 2.5 * intercept
    weights = rng.uniform(0.2, 3.0, len(y)) if weighted else np.ones(len(y))
    model = PositiveQuadraticRegressor(rank=r, fit_intercept=intercept).fit(X, y, weights)
    assert model.rank_ == r
    assert model.kernel_dimension_ == 0
    at = rng.standard_normal((7, d))
    # the estimator's sigma is for a sample of mean weight
    expected = raw_errors(
        X, y, weights / weights.mean(), model.components_.T, model.intercept_, intercept, at
    )
    np.testing.assert_allclose(model.predict(at, return_std=True)[1], expected, rtol=1e-8)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_oracle_does_not_depend_on_the_rotation_of_the_factor(intercept):
    """Standard errors depend on the predictor only, not on the rotation of its factor."""
    rng = np.random.default_rng(5)
    X, _, y = problem(rng)
    model = PositiveQuadraticRegressor(rank=2, fit_intercept=intercept).fit(X, y)
    at, U = rng.standard_normal((5, 4)), model.components_.T
    error = model.predict(at, return_std=True)[1]
    for _ in range(3):
        R = np.linalg.qr(rng.standard_normal((2, 2)))[0]
        turned = raw_errors(X, y, np.ones(40), U @ R, model.intercept_, intercept, at)
        np.testing.assert_allclose(error, turned, rtol=1e-8)


@pytest.mark.parametrize("intercept", [False, True])
def test_standard_errors_follow_the_units_of_inputs_and_responses(intercept):
    rng = np.random.default_rng(6)
    X, _, y = problem(rng)
    at = rng.standard_normal((5, 4))
    scale = np.array([1e-6, 1e-2, 1e3, 1e6])
    plain = PositiveQuadraticRegressor(rank=2, fit_intercept=intercept).fit(X, y)
    scaled = PositiveQuadraticRegressor(rank=2, fit_intercept=intercept).fit(X * scale, 1e4 * y)
    for mine, other in zip(
        plain.predict(at, return_std=True), scaled.predict(at * scale, return_std=True), strict=True
    ):
        np.testing.assert_allclose(1e4 * mine, other, rtol=1e-7)
    assert scaled.noise_std_ == pytest.approx(1e4 * plain.noise_std_, rel=1e-8)
    assert scaled.kernel_dimension_ == 0


def test_weights_of_any_scale_give_the_same_errors():
    rng = np.random.default_rng(7)
    X, _, y = problem(rng)
    weights = rng.uniform(0.5, 2.0, len(y))
    fitted = [
        PositiveQuadraticRegressor(rank=2).fit(X, y, w * weights) for w in (1.0, 1e-200, 1e300)
    ]
    errors = [model.predict(X, return_std=True)[1] for model in fitted]
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-8)
    np.testing.assert_allclose(errors[2], errors[0], rtol=1e-8)


def test_errors_of_a_rank_one_predictor_of_one_input_by_hand():
    """`f(x) = q x^2` is linear in q: sd(f) = sigma x^2 / sqrt(sum x_i^4)."""
    x = np.array([1.0, -2.0, 0.5, 3.0])
    y = np.array([2.1, 7.9, 0.4, 18.2])
    q = (x**2 @ y) / (x**4).sum()
    sigma = np.sqrt(((y - q * x**2) ** 2).sum() / 3)
    model = PositiveQuadraticRegressor(rank=1).fit(x[:, None], y)
    mean, error = model.predict([[1.5]], return_std=True)
    assert mean[0] == pytest.approx(q * 2.25, rel=1e-13)
    assert error[0] == pytest.approx(sigma * 2.25 / np.sqrt((x**4).sum()), rel=1e-12)
    assert model.noise_std_ == pytest.approx(sigma, rel=1e-12)
    assert model.effective_spectrum_ == pytest.approx([4 * q * (x**4).mean()], rel=1e-12)


# Coverage. A replicate is an own problem with an own input, so that hits are independent.


def accepted(level: float, fits: int) -> tuple[int, int]:
    """The interval of counts that a rate of `level` leaves only once in a thousand times."""
    return int(binom.ppf(5e-4, fits, level)), int(binom.ppf(1 - 5e-4, fits, level))


def studentized(seed: int, *, intercept: bool = False, weighted: bool = False) -> float:
    """The error of one prediction at a random input, as a probability of Student's t."""
    rng = np.random.default_rng([2026, seed])
    n, d, r = 40, 3, 1
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    c = rng.standard_normal() if intercept else 0.0
    weights = 4.0 ** rng.uniform(-2, 2, n) if weighted else np.ones(n)
    noise = 0.2 * rng.standard_normal(n) / np.sqrt(weights)
    y = ((X @ U) ** 2).sum(axis=1) + c + noise
    model = PositiveQuadraticRegressor(rank=r, fit_intercept=intercept, max_starts=6)
    model.fit(X, y, weights if weighted else None)
    at = rng.standard_normal((1, d))
    mean, error = model.predict(at, return_std=True)
    error_in_units = (mean[0] - ((at @ U) ** 2).sum() - c) / error[0]
    return float(2 * t.sf(abs(error_in_units), n - d - intercept))


@pytest.mark.parametrize(("intercept", "weighted"), [(False, False), (False, True), (True, False)])
def test_intervals_cover_as_often_as_they_say(intercept, weighted):
    """The 95% interval, and that of 50%, which tells whether errors are too large.

    Errors of 0.6 of the size would cover in 76% instead of 95%, of 1.8 in 78% instead of 50%.
    """
    fits = 100
    p = np.array([studentized(k, intercept=intercept, weighted=weighted) for k in range(fits)])
    for level in (0.95, 0.5):
        low, high = accepted(level, fits)
        assert low <= (p >= 1 - level).sum() <= high
    assert accepted(0.95, fits)[0] > 0.85 * fits
    assert accepted(0.5, fits)[1] < 0.68 * fits
