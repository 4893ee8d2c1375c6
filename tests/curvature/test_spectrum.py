"""Effective spectra against SciPy's generalized eigenproblem, closed forms and differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

import posquad
from conformance import Record
from posquad import geometry
from posquad.core.errors import DomainError, DtypeError, RankDeficientError, ShapeError
from posquad.core.status import Status
from posquad.curvature.unseen import _is_target
from support import SIZES, gaussian_problem, normal, rotation


def tangent_basis(U: np.ndarray) -> np.ndarray:
    """A basis of the tangent space at UU', by brute force: [p, d, d]."""
    d, r = U.shape
    units = np.eye(d * r).reshape(d * r, d, r)
    images = np.array([E @ U.T + U @ E.T for E in units]).reshape(d * r, -1)
    _, s, vh = np.linalg.svd(images, full_matrices=False)
    return vh[s > 1e-10 * s[0]].reshape(-1, d, d)


def generalized_spectrum(X: np.ndarray, U: np.ndarray) -> np.ndarray:
    """<xi, T_n(xi)> against g_Q(xi, xi), both as matrices, by scipy.linalg.eigh.

    The metric is built from minimum-norm lifts (`eq:minimum-norm-horizontal-lift`) with lstsq, so
    nothing of posquad's geometry enters.
    """
    d, r = U.shape
    tangent = tangent_basis(U)
    units = np.eye(d * r).reshape(d * r, d, r)
    images = np.array([E @ U.T + U @ E.T for E in units]).reshape(d * r, -1).T
    lifts = np.linalg.lstsq(images, tangent.reshape(len(tangent), -1).T, rcond=1e-10)[0]
    seen = np.einsum("na,pab,nb->np", X, tangent, X)
    return scipy.linalg.eigh(seen.T @ seen / len(X), lifts.T @ lifts, eigvals_only=True)


@pytest.mark.parametrize(("d", "r"), SIZES)
def test_matches_the_generalized_eigenproblem(rng, d, r):
    p = geometry.dimension(d, r)
    X, U, y = gaussian_problem(rng, 3 * p + 2, d, r, smallest=0.3)
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    expected = generalized_spectrum(X.numpy(), U.numpy())
    assert spectrum.values.shape == (p,)
    assert spectrum.status is Status.CONVERGED
    # eigh of the oracle is accurate to eps times its largest value times the metric's conditioning.
    torch.testing.assert_close(
        spectrum.values, torch.from_numpy(expected), rtol=1e-9, atol=1e-12 * expected[-1]
    )


def test_vectors_are_horizontal_orthonormal_eigenvectors(rng):
    X, U, y = gaussian_problem(rng, 60, 7, 3, smallest=0.2)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    spectrum = posquad.effective_spectrum(objective, U)
    V = spectrum.vectors
    gram = V.flatten(1) @ V.flatten(1).mT
    torch.testing.assert_close(gram, torch.eye(len(V), dtype=V.dtype), atol=1e-12, rtol=0)
    inner = U.mT @ V
    assert float((inner - inner.mT).abs().max()) < 1e-12
    # At interpolation the Euclidean Hessian product is already horizontal.
    products, expected = objective.hessian_product(U, V), spectrum.values[:, None, None] * V
    rounding = 1e-11 * float(spectrum.values[-1])
    torch.testing.assert_close(products, expected, atol=rounding, rtol=0)


@pytest.mark.parametrize(("d", "r"), [size for size in SIZES if size[0] <= 6])
def test_population_spectrum_closed_form(rng, d, r):
    U = normal(rng, d, r)
    # The oracle: 2||xi||^2 + tr(xi)^2 is the empirical form for X with exact Gaussian fourth
    # moments; Gauss-Hermite with 3 nodes a dimension integrates them exactly.
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    weights = weights / weights.sum()
    grid = np.array(np.meshgrid(*[nodes] * d)).reshape(d, -1).T
    weight = np.array(np.meshgrid(*[weights] * d)).reshape(d, -1).prod(0)
    X = grid * (weight * len(grid))[:, None] ** 0.25
    expected = generalized_spectrum(X, U.numpy())
    np.testing.assert_allclose(
        posquad.population_spectrum(U).numpy(), expected, rtol=1e-9, atol=1e-11 * expected[-1]
    )
    measured = posquad.effective_spectrum(posquad.PopulationRisk(U), U)
    torch.testing.assert_close(
        measured.values, posquad.population_spectrum(U), rtol=1e-10, atol=1e-12
    )


