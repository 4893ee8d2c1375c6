"""The Davidson solver alone, on matrices whose eigenvalues are known."""

from __future__ import annotations

import math

import pytest
import torch

from posquad.core.status import Status
from posquad.curvature import eigen
from posquad.curvature.eigen import (
    Preconditioner,
    accuracy_status,
    converged,
    extreme_eigenpairs,
    no_preconditioner,
)
from posquad.curvature.lanczos import Lanczos
from support import normal, rotation


def solve(A, *, k, largest=False, width=None, project=None, root=None, **options):
    """Run on a dense symmetric `A[..., N, N]` from a fixed random start."""
    rng = torch.Generator().manual_seed(5)
    N = A.shape[-1]
    start = normal(rng, *A.shape[:-2], N, width or min(k + 2, N))
    identity = lambda block: block  # noqa: E731
    project = project or identity
    settings = {"dimension": N, "tolerance": 1e-10, "max_products": 5000, **options}
    return extreme_eigenpairs(
        lambda block: A @ block,
        no_preconditioner(project) if root is None else Preconditioner(root, root, project),
        project,
        project(start),
        k=k,
        largest=largest,
        **settings,
    )


def spectral(rng, values):
    Q = rotation(rng, len(values))
    return (Q * torch.tensor(values, dtype=torch.float64)) @ Q.mT


SPECTRA = {
    "spread": [0.01 * 1.2**i for i in range(60)],
    "clustered": [1.0, 1.0 + 1e-7, 1.0 + 2e-7, *[2.0 + 0.1 * i for i in range(57)]],
    "multiple": [3.0] * 30 + [5.0] * 30,
    "kernel": [0.0] * 4 + [1.0 + i for i in range(56)],
    "indefinite": [-5.0 + i / 3 for i in range(60)],
    "all equal": [2.0] * 60,
    "zero": [0.0] * 60,
}


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("name", SPECTRA)
def test_finds_the_extreme_values_with_their_multiplicity(rng, name, largest):
    for k in (1, 3, 7):
        values = torch.tensor(sorted(SPECTRA[name], reverse=largest), dtype=torch.float64)[:k]
        pairs = solve(spectral(rng, SPECTRA[name]), k=k, largest=largest)
        scale = max(abs(v) for v in SPECTRA[name])
        found = pairs.values.sort(descending=largest).values
        torch.testing.assert_close(found, values, rtol=1e-12, atol=1e-12 * scale)
        gram = pairs.vectors.mT @ pairs.vectors
        torch.testing.assert_close(gram, torch.eye(k, dtype=torch.float64), atol=1e-10, rtol=0)
        assert bool((pairs.residuals <= 1e-10 * values.abs() + 1e-13 * scale).all())


@pytest.mark.parametrize("N", [1, 2, 3, 5])
def test_small_spaces_are_exhausted_exactly(rng, N):
    values = [1.0 + i for i in range(N)]
    pairs = solve(spectral(rng, values), k=N, width=N)
    torch.testing.assert_close(
        pairs.values.sort().values, torch.tensor(values, dtype=torch.float64), rtol=1e-13, atol=0
    )


def test_directions_outside_the_space_never_enter(rng):
    """The operator vanishes off the space; a stray direction would show as a false zero."""
    N, inside = 40, 25
    Q = rotation(rng, N)[:, :inside]
    P = Q @ Q.mT
    A = 4.0 * P  # one eigenvalue only: every residual is rounding from the start
    pairs = solve(A, k=5, project=lambda block: P @ block, dimension=inside)
    torch.testing.assert_close(pairs.values, torch.full((5,), 4.0, dtype=torch.float64))


def test_a_good_preconditioner_pays(rng):
    values = torch.logspace(-4, 0, 300, dtype=torch.float64)
    Q = rotation(rng, 300)
    A = (Q * values) @ Q.mT
    near_root = (Q / (values * (1 + torch.rand(300, generator=rng))).sqrt()) @ Q.mT
    plain = solve(A, k=1)
    better = solve(A, k=1, root=lambda block: near_root @ block)
    torch.testing.assert_close(better.values, values[:1], rtol=1e-10, atol=0)
    torch.testing.assert_close(plain.values, values[:1], rtol=1e-10, atol=0)
    assert better.products < plain.products / 3


def test_batch_elements_do_not_disturb_each_other(rng):
    stack = torch.stack([spectral(rng, SPECTRA["spread"]), spectral(rng, SPECTRA["kernel"])])
    pairs = solve(stack, k=2)
    torch.testing.assert_close(
        pairs.values.sort().values,
        torch.tensor([[0.01, 0.012], [0.0, 0.0]], dtype=torch.float64),
        rtol=1e-10,
        atol=1e-12,
    )


