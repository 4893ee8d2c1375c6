"""Names that every docstring example may use."""

import numpy
import pytest
import torch


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict) -> None:
    doctest_namespace["np"] = numpy
    doctest_namespace["torch"] = torch