def test_population_smallest_value_is_not_4_lambda_r_at_full_rank(rng):
    U = normal(rng, 4, 4)
    smallest_eigenvalue = torch.linalg.svdvals(U)[-1].square()
    assert posquad.population_spectrum(U)[0] >= 8 * smallest_eigenvalue
    thin = U[:, :2]
    torch.testing.assert_close(
        posquad.population_spectrum(thin)[0], 4 * torch.linalg.svdvals(thin)[-1].square()
    )


def test_population_spectrum_by_hand():
    # d=3, Q = diag(1, 1/4, 0): 4, 1 outside; 4(1 + 1/4) = 5 for the pair; and the eigenvalues of
    # [[8+4, 2], [2, 2+1]].
    U = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64))
    U = torch.cat([U, torch.zeros(1, 2, dtype=torch.float64)])
    scaling = [(15 - np.sqrt(97)) / 2, (15 + np.sqrt(97)) / 2]
    expected = torch.tensor(sorted([4.0, 1.0, 5.0, *scaling]), dtype=torch.float64)
    torch.testing.assert_close(posquad.population_spectrum(U), expected, rtol=1e-14, atol=0)


def test_away_from_critical_points_it_is_the_riemannian_hessian(rng):
    """Second derivative of ell along geodesics, by central differences."""
    X, _, y = gaussian_problem(rng, 30, 4, 2)
    U = normal(rng, 4, 2)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    assert float(objective.gradient(U).norm()) > 1  # not critical
    spectrum = posquad.effective_spectrum(objective, U)

    def along(v: torch.Tensor, t: float) -> float:
        return float(objective.loss(geometry.exp(U, t * v)))

    h = 1e-4
    for value, v in zip(spectrum.values, spectrum.vectors, strict=True):
        second = (along(v, h) - 2 * along(v, 0.0) + along(v, -h)) / h**2
        # Truncation h^2 times the fourth derivative, rounding eps * loss / h^2.
        assert second == pytest.approx(float(value), abs=1e-5 * float(spectrum.values[-1]))


def test_negative_curvature_is_reported(rng):
    X, _, y = gaussian_problem(rng, 40, 5, 1)
    small = 0.01 * normal(rng, 5, 1)  # near zero the loss curves down
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), small)
    assert float(spectrum.values[0]) < 0
    assert spectrum.kernel_dimension == 0


@pytest.mark.parametrize("n", [1, 10, 18, 19, 25])
def test_kernel_is_what_the_measurements_do_not_see(rng, n):
    d, r, p = 10, 2, 19
    X, U, y = gaussian_problem(rng, n, d, r)
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    assert spectrum.gauge_dimension == 1
    assert spectrum.kernel_dimension == max(0, p - n)
    assert spectrum.kernel_is_complete
    assert spectrum.kernel_vectors.shape == (max(0, p - n), d, r)
    seen = posquad.RankOne(X).apply(geometry.differential(U, spectrum.kernel_vectors))
    assert seen.numel() == 0 or float(seen.abs().max()) < 1e-7  # sqrt of rounding in the form


def test_kernel_from_inputs_in_a_subspace(rng):
    X, U, _ = gaussian_problem(rng, 200, 6, 2)
    X[:, -1] = 0
    objective = posquad.LeastSquares(posquad.RankOne(X), (X @ U).square().sum(-1))
    # Unseen tangent matrices have entries in the last row and column only: e_6 v' + v e_6' with v
    # in range(U), so there are r of them.
    assert posquad.effective_spectrum(objective, U).kernel_dimension == 2


