"""Write the problems that the explorer shows to src/data/problems.json, with posquad's verdicts.

Run by `make explorer-vectors`. The numbers are rounded, so that Python and the page use the same
ones. `recovery` is the table of the fourth scene: what `recover` says for each number of samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import posquad

TARGET = Path(__file__).parent / "src" / "data" / "problems.json"
# Seeds of the data sets of the fourth scene; 15 and 38 need six samples for a proof, those up to
# 12 need five, the others four.
SEEDS = (15, 38, 0, 2, 5, 11, 12, 1, 3, 4, 6, 7)
MOST_SAMPLES = 14


def rate_problem() -> dict[str, Any]:
    """Inputs and the direction of the start of the second scene: d = 6, r = 2, p = 11."""
    rng = np.random.default_rng(20)
    direction = rng.standard_normal((6, 2))
    return {
        "X": rng.standard_normal((88, 6)).round(3).tolist(),
        "direction": (direction / np.linalg.norm(direction)).round(4).tolist(),
        "distance": 0.05,
    }


def recovery_problem(seed: int) -> dict[str, Any]:
    """Inputs, target and the status for each number of samples, d = 3, r = 1."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((MOST_SAMPLES, 3)).round(2)
    u = rng.standard_normal(3)
    u = (u / np.linalg.norm(u)).round(2)
    statuses = [status(X[:n], u) for n in range(1, len(X) + 1)]
    return {"X": X.tolist(), "u": u.tolist(), "status": statuses}


def status(X: np.ndarray, u: np.ndarray) -> str:
    """What posquad says about the noiseless measurements of uu'."""
    return posquad.recover(X, (X @ u) ** 2, rank=1, certify=True).status.name


def problems() -> dict[str, Any]:
    """All problems, in the form of the file."""
    return {
        "fiber": {
            "X": [[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.6, -0.8]],
            "start": [[0.9, -0.4], [0.1, 0.6]],
            "targets": {
                "round": [[1.0, 0.2], [-0.2, 1.0]],
                "long": [[1.2, 0.1], [0.5, 0.35]],
                "flat": [[1.1, 0.02], [0.6, 0.1]],
            },
        },
        "rate": rate_problem(),
        "selection": {
            "paper": {
                "B": [[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]],
                "y": [1.0, 0.3],
                "d": [1, 1, 2, 3],
            },
            "free": {"B": [[1.0, 1.0, 0.6]], "y": [1.0], "d": [1, 1, 1]},
        },
        "recovery": [recovery_problem(seed) for seed in SEEDS],
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(problems(), separators=(",", ":")) + "\n", encoding="utf-8")
