"""The answer for the rows that fit into memory, from which the passes over all rows begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.recovery.evidence import Evidence
from posquad.recovery.ranks import RankPath
from posquad.recovery.result import Recovery

_PATH = ("rank", "residual", "score")


class SubsampleFit(NamedTuple):
    """What the answer for all rows keeps of the answer for some."""

    U: Tensor  # [d, r]
    evidence: Evidence
    confidence: float
    starts: int
    steps: int
    path: RankPath | None

    @classmethod
    def of(cls, found: Recovery) -> SubsampleFit:
        """Return what is kept of an answer in NumPy arrays."""
        return cls(
            torch.from_numpy(np.ascontiguousarray(found.U[:, : int(found.rank)])),
            found.evidence,
            float(found.rank_confidence),
            int(found.starts),
            int(found.steps),
            found.rank_path,
        )

    def to_store(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file keeps: plain values, and arrays by name."""
        plain = self._asdict()
        arrays = {f"begun.evidence.{k}": np.asarray(v) for k, v in vars(self.evidence).items()}
        arrays["begun.U"] = self.U.numpy()
        if self.path is not None:
            arrays |= {f"begun.path.{name}": getattr(self.path, name) for name in _PATH}
        for name in ("U", "evidence", "path"):
            del plain[name]
        return plain, arrays

    @classmethod
    def from_store(cls, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SubsampleFit:
        """Restore what `to_store` returned."""
        path = None
        if "begun.path.rank" in arrays:
            path = RankPath(*(arrays[f"begun.path.{name}"] for name in _PATH))
        prefix = "begun.evidence."
        known = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        return cls(torch.from_numpy(arrays["begun.U"]), Evidence(**known), path=path, **plain)