def test_batches_agree_with_single_problems(rng):
    X = normal(rng, 3, 40, 6)
    U = normal(rng, 2, 3, 6, 2)
    objective = posquad.LeastSquares(posquad.RankOne(X), posquad.RankOne(X).apply_factor(U))
    spectrum = posquad.effective_spectrum(objective, U)
    assert spectrum.values.shape == (2, 3, 11)
    assert spectrum.vectors.shape == (2, 3, 11, 6, 2)
    assert spectrum.kernel_dimension.shape == (2, 3)
    one = posquad.LeastSquares(posquad.RankOne(X[1]), posquad.RankOne(X[1]).apply_factor(U[1, 1]))
    single = posquad.effective_spectrum(one, U[1, 1])
    torch.testing.assert_close(spectrum.values[1, 1], single.values, rtol=1e-11, atol=1e-11)
    free = posquad.effective_spectrum(objective, U, k=2, which="smallest", method="matrix-free")
    torch.testing.assert_close(free.values, spectrum.values[..., :2], rtol=1e-9, atol=1e-11)
    assert len(spectrum.kernel_vectors) == 6


def test_empty_batch(rng):
    X, _, y = gaussian_problem(rng, 20, 4, 1)
    U = torch.empty(0, 4, 1, dtype=torch.float64)
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    assert spectrum.values.shape == (0, 4)


def test_one_sided_requests_are_slices_of_the_whole(rng):
    X, U, y = gaussian_problem(rng, 60, 7, 3)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    whole = posquad.effective_spectrum(objective, U).values
    for k in (1, 4, len(whole)):
        low = posquad.effective_spectrum(objective, U, k=k, which="smallest").values
        high = posquad.effective_spectrum(objective, U, k=k, which="largest").values
        torch.testing.assert_close(low, whole[:k], rtol=1e-13, atol=0)
        torch.testing.assert_close(high, whole[-k:], rtol=1e-13, atol=0)


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize(
    ("d", "r", "n_over_p", "smallest"),
    [(100, 5, 1.2, 1.0), (100, 5, 4, 1e-3), (60, 1, 2, 1), (7, 7, 2, 0.5)],
)
def test_matrix_free_agrees_with_dense(rng, d, r, n_over_p, smallest, which):
    """Both methods agree to 1e-9, also for p around 500 in the first cases."""
    p = geometry.dimension(d, r)
    X, U, y = gaussian_problem(rng, int(n_over_p * p), d, r, smallest=smallest)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    dense = posquad.effective_spectrum(objective, U, k=3, which=which, method="dense")
    free = posquad.effective_spectrum(objective, U, k=3, which=which, method="matrix-free")
    assert free.status is Status.CONVERGED
    assert (dense.method, free.method) == ("dense", "matrix-free")
    # Dense eigh errs by eps times the largest value, which limits the comparison at the small end.
    torch.testing.assert_close(
        free.values, dense.values, rtol=1e-9, atol=1e-14 * float(dense.values[-1])
    )
    assert bool((free.residuals <= 1e-9 * free.values).all())
    inner = U.mT @ free.vectors
    assert float((inner - inner.mT).abs().max()) < 1e-12


def test_matrix_free_resolves_multiple_eigenvalues():
    """At kappa = 1 the population's smallest value 4 has multiplicity (d - r) r."""
    U = torch.eye(50, 3, dtype=torch.float64)
    spectrum = posquad.effective_spectrum(
        posquad.PopulationRisk(U), U, k=5, which="smallest", method="matrix-free"
    )
    torch.testing.assert_close(spectrum.values, torch.full((5,), 4.0, dtype=torch.float64))
    top = posquad.effective_spectrum(
        posquad.PopulationRisk(U), U, which="largest", method="matrix-free"
    )
    torch.testing.assert_close(top.values, posquad.population_spectrum(U)[-1:])


