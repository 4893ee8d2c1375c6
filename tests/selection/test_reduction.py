"""The joint spectral reduction against NumPy's definitions, repeated and clustered spectra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posquad.core.errors import DomainError, DtypeError, NonFiniteError, ShapeError
from posquad.selection import commuting_family, joint_spectral_reduction
from posquad.selection.reduction import CommutationError, Reduction

EPS = np.finfo(float).eps


def basis(d: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def family(spectra, V: np.ndarray | None = None) -> np.ndarray:
    """Matrices with the rows of `spectra` as eigenvalues in one basis, `[n, d, d]`."""
    spectra = np.atleast_2d(np.asarray(spectra, dtype=float))
    V = basis(spectra.shape[1]) if V is None else V
    A = (V * spectra[:, None, :]) @ V.T
    return (A + A.transpose(0, 2, 1)) / 2


def assert_reduces(A: np.ndarray, found: Reduction) -> None:
    """Everything that defines the reduction, written out."""
    P, d, c = found.projectors, found.multiplicities, found.coefficients
    size, n, m = A.shape[-1], len(A), len(d)
    assert P.shape == (m, size, size)
    assert c.shape == found.B.shape == (n, m)
    rounding = 60 * size * float(np.finfo(A.dtype).eps)
    products = np.einsum("aij,bjk->abik", P, P)
    expected = np.einsum("ab,aij->abij", np.eye(m), P)
    np.testing.assert_allclose(products, expected, atol=rounding)
    np.testing.assert_allclose(P.sum(0), np.eye(size), atol=rounding)
    np.testing.assert_allclose(P, P.transpose(0, 2, 1), atol=rounding)
    scale = float(np.linalg.norm(A, axis=(1, 2)).max())
    residual = float(np.linalg.norm(A - np.einsum("na,aij->nij", c, P), axis=(1, 2)).max())
    assert residual <= rounding * scale
    assert found.residual * scale == pytest.approx(residual, abs=rounding * scale)
    assert np.issubdtype(d.dtype, np.integer)
    np.testing.assert_allclose(np.trace(P, axis1=1, axis2=2), d, atol=rounding)
    assert d.sum() == size
    np.testing.assert_allclose(found.B, c * d, rtol=10 * np.finfo(A.dtype).eps)
    # tr(A_i P_a) is the definition of B without coefficients.
    measured = np.einsum("nij,aij->na", A, P)
    np.testing.assert_allclose(found.B, measured, atol=rounding * scale)


def blocks(spectra) -> dict[tuple, int]:
    """Joint eigenvalues and how often each occurs."""
    columns, counts = np.unique(np.asarray(spectra, float).round(7).T, axis=0, return_counts=True)
    return {tuple(column): int(k) for column, k in zip(columns, counts, strict=True)}


SPECTRA = {
    "d=1": [[3.0], [0.0], [-2.0]],
    "n=1": [[1.0, 2.0, 2.0, -5.0]],
    "n=d=1": [[4.0]],
    "identity": [[1.0] * 4, [1.0] * 4],
    "zero": [[0.0] * 3, [0.0] * 3],
    "one of them zero": [[0.0] * 4, [1.0, 1.0, 2.0, 3.0]],
    "repeated": [[1.0, 1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0, 3.0]],
    "separated only together": [[0.0, 0, 1, 1], [0.0, 1, 0, 1]],
    "opposite": [[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]],
    "simple": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]],
    "one block but one": [[1.0] * 9 + [1.5], [2.0] * 10],
    "different sizes": [[1e-5, 2e-5, 2e-5], [1.0, 1.0, 1.0]],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_definition(name):
    spectra = np.array(SPECTRA[name])
    A = family(spectra)
    found = joint_spectral_reduction(A)
    assert_reduces(A, found)
    columns = {
        tuple(column): int(d)
        for column, d in zip(found.coefficients.T.round(7) + 0.0, found.multiplicities, strict=True)
    }
    assert columns == blocks(spectra)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize(("kinds", "copies"), [(26, 1), (60, 1), (6, 5), (9, 5), (12, 5)])
def test_larger_matrices(kinds, copies, diagonal):
    columns = np.random.default_rng(kinds).normal(size=(3, kinds))
    spectra = np.repeat(columns, copies, axis=1)
    A = family(spectra, np.eye(kinds * copies) if diagonal else basis(kinds * copies))
    found = joint_spectral_reduction(A)
    assert_reduces(A, found)
    assert found.multiplicities.tolist() == [copies] * kinds


@pytest.mark.parametrize("gap", [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("second", [[1.0, 1, 1, 1, 1], [1.0, 1, 1, 2, 2]])
def test_clusters_are_told_apart(gap, second):
    spectra = np.array([[1, 1 + gap, 1 + gap, 1 + 2 * gap, 3], second])
    A = family(spectra)
    found = joint_spectral_reduction(A)
    assert_reduces(A, found)
    assert sorted(found.multiplicities.tolist()) == [1, 1, 1, 2]
    # The projector of the double direction: eigenvectors of a gap turn by rounding over the gap.
    V = basis(5)[:, 1:3]
    double = found.projectors[found.multiplicities.tolist().index(2)]
    np.testing.assert_allclose(double, V @ V.T, atol=1e3 * EPS / gap)


@pytest.mark.parametrize("gap", [1e-11, 1e-13])
def test_below_the_tolerance_is_one_eigenspace(gap):
    found = joint_spectral_reduction(family([[1, 1 + gap, 1 - gap, 3]]))
    assert found.multiplicities.tolist() == [1, 3]
    assert found.residual < 2 * gap


def test_the_tolerance_is_the_callers():
    A = family([[1.0, 1.001, 3.0]])
    assert joint_spectral_reduction(A, tolerance=1e-2).multiplicities.tolist() == [1, 2]
    assert joint_spectral_reduction(A).multiplicities.tolist() == [1, 1, 1]


def test_a_random_combination_that_is_degenerate():
    # Whatever weights w are drawn from this generator, spectra along (w2, -w1) combine to zero.
    for seed in range(5):
        w = torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        direction = np.array([float(w[1]), -float(w[0])])
        spectra = np.outer(direction, [0.0, 1.0, 2.0, 2.0, -1.0])
        A = family(spectra, basis(5, seed))
        found = joint_spectral_reduction(A)
        assert_reduces(A, found)
        assert sorted(found.multiplicities.tolist()) == [1, 1, 1, 2]


@given(seed=st.integers(0, 10_000), n=st.integers(1, 4), kinds=st.integers(1, 4))
def test_projectors_do_not_depend_on_the_basis_inside_blocks(seed, n, kinds):
    rng = np.random.default_rng(seed)
    copies = rng.integers(1, 4, kinds)
    # Integer spectra: distinct columns differ by one or more.
    columns = np.unique(rng.integers(-3, 4, (n, kinds)), axis=1).astype(float)
    copies = copies[: columns.shape[1]]
    labels = np.repeat(np.arange(len(copies)), copies)
    V = basis(len(labels), seed)
    turned = V.copy()
    for a in range(len(copies)):
        turned[:, labels == a] = V[:, labels == a] @ basis(copies[a], seed + a)
    one = joint_spectral_reduction(family(columns[:, labels], V))
    other = joint_spectral_reduction(family(columns[:, labels], turned))
    assert_reduces(family(columns[:, labels], V), one)
    expected = [V[:, labels == a] @ V[:, labels == a].T for a in range(len(copies))]
    # Descending in the first matrix, ties by the next: np.unique sorts columns ascending.
    np.testing.assert_allclose(one.projectors, expected[::-1], atol=1e3 * EPS)
    np.testing.assert_allclose(other.projectors, one.projectors, atol=1e3 * EPS)
    np.testing.assert_allclose(other.B, one.B, atol=1e3 * EPS)


@pytest.mark.parametrize("c", [1e-200, 1e-100, 1e100, 1e200])
def test_scale_does_not_matter(c):
    A = family([[1.0, 1, 2, 3], [1.0, 1, 5, 5]])
    one, other = joint_spectral_reduction(A), joint_spectral_reduction(c * A)
    np.testing.assert_array_equal(other.multiplicities, one.multiplicities)
    np.testing.assert_allclose(other.projectors, one.projectors, atol=1e3 * EPS)
    np.testing.assert_allclose(other.B / c, one.B, atol=1e3 * EPS)


@pytest.mark.parametrize("options", [{}, {"tolerance": 1e-4}])
def test_float32(options):
    A = family([[1.0, 1, 2, 3], [1.0, 1, 5, 5]]).astype(np.float32)
    found = joint_spectral_reduction(A, **options)
    assert_reduces(A, found)
    assert sorted(found.multiplicities.tolist()) == [1, 1, 2]
    for array in (found.projectors, found.coefficients, found.B):
        assert array.dtype == np.float32


def test_float32_coordinates_stay_float32():
    A = family([[1.0, 1, 2, 3]]).astype(np.float32)
    found = joint_spectral_reduction(A, tolerance=1e-4)
    assert found.predictor(np.ones(3, dtype=np.float32)).dtype == np.float32
    assert found.coordinates(np.eye(4, dtype=np.float32)).dtype == np.float32


def test_torch_gives_tensors_with_the_same_values():
    A = family(SPECTRA["repeated"])
    expected, found = joint_spectral_reduction(A), joint_spectral_reduction(torch.from_numpy(A))
    for name in ("projectors", "multiplicities", "coefficients", "B"):
        value = getattr(found, name)
        assert isinstance(value, torch.Tensor)
        np.testing.assert_array_equal(value.numpy(), getattr(expected, name))


# Matrices that do not commute.


def brute_force(A: np.ndarray) -> tuple[tuple[int, int], float]:
    sizes = {
        (i, j): np.linalg.norm(A[i] @ A[j] - A[j] @ A[i])
        / (np.linalg.norm(A[i]) * np.linalg.norm(A[j]))
        for i in range(len(A))
        for j in range(i + 1, len(A))
        if A[i].any() and A[j].any()
    }
    pair = max(sizes, key=lambda key: sizes[key])
    return pair, sizes[pair]


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_commutators_are_measured_in_any_unit(unit):
    """Of the Pauli matrices X and Z: `||2 XZ||_F / (||X||_F ||Z||_F)` is sqrt(2)."""
    A = np.array([[[0, unit], [unit, 0]], [[1 / unit, 0], [0, -1 / unit]]])
    with pytest.raises(CommutationError) as caught:
        joint_spectral_reduction(A)
    assert caught.value.size == pytest.approx(2**0.5, rel=4 * EPS)


@pytest.mark.parametrize("seed", range(4))
def test_the_worst_pair_is_named(seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(5, 4, 4)) * 10.0 ** rng.uniform(-5, 5, (5, 1, 1))
    A = A + A.transpose(0, 2, 1)
    A[seed] = 0  # commutes with all, and has no relative size
    with pytest.raises(CommutationError) as caught:
        joint_spectral_reduction(A)
    pair, size = brute_force(A)
    assert caught.value.pair == pair
    assert caught.value.size == pytest.approx(size, rel=1e-12)
    assert caught.value.argument == "A"
    assert f"A[{pair[0]}] and A[{pair[1]}]" in caught.value.got


@pytest.mark.parametrize("turn", [1e-9, 1e-7, 1e-3])
def test_one_matrix_turned_a_little_is_found(turn):
    A = family([[1.0, 2, 3], [3.0, 1, 2], [2.0, 5, 1]])
    c, s = np.cos(turn), np.sin(turn)
    V = basis(3) @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    A[1] = family([[3.0, 1, 2]], V)[0]
    pair, size = brute_force(A)
    assert 1 in pair
    with pytest.raises(CommutationError) as caught:
        joint_spectral_reduction(A)
    assert caught.value.size == pytest.approx(size, rel=1e-5)
    # The caller may allow it; what is lost is of that size and reported.
    allowed = joint_spectral_reduction(A, tolerance=2 * size)
    assert 0.01 * size < allowed.residual < 10 * size


# From coordinates to matrices and back.


@pytest.mark.parametrize("name", SPECTRA)
def test_block_averages_keep_measurements_and_trace(name):
    for batch in [(), (2, 3), (0,)]:
        A = family(SPECTRA[name])
        found = joint_spectral_reduction(A)
        size = A.shape[-1]
        W = np.random.default_rng(1).normal(size=(*batch, size, size))
        Q = W @ np.swapaxes(W, -1, -2)
        q = found.coordinates(Q)
        assert q.shape == (*batch, len(found.multiplicities))
        assert (q >= 0).all()
        rounding = 60 * size * EPS * (1 + np.abs(A).max()) * (1 + np.abs(Q).max(initial=0)) * size
        measured = np.einsum("nij,...ij->...n", A, Q)
        np.testing.assert_allclose(q @ found.B.T, measured, atol=rounding)
        trace = np.trace(Q, axis1=-2, axis2=-1)
        np.testing.assert_allclose(q @ found.multiplicities, trace, atol=rounding)
        averaged = found.predictor(q)
        assert averaged.shape == Q.shape
        np.testing.assert_allclose(
            np.einsum("nij,...ij->...n", A, averaged), measured, atol=rounding
        )
        np.testing.assert_allclose(found.coordinates(averaged), q, atol=rounding)
        # P_a Q P_a averaged over the orthogonal group of each block, written out.
        by_hand = sum(
            (np.trace(P @ Q, axis1=-2, axis2=-1) / d)[..., None, None] * P
            for P, d in zip(found.projectors, found.multiplicities, strict=True)
        )
        np.testing.assert_allclose(averaged, by_hand, atol=rounding)


def test_predictor_of_numpy_from_a_torch_reduction():
    found = joint_spectral_reduction(torch.from_numpy(family([[1.0, 2.0]])))
    assert isinstance(found.predictor(np.ones(2)), np.ndarray)
    np.testing.assert_allclose(found.predictor(np.ones(2)), np.eye(2), atol=10 * EPS)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 4), m=st.integers(1, 5))
def test_commuting_family_round_trip(seed, n, m):
    rng = np.random.default_rng(seed)
    d = rng.integers(1, 4, m)
    B = rng.normal(size=(n, m))
    A = commuting_family(B, d, seed=seed)
    assert A.shape == (n, d.sum(), d.sum())
    np.testing.assert_array_equal(A, A.transpose(0, 2, 1))
    order = np.argsort(-(B / d)[0])  # the reduction sorts by the first matrix, descending
    found = joint_spectral_reduction(A)
    assert_reduces(A, found)
    np.testing.assert_array_equal(found.multiplicities, d[order])
    np.testing.assert_allclose(found.B, B[:, order], atol=1e3 * EPS * np.abs(B).max())


def test_commuting_family_is_deterministic_and_merges_equal_ratios():
    B, d = np.array([[1.0, 2.0, 5.0]]), np.array([1, 2, 1])
    np.testing.assert_array_equal(commuting_family(B, d, seed=3), commuting_family(B, d, seed=3))
    assert np.abs(commuting_family(B, d, seed=3) - commuting_family(B, d, seed=4)).max() > 0.1
    found = joint_spectral_reduction(commuting_family(B, d))
    np.testing.assert_array_equal(found.multiplicities, [1, 3])
    np.testing.assert_allclose(found.B, [[5.0, 3.0]], rtol=1e-13)
    single = commuting_family(torch.tensor([[1.0, 2.0]]), torch.ones(2))
    assert single.dtype == torch.float32


# Bad input.

SKEW = np.array([[[0.0, 1.0], [-1.0, 0.0]]])


@pytest.mark.parametrize(
    ("A", "kind"),
    [
        (np.eye(2), ShapeError),
        (np.ones(3), ShapeError),
        (np.ones((2, 3, 4)), ShapeError),
        (np.ones((0, 2, 2)), ShapeError),
        (np.ones((2, 0, 0)), ShapeError),
        (np.ones((1, 2, 2, 2)), ShapeError),
        (SKEW, DomainError),
        (np.full((1, 2, 2), np.nan), NonFiniteError),
        (np.ones((1, 2, 2), dtype=complex), DtypeError),
        ("text", DtypeError),
    ],
)
def test_bad_matrices(A, kind):
    with pytest.raises(kind) as caught:
        joint_spectral_reduction(A)
    assert caught.value.argument == "A"
    assert caught.value.expected
    assert caught.value.got


@pytest.mark.parametrize("tolerance", [0.0, -1.0, np.nan, np.inf, "small"])
def test_bad_tolerance(tolerance):
    with pytest.raises(DomainError) as caught:
        joint_spectral_reduction(np.eye(2)[None], tolerance=tolerance)
    assert caught.value.argument == "tolerance"


@pytest.mark.parametrize(
    ("method", "value", "kind"),
    [
        ("predictor", np.ones(4), ShapeError),
        ("predictor", np.float64(1.0), ShapeError),
        ("predictor", np.array([1.0, np.nan]), NonFiniteError),
        ("predictor", np.ones(2, dtype=complex), DtypeError),
        ("coordinates", np.eye(2), ShapeError),
        ("coordinates", np.ones(3), ShapeError),
        ("coordinates", np.triu(np.ones((3, 3))), DomainError),
        ("coordinates", np.full((3, 3), np.inf), NonFiniteError),
    ],
)
def test_bad_points(method, value, kind):
    found = joint_spectral_reduction(family([[1.0, 1.0, 2.0]]))
    with pytest.raises(kind) as caught:
        getattr(found, method)(value)
    assert caught.value.argument == {"predictor": "q", "coordinates": "Q"}[method]


@pytest.mark.parametrize(
    ("B", "d", "kind"),
    [
        (np.ones(2), np.ones(2), ShapeError),
        (np.ones((1, 2)), np.ones(3), ShapeError),
        (np.ones((1, 0)), np.ones(0), ShapeError),
        (np.ones((1, 2)), np.array([1, 0]), DomainError),
        (np.ones((1, 2)), np.array([1, -1]), DomainError),
        (np.ones((1, 2)), np.array([1, 1.5]), DomainError),
        (np.full((1, 2), np.nan), np.ones(2), NonFiniteError),
        (np.ones((1, 2), dtype=complex), np.ones(2), DtypeError),
    ],
)
def test_bad_families(B, d, kind):
    with pytest.raises(kind) as caught:
        commuting_family(B, d)
    assert caught.value.expected
    assert caught.value.got
