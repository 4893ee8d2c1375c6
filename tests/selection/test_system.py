"""The reduced system `Bq = y`: independent rows, their scaling, and what is in the range of B."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.core.errors import DomainError, InfeasibleError
from posquad.selection.system import (
    expand_multipliers,
    independent_rows,
    power_of_two_near,
    prepare,
    require_positive,
    require_rows,
)
from support import double


@pytest.mark.parametrize("unit", [1e-12, 1e-3, 1.0, 1e3, 1e12])
def test_redundant_rows_must_agree_relative_to_y(unit):
    """Equal rows, `100 max(n, m) eps = 4.4e-14` and two terms of size y: a limit of 8.9e-14 y."""
    B = double([[1.0, 1.0], [1.0, 1.0]])
    for off, agrees in ((8e-14, True), (1e-13, False)):
        y = unit * double([1.0, 1.0 + off])
        if agrees:
            assert len(independent_rows(B, y, "B")[0]) == 1
        else:
            with pytest.raises(InfeasibleError, match=r"entry [01], which differs by") as raised:
                independent_rows(B, y, "B")
            z = raised.value.farkas
            np.testing.assert_allclose(z @ B, 0, atol=1e-15)
            assert float(z @ y) < 0


def test_rows_are_independent_beyond_rounding_of_the_longest():
    """A second row off by t has a pivot of t / sqrt(2); `max(n, m) eps` times sqrt(2) is zero."""
    for off, rank in ((2.0**-53, 1), (2e-15, 2)):
        B = double([[1.0, 1.0], [1.0, 1.0 + off]])
        rows, scale = independent_rows(B, double([0.0, 0.0]), "B")
        assert len(rows) == len(scale) == rank
    rows, _ = independent_rows(double([[0.0, 0.0], [0.0, 3.0]]), double([0.0, 1.0]), "B")
    assert rows.tolist() == [1]


def test_scales_bring_rows_near_length_one():
    B = double([[3e200, 4e200], [1e-200, 0.0], [0.3, 0.4]])[:2]
    rows, scale = independent_rows(B, double([0.0, 0.0]), "B")
    lengths = torch.linalg.vector_norm(scale[:, None] * B[rows], dim=-1)
    assert bool(((lengths > 0.5) & (lengths <= 1.0)).all())
    mantissa, _ = torch.frexp(scale)
    assert mantissa.tolist() == [0.5, 0.5]  # powers of two


def test_powers_of_two_near():
    values = double([1.0, 1.9, 2.0, 0.5, 0.3, 2.0**70, 2.0**-70])
    expected = [1.0, 1.0, 2.0, 0.5, 0.25, 2.0**70, 2.0**-70]
    assert power_of_two_near(values).tolist() == expected
    # Exponents that are multiples of 64: nearest, so 1 from 2^-32 up to below 2^32.
    values = double([2.0**-33, 2.0**-32, 1.0, 2.0**31, 2.0**32, 2.0**95, 2.0**96])
    expected = [2.0**-64, 1.0, 1.0, 1.0, 2.0**64, 2.0**64, 2.0**128]
    assert power_of_two_near(values, every=64).tolist() == expected


def test_loss_gradient_and_sizes_by_hand():
    """Bq = (3, 2) at q = (1, 2) and y = (1, 1): the residual is (2, 1)."""
    system, points = prepare(
        double([[1.0, 1.0], [0.0, 1.0]]), double([1.0, 1.0]), double([1.0, 2.0]), q=double([1, 2])
    )
    q = points["q"].double()
    assert float(system.loss(q)) == 5 / 4
    assert system.gradient(q).tolist() == [1.0, 1.5]
    assert float(system.size(q)) == pytest.approx(2**0.5)
    singular = np.linalg.svd(np.array([[1.0, 1.0], [0.0, 1.0]]), compute_uv=False)
    assert float(system.smallest_singular_value) == pytest.approx(singular[-1])
    zero, _ = prepare(system.B, double([0.0, 0.0]), system.d)
    assert float(zero.size(q)) == pytest.approx(13**0.5)  # of Bq = (3, 2)
    lam = double([3.0, 5.0])
    dual = system.full_dual(lam)
    B, _ = system.independent
    torch.testing.assert_close(dual @ system.B, lam @ B)


def test_multipliers_of_dependent_rows_are_zero():
    rows, scale = torch.tensor([2, 0]), double([4.0, 0.5])
    assert expand_multipliers(double([1.0, 6.0]), rows, scale, 4).tolist() == [3.0, 0.0, 4.0, 0.0]


def test_what_is_refused():
    require_positive("q", double([1e-300]))
    with pytest.raises(DomainError, match="a smallest entry of 0"):
        require_positive("q", double([1.0, 0.0]))
    nothing, _ = prepare(double([[0.0, 0.0]]), double([0.0]), double([1.0, 1.0]))
    with pytest.raises(DomainError, match="only zeros"):
        require_rows(nothing)