def test_matrix_free_kernel_is_a_lower_bound(rng):
    X, U, y = gaussian_problem(rng, 80, 30, 3)  # p = 87, so 7 unseen directions
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    few = posquad.effective_spectrum(objective, U, k=3, which="smallest", method="matrix-free")
    assert few.kernel_dimension == 3
    assert not few.kernel_is_complete
    enough = posquad.effective_spectrum(objective, U, k=9, which="smallest", method="matrix-free")
    assert enough.kernel_dimension == 7
    assert enough.kernel_is_complete
    top = posquad.effective_spectrum(objective, U, which="largest", method="matrix-free")
    assert not top.kernel_is_complete


def test_unconverged_values_are_not_returned(rng):
    X, U, y = gaussian_problem(rng, 600, 100, 5, smallest=0.01)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    spectrum = posquad.effective_spectrum(
        objective, U, which="smallest", method="matrix-free", max_products=30
    )
    assert spectrum.status is Status.NOT_CONVERGED
    assert bool(spectrum.values.isnan().all())
    assert float(spectrum.residuals[0]) > 0
    assert "NaN" in spectrum.status.value


def test_matrix_free_forms_nothing_large(rng):
    """No tensor of p x p, d x d or n x d entries is created (X itself excepted)."""
    d, r = 400, 2
    p = geometry.dimension(d, r)
    X, U, y = gaussian_problem(rng, 3 * p, d, r)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    with Record(X) as record:
        posquad.effective_spectrum(objective, U, which="smallest", method="matrix-free")
    assert record.largest < d * d


def test_gauge_and_rotation_invariance(rng):
    X, U, y = gaussian_problem(rng, 80, 6, 3, smallest=0.3)
    base = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U).values
    O, R = rotation(rng, 6), rotation(rng, 3, reflect=True)
    turned = posquad.effective_spectrum(
        posquad.LeastSquares(posquad.RankOne(X @ O.mT), y), O @ U @ R
    )
    torch.testing.assert_close(turned.values, base, rtol=1e-11, atol=1e-12)


@given(st.permutations(range(12)), st.integers(1, 3))
def test_samples_may_be_permuted_and_duplicated(order, copies):
    X, U, y = gaussian_problem(torch.Generator().manual_seed(7), 12, 4, 2)
    base = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U).values
    again = torch.cat([X[list(order)]] * copies)
    objective = posquad.LeastSquares(posquad.RankOne(again), torch.cat([y[list(order)]] * copies))
    torch.testing.assert_close(
        posquad.effective_spectrum(objective, U).values, base, rtol=1e-10, atol=1e-12
    )


def test_scaling_laws(rng):
    """lambda(X -> aX, U -> bU) = a^4 b^2 lambda at interpolation."""
    X, U, y = gaussian_problem(rng, 40, 5, 2)
    base = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U).values
    for a, b in ((1e-3, 1.0), (1.0, 1e4), (30.0, 1e-5)):
        y_scaled = (a * X @ (b * U)).square().sum(-1)
        scaled = posquad.effective_spectrum(
            posquad.LeastSquares(posquad.RankOne(a * X), y_scaled), b * U
        )
        torch.testing.assert_close(scaled.values, a**4 * b**2 * base, rtol=1e-10, atol=0)


def test_numpy_float32_and_views(rng):
    X, U, y = gaussian_problem(rng, 50, 6, 2)
    base = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    arrays = posquad.effective_spectrum(
        posquad.LeastSquares(posquad.RankOne(X.numpy()), y.numpy()), U.numpy()
    )
    assert isinstance(arrays.values, np.ndarray)
    assert isinstance(arrays.kernel_vectors, np.ndarray)
    np.testing.assert_array_equal(arrays.values, base.values.numpy())
    single = posquad.effective_spectrum(
        posquad.LeastSquares(posquad.RankOne(X.float()), y.float()), U.float()
    )
    assert single.values.dtype == torch.float32
    torch.testing.assert_close(single.values.double(), base.values, rtol=1e-4, atol=1e-4)
    strided = U.mT.contiguous().mT.requires_grad_(True)
    again = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), strided)
    assert not again.values.requires_grad
    torch.testing.assert_close(again.values, base.values)


