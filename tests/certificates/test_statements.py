"""Each proof under the worst rounding: operators whose results are off by their whole bound.

`Worst` returns what was computed moved by nine tenths of the stated error bound, to the side on
which a careless proof would claim too much, and has a depth of ten million so that this is 1e-9:
far above every other slack, and above the rounding of the truth it is compared with. A bisection
finds the strongest number that is proved.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from posquad.certificates.proofs.bounded_operator import BoundedDense, BoundedRankOne
from posquad.certificates.proofs.rounding import down, gamma, norm_above, total, up, witness_error
from posquad.certificates.proofs.statements import (
    TangentGram,
    proves_dual,
    proves_dual_slack,
    proves_largest,
    proves_quartic,
    residual_and_rounding,
    response_size_below,
    size_below,
    trace_above,
    trace_below,
    trace_bound_below,
)

DEPTH = 10**7
MOVED = 0.9 * gamma(DEPTH)
NEAR = 1e-12  # of the truth, computed in double precision


def worst(kind, *, side=1):
    """An operator class whose results are off by their error bound; `side` is that of `adjoint`."""

    class Worst(kind):
        def __init__(self, array):
            super().__init__(array)
            self.depth = DEPTH

        def gram(self):
            K, w, size = super().gram()
            return K - MOVED * size[:, None] * size, w, size

        def monomial_gram(self):
            G, size = super().monomial_gram()
            return G - MOVED * np.sqrt(size[:, None] * size), size

        def second_moment(self):
            M, size = kind.second_moment(self)
            return M - MOVED * size * np.eye(self.d), size

        def adjoint(self, z):
            Y, size = super().adjoint(z)
            return Y + side * MOVED * size * np.eye(self.d), size

        def adjoint_factor(self, z, U):
            product, size = super().adjoint_factor(z, U)
            return product - np.clip(product, -MOVED * size, MOVED * size), size

    return Worst


def strongest(proves, weak, strong):
    """The strongest number that is proved, between a weak one and a false one."""
    assert proves(weak)
    assert not proves(strong)
    for _ in range(60):
        middle = (weak + strong) / 2
        if proves(middle):
            weak = middle
        else:
            strong = middle
    return weak


def single(rng, kind, d):
    """One measurement, for which mu is `||A||_op^2`."""
    x = rng.standard_normal((1, d))
    if kind is BoundedRankOne:
        return x, float(np.square(x).sum()) ** 2
    return x[:, :, None] * x[:, None, :], float(np.square(x).sum()) ** 2


@pytest.mark.parametrize("kind", [BoundedRankOne, BoundedDense])
@pytest.mark.parametrize(
    ("route", "parameter"),
    [("gram", 0.0), ("gram", 0.2), ("monomials", 0.0), ("monomials", 0.3), ("moment", 0.0)],
)
def test_mu_is_not_undercut(kind, route, parameter):
    rng = np.random.default_rng(0)
    for d in (1, 2, 3):
        array, mu = single(rng, kind, d)
        operator = worst(kind)(array)
        inside = parameter * (mu if route == "monomials" else 1 / d)
        least = strongest(lambda v: proves_quartic(operator, v, route, inside), 100 * mu, 0.1 * mu)  # noqa: B023
        assert least >= mu * (1 - NEAR)


@pytest.mark.parametrize("seed", range(4))
def test_curvature_is_not_overstated(seed):
    """`G` moved by `gamma` of its absolute size, entry by entry, in either direction."""
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((12, 3)), rng.standard_normal((3, 2))
    gram = TangentGram(worst(BoundedRankOne)(X), U)
    gauge = 1e3
    true = np.linalg.eigvalsh(gram.with_gauge(gauge)[0])[0] * 4 / 12
    top = np.linalg.eigvalsh(gram.G)[-1] * 4 / 12
    gram.G = gram.G + MOVED * np.diag(gram.size)
    low = strongest(lambda v: gram.proves_smallest(v, gauge), 0.1 * true, 2 * true)
    assert low <= true * (1 + NEAR)
    gram.G = gram.G - 2 * MOVED * np.diag(gram.size)
    assert strongest(gram.proves_largest, 2 * top, 0.5 * top) >= top * (1 - NEAR)


def test_largest_eigenvalue_is_not_undercut():
    for seed in range(20):
        U = np.random.default_rng(seed).standard_normal((5, 1))
        exact = sum(Fraction(float(x)) ** 2 for x in U[:, 0])
        least = strongest(lambda v: proves_largest(U, v), 2 * float(exact), 0.5 * float(exact))  # noqa: B023
        assert exact <= Fraction(least) <= exact * (1 + Fraction(1, 10**11))
        assert Fraction(size_below(U)) <= exact


def test_largest_eigenvalue_of_a_long_column():
    """A million small squares are added to 1 one by one, and each is lost to rounding."""
    U = np.full((10**6, 1), 2.0**-27.1)
    U[0] = 1.0
    exact = 1 + (10**6 - 1) * Fraction(float(U[1, 0])) ** 2
    assert Fraction(strongest(lambda v: proves_largest(U, v), 2.0, 0.5)) >= exact


def test_dual_matrix_is_not_overstated_by_its_own_rounding():
    """U = e1 and all weight on rows along e2: `A*(z)U = 0` exactly and beta is one number."""
    X = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [1.0, 1.0]])
    z = np.array([500.0, -250.0, 56.0, 0.0])  # 500 - 1000 + 504, of 2004 in absolute value
    U = np.eye(2)[:, :1]
    for operator in (worst(BoundedRankOne)(X), worst(BoundedDense)(X[:, :, None] * X[:, None, :])):
        most = strongest(lambda b: proves_dual(operator, U, z, b, 1.0, 1.0), 1.0, 10.0)  # noqa: B023
        assert 4 * (1 - 1e-5) < most <= 4 * (1 + NEAR)


def test_dual_vector_that_is_off_within_rounding_still_counts_as_off():
    """`A*(z)U` is computed as zero and is not; the projection of z moves `V'YV` by 1e4 times it."""
    X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 100.0], [1.0, -100.0]])
    U = np.eye(2)[:, :1]
    hidden = MOVED * 1.5
    z = np.array([1.0, 1.0 + hidden, -1.0, 0.0, 0.0])
    operator = worst(BoundedRankOne)(X)
    assert not operator.adjoint_factor(z, U)[0].any()
    K = X * (X @ U)
    lam = 4 / 5 * float(np.linalg.eigvalsh(K.T @ K)[0])
    mu = float(np.square(np.square(X).sum(1)).sum()) / 5
    projected = z - K @ np.linalg.solve(K.T @ K, K.T @ z)
    true = float(projected @ np.square(X[:, 1]))
    assert true < 1 - 1e-6
    most = strongest(lambda b: proves_dual(operator, U, z, b, lam, mu), 0.5, 2.0)
    assert 0.99 < most <= true * (1 + NEAR)


def test_columns_that_leak_out_of_the_range_of_the_factor():
    """U nearly dependent: the W of the proof leaves its range, which must not help `V'YV`."""
    u, w = np.array([3.0, 5.0, 7.0]), np.array([1.0, -2.0, 4.0])
    v = np.cross(u, w)  # integers: orthogonal to U exactly
    operator = BoundedDense((v[:, None] * v)[None])
    beta = float(v @ v)
    proved = 0
    for power in range(30, 46):
        U = np.stack([u, 2.0**power * u + w], 1)
        # The product A*(z)U is zero exactly, whatever rounding says; a large lam takes it out.
        ask = lambda b: proves_dual(operator, U, np.ones(1), b, 1e60, 1.0)  # noqa: B023, E731
        if ask(0.5 * beta):
            proved += 1
            assert strongest(ask, 0.5 * beta, 1.5 * beta) <= beta * (1 + NEAR)
    assert proved > 8


def test_dual_slack_is_not_undercut():
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    dual = np.array([1.0, 41.5, -10.0])  # diag(1, 1.5), the second with cancellation
    for operator in (
        worst(BoundedRankOne, side=-1)(X),
        worst(BoundedDense, side=-1)(X[:, :, None] * X[:, None, :]),
    ):
        least = strongest(lambda e: proves_dual_slack(operator, dual, e), 3.0, 0.0)  # noqa: B023
        assert least >= 0.5 * (1 - NEAR)


def test_trace_bound_allows_for_the_misfit():
    """One measurement `q = 1` to within 0.1: the least trace is 0.9."""
    one = np.ones(1)
    assert trace_bound_below(one, one, 0.0, 0.0) == pytest.approx(1)
    assert trace_bound_below(one, one, 0.0, 0.1) <= 0.9
    assert trace_bound_below(one, one, 0.0, 0.1) == pytest.approx(0.9)
    assert trace_bound_below(one, one, 0.25, 0.1) == pytest.approx(0.72)
    assert trace_bound_below(np.ones(4), np.ones(4) / 4, 0.0, 0.1) == pytest.approx(0.9)
    assert trace_bound_below(one, one, 0.0, 2.0) == 0.0


# Nothing is given away: the strongest number that is proved is near the true one.


@pytest.mark.parametrize("kind", [BoundedRankOne, BoundedDense])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_strongest_proofs_are_near_the_truth(kind, d):
    """Rounding of depth about 100 is 1e-14; nine digits leave room for its amplification."""
    rng = np.random.default_rng(d)
    array, mu = single(rng, kind, d)
    for route, parameter in (("gram", 0.0), ("monomials", 0.0), ("moment", 0.0)):
        operator = kind(array)
        least = strongest(lambda v: proves_quartic(operator, v, route, parameter), 9 * mu, 0.1 * mu)  # noqa: B023
        assert least == pytest.approx(mu, rel=1e-9)
    # K - k w^2 = (1 - k) w^2, times the factor 1 + k / (1 - k d).
    k = 0.3 / d
    claimed = mu * (1 - k) * (1 + k / (1 - k * d))
    least = strongest(lambda v: proves_quartic(operator, v, "gram", k), 9 * mu, 0.1 * mu)
    assert least == pytest.approx(claimed, rel=1e-9)
    X, U = rng.standard_normal((12, d)), rng.standard_normal((d, 1))
    A = X[:, :, None] * X[:, None, :]
    operator = kind(X if kind is BoundedRankOne else A)
    rows = np.array([(a @ U).ravel() for a in A])
    values = np.linalg.eigvalsh(rows.T @ rows) * 4 / 12
    gram = TangentGram(operator, U)
    low = strongest(lambda v: gram.proves_smallest(v, 0.0), 0.1 * values[0], 2 * values[0])
    assert low == pytest.approx(values[0], rel=1e-9)
    top = strongest(gram.proves_largest, 2 * values[-1], 0.5 * values[-1])
    assert top == pytest.approx(values[-1], rel=1e-9)
    dual = rng.uniform(0.5, 1, 12)
    excess = np.linalg.eigvalsh(np.einsum("i,iab->ab", dual, A))[-1] - 1
    least = strongest(lambda e: proves_dual_slack(operator, dual, e), 2 * excess, 0.5 * excess)
    assert least == pytest.approx(excess, rel=1e-9)


def test_gauge_term_is_that_of_its_formula():
    """`C(Z) = ||U'Z - Z'U||^2 / 2`, summed over all Z of a basis by polarization."""
    rng = np.random.default_rng(0)
    X, U, Z = rng.standard_normal((7, 3)), rng.standard_normal((3, 2)), rng.standard_normal((3, 2))
    gram = TangentGram(BoundedRankOne(X), U)
    G = gram.with_gauge(2.5)[0]
    skew = U.T @ Z - Z.T @ U
    measured = np.square(((X @ U) * (X @ Z)).sum(1)).sum()
    expected = measured + 2.5 * np.square(skew).sum() / 2
    assert Z.ravel() @ G @ Z.ravel() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("weight", [0.0, 1e-3])
def test_what_is_not_claimed_is_not_proved(weight):
    """Zero and negative claims, parameters and weights prove nothing, even if they are true."""
    X, U = np.random.default_rng(0).standard_normal((9, 2)), np.eye(2)[:, :1]
    operator, gram = BoundedRankOne(X), TangentGram(BoundedRankOne(X), np.eye(2)[:, :1])
    assert gram.proves_smallest(1e-9, 1.0)
    assert not gram.proves_smallest(0.0, 1.0)
    assert not gram.proves_smallest(-1.0, 1.0)
    assert not gram.proves_smallest(1e-9, -weight - 1e-300)
    for route in ("gram", "monomials", "moment"):
        assert proves_quartic(operator, 1e3, route, weight)
        assert not proves_quartic(operator, 1e3, route, -1e-3)
        assert not proves_quartic(operator, -1e3, route, weight)
        assert not proves_quartic(operator, 0.0, route, weight)
    assert not proves_quartic(operator, 1e3, "guess", weight)
    assert not proves_quartic(operator, 1e3, "gram", 0.5)  # k d = 1
    assert not proves_quartic(operator, 1e3, "monomials", 1e3)
    z = np.zeros(9)
    z[0] = 1.0
    for beta, lam, mu in ((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)):
        assert not proves_dual(operator, U, z, beta, lam, mu)
    assert not proves_dual_slack(operator, 1e-3 * np.ones(9), -1e-9)
    assert proves_dual_slack(operator, 1e-3 * np.ones(9), 0.0)


# Scalars and the witness.


def test_scalar_bounds_are_near_the_truth():
    rng = np.random.default_rng(1)
    U, y, dual = rng.standard_normal((5, 2)), rng.standard_normal(7), rng.standard_normal(7)
    trace = float(sum(Fraction(x) ** 2 for x in U.ravel()))
    assert trace * (1 - 1e-13) <= trace_below(U) <= trace <= trace_above(U) <= trace * (1 + 1e-13)
    assert size_below(U) == pytest.approx(trace / math.sqrt(2), rel=1e-12)
    mean = float(sum(Fraction(x) ** 2 for x in y)) / 7
    assert response_size_below(y) == pytest.approx(math.sqrt(mean), rel=1e-12)
    assert response_size_below(np.zeros(3)) == 0.0
    bound = abs(float(sum(Fraction(a) * Fraction(b) for a, b in zip(y, dual, strict=True))))
    dual = dual * math.copysign(1, float(y @ dual))
    assert trace_bound_below(y, dual, 0.0, 0.0) == pytest.approx(bound, rel=1e-12)
    # (3, 4) . (1, 2) = 11, less |dual| sqrt(2) misfit, over 1 + excess.
    expected = (11 - math.sqrt(5) * math.sqrt(2) * 0.1) / 1.5
    told = trace_bound_below(np.array([3.0, 4.0]), np.array([1.0, 2.0]), 0.5, 0.1)
    assert told == pytest.approx(expected, rel=1e-12)
    assert told <= expected


def test_residual_and_its_rounding_by_hand():
    """One measurement of 1 that is 3: off by 2; rounding is 1e-15 of what is summed."""
    operator = BoundedRankOne(np.ones((4, 1)))
    above, rounding = residual_and_rounding(operator, np.full(4, 3.0), np.ones((1, 1)))
    assert 2 <= above <= 2 * (1 + 1e-12)
    assert 3 * 2.0**-53 <= rounding <= 1e-13
    assert residual_and_rounding(operator, np.full(4, 3.0), np.full((1, 1), 1e21))[0] == math.inf


def test_scalars_are_rounded_outward():
    rng = np.random.default_rng(0)
    moved = 0
    for _ in range(50):
        numbers = rng.uniform(0.5, 2.0, 40)
        value, exact = 1.0, Fraction(1)
        for number in numbers:
            value = value * number + number / 3
            exact = exact * Fraction(number) + Fraction(number) / 3
        moved += Fraction(value) != exact
        assert Fraction(down(value)) <= exact <= Fraction(up(value))
    assert moved > 40


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-170, 1e-100])
def test_underflow_is_included_in_the_bounds(size):
    values = np.full(3, size)
    assert Fraction(norm_above(values)) ** 2 >= 3 * Fraction(size) ** 2
    squares = sum((Fraction(x) ** 2 for x in values), Fraction(0))
    assert Fraction(total(np.square(values))) >= squares
    assert norm_above(np.zeros(2)) < 1e-90


@pytest.mark.parametrize("m", [1, 3, 8])
def test_residual_of_a_witness_includes_its_own_rounding(m):
    """M is the computed `LL'`, so the computed residual vanishes, but the exact one does not."""
    rng = np.random.default_rng(m)
    hidden = 0
    for _ in range(20):
        L = np.tril(rng.standard_normal((m, m)))
        L[np.diag_indices(m)] = 1 + np.abs(L.diagonal())
        M = L @ L.T
        M = np.tril(M) + np.tril(M, -1).T
        weights = M.diagonal().copy()
        exact = [[Fraction(float(x)) for x in row] for row in L]
        worst_row = 0.0
        for i in range(m):
            row = 0.0
            for j in range(m):
                product = sum((exact[i][k] * exact[j][k] for k in range(m)), Fraction(0))
                off = abs(Fraction(float(M[i, j])) - product)
                row += float(off) / math.sqrt(weights[i] * weights[j])
            worst_row = max(worst_row, row)
        hidden += worst_row > 0
        assert witness_error(M.copy(), L, weights, 0.0) >= worst_row
        assert witness_error(M.copy(), L, weights, 1e-3) >= 1e-3 + worst_row
    assert hidden > 10
