"""A part of every adversarial family: no promise is broken."""

from __future__ import annotations

import pytest

from adversarial import totals
from adversarial.registry import SUITES


@pytest.mark.parametrize(
    ("suite", "name"),
    [(s, name) for s, families in SUITES.items() for name, one in families.items() if one.in_tests],
)
def test_no_promise_is_broken(suite, name):
    family = SUITES[suite][name]
    # Seeds of their own, so that the full run adds cases instead of repeating these.
    total = totals(family, range(100_000, 100_000 + family.in_tests))
    assert total.tried >= family.in_tests
    assert not total.broken, "\n".join(total.broken[:20])
