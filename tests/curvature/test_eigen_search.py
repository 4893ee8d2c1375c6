"""The search beyond found eigenvalues: at which distance it looks for a more extreme one."""

from __future__ import annotations

import pytest
import torch

from posquad.curvature.eigen import Subspace, _Search, no_preconditioner


def excludes(values, tolerance=1e-6):
    """Whether the search excludes a value far below the one of the first coordinate."""
    size = len(values)
    A = torch.diag(torch.tensor(values, dtype=torch.float64))
    same = lambda block: block  # noqa: E731
    start = torch.zeros(size, 2, dtype=torch.float64)
    start[0, 0] = start[-1, 1] = 1.0
    space = Subspace(
        lambda block: A @ block, no_preconditioner(same), same, start, 1, size, largest=False
    )
    generator = torch.Generator().manual_seed(0)
    search = _Search(space, no_preconditioner(same), tolerance, generator)
    excluded, directions = search.beyond(torch.tensor(False), 1000)
    assert directions is not None
    return bool(excluded)


@pytest.mark.parametrize("found", [1.0, -3.0])
def test_a_value_lower_by_a_tenth_is_looked_for(found):
    bulk = torch.linspace(4.0, 6.0, 60).tolist()
    assert excludes([found, found - 0.08 * abs(found), *bulk])
    assert not excludes([found, found - 0.12 * abs(found), *bulk])


def test_the_margin_is_the_tolerance_where_that_is_larger():
    bulk = torch.linspace(4.0, 6.0, 60).tolist()
    assert excludes([1.0, 0.75, *bulk], tolerance=0.3)
    assert not excludes([1.0, 0.65, *bulk], tolerance=0.3)


def test_beyond_a_value_that_is_rounding_the_margin_is_a_thousandth_of_the_norm():
    bulk = torch.linspace(4.0, 6.0, 60).tolist()
    for zero in (0.0, 1e-15):
        assert excludes([zero, -0.8 * 6e-3, *bulk])
        assert not excludes([zero, -1.2 * 6e-3, *bulk])
    assert not excludes([1e-9, -0.8 * 6e-3, *bulk])  # this value is not rounding
