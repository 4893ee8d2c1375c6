"""Fit methods for DIPY: against DIPY's own where they are positive, Clarabel, and optimality."""

from __future__ import annotations

import clarabel
import nibabel
import numpy as np
import pytest
import scipy.sparse
from dipy.core.gradients import gradient_table
from dipy.reconst import dti
from dti_support import S0, needles, signals, table, tensors, unconstrained

import posquad
from posquad.core.errors import DomainError, DtypeError, NonFiniteError, ShapeError
from posquad.dipy import Flag, fit_tensors, positive_ols, positive_rwls, positive_wls
from posquad.dipy.gradients import GradientTable
from posquad.dipy.images import Image
from posquad.dipy.volumes import fit_image
from posquad.recovery.solvers import cone_newton


def dipy_weights(design: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The two-step weights, from DIPY's OLS."""
    first, _ = dti.ols_fit_tensor(design, data, return_lower_triangular=True)
    return np.exp(2 * first @ design.T)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(positive_ols, dti.ols_fit_tensor), (positive_wls, dti.wls_fit_tensor)],
)
def test_where_least_squares_is_positive_the_answer_is_dipys(ours, theirs):
    gtab, data = needles()
    design = dti.design_matrix(gtab)
    found, extra = ours(design, data, return_lower_triangular=True, return_leverages=True)
    expected, leverages = theirs(design, data, return_lower_triangular=True, return_leverages=True)
    inside = unconstrained(design, expected) > 0
    assert 0.3 < inside.mean() < 0.9
    assert np.abs(found - expected)[inside, :6].max() < 1e-12  # tensors are of size 1e-3
    assert np.abs(found - expected)[inside, 6].max() < 1e-10
    assert np.abs(extra["leverages"] - leverages["leverages"]).max() < 1e-9


@pytest.mark.parametrize("method", ["ols", "wls", "rwls"])
def test_optimality_conditions_of_every_voxel(method):
    """`D >= 0`, `G = sum w e B >= 0`, `<G, D> = 0` and `sum w e = 0`, from the formulas alone."""
    gtab, data = needles()
    design = dti.design_matrix(gtab)
    fits = fit_tensors(design, data, method)
    assert (fits.evals >= 0).all()
    assert 0.2 < (fits.flags & Flag.POSITIVE > 0).mean() < 0.8
    D = dti.from_lower_triangular(fits.tensor)
    B = gtab.bvals[:, None, None] * gtab.bvecs[:, :, None] * gtab.bvecs[:, None, :]
    e = np.log(data) - np.log(fits.S0)[:, None] + np.einsum("gij,kij->kg", B, D)
    we = fits.weights * e
    size = (fits.weights * np.abs(np.log(data))).sum(1)
    assert (np.abs(we.sum(1)) / size).max() < 1e-11
    G = np.einsum("kg,gij->kij", we, B) / (size * gtab.bvals.max())[:, None, None]
    assert np.linalg.eigvalsh(G)[:, 0].min() > -1e-11
    assert np.abs((G * D * 1e3).sum((1, 2))).max() < 1e-11
    assert fits.residual == pytest.approx((we * e).sum(1), rel=1e-9)
    assert (fits.gap <= 1e-12 * fits.residual).all()


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("method", ["ols", "wls"])
def test_the_gap_bounds_how_far_an_unsolved_voxel_is(monkeypatch, method, steps):
    """Newton's method ended early: a tensor that is positive has no residual below the bound."""
    gtab, data = needles(400)
    design = dti.design_matrix(gtab)
    best = fit_tensors(design, data, method)
    monkeypatch.setattr(cone_newton, "_STEPS", steps)
    monkeypatch.setattr(cone_newton, "_PATH_STEPS", 0)
    fits = fit_tensors(design, data, method)
    early = fits.flags & Flag.NOT_SOLVED > 0
    assert 0.1 < early.mean() < 0.5
    assert not (best.flags & Flag.NOT_SOLVED).any()
    excess = fits.residual[early] - best.residual[early]
    assert (excess <= fits.gap[early] * (1 + 1e-9)).all()
    assert excess.max() > 1e-4 * best.residual[early].mean()  # so that there is something to bound


