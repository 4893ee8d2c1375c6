"""Standard errors of tensors: coverage in simulations, finite differences, and where undefined."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from dipy.reconst import dti
from dti_support import S0, signals, table, tensors

from posquad.dipy import fit_tensors

COUNT = 3000


def lower(D: np.ndarray) -> np.ndarray:
    return np.stack([D[..., i, j] for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))], -1)


@pytest.mark.parametrize("values", [[1.7e-3, 0.4e-3, 0.3e-3], [1.0e-3, 0.8e-3, 0.7e-3]])
@pytest.mark.parametrize("method", ["ols", "wls"])
def test_coverage_of_intervals(values, method):
    """95% intervals hold the truth in 95% of the experiments, within the binomial region."""
    gtab = table()
    D = tensors(values, 1)
    if method == "ols":  # equal weights suppose equal errors of log S
        clean = signals(gtab, D, 0.0)
        noise = np.random.default_rng(3).standard_normal((COUNT, clean.shape[1]))
        data, sigma = clean * np.exp(0.02 * noise), 0.02
    else:
        data, sigma = signals(gtab, np.repeat(D, COUNT, axis=0), 10.0, seed=4), 10.0
    fits = fit_tensors(dti.design_matrix(gtab), data, method, errors=True)
    errors = fits.errors
    assert errors.freedom.tolist() == [data.shape[1] - 7] * COUNT
    assert np.sqrt(np.mean(errors.sigma**2)) == pytest.approx(sigma, rel=0.02)
    width = scipy.stats.t.ppf(0.975, errors.freedom)
    low, high = scipy.stats.binom.ppf([1e-4, 1 - 1e-4], COUNT, 0.95)
    anisotropy = float(dti.fractional_anisotropy(np.array(values)))
    for found, truth, error in (
        *zip(fits.tensor.T, lower(D)[0], errors.tensor.T, strict=True),
        (fits.md, np.mean(values), errors.md),
        (fits.fa, anisotropy, errors.fa),
    ):
        inside = (np.abs(found - truth) <= width * error).sum()
        assert low <= inside <= high


def test_a_tensor_of_zero_has_no_standard_errors():
    """Signals that grow with b have the tensor zero, about which a first order says nothing."""
    gtab = table()
    data = S0 * np.exp(1e-4 * gtab.bvals)[None] * (1 + 0.01 * np.cos(np.arange(len(gtab.bvals))))
    fits = fit_tensors(dti.design_matrix(gtab), data, errors=True)
    assert not fits.tensor.any()
    assert fits.errors.sigma[0] > 0
    assert np.isnan([*fits.errors.tensor[0], fits.errors.md[0], fits.errors.fa[0]]).all()


def test_errors_on_the_boundary_are_those_of_the_constrained_estimate():
    """The derivative of the answer by the signals, by finite differences, voxel by voxel."""
    gtab = table()
    design = dti.design_matrix(gtab)
    data = signals(gtab, tensors([1.7e-3, 0.3e-3, 0.0], 12), 20.0)
    weights = np.ones_like(data) * S0**2
    fits = fit_tensors(design, data, weights=weights, errors=True)
    chosen = np.flatnonzero((fits.evals[:, 2] == 0) & (fits.evals[:, 1] > 1e-5))
    assert len(chosen) >= 3
    for k in chosen[:3]:
        step = 1e-6
        shifted = np.exp(np.log(data[k]) + step * np.eye(data.shape[1]))
        lowered = np.exp(np.log(data[k]) - step * np.eye(data.shape[1]))
        same = np.broadcast_to(weights[k], shifted.shape)
        up, down = (fit_tensors(design, s, weights=same) for s in (shifted, lowered))
        sigma = fits.errors.sigma[k] / S0  # of log S
        for name, error in (("tensor", "tensor"), ("md", "md"), ("fa", "fa")):
            slope = (getattr(up, name) - getattr(down, name)) / (2 * step)
            expected = sigma * np.sqrt((slope**2).sum(0))
            assert getattr(fits.errors, error)[k] == pytest.approx(expected, rel=1e-4)
        assert fits.errors.freedom[k] == data.shape[1] - 6  # a tensor of rank two, and S0


def test_undefined_errors_are_nan():
    gtab = table(7, 1, bvals=(1000.0,))  # eight signals for seven unknowns
    design = dti.design_matrix(gtab)
    isotropic = signals(gtab, 1e-3 * np.eye(3)[None], 0.0)
    found = fit_tensors(design, isotropic, errors=True).errors
    assert np.isnan(found.fa).all()
    assert np.isfinite(found.md).all()
    still = fit_tensors(design, np.full((1, 8), S0) * np.exp(gtab.bvals * 1e-4), errors=True)
    assert not still.tensor.any()  # signals that grow with b: the tensor is zero
    assert np.isnan(still.errors.fa).all()
    assert np.isnan(still.errors.tensor).all()
    exact = fit_tensors(design[:7], isotropic[:, :7], errors=True)
    assert np.isnan(exact.errors.md).all()  # no signal checks the others
    assert np.isnan(exact.errors.tensor).all()


def test_errors_do_not_depend_on_the_frame():
    """A rotation of gradients and tensors rotates the answer and leaves the errors of MD and FA."""
    gtab = table()
    D = tensors([1.2e-3, 0.6e-3, 0.05e-3], 20)
    data = signals(gtab, D, 25.0)
    R = tensors([1.0, 1.0, -1.0], 1)[0]  # orthogonal
    turned = gtab.bvecs @ R.T
    B = gtab.bvals[:, None] * turned[:, [0, 0, 1, 0, 1, 2]] * turned[:, [0, 1, 1, 2, 2, 2]]
    design = -np.column_stack([B * [1, 2, 1, 2, 2, 1], np.ones(len(B))])
    one = fit_tensors(dti.design_matrix(gtab), data, errors=True)
    other = fit_tensors(design, data, errors=True)
    assert other.errors.fa == pytest.approx(one.errors.fa, rel=1e-6)
    assert other.errors.md == pytest.approx(one.errors.md, rel=1e-6)
