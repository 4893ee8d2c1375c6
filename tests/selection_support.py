"""What the tests of selection share: the system of the paper, and random symmetric matrices."""

from __future__ import annotations

import numpy as np

PAPER = (
    np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]),
    np.array([1.0, 0.3]),
    np.array([1, 1, 2, 3]),
)
"""The system of experiment 6: (B, y, multiplicities)."""


def symmetric(rng: np.random.Generator, *shape: int) -> np.ndarray:
    M = rng.normal(size=shape)
    return (M + np.swapaxes(M, -1, -2)) / 2
