"""Settings of the verifier that are refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import LeastSquares, RankOne, certify
from posquad.certificates import verify
from posquad.core.errors import DomainError, DtypeError


@pytest.mark.parametrize("name", ["tolerance", "trace_tolerance"])
@pytest.mark.parametrize("value", [0.0, -1e-9, np.nan, "1"])
def test_tolerances_are_positive_numbers(name, value):
    X = np.random.default_rng(0).standard_normal((9, 2))
    u = np.array([[1.0], [2.0]])
    objective = LeastSquares(RankOne(X), (X @ u)[:, 0] ** 2)
    certificate = certify(objective, u, compare=False)
    with pytest.raises(DomainError) as raised:
        verify(objective, certificate, **{name: value})
    assert raised.value.argument == name
    with pytest.raises(DtypeError, match="certificate"):
        verify(objective, "certificate")