def test_zero_operator_is_all_kernel():
    X, U = torch.zeros(3, 4, dtype=torch.float64), torch.eye(4, 2, dtype=torch.float64)
    objective = posquad.LeastSquares(posquad.RankOne(X), torch.zeros(3, dtype=torch.float64))
    spectrum = posquad.effective_spectrum(objective, U)
    assert spectrum.kernel_dimension == geometry.dimension(4, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"which": "middle"}, DomainError, "which"),
        ({"method": "lobpcg"}, DomainError, "method"),
        ({"k": 0, "which": "smallest"}, DomainError, "k"),
        ({"k": 8, "which": "smallest"}, DomainError, "k"),
        ({"k": 2.0, "which": "smallest"}, DomainError, "k"),
        ({"k": 2}, DomainError, "k"),
        ({"method": "matrix-free"}, DomainError, "which"),
        ({"tolerance": 0.0}, DomainError, "tolerance"),
        ({"max_products": 0}, DomainError, "max_products"),
        ({"seed": -1}, DomainError, "seed"),
        ({"seed": 0.5}, DomainError, "seed"),
    ],
)
def test_bad_requests_are_refused(rng, arguments, error, named):
    X, U, y = gaussian_problem(rng, 30, 4, 2)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    with pytest.raises(error, match=rf"^{named}: expected .*; got"):
        posquad.effective_spectrum(objective, U, **arguments)


@pytest.mark.parametrize("d", [3, 6])
def test_a_turned_target_is_the_target(d):
    """Turning a factor by an angle rounds it; a row of zeros does not make it another one."""
    target = torch.eye(d, 2, dtype=torch.float64)
    objective = posquad.PopulationRisk(target)
    c, s = np.cos(np.arange(9.0)), np.sin(np.arange(9.0))
    turned = target @ torch.from_numpy(np.stack([[c, -s], [s, c]]).transpose(2, 0, 1))
    assert bool(objective.difference(turned)[0].any())  # rounding
    assert bool(_is_target(objective, turned).all())
    assert not bool(_is_target(objective, turned * (1 + 1e-13)).any())


def test_bad_factors_are_refused(rng):
    X, U, y = gaussian_problem(rng, 30, 4, 2)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    deficient = torch.cat([U[:, :1], U[:, :1]], dim=-1)
    for compute in (
        lambda V: posquad.effective_spectrum(objective, V),
        posquad.population_spectrum,
    ):
        with pytest.raises(RankDeficientError) as caught:
            compute(deficient)
        assert caught.value.singular_values.shape == (2,)
        with pytest.raises(ShapeError, match="U"):
            compute(normal(rng, 2, 4))
        with pytest.raises(DtypeError):
            compute(U.to(torch.complex128))
    with pytest.raises(ShapeError, match="U"):
        posquad.effective_spectrum(objective, normal(rng, 5, 2))
    with pytest.raises(DtypeError, match="objective"):
        posquad.effective_spectrum(lambda U: U, U)


@pytest.mark.parametrize("method", ["dense", "matrix-free"])
@pytest.mark.parametrize("weak", [1e-4, 1e-7])
def test_weak_directions_are_not_taken_for_unseen_ones(rng, weak, method):
    """A nearly deficient factor: tiny curvature, but every direction is seen by 200 samples."""
    X = normal(rng, 200, 8)
    U = torch.zeros(8, 2, dtype=torch.float64)
    U[0, 0], U[1, 1] = 1.0, weak
    objective = posquad.LeastSquares(posquad.RankOne(X), posquad.RankOne(X).apply_factor(U))
    spectrum = posquad.effective_spectrum(objective, U, k=3, which="smallest", method=method)
    assert spectrum.kernel_dimension == 0
    # Outside the range the curvature is that of the weak column alone: 4 weak^2 times the spectrum
    # of the Schur complement of x_i1^2 ... of which the population value is 4 weak^2.
    assert bool((spectrum.values > weak**2).all())
    assert bool((spectrum.values < 8 * weak**2).all())
    relative = spectrum.residuals / spectrum.values
    assert (spectrum.status is Status.CONVERGED) == bool((relative <= 1e-9).all())


