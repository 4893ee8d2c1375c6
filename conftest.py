"""Names that every docstring example may use, and one thread for the BLAS of a worker."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read once, when NumPy is first imported

import numpy
import pytest
import torch


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict) -> None:
    doctest_namespace["np"] = numpy
    doctest_namespace["torch"] = torch
