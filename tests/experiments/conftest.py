"""The fixture of the tests that compare an experiment with an independent computation."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def measured(request):
    """What the experiment of the module measures with its parameters `SMALL`."""
    return request.module.run(request.module.SMALL, lambda fraction: None)