@pytest.mark.parametrize("scale", [1e-80, 1e-40, 1e30])
def test_matrix_free_at_the_edges_of_the_range(rng, scale):
    """Values of 1e-160 have squares that underflow; the residuals must not."""
    X, U, _ = gaussian_problem(rng, 60, 6, 2)
    operator = posquad.RankOne(X)
    values = []
    for c in (1.0, scale):
        objective = posquad.LeastSquares(operator, operator.apply_factor(c * U))
        spectrum = posquad.effective_spectrum(
            objective, c * U, which="smallest", method="matrix-free"
        )
        assert float(spectrum.residuals[0]) > 0
        values.append(spectrum.values / c / c)
    torch.testing.assert_close(values[1], values[0], rtol=1e-8, atol=0)


def test_more_values_than_fit_are_refused_before_work():
    U = torch.eye(6000, 3, dtype=torch.float64)
    with pytest.raises(DomainError, match=r"^which: expected 'smallest' or 'largest'"):
        posquad.effective_spectrum(posquad.PopulationRisk(U), U)
    with pytest.raises(DomainError, match=r"^method: expected 'dense' for p <= "):
        posquad.effective_spectrum(posquad.PopulationRisk(U), U, which="smallest", method="dense")


def conditioned_factor(rng, d, r, condition):
    W = torch.linalg.qr(normal(rng, d, r)).Q
    return W * torch.logspace(0, -np.log10(condition), r, dtype=torch.float64)


@pytest.mark.parametrize("method", ["dense", "matrix-free"])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
def test_kernel_at_any_conditioning_and_gauge(rng, condition, method):
    """n = p - 3 generic rows see all but 3 directions, whatever the conditioning of U."""
    d, r = 7, 3
    X = normal(rng, geometry.dimension(d, r) - 3, d)
    U = conditioned_factor(rng, d, r, condition)
    request = {"which": "smallest", "k": 5} if method == "matrix-free" else {}
    for turned in (U, U @ rotation(rng, r), U @ rotation(rng, r, reflect=True)):
        objective = posquad.LeastSquares(posquad.RankOne(X), (X @ turned).square().sum(-1))
        spectrum = posquad.effective_spectrum(objective, turned, method=method, **request)
        assert spectrum.kernel_dimension == 3
        assert spectrum.kernel_is_complete
        assert bool(spectrum.kernel_is_known)
        V = spectrum.kernel_vectors
        gram = V.flatten(1) @ V.flatten(1).mT
        torch.testing.assert_close(gram, torch.eye(3, dtype=V.dtype), atol=1e-12, rtol=0)
        xi = geometry.differential(turned, V)
        size = (2 * xi.square().sum((-2, -1)) + xi.diagonal(dim1=-2, dim2=-1).sum(-1) ** 2).sqrt()
        seen = posquad.RankOne(X).apply(xi).norm(dim=-1) / size
        # U is given to eps ||U||, which turns its weakest direction by eps * condition.
        assert float(seen.max()) < 1e3 * 2.2e-16 * condition


def batch_with_kernels(rng):
    """Factors whose kernels have dimensions 1, 0 and 2, at condition 1, 1e3 and 1e5."""
    d, r = 6, 2
    X = normal(rng, 3, geometry.dimension(d, r) + 1, d)
    X[0, 2:] = X[0, 1:-1].clone()
    X[0, -1] = X[0, 0]  # two repetitions: 10 distinct rows of the p = 11 that are needed
    X[2, :, 0] = 0  # r directions e_1 v' + v e_1'
    U = torch.stack([conditioned_factor(rng, d, r, c) for c in (1.0, 1e3, 1e5)])
    return X, U


