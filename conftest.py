"""Names that every docstring example may use, and one thread for each worker."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read once, when NumPy is first imported

import numpy
import pytest
import torch

torch.set_num_threads(1)

# Programs that build the documentation, and what they write: run by `make docs`, not by the tests.
collect_ignore_glob = [
    "tests/*conftest.py",  # two modules of one name
    "docs/*.py",
    "docs/_extensions/*",
    "docs/_build/*",
    "docs/api/generated/*",
    "docs/auto_gallery/*",
    "docs/figures/*",
    "docs/gallery/*",
]


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict) -> None:
    doctest_namespace["np"] = numpy
    doctest_namespace["torch"] = torch
