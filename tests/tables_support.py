"""What the tests of data files share: a small table, files that hold it, and refusals."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from posquad.io.tables import TableError, read_samples
from posquad.io.tables.writing import write_to

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 3))
Y = RNG.standard_normal(7)
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y}
SUFFIXES = [".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy"]
TEXT = [".csv", ".tsv", ".txt"]


def table_bytes(suffix: str) -> bytes:
    """The small table as a file of this kind."""
    write_to(file := io.BytesIO(), suffix, COLUMNS)
    return file.getvalue()


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path, **options: object) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(TableError) as caught:
        read_samples(path, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith(str(path))
    return sentence.removeprefix(str(path))
