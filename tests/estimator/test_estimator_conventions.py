"""The estimator keeps scikit-learn's conventions: its checks, pipelines and searches."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from joblib import Parallel, delayed
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from posquad import recover
from posquad.core.errors import DomainError, MissingExtraError
from posquad.estimator import PositiveQuadraticRegressor

# Whether the data determine the predictor is asserted through `status_` and `identifiable_`.
pytestmark = pytest.mark.filterwarnings("ignore::posquad.IdentifiabilityWarning")

# Few starts and ranks: the checks fit responses that no quadratic form has, hundreds of times.
QUICK = {"max_rank": 2, "max_starts": 1, "max_steps": 40}
# So few do not settle, and the estimator says so.
UNSETTLED = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@UNSETTLED
@parametrize_with_checks(
    [
        PositiveQuadraticRegressor(),
        PositiveQuadraticRegressor(rank=1, fit_intercept=True, max_starts=1, max_steps=200),
        PositiveQuadraticRegressor(criterion="cv", cv=2, **QUICK),
    ]
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    """No expected failures."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # else one check is skipped
    check(estimator)


def data(n=40, d=4, r=2, seed=0, noise=0.0):
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    return X, ((X @ U) ** 2).sum(axis=1) + noise * rng.standard_normal(n)


def state(model):
    """The fitted attributes, as one flat dictionary of arrays."""
    flat = {}
    for name, value in vars(model).items():
        if name.endswith("_"):
            parts = value if isinstance(value, dict) else {"": value}
            parts = value._asdict() if hasattr(value, "_asdict") else parts
            flat |= {f"{name}{key}": part for key, part in parts.items()}
    return flat


def assert_same_state(first, second):
    first, second = state(first), state(second)
    assert set(first) == set(second)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_default_parameters_are_those_of_recover():
    X, y = data(noise=0.1)
    model = PositiveQuadraticRegressor().fit(X, y)
    found = recover(X, y)
    assert model.rank_ == found.rank == 2
    np.testing.assert_allclose(
        model.components_.T @ model.components_, found.Q.dense(), rtol=0, atol=1e-9
    )


def test_pipeline_with_a_scaler():
    """A scaler only multiplies if it does not center; then the predictions are the same."""
    X, y = data()
    scaled = make_pipeline(StandardScaler(with_mean=False), PositiveQuadraticRegressor(rank=2))
    units = np.array([1e-3, 1.0, 50.0, 1e4])
    np.testing.assert_allclose(scaled.fit(X * units, y).predict(X * units), y, rtol=1e-10)
    assert scaled.score(X * units, y) == pytest.approx(1, abs=1e-12)


def test_pipeline_with_principal_components():
    """Inputs in a plane of five dimensions: two components carry the whole predictor."""
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((30, 2))
    Z = np.concatenate([Z, -Z])  # the mean, which PCA takes off, is zero
    X = Z @ rng.standard_normal((2, 5))
    y = (Z @ [1.0, -2.0]) ** 2
    pipeline = make_pipeline(PCA(2), PositiveQuadraticRegressor(rank=1)).fit(X, y)
    np.testing.assert_allclose(pipeline.predict(X), y, rtol=0, atol=1e-10 * y.max())
    assert pipeline.transform(X).shape == (60, 1)
    np.testing.assert_allclose(pipeline.transform(X)[:, 0] ** 2, y, rtol=0, atol=1e-9)
    assert list(pipeline.get_feature_names_out()) == ["positivequadraticregressor0"]


def test_grid_search_in_processes_finds_the_rank():
    X, y = data(n=30, d=3, noise=0.05)
    search = GridSearchCV(
        PositiveQuadraticRegressor(max_starts=2), {"rank": [1, 2]}, cv=KFold(2), n_jobs=2
    ).fit(X, y)
    assert search.best_params_ == {"rank": 2}
    assert search.best_estimator_.rank_ == 2


def _refit(model, X, y):
    return clone(model).fit(X, y)


def test_joblib_processes_and_threads_give_the_same_fit():
    X, y = data(noise=0.1)
    X.flags.writeable = False  # as large arrays are in other processes
    model = PositiveQuadraticRegressor(rank=2)
    here = _refit(model, X, y)
    for backend in ("loky", "threading"):
        for other in Parallel(n_jobs=2, backend=backend)(
            delayed(_refit)(model, X, y) for _ in range(2)
        ):
            np.testing.assert_allclose(other.components_, here.components_, rtol=1e-9)


def test_cross_val_score():
    X, y = data(n=60, noise=0.01)
    scores = cross_val_score(PositiveQuadraticRegressor(rank=2), X, y, cv=3)
    assert (scores > 0.999).all()


