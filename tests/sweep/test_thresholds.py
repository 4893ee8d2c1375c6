"""Published thresholds against quadrature of their defining integrals, and printed values."""

from __future__ import annotations

import math

import pytest
from scipy import integrate, optimize

from posquad.core.errors import DomainError
from posquad.sweep.thresholds import (
    ellipsoid_error,
    ellipsoid_threshold,
    semicircle_moments,
    uniqueness_threshold,
)


def semicircle(function, low):
    """Integral of a function times the semicircle law on [-2, 2], above `low`.

    With z = 2 sin(a) the square roots at both ends of the law disappear.
    """
    begin = math.asin(min(1.0, max(-1.0, low / 2)))
    integral, _ = integrate.quad(
        lambda a: function(2 * math.sin(a)) * 2 * math.cos(a) ** 2 / math.pi,
        begin,
        math.pi / 2,
        epsabs=1e-13,
        epsrel=1e-13,
    )
    return integral


def hinge(w, power):
    """Integral of `(x-w)_+^power` times the semicircle law on [-sqrt 2, sqrt 2]."""
    return semicircle(lambda z: (z / math.sqrt(2) - w) ** power, math.sqrt(2) * w)


@pytest.mark.parametrize("q", [-2.0, -1.3, 0.0, 0.7, 1.99])
def test_the_moments_are_those_of_the_semicircle_law(q):
    for power, moment in enumerate(semicircle_moments(q)):
        assert moment == pytest.approx(semicircle(lambda z, k=power: z**k, q), abs=1e-12)


@pytest.mark.parametrize(
    ("kappa", "printed"), [(1.8, 0.3300), (2, 0.3113), (3, 0.2500), (5, 0.1887), (10, 0.1253)]
)
def test_the_ellipsoid_threshold(kappa, printed):
    assert round(ellipsoid_threshold(kappa), 4) == printed
    c = (kappa - 3) / 2
    w = optimize.brentq(lambda w: w - c * hinge(w, 1), -math.sqrt(2), math.sqrt(2), xtol=1e-13)
    expected = hinge(w, 2) + c * hinge(w, 1) ** 2
    assert ellipsoid_threshold(kappa) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize(
    ("alpha", "printed"), [(0.26, 0.0021), (0.30, 0.0407), (0.35, 0.1246), (0.40, 0.2218)]
)
def test_the_error_of_gaussian_ellipsoids(alpha, printed):
    assert round(ellipsoid_error(alpha, 3.0), 4) == printed


@pytest.mark.parametrize(("alpha", "kappa"), [(0.4, 1.8), (0.45, 3.0), (0.3, 6.0), (0.9, 3.0)])
def test_the_error_solves_its_equation(alpha, kappa):
    """Also above alpha = 1/2, where w lies below the law."""
    c = (kappa - 3) / 2
    w = optimize.brentq(
        lambda w: hinge(w, 2) + c * hinge(w, 1) ** 2 - alpha, -8, math.sqrt(2), xtol=1e-13
    )
    expected = 2 / alpha * (c * hinge(w, 1) - w) ** 2
    assert ellipsoid_error(alpha, kappa) == pytest.approx(expected, rel=1e-9)
    assert ellipsoid_error(ellipsoid_threshold(kappa), kappa) == 0


@pytest.mark.parametrize(
    ("d", "r", "printed"), [(10, 2, "25.6"), (20, 2, "63.0"), (40, 3, "202.8"), (100, 5, "920")]
)
def test_the_uniqueness_threshold(d, r, printed):
    digits = len(printed.partition(".")[2])
    assert f"{uniqueness_threshold(r / d) * d * d:.{digits}f}" == printed


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.7])
def test_the_uniqueness_threshold_is_a_statistical_dimension(share):
    """Minimum-trace recovery begins at the statistical dimension of a descent cone.

    At rank r it is the least over t of `r(r+1)/2 + r(d-r) + r t^2 + E sum_i (w_i - t)_+^2`, with
    the eigenvalues w of a Gaussian symmetric matrix of size d - r (Amelunxen, Lotz, McCoy and Tropp
    2014). For large d, `t = q sqrt((d-r)/2)` and w is semicircular with the same scale.
    """
    k = share

    def dimension(q):
        return (
            k
            - k**2 / 2
            + (1 - k) * k * q * q / 2
            + (1 - k) ** 2 / 2 * (semicircle(lambda z: (z - q) ** 2, q))
        )

    least = optimize.minimize_scalar(dimension, bounds=(0, 2), options={"xatol": 1e-9})
    assert uniqueness_threshold(share) == pytest.approx(least.fun, abs=1e-10)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: ellipsoid_threshold(1.0), "kappa: expected a fourth moment above 1; got 1.0"),
        (lambda: ellipsoid_error(0.3, math.nan), "kappa: expected a fourth moment above 1"),
        (lambda: uniqueness_threshold(1.0), "share: expected a rank share r/d between 0 and 1"),
    ],
)
def test_bad_values_are_one_sentence(call, expected):
    with pytest.raises(DomainError, match=expected):
        call()