def test_the_product_limit_is_kept_and_residuals_are_honest(rng):
    A = spectral(rng, [10.0 ** (-i / 10) for i in range(100)])
    pairs = solve(A, k=1, max_products=20)
    assert pairs.products <= 20 + 1  # one more to measure the residual
    true = torch.linalg.vector_norm(A @ pairs.vectors - pairs.vectors * pairs.values)
    torch.testing.assert_close(pairs.residuals[0], true)
    assert float(true) > 1e-8


TOLERANCES = [0.5, 0.3, 1e-2, 1e-3, 1e-9]


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("largest", [False, True])
def test_a_start_without_the_wanted_eigenvector_is_not_believed(rng, largest, tolerance):
    """Coordinates never mix: from this start the iteration alone finds the second value."""
    values = torch.arange(1.0, 61.0, dtype=torch.float64)
    A, wanted = torch.diag(values), 59 if largest else 0

    def start(block):
        return block.index_fill(-2, torch.tensor([wanted]), 0.0)

    pairs = extreme_eigenpairs(
        lambda block: A @ block,
        no_preconditioner(lambda block: block),
        lambda block: block,
        start(normal(rng, 60, 3)),
        k=1,
        largest=largest,
        dimension=60,
        tolerance=tolerance,
        max_products=5000,
    )
    assert bool(pairs.extreme)
    distance = abs(float(pairs.values[0]) - float(values[wanted]))
    # 60 instead of 59 would be within the looser tolerances; 1 instead of 2 is within none but 0.5.
    assert distance <= tolerance * float(pairs.values[0])
    if tolerance < 1e-2:
        assert distance < 1e-2


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_one_value_below_a_narrow_bulk_is_found_at_any_tolerance(rng, tolerance):
    """A random vector has a residual of 4% of its quotient of 1, where the lowest value is 1/2."""
    A = spectral(rng, [0.5] + [1.0] * 199)
    pairs = solve(A, k=1, tolerance=tolerance, width=1)
    assert bool(pairs.extreme)
    assert float(pairs.values[0]) == pytest.approx(0.5, rel=1e-3)


def test_nothing_is_called_extreme_without_the_products_for_the_search(rng):
    A = spectral(rng, [1.0] * 199 + [2.0])
    enough = solve(A, k=1)
    few = solve(A, k=1, max_products=enough.products - 3)
    assert bool(enough.extreme)
    assert not bool(few.extreme)
    assert not bool(converged(few, 0.5).any())
    assert accuracy_status(few, converged(few, 0.5), 0.5) is Status.NOT_CONVERGED
    assert few.products <= enough.products - 3 + 1


def test_values_at_the_floor_need_no_search(rng):
    A = spectral(rng, [0.0] * 20 + [1.0] * 40)
    pairs = solve(A, k=3, floor=0.0)
    assert bool(pairs.extreme)
    assert float(pairs.values.abs().max()) < 1e-14


def test_growth_of_the_lanczos_polynomial_by_hand():
    """K = diag(3, 1) from (1, 1)/sqrt(2): a_1 = 2, b_1 = 1, p_1(x) = x - 2; then b_2 = 0."""
    K = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    chain = Lanczos(lambda y: K @ y, lambda y: y, torch.ones(2, 1, dtype=torch.float64))
    chain.step()
    assert float(chain.growth) == pytest.approx(math.log(2))
    chain.step()
    assert float(chain.pivot) == pytest.approx(2 - 1 / 2)  # det(K) = 3 = 2 * 3/2
    assert float(chain.growth) > 30  # nothing is left: any other value is excluded
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # the value 1, then 3
    torch.testing.assert_close(chain.lowest(2).abs(), swap)


@pytest.mark.parametrize(("width", "limit"), [(3, 48), (6, 72)])
def test_the_basis_stays_small_and_products_are_counted(rng, width, limit, monkeypatch):
    """At most `max(12 width, 48)` vectors are kept, over restarts; a column is a product."""
    bases, columns = [], []
    symmetric = eigen.symmetric_part
    monkeypatch.setattr(
        eigen, "symmetric_part", lambda T: bases.append(T.shape[-1]) or symmetric(T)
    )
    values = torch.linspace(1.0, 2.0, 400, dtype=torch.float64)
    start = normal(rng, 400, width)

    def operator(block):
        columns.append(block.shape[-1])
        return values[:, None] * block

    same = lambda block: block  # noqa: E731
    pairs = extreme_eigenpairs(
        operator, no_preconditioner(same), same, start,
        k=1, largest=False, dimension=400, tolerance=1e-10, max_products=3000,
    )  # fmt: skip
    assert float(pairs.values[0]) == pytest.approx(1.0, rel=1e-12)
    assert max(bases) <= limit
    assert min(bases[bases.index(max(bases)) + 1 :]) <= 3 * width + width  # it was restarted
    assert pairs.products == sum(columns)