def test_against_clarabel():
    gtab, data = needles(12)
    design = dti.design_matrix(gtab)
    weights = dipy_weights(design, data)
    fits = fit_tensors(design, data, weights=weights)
    scale = np.array([1, 2**-0.5, 1, 2**-0.5, 2**-0.5, 1])
    A = np.column_stack([design[:, :6] * scale / 1e3, design[:, 6:]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    cone = scipy.sparse.csc_matrix(np.hstack([-np.eye(6), np.zeros((6, 1))]))
    for k, (w, y) in enumerate(zip(weights / 1e6, np.log(data), strict=True)):
        P = scipy.sparse.csc_matrix(np.triu(A.T @ (w[:, None] * A)))
        solver = clarabel.DefaultSolver(
            P, -A.T @ (w * y), cone, np.zeros(6), [clarabel.PSDTriangleConeT(3)], settings
        )
        x = np.array(solver.solve().x)
        theirs = 1e6 * (w * (A @ x - y) ** 2).sum()
        assert fits.residual[k] == pytest.approx(theirs, rel=1e-6)
        assert np.abs(fits.tensor[k] - x[:6] * scale / 1e3).max() < 1e-7


def test_robust_weights_are_dipys():
    gtab, data = needles()
    rng = np.random.default_rng(5)
    data = np.where(rng.random(data.shape) < 0.05, data * 3, data)
    design = dti.design_matrix(gtab)
    (found, zero), extra = positive_rwls(design, data, return_S0_hat=True)
    (theirs, their_zero), expected = dti.robust_fit_tensor_wls(design, data, return_S0_hat=True)
    assert np.array_equal(extra["robust"], expected["robust"])
    inside = theirs[:, 2] > 2e-6 / -design.min()  # not clipped
    assert inside.sum() > 20
    assert np.abs(found[:, :3] - theirs[:, :3])[inside].max() < 1e-11
    assert zero[inside] == pytest.approx(their_zero[inside, 0], rel=1e-8)
    more, _ = positive_rwls(design, data, num_iter=6)
    other, _ = dti.iterative_fit_tensor(
        design, data, fit_type="WLS", num_iter=6, weights_method=dti.weights_method_wls_m_est
    )
    inside = other[:, 2] > 2e-6 / -design.min()
    assert np.abs(more[:, :3] - other[:, :3])[inside].max() < 1e-11


@pytest.mark.parametrize("method", [positive_ols, positive_wls, positive_rwls])
def test_maps_of_dipy_work_on_the_result(method):
    gtab = table()
    D = tensors([1.5e-3, 0.5e-3, 0.4e-3], 24)
    volume = signals(gtab, D, 5.0).reshape(2, 3, 4, -1)
    mask = np.ones((2, 3, 4), dtype=bool)
    mask[0, 0] = False
    model = dti.TensorModel(gtab, fit_method=method, return_S0_hat=True)
    fit = model.fit(volume, mask=mask)
    assert fit.fa[mask] == pytest.approx(
        dti.fractional_anisotropy(np.array([1.5, 0.5, 0.4])), abs=0.05
    )
    assert fit.md[mask] == pytest.approx(0.8e-3, abs=5e-5)
    assert fit.color_fa.shape == (2, 3, 4, 3)
    assert fit.S0_hat[mask] == pytest.approx(S0, rel=0.05)
    assert not fit.evals[~mask].any()
    truth = np.linalg.eigh(D.reshape(2, 3, 4, 3, 3))[1][..., -1]
    assert (np.abs((fit.directions[..., 0, :] * truth).sum(-1))[mask] > 0.99).all()
    assert fit.predict(gtab).shape == volume.shape
    assert (np.abs(fit.predict(gtab) - volume)[mask] < 30).all()


def test_signals_that_cannot_be_used_are_left_out():
    gtab, data = needles(8)
    design = dti.design_matrix(gtab)
    broken = data.copy()
    broken[0, 5], broken[1, 6], broken[2, 7], broken[3, 8] = 0.0, np.nan, -5.0, np.inf
    for method in ("ols", "wls", "rwls"):
        fits = fit_tensors(design, broken, method)
        clean = fit_tensors(design, data, method)
        assert fits.tensor[4:] == pytest.approx(clean.tensor[4:], abs=1e-15)
        for k in range(4):
            rest = np.arange(data.shape[1]) != 5 + k
            alone = fit_tensors(design[rest], data[k, rest], method)
            assert fits.tensor[k] == pytest.approx(alone.tensor, abs=1e-13)
            assert fits.flags[k] & Flag.LEFT_OUT
            assert not fits.kept[k, 5 + k]
    # DIPY's TensorModel puts 0.0001 in place of zeros and negative signals.
    model = dti.TensorModel(gtab, fit_method=positive_wls)
    kept = model.fit(broken[[0, 2]])
    assert kept.evals == pytest.approx(fit_tensors(design, broken[[0, 2]]).evals, abs=1e-15)


def test_voxels_with_too_few_signals_are_zero_and_said_to_be():
    gtab, data = needles(4)
    data[0], data[1, 6:], data[2, :4] = 0.0, 0.0, np.nan  # nothing; six left; no b = 0
    fits = fit_tensors(dti.design_matrix(gtab), data, errors=True)
    assert (fits.flags & Flag.UNDETERMINED > 0).tolist() == [True, True, False, False]
    assert not fits.tensor[:2].any()
    assert not fits.S0[:2].any()
    assert np.isnan(fits.errors.md[:2]).all()
    assert np.isfinite(fits.errors.md[2:]).all()  # two b-values determine S0


def test_an_S0_beyond_the_range_of_numbers_is_said(tmp_path):
    """A tenth of the signals lies 15 decades above the rest; 60 digits are in the adversaries."""
    gtab, rng = table(), np.random.default_rng(0)
    data = 10 ** np.where(rng.random((3000, 44)) < 0.1, 12.0, -3.0) * rng.uniform(
        0.5, 2, (3000, 44)
    )
    fits = fit_tensors(dti.design_matrix(gtab), data)
    beyond = np.abs(fits.log_S0) > np.log(np.finfo(float).max)
    beyond &= (fits.flags & Flag.UNDETERMINED) == 0
    assert beyond.sum() > 5
    assert np.array_equal(fits.flags & Flag.OUT_OF_RANGE > 0, beyond)
    assert np.isinf(fits.S0[beyond]).all()
    found, _ = positive_wls(dti.design_matrix(gtab), data[beyond], return_lower_triangular=True)
    e = np.log(data[beyond]) - found @ dti.design_matrix(gtab).T
    assert np.isfinite(e).all()
    np.testing.assert_allclose(
        (fits.weights[beyond] * e**2).sum(1), fits.residual[beyond], rtol=1e-9
    )
    # Maps are in single precision, whose range is smaller.
    image = Image(tmp_path / "a.nii", nibabel.Nifti1Image(data[:, None, None], np.eye(4)))
    maps = fit_image(image, GradientTable(gtab.bvals, gtab.bvecs), np.ones((3000, 1, 1), bool))
    flags, S0_map = maps.values["flags"].ravel(), maps.values["s0"].ravel()
    usable = np.isfinite(S0_map) & (S0_map > 0)
    assert (flags & Flag.OUT_OF_RANGE > 0).sum() > beyond.sum()
    assert np.array_equal(usable, flags & (Flag.OUT_OF_RANGE | Flag.UNDETERMINED) == 0)


@pytest.mark.parametrize("method", ["ols", "wls", "rwls"])
def test_signals_of_one_plane_determine_no_tensor(method):
    """In a plane in general position they do so up to rounding; tilted by 0.01, they do."""
    rng = np.random.default_rng(0)
    flat = np.c_[rng.standard_normal((30, 2)), np.zeros(30)]
    tilted = np.c_[rng.standard_normal((30, 2)), 0.01 * rng.standard_normal(30)]
    other = rng.standard_normal((20, 3))
    g = np.concatenate([flat, tilted, other]) @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    b = np.r_[np.zeros(4), np.resize([800.0, 1600.0], len(g))]
    gtab = gradient_table(b, bvecs=np.concatenate([np.zeros((4, 3)), g]), b0_threshold=1)
    D = tensors([1.7e-3, 0.4e-3, 0.2e-3], 200)
    data = signals(gtab, D, 0.0)
    plane, near = data.copy(), data.copy()
    plane[:, 34:], near[:, 4:34], near[:, 64:] = 0.0, 0.0, 0.0
    for k in range(200):  # signals are left out one by one, so that every voxel rounds differently
        plane[k, 4 + k % 30] = near[k, 34 + k % 30] = 0.0
    fits = fit_tensors(dti.design_matrix(gtab), np.concatenate([plane, near]), method)
    assert (fits.flags & Flag.UNDETERMINED > 0).tolist() == [True] * 200 + [False] * 200
    assert not fits.tensor[:200].any()
    assert np.abs(dti.from_lower_triangular(fits.tensor[200:]) - D).max() < 1e-8  # of 1e-3


def test_shapes_and_precisions():
    gtab, data = needles(6)
    design = dti.design_matrix(gtab)
    whole = fit_tensors(design, data)
    assert fit_tensors(design, data.reshape(1, 2, 3, -1)).evecs.shape == (1, 2, 3, 3, 3)
    assert fit_tensors(design, data[0]).tensor == pytest.approx(whole.tensor[0], abs=1e-15)
    assert fit_tensors(design, data[:0]).tensor.shape == (0, 6)
    single = fit_tensors(design, data.astype(np.float32))
    assert np.abs(single.tensor - whole.tensor).max() < 1e-8
    counts = fit_tensors(design, data.round().astype(np.uint16))
    assert np.abs(counts.tensor - whole.tensor).max() < 1e-5
    assert posquad.dipy.fit_tensors is fit_tensors


def test_gradients_of_one_plane_direction_more_than_others():
    """A design far from isotropic is brought to other coordinates; the answer does not change."""
    gtab = table(60)
    vectors = gtab.bvecs * [1.0, 0.3, 0.1]
    B = gtab.bvals[:, None] * vectors[:, [0, 0, 1, 0, 1, 2]] * vectors[:, [0, 1, 1, 2, 2, 2]]
    design = -np.column_stack([B * [1, 2, 1, 2, 2, 1], np.ones(len(B))])
    truth = np.array([1e-3, 0.2e-3, 2e-3, 0, 0, 4e-3, -np.log(S0)])
    data = np.exp(design @ truth) + np.random.default_rng(0).standard_normal((20, len(B)))
    found, _ = positive_wls(design, data, return_lower_triangular=True)
    expected, _ = dti.wls_fit_tensor(design, data, return_lower_triangular=True)
    inside = unconstrained(design, expected) > 0
    assert inside.sum() > 5
    assert np.abs(found - expected)[inside, :6].max() < 1e-11
    fits = fit_tensors(design, data)
    rebuilt = np.einsum("kir,kr,kjr->kij", fits.evecs, fits.evals, fits.evecs)
    assert np.abs(rebuilt - dti.from_lower_triangular(fits.tensor)).max() < 1e-15


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        ({"design_matrix": np.ones((5, 6))}, r"shape \(g, 7\)", ShapeError),
        ({"design_matrix": np.ones((5, 7))}, "last column of -1", DomainError),
        ({"design_matrix": -np.ones((9, 7))}, "rank 1, which is less than 7", DomainError),
        ({"design_matrix": "x"}, "design_matrix: expected float64 or float32", DtypeError),
        ({"data": [[1.0], [2.0, 3.0]]}, "data: expected an array", DtypeError),
        ({"errors": "no"}, "errors: expected True or False; got 'no'", DomainError),
        ({"data": np.ones((2, 3))}, "one signal per row", ShapeError),
        ({"data": np.array(["a"] * 44)}, "real numbers", DomainError),
        ({"method": "nlls"}, "one of 'ols', 'wls', 'rwls'", DomainError),
        ({"rounds": 3}, "at least 4", DomainError),
        ({"weights": np.ones(3)}, "the shape of the data", ShapeError),
        ({"weights": "x"}, "weights: expected float64 or float32", DtypeError),
        ({"weights": np.full((2, 44), np.nan)}, "weights: expected finite", NonFiniteError),
        ({"weights": -np.ones((2, 44))}, "none negative", DomainError),
        ({"weights": np.ones((2, 44)), "method": "ols"}, "unless the method is 'wls'", DomainError),
    ],
)
def test_bad_input_is_refused(change, words, error):
    gtab, data = needles(2)
    arguments = {"design_matrix": dti.design_matrix(gtab), "data": data} | change
    with pytest.raises(error, match=words):
        fit_tensors(**arguments)


@pytest.mark.parametrize("number", [3, 4.0, "4"])
def test_the_number_of_fits_is_called_as_the_user_calls_it(number):
    gtab, data = needles(2)
    with pytest.raises(DomainError, match="num_iter: expected"):
        positive_rwls(dti.design_matrix(gtab), data, num_iter=number)