@pytest.mark.parametrize("method", ["dense", "matrix-free"])
def test_kernels_of_a_batch_do_not_disturb_each_other(rng, method):
    X, U = batch_with_kernels(rng)
    ranks = [int(torch.linalg.matrix_rank(torch.vmap(torch.outer)(x, x).flatten(1))) for x in X]
    assert ranks[0] == 10
    operator = posquad.RankOne(X)
    spectrum = posquad.effective_spectrum(
        posquad.LeastSquares(operator, operator.apply_factor(U)),
        U,
        k=4,
        which="smallest",
        method=method,
    )
    assert spectrum.kernel_dimension.tolist() == [1, 0, 2]
    assert spectrum.kernel_is_known.tolist() == [True] * 3
    for index in range(3):
        one = posquad.RankOne(X[index])
        single = posquad.effective_spectrum(
            posquad.LeastSquares(one, one.apply_factor(U[index])), U[index]
        )
        scale = float(single.values[-1])
        torch.testing.assert_close(
            spectrum.values[index], single.values[:4], rtol=1e-4, atol=1e-14 * scale
        )


def weak_direction(rng, weak):
    """Rows e_1 +- c_j e_j at U = e_1, turned by a rotation: every curvature is known by hand.

    Along e_1 v' + v e_1' the form is `sum_j (2 v_1 +- 2 c_j v_j)^2 / n`, n = 2(d - 1), and the
    population's is `12 v_1^2 + 4 (v_2^2 + ...)`: relative to it the curvatures are 1/3 and
    `c_j^2 / (d - 1)`. With `c_j^2 = d - 1` but for the last one, they are 1/3, ones, and `weak`.
    """
    d = 40
    c = torch.full((d - 1,), (d - 1) ** 0.5, dtype=torch.float64)
    c[-1] *= weak**0.5
    arms = torch.cat([torch.zeros(d - 1, 1, dtype=torch.float64), torch.diag(c)], dim=1)
    first = torch.eye(d, dtype=torch.float64)[:1]
    O = rotation(rng, d)
    X, U = torch.cat([first + arms, first - arms]) @ O.mT, O[:, :1].clone()
    operator = posquad.RankOne(X)
    return posquad.LeastSquares(operator, operator.apply_factor(U)), U


@pytest.mark.parametrize("method", ["dense", "matrix-free"])
@pytest.mark.parametrize(
    ("weak", "kernel", "complete"),
    [
        # Eigenvalues of a matrix of size p = 40 err by about p eps = 9e-15 of the largest one.
        (0.0, 1, True),
        (1e-9, 0, True),  # 1e5 times that: seen
        (1e-17, 0, False),  # rounding in the form, but 3e-9 in the measurements: not unseen
    ],
)
def test_what_is_seen_unseen_and_not_known(rng, weak, kernel, complete, method):
    objective, U = weak_direction(rng, weak)
    spectrum = posquad.effective_spectrum(objective, U, k=3, which="smallest", method=method)
    assert spectrum.kernel_dimension == kernel
    assert spectrum.kernel_is_complete is complete


def test_rounding_of_a_large_kernel_is_recognized(rng):
    """300 zero eigenvalues come out of LAPACK as anything up to about p eps of the largest."""
    d, r = 120, 5
    X, U, y = gaussian_problem(rng, geometry.dimension(d, r) - 300, d, r, smallest=1e-6)
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    assert spectrum.kernel_dimension == 300
    assert spectrum.kernel_is_complete