def test_data_frames_in_and_out():
    X, y = data()
    frame = pd.DataFrame(X, columns=list("abcd"), index=range(100, 140))
    model = PositiveQuadraticRegressor(rank=2).set_output(transform="pandas")
    features = model.fit(frame, pd.Series(y, index=frame.index)).transform(frame)
    assert list(model.feature_names_in_) == list("abcd")
    assert list(features.columns) == list(model.get_feature_names_out())
    assert list(features.columns) == ["positivequadraticregressor0", "positivequadraticregressor1"]
    assert features.index.equals(frame.index)
    np.testing.assert_allclose((features**2).sum(axis=1), model.predict(frame), rtol=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("badc")])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


def test_names_can_be_given_to_an_array():
    X, y = data()
    model = PositiveQuadraticRegressor(rank=2).fit(X, y, feature_names=list("abcd"))
    assert list(model.feature_names_in_) == list("abcd")
    assert "feature_names_in_" not in vars(model.fit(X, y))
    for names in (list("abc"), list("aabc"), [1, 2, 3, 4], [["a"], ["b"], ["c"], ["d"]]):
        with pytest.raises(DomainError, match="feature_names: expected 4 different strings"):
            model.fit(X, y, feature_names=names)


def test_clone_and_pickle():
    X, y = data(noise=0.1)
    model = PositiveQuadraticRegressor(rank=2, tolerance=1e-9, fit_intercept=True)
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model.fit(X, y)))
    assert_same_state(model, again)
    assert clone(model).__dict__ == PositiveQuadraticRegressor(**model.get_params()).__dict__


@pytest.mark.parametrize("intercept", [False, True])
def test_a_fit_changes_neither_its_parameters_nor_its_inputs(intercept):
    X, y = data(noise=0.1)
    weights = np.linspace(0, 2, len(y))
    copies = X.copy(), y.copy(), weights.copy()
    model = PositiveQuadraticRegressor(cv=KFold(2), criterion="cv", fit_intercept=intercept)
    model.set_params(max_rank=2, max_starts=2, random_state=np.random.RandomState(0))
    before = dict(model.get_params())
    model.fit(X, y, weights)
    assert all(model.get_params()[name] is value for name, value in before.items())
    for mine, copy in zip((X, y, weights), copies, strict=True):
        np.testing.assert_array_equal(mine, copy)


@pytest.mark.parametrize(
    "laid_out",
    [
        np.asfortranarray,
        lambda X: np.repeat(X, 2, axis=1)[:, ::2],
        lambda X: X[::-1].copy()[::-1],
        lambda X: np.require(X.copy(), requirements=["C"]).view(),
    ],
    ids=["fortran", "strided", "reversed", "read-only"],
)
def test_memory_layout_does_not_matter(laid_out):
    X, y = data(noise=0.1)
    other, responses = laid_out(X), y.copy()
    other.flags.writeable = responses.flags.writeable = False
    first = PositiveQuadraticRegressor(rank=2).fit(X, y)
    assert_same_state(first, PositiveQuadraticRegressor(rank=2).fit(other, responses))


@pytest.mark.parametrize("intercept", [False, True])
def test_neither_order_nor_repetition_of_the_samples_matters(intercept):
    X, y = data(noise=0.3)
    rng = np.random.default_rng(3)
    shuffled = rng.permutation(len(y))
    counts = rng.integers(0, 4, len(y))
    written = np.repeat(np.arange(len(y)), counts)
    model = PositiveQuadraticRegressor(rank=2, fit_intercept=intercept)
    plain = clone(model).fit(X, y)
    ordered = clone(model).fit(X[shuffled], y[shuffled])
    np.testing.assert_array_equal(plain.components_, ordered.components_)
    assert plain.intercept_ == ordered.intercept_
    weighted = clone(model).fit(X, y, counts)
    repeated = clone(model).fit(X[written], y[written])
    # The weights are rounded in another way, and rounding decides whether a last step is taken. It
    # moves the answer by the relative offset of about 3e-11 that is left, times the noise.
    np.testing.assert_allclose(weighted.components_, repeated.components_, rtol=1e-10)
    np.testing.assert_allclose(weighted.effective_spectrum_, repeated.effective_spectrum_)
    assert weighted.n_samples_ == (counts > 0).sum()
    assert repeated.n_samples_ == counts.sum()
    twice = clone(model).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    np.testing.assert_allclose(twice.effective_spectrum_, plain.effective_spectrum_, rtol=1e-9)


def test_the_same_random_state_gives_the_same_fit():
    X, y = data(noise=0.5)
    for seed in (0, 7):
        model = PositiveQuadraticRegressor(rank=2, random_state=seed)
        assert_same_state(clone(model).fit(X, y), clone(model).fit(X, y).fit(X, y))
    given = [
        PositiveQuadraticRegressor(rank=2, random_state=np.random.RandomState(4)).fit(X, y)
        for _ in range(2)
    ]
    assert_same_state(*given)
    PositiveQuadraticRegressor(rank=2, random_state=None).fit(X, y)


