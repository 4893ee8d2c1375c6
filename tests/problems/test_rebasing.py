"""Moments that were converted to other coordinates and another reference: sums as defined."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.problems.moments import begin_moments
from posquad.problems.rebasing import extended, improved, is_accurate
from support import ratio

FIRST, KNOWN, N, D = 30, 60, 8000, 3


def shifted(X, y):
    """So many rows that the mean of all is far from the first, relative to their spread."""
    X = X + np.array([1e4, -2e3, 0.0])
    return X, y + (X @ [1.0, -1.0, 2.0]) ** 2


def stretched(X, y):
    X = X @ np.diag([1e3, 1.0, 30.0]) @ np.linalg.qr(np.arange(9.0).reshape(3, 3) ** 2 + 1)[0]
    return X, y + (X @ [1.0, -1.0, 2.0]) ** 2


def other_responses(X, y):
    return X, y - 100 * X[:, 0] ** 2


def samples(change):
    """Rows of which the later ones are unlike the known, noisy responses, weights with zeros.

    The first of the known rows have mean zero in the first coordinates, and their errors are
    orthogonal to all products; those of the others are not.
    """
    rng = np.random.default_rng(5)
    X = rng.standard_normal((N, D)) + np.array([0.0, 0.5, 0.0])
    y = 3 + X @ [0.3, 1.0, -2.0] + rng.standard_normal(N)
    X[FIRST:KNOWN] += 0.5
    y[FIRST:KNOWN] += 2 * X[FIRST:KNOWN, 0] ** 2
    X[KNOWN:], y[KNOWN:] = change(X[KNOWN:], y[KNOWN:])
    weights = rng.uniform(0.5, 2.0, N) * (rng.random(N) > 0.1)
    return torch.from_numpy(X), torch.from_numpy(y), torch.from_numpy(weights)


def extended_moments(X, y, w, terms):
    """The moments of the known rows, and of all of them."""
    known = [part[:KNOWN] for part in (X, y, w)]
    moments = begin_moments(*(part[:FIRST] for part in known), terms=terms)
    moments.add(*known)
    return moments, extended(moments, X[KNOWN:], y[KNOWN:], w[KNOWN:])


def assert_sums(moments, X, y, w):
    """The sums are those of the docstring of `Moments`, as summed by NumPy, up to rounding.

    An error `e = y - reference(z)` is known to the rounding of its two terms, and the sum of its
    squares to `doubt`, if the reference was exchanged.
    """
    t = ((X / moments.frame.unit - moments.frame.origin) @ moments.frame.T).numpy()
    w, y = w.numpy(), y.numpy()
    z = t if moments.terms == "none" else np.column_stack([t, np.ones(len(t))])
    i, j = np.triu_indices(z.shape[1])
    pairs = z[:, i] * z[:, j]
    scaled = pairs * np.where(i == j, 1.0, np.sqrt(2))
    reference = moments.reference.numpy()
    e, away = y - pairs @ reference, y - moments.center
    known = np.abs(y) + np.abs(pairs) @ np.abs(reference)  # over eps, what is lost of e
    expected = {
        "gram": (moments.gram(), scaled.T @ (w[:, None] * scaled), scaled**2),
        "cross": (moments.cross(), (w * e) @ scaled, known[:, None] * np.abs(scaled)),
        "second": (moments.second_moments(), t.T @ (w[:, None] * t), t**2),
        "responses": (moments.scalars()[2:], w @ np.stack([away, away**2], 1), away**2),
    }
    for name, (held, total, size) in expected.items():
        error = held - torch.as_tensor(total)
        assert ratio(error, np.max(w @ size), N) < 60, name
    rounding = 60 * N * np.finfo(float).eps * (w @ (known * np.abs(e)))
    assert abs(moments.squared_error - w @ e**2) < rounding + moments.doubt
    np.testing.assert_allclose(moments.mass, w.sum(), rtol=1e-14)
    assert moments.count == int((w > 0).sum())
    assert moments.largest == np.abs(y[w > 0]).max()


@pytest.mark.parametrize("terms", ["none", "constant", "linear"])
@pytest.mark.parametrize("change", [shifted, stretched])
def test_sums_are_converted_to_coordinates_that_suit_larger_rows(change, terms):
    X, y, w = samples(change)
    first, both = extended_moments(X, y, w, terms)
    assert not torch.equal(both.frame.T, first.frame.T)
    assert torch.equal(both.frame.origin, first.frame.origin) == (
        terms != "linear" or change is stretched
    )
    assert_sums(both, X, y, w)


@pytest.mark.parametrize("terms", ["none", "constant", "linear"])
def test_sums_are_converted_to_a_reference_that_suits_other_responses(terms):
    X, y, w = samples(other_responses)
    first, both = extended_moments(X, y, w, terms)
    assert torch.equal(both.frame.T, first.frame.T)
    assert not torch.equal(both.reference, first.reference)
    assert both.squared_error < 1e-2 * both.response_squares[0]
    assert_sums(both, X, y, w)


@pytest.mark.parametrize("terms", ["none", "constant", "linear"])
def test_rows_like_the_first_change_nothing(terms):
    X, y, w = samples(lambda X, y: (X, y))
    first, both = extended_moments(X, y, w, terms)
    assert torch.equal(both.frame.T, first.frame.T)
    assert torch.equal(both.reference, first.reference)
    assert_sums(both, X, y, w)


@pytest.mark.parametrize("change", [shifted, stretched])
def test_coordinates_for_another_pass_suit_the_rows(change):
    X, y, w = samples(change)
    moments = begin_moments(X[:FIRST], y[:FIRST], w[:FIRST], terms="linear")
    moments.add(X, y, w)
    assert not is_accurate(moments)
    better = improved(moments)
    assert better.count == 0
    better.add(X, y, w)
    values = torch.linalg.eigvalsh(better.second_moments() / better.mass)
    assert 1e-2 < float(values[0]) <= float(values[-1]) < 1e2
    assert_sums(better, X, y, w)