@pytest.mark.parametrize("condition", [1.0, 1e6])
def test_kernel_where_the_responses_are_not_fitted(rng, condition):
    """A coordinate that no row sees, at a point where the loss has a gradient G.

    Of the two unseen directions `e_1 (Ua)' + (Ua) e_1'`, lifted as `e_1 a' - U Omega(a)`, the one
    with Omega(a) = 0 has no curvature; along the other G shows. At 1e6 rounding of G hides both.
    """
    X, U = normal(rng, 40, 5), conditioned_factor(rng, 5, 2, condition)
    X[:, 0] = 0
    y = (X @ U).square().sum(-1) + normal(rng, 40)
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    assert spectrum.kernel_dimension <= 1
    assert condition > 1 or spectrum.kernel_dimension == 1
    assert spectrum.kernel_is_complete is (condition == 1)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_values_where_the_responses_are_not_fitted(rng, condition):
    """The gradient does not make rounding of the weak columns' population curvature visible.

    Oracle: the Hessian of `U -> ell(UU')` by autograd, on the orthogonal complement of the gauge
    directions `U Omega` by a singular value decomposition.
    """
    d, r = 6, 3
    X, U = normal(rng, 30, d), conditioned_factor(rng, d, r, condition) @ rotation(rng, r)
    y = 1.3 * (X @ U).square().sum(-1) + 0.1

    def loss(flat):
        return ((X @ flat.reshape(d, r)).square().sum(-1) - y).square().mean() / 2

    units = torch.eye(r * r, dtype=torch.float64).reshape(-1, r, r)
    gauge = (U @ (units - units.mT)).flatten(1)
    B = torch.linalg.svd(gauge).Vh[r * (r - 1) // 2 :]  # [p, dr]
    H = torch.autograd.functional.hessian(loss, U.flatten())
    expected = torch.linalg.eigvalsh(B @ H @ B.mT)
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    assert spectrum.status is Status.CONVERGED
    assert spectrum.kernel_is_complete  # no value is anywhere near zero
    scale = float(expected.abs().max())
    torch.testing.assert_close(spectrum.values, expected, rtol=0, atol=1e-13 * scale)


@pytest.mark.parametrize("condition", [1.0, 1e5, 1e9])
def test_the_population_has_no_kernel(rng, condition):
    U = conditioned_factor(rng, 6, 3, condition) @ rotation(rng, 3)
    for method in ("dense", "matrix-free"):
        spectrum = posquad.effective_spectrum(
            posquad.PopulationRisk(U), U, which="smallest", k=2, method=method
        )
        assert spectrum.kernel_dimension == 0
        assert spectrum.kernel_is_complete or condition > 1e6
    squares = posquad.SmoothObjective(lambda Q: Q.square().sum((-2, -1)) / 2, 6)
    assert posquad.effective_spectrum(squares, U).kernel_dimension == 0


@pytest.mark.parametrize("tolerance", [0.5, 0.3, 1e-2])
def test_loose_tolerances_find_the_end_of_a_narrow_spectrum(rng, tolerance):
    """40 p rows: a random direction has a residual of a third of its curvature."""
    X, U, y = gaussian_problem(rng, 40 * 30, 30, 1)
    objective = posquad.LeastSquares(posquad.RankOne(X), y)
    expected = generalized_spectrum(X.numpy(), U.numpy())
    for seed in range(5):
        request = {"method": "matrix-free", "tolerance": tolerance, "seed": seed}
        low = posquad.effective_spectrum(objective, U, which="smallest", **request)
        high = posquad.effective_spectrum(objective, U, which="largest", **request)
        assert low.status is high.status is Status.CONVERGED
        assert float(low.values[0]) * (1 - tolerance) <= expected[0]
        assert float(high.values[0]) * (1 + tolerance) >= expected[-1]


@pytest.mark.parametrize("rows", [8, 11, 30])
def test_kernels_in_single_precision(rows):
    """p = 11 unknowns at (6, 2): 8 rows in general position leave 3 directions unseen."""
    rng = np.random.default_rng(rows)
    X = rng.standard_normal((rows, 6)).astype(np.float32)
    U = np.linalg.qr(rng.standard_normal((6, 2)))[0].astype(np.float32)
    objective = posquad.LeastSquares(posquad.RankOne(X), ((X @ U) ** 2).sum(1))
    spectrum = posquad.effective_spectrum(objective, U)
    assert spectrum.kernel_dimension == max(0, 11 - rows)
    assert spectrum.kernel_is_complete
    assert spectrum.values.dtype == spectrum.vectors.dtype == np.float32
    exact = posquad.effective_spectrum(
        posquad.LeastSquares(posquad.RankOne(X.astype(float)), objective.y.double()), U
    )
    np.testing.assert_allclose(spectrum.values, exact.values, rtol=1e-4, atol=1e-4)