def test_kinds_of_numbers():
    X, y = data()
    exact = PositiveQuadraticRegressor(rank=2).fit(X, y)
    assert exact.predict(X).dtype == exact.components_.dtype == np.float64
    narrow = PositiveQuadraticRegressor().fit(X.astype(np.float32), y.astype(np.float32))
    assert narrow.rank_ == 2
    assert narrow.predict(X.astype(np.float32)).dtype == np.float64
    np.testing.assert_allclose(narrow.predict(X), y, rtol=1e-5, atol=1e-5)
    assert PositiveQuadraticRegressor().fit(X, y.astype(np.float32)).rank_ == 2
    assert PositiveQuadraticRegressor().fit(X.astype(np.float32), y).rank_ == 2
    for kind in (np.float16, np.longdouble):
        model = PositiveQuadraticRegressor(rank=2).fit(X, y.astype(kind))
        np.testing.assert_allclose(model.predict(X), y, rtol=0, atol=0.05)
    whole = np.random.default_rng(0).integers(-3, 4, (30, 3))
    model = PositiveQuadraticRegressor().fit(whole, whole[:, 0] ** 2)
    np.testing.assert_allclose(model.components_, [[1, 0, 0]], rtol=0, atol=1e-13)


def test_one_sample_and_one_feature():
    model = PositiveQuadraticRegressor(rank=1).fit([[3.0]], [18.0])
    np.testing.assert_allclose(model.components_, [[np.sqrt(2)]], rtol=1e-14)
    assert not model.identifiable_  # nothing checks the answer
    assert np.isnan(model.noise_std_)
    assert np.isnan(model.predict([[1.0]], return_std=True)[1]).all()
    with_constant = PositiveQuadraticRegressor(fit_intercept=True).fit([[3.0]], [18.0])
    assert with_constant.predict([[3.0]]) == pytest.approx(18)
    assert not with_constant.identifiable_
    line = PositiveQuadraticRegressor().fit(np.arange(1.0, 6)[:, None], 2 * np.arange(1.0, 6) ** 2)
    assert line.identifiable_
    assert line.kernel_dimension_ == 0


def test_errors_name_what_is_wrong():
    X, y = data()
    model = PositiveQuadraticRegressor(rank=2)
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(DomainError, match="rank: expected at most d = 4; got 5"):
        clone(model).set_params(rank=5).fit(X, y)
    failed = clone(model).set_params(rank=5)
    with pytest.raises(DomainError):
        failed.fit(X, y)
    for method in (failed.predict, failed.transform, failed.save):
        with pytest.raises(NotFittedError):
            method(X)
    model.fit(X, y)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(X[:, :3])
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        model.fit(csr_array(X), y)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 2, np.nan, X), y)
    for name, value in {
        "criterion": "aic",
        "standard_errors": "maybe",
        "rank": 0,
        "max_rank": 0,
        "max_starts": 0,
        "tolerance": -1.0,
        "max_steps": 0,
        "time_limit": -1.0,
    }.items():
        with pytest.raises(DomainError, match=f"^{name}: expected"):
            clone(model).set_params(**{name: value}).fit(X, y)
    with pytest.raises(ValueError, match=r"at least one (positive|non-zero)"):
        model.fit(X, y, np.zeros(len(y)))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        model.fit(X, y, -np.ones(len(y)))
    without = PositiveQuadraticRegressor(rank=2, standard_errors=False).fit(X, y)
    with pytest.raises(DomainError, match="return_std: expected a model fitted with"):
        without.predict(X, return_std=True)


def test_folds_may_be_any_splitter():
    X, y = data(noise=0.05)
    weights = np.r_[np.zeros(8), np.ones(32)]
    one = ShuffleSplit(1, random_state=0)
    for cv in (2, KFold(2), one, [(np.arange(20), np.arange(20, 40))]):
        model = PositiveQuadraticRegressor(criterion="cv", cv=cv, max_rank=3, max_starts=4)
        assert model.fit(X, y, weights).rank_ == 2
        several = not np.isnan(model.rank_path_["standard_error"]).any()
        assert several == (cv in (2,) or isinstance(cv, KFold))
    empty = [(np.arange(8, 40), np.arange(8))]  # nothing that counts to validate on
    with pytest.raises(DomainError, match="cv: expected a fold with samples of positive weight"):
        PositiveQuadraticRegressor(criterion="cv", cv=empty).fit(X, y, weights)


@pytest.mark.parametrize("package", ["sklearn", "safetensors"])
def test_the_estimator_is_an_extra(monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith("posquad.estimator")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"^{package}: .*posquad\[estimator\]"):
        import posquad.estimator  # noqa: F401


def test_the_library_does_not_import_scikit_learn():
    code = "import sys, posquad; print({'sklearn', 'safetensors', 'pandas'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == "set()"
