"""The candidates that may explain where the flow ends, in the order of experiment 7."""

from __future__ import annotations

__all__ = ["CANDIDATES"]

CANDIDATES = (
    "von Neumann projection",
    "first-order law",
    "corrected projection",
    "greedy low-rank learning",
    "minimum trace",
)
