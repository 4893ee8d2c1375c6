"""The estimator's numbers: against the truth, SciPy, linear least squares, Clarabel and by hand."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest
from scipy.sparse import csc_array

from estimator_support import oracle
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor

# Whether the data determine the predictor is asserted through `status_` and `identifiable_`.
pytestmark = pytest.mark.filterwarnings("ignore::posquad.IdentifiabilityWarning")


def data(seed, n, d, r, *, c=0.0, noise=0.0):
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    return X, U, ((X @ U) ** 2).sum(axis=1) + c + noise * rng.standard_normal(n)


def predictor(model):
    return model.components_.T @ model.components_


# Without noise.


@pytest.mark.parametrize("criterion", ["bic", "cv"])
@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 1), (5, 2), (4, 4)])
def test_rank_and_predictor_without_noise(d, r, criterion):
    X, U, y = data(d + r, 60, d, r)
    model = PositiveQuadraticRegressor(criterion=criterion, cv=3).fit(X, y)
    assert model.rank_ == r
    np.testing.assert_allclose(predictor(model), U @ U.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.predict(X), y, rtol=0, atol=1e-12 * y.max())
    np.testing.assert_allclose((model.transform(X) ** 2).sum(axis=1), y, rtol=0, atol=1e-11)
    assert model.identifiable_
    assert model.status_ is Status.RECOVERED
    assert model.kernel_dimension_ == 0
    assert len(model.effective_spectrum_) == d * r - r * (r - 1) // 2
    assert model.effective_spectrum_[0] > 0
    assert model.gauge_dimension_ == r * (r - 1) // 2
    assert model.score(X, y) == pytest.approx(1, abs=1e-14)
    assert model.n_iter_ >= 1
    path = model.rank_path_
    # To the first that reproduces, or from the one that a linear fit shows, which is above three.
    assert list(path["rank"]) == ([4] if r == 4 and criterion == "bic" else list(range(1, r + 1)))
    assert path["residual"][-1] < 1e-10
    assert (path["residual"][:-1] > 1e-6).all()
    assert ("standard_error" in path) == (criterion == "cv")


def test_components_are_orthogonal_descending_and_signed():
    X, U, y = data(3, 60, 5, 3)
    model = PositiveQuadraticRegressor(rank=3).fit(X, y)
    gram = model.components_ @ model.components_.T
    values = np.linalg.eigvalsh(U @ U.T)[::-1][:3]
    np.testing.assert_allclose(gram, np.diag(values), rtol=0, atol=1e-12 * values[0])
    largest = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(3), largest] > 0).all()


@pytest.mark.parametrize("criterion", ["bic", "cv"])
@pytest.mark.parametrize("intercept", [False, True])
def test_rank_with_noise(criterion, intercept):
    X, _, y = data(4, 120, 4, 2, noise=0.1, c=1.5 * intercept)
    model = PositiveQuadraticRegressor(
        criterion=criterion, cv=3, fit_intercept=intercept, max_starts=4
    ).fit(X, y)
    path = model.rank_path_
    assert model.rank_ == 2
    zero = int(intercept)  # with a constant, rank 0 is a model too
    assert list(path["rank"]) == [0, 1, 2, 3, 4][1 - zero :]
    assert {len(column) for column in path.values()} == {4 + zero}
    assert path["score"].argmin() == 1 + zero
    if criterion == "bic":
        for k, p in enumerate(np.array([4, 7, 9, 10]) + intercept, zero):
            rank = int(path["rank"][k])
            alone = PositiveQuadraticRegressor(rank=rank, fit_intercept=intercept).fit(X, y)
            share = np.mean((alone.predict(X) - y) ** 2) / np.mean(y**2)
            by_hand = 120 * np.log(share) + p * np.log(120)
            np.testing.assert_allclose(path["score"][k], by_hand, rtol=1e-9)
            np.testing.assert_allclose(path["residual"][k], alone.residual_, rtol=1e-6)
    if intercept and criterion == "bic":
        by_hand = 120 * np.log(np.var(y) / np.mean(y**2)) + np.log(120)
        np.testing.assert_allclose(path["score"][0], by_hand, rtol=1e-9)
    assert np.isnan(model.rank_confidence_) == (criterion == "cv" or intercept)


@pytest.mark.parametrize("weighted", [False, True])
def test_validation_score_by_hand(weighted):
    """Mean squared error on the fold left out, over the mean square of y."""
    X, _, y = data(5, 40, 3, 1, noise=0.2)
    w = np.random.default_rng(6).uniform(0.0, 2.0, 40) if weighted else np.ones(40)
    parts = [(np.arange(20), np.arange(20, 40)), (np.arange(20, 40), np.arange(20))]
    model = PositiveQuadraticRegressor(criterion="cv", cv=parts, max_rank=1)
    model.fit(X, y, w if weighted else None)
    errors = []
    for train, test in parts:
        part = PositiveQuadraticRegressor(rank=1).fit(X[train], y[train], w[train])
        squares = (part.predict(X[test]) - y[test]) ** 2
        errors.append(np.average(squares, weights=w[test]) / np.average(y**2, weights=w))
    path = model.rank_path_
    np.testing.assert_allclose(path["score"], [np.mean(errors)], rtol=1e-9)
    expected = abs(errors[0] - errors[1]) / 2  # standard deviation over sqrt(2)
    np.testing.assert_allclose(path["standard_error"], [expected], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "n", "highest"),
    [({"linear": True}, 12, 1), ({"linear": True}, 13, 2), ({"fit_intercept": True}, 8, 1)],
)
@pytest.mark.parametrize("criterion", ["bic", "cv"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_ranks_of_more_unknowns_than_samples_are_not_tried(options, n, highest, criterion):
    """Other terms are unknowns, too: 4 + 5 and 7 + 5 for ranks 1 and 2 of four inputs."""
    X, _, y = data(7, n, 4, 3, noise=0.1)
    folds = [(np.arange(n), np.arange(n))]
    model = PositiveQuadraticRegressor(criterion=criterion, cv=folds, max_starts=4, **options)
    model.fit(X, y)
    assert list(model.rank_path_["rank"]) == list(range(highest + 1))


# With noise, against other solvers.


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("d", "r"), [(1, 1), (4, 1), (5, 2), (3, 3)])
def test_best_fit_is_that_of_scipy(d, r, weighted):
    X, U, y = data(10 + d, 60, d, r, noise=0.02)
    weights = np.random.default_rng(0).uniform(0, 3, 60) if weighted else None
    model = PositiveQuadraticRegressor(rank=r).fit(X, y, weights)
    expected, _, _ = oracle(X, y, U, weights=weights)
    np.testing.assert_allclose(predictor(model), expected, rtol=0, atol=1e-8)
    w = np.ones(60) if weights is None else weights / weights.mean()
    squares = w @ (np.einsum("ni,ij,nj->n", X, expected, X) - y) ** 2
    spare = 60 - (d * r - r * (r - 1) // 2)
    assert model.noise_std_ == pytest.approx(np.sqrt(squares / spare), rel=1e-9)
    assert model.residual_ == pytest.approx(np.sqrt(squares / (w @ y**2)), rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("c", [-3.0, 0.0, 40.0])
def test_best_fit_with_a_constant_is_that_of_scipy(c, weighted):
    X, U, y = data(21, 60, 4, 2, c=c, noise=0.2)
    weights = np.random.default_rng(0).uniform(0, 3, 60) if weighted else None
    model = PositiveQuadraticRegressor(rank=2, fit_intercept=True).fit(X, y, weights)
    expected, _, constant = oracle(X, y, U, c=c, weights=weights)
    np.testing.assert_allclose(predictor(model), expected, rtol=0, atol=1e-10)
    assert model.intercept_ == pytest.approx(constant, abs=1e-10)
    # stationary in the constant: weighted errors add up to nothing
    w = np.ones(60) if weights is None else weights
    errors = w * (model.predict(X) - y)
    assert abs(errors.sum()) < 1e-12 * np.abs(errors).sum()


@pytest.mark.parametrize("c", [-5.0, 100.0])
@pytest.mark.parametrize(("n", "d", "r"), [(9, 4, 2), (24, 10, 2), (13, 6, 1)])
def test_constant_without_noise_and_hardly_more_samples_than_unknowns(n, d, r, c):
    X, U, y = data(1, n, d, r, c=c)
    model = PositiveQuadraticRegressor(rank=r, fit_intercept=True).fit(X, y)
    assert model.intercept_ == pytest.approx(c, abs=1e-11)
    np.testing.assert_allclose(predictor(model), U @ U.T, rtol=0, atol=1e-11)
    assert model.needed_ <= n
    assert model.identifiable_


def test_full_rank_is_linear_least_squares_where_that_is_positive():
    X, _, y = data(7, 80, 3, 3, noise=0.05, c=2.0)
    rows, columns = np.triu_indices(3)
    system = X[:, rows] * X[:, columns] * np.where(rows == columns, 1, 2)
    for intercept in (False, True):
        A = np.column_stack([system, np.ones(80)]) if intercept else system
        solution = np.linalg.lstsq(A, y)[0]
        Q = np.zeros((3, 3))
        Q[rows, columns] = Q[columns, rows] = solution[:6]
        assert np.linalg.eigvalsh(Q)[0] > 0
        model = PositiveQuadraticRegressor(rank=3, fit_intercept=intercept).fit(X, y)
        np.testing.assert_allclose(predictor(model), Q, rtol=0, atol=1e-9)
        assert model.intercept_ == pytest.approx(solution[6] if intercept else 0, abs=1e-9)


def test_full_rank_is_the_semidefinite_program_where_the_cone_binds():
    """`min ||A vec(Q) - y||^2` over semidefinite Q, by Clarabel."""
    X, _, y = data(8, 60, 3, 1, noise=0.5)
    rows, columns = np.tril_indices(3)  # row by row: the upper triangle by columns
    scale = np.where(rows == columns, 1, np.sqrt(2))
    A = X[:, rows] * X[:, columns] * scale
    assert np.linalg.lstsq(A, y)[0][[0, 2, 5]].min() < 1  # not far inside
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solver = clarabel.DefaultSolver(
        csc_array(np.triu(A.T @ A)),
        -A.T @ y,
        csc_array(-np.eye(6)),
        np.zeros(6),
        [clarabel.PSDTriangleConeT(3)],
        settings,
    )
    Q = np.zeros((3, 3))
    Q[rows, columns] = np.array(solver.solve().x) / scale
    Q = Q + np.tril(Q, -1).T
    assert np.linalg.eigvalsh(Q)[0] < 1e-5  # the cone binds
    model = PositiveQuadraticRegressor(rank=3).fit(X, y)
    assert model.rank_ < 3
    np.testing.assert_allclose(predictor(model), Q, rtol=0, atol=1e-5)
    loss = ((A @ (Q[rows, columns] * scale) - y) ** 2).sum()
    assert ((model.predict(X) - y) ** 2).sum() <= loss * (1 + 1e-9)


# Nothing to explain.


@pytest.mark.parametrize("rank", [None, 2])
def test_negative_responses_are_fitted_by_zero(rank, tmp_path):
    X, _, y = data(9, 30, 3, 1)
    model = PositiveQuadraticRegressor(rank=rank).fit(X, -y)
    assert model.rank_ == 0
    assert model.components_.shape == (0, 3)
    assert model.transform(X).shape == (30, 0)
    assert model.set_output(transform="pandas").transform(X).shape == (30, 0)
    mean, error = model.predict(X, return_std=True)
    assert not mean.any()
    assert not error.any()  # of rank 0 there is nothing to estimate
    assert model.noise_std_ == pytest.approx(np.sqrt(np.mean(y**2)))
    assert len(model.effective_spectrum_) == model.kernel_dimension_ == 0
    model.save(tmp_path / "model")
    assert PositiveQuadraticRegressor.load(tmp_path / "model").predict(X).shape == (30,)


@pytest.mark.parametrize("criterion", ["bic", "cv"])
@pytest.mark.parametrize("c", [0.0, 7.0, -7.0])
def test_a_constant_response(c, criterion):
    X, _, _ = data(9, 30, 3, 1)
    model = PositiveQuadraticRegressor(fit_intercept=True, criterion=criterion)
    model.fit(X, np.full(30, c))
    assert model.rank_ == 0
    assert model.intercept_ == c
    np.testing.assert_array_equal(model.predict(X, return_std=True), [[c] * 30, [0] * 30])


def test_mean_of_responses_that_inputs_do_not_explain():
    """Rank 0 with a constant is the sample mean, with its standard error."""
    X, _, y = data(9, 30, 3, 1)
    y = -y
    model = PositiveQuadraticRegressor(rank=1, fit_intercept=True).fit(X, y)
    if model.rank_ == 0:
        assert model.intercept_ == pytest.approx(y.mean())
    x = np.array([1.0, 2.0, 3.0, 4.0])
    falling = PositiveQuadraticRegressor(rank=1, fit_intercept=True).fit(x[:, None], -(x**2))
    assert falling.rank_ == 0
    mean, error = falling.predict([[2.0]], return_std=True)
    assert mean[0] == pytest.approx(-7.5, rel=1e-12)
    assert error[0] == pytest.approx(np.std(x**2, ddof=1) / 2, rel=1e-12)


def test_zero_responses():
    X, _, y = data(9, 30, 3, 1)
    model = PositiveQuadraticRegressor().fit(X, 0 * y)
    assert model.rank_ == 0
    assert model.status_ is Status.RECOVERED
    assert not model.predict(X).any()


# Units.


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("power", [1, 3, 6, 30])
def test_columns_of_any_size(power, intercept):
    X, U, y = data(11, 40, 4, 2, c=2.0 * intercept)
    units = 10.0 ** np.array([-power, -power / 2, power / 3, power])
    model = PositiveQuadraticRegressor(fit_intercept=intercept).fit(X * units, y)
    assert model.rank_ == 2
    assert model.identifiable_
    scaled = predictor(model) * units * units[:, None]
    np.testing.assert_allclose(scaled, U @ U.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(model.predict(X * units), y, rtol=0, atol=1e-12 * y.max())


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_inputs_of_extreme_size(size):
    """The fit and its errors are valid; only the spectrum is NaN in such units."""
    X, _, y = data(12, 40, 3, 1, noise=0.1)
    model = PositiveQuadraticRegressor(rank=1).fit(X * size, y)
    plain = PositiveQuadraticRegressor(rank=1).fit(X, y)
    for mine, other in zip(
        model.predict(X * size, return_std=True), plain.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-8)
    assert np.isnan(model.effective_spectrum_).all()


def test_replicates_that_contradict_each_other_are_no_recovery():
    """Responses 0.5 above and below the form: their means are exact, but the data are not."""
    rng = np.random.default_rng(5)
    X, U = rng.standard_normal((30, 4)), rng.standard_normal((4, 1))
    exact = ((X @ U) ** 2).sum(axis=1)
    twice, y = np.repeat(X, 2, axis=0), np.repeat(exact, 2) + np.tile([0.5, -0.5], 30)
    model = PositiveQuadraticRegressor(rank=1).fit(twice, y)
    assert model.status_ is Status.BEST_FIT
    np.testing.assert_allclose(model.predict(X), exact, rtol=1e-10)
    by_hand = np.sqrt(60 * 0.25 / (y**2).sum())
    np.testing.assert_allclose(model.residual_, by_hand, rtol=1e-10)
    np.testing.assert_allclose(model.noise_std_, np.sqrt(60 * 0.25 / (60 - 4)), rtol=1e-10)
    same = PositiveQuadraticRegressor(rank=1).fit(twice, np.repeat(exact, 2))
    assert same.status_ is Status.RECOVERED
