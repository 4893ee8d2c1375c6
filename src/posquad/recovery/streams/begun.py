"""The answer for the rows that fit into memory, from which the passes over all rows begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.recovery.ranks import RankPath
from posquad.recovery.result import Recovery

_PATH = ("rank", "residual", "score")


class Begun(NamedTuple):
    """What the answer for all rows keeps of the answer for some."""

    U: Tensor  # [d, r]
    status: Status
    residual: float
    confidence: float
    error: float
    curvature: Tensor  # [2]
    samples: int
    starts: int
    others: int
    steps: int
    path: RankPath | None
    others_agreeing: int = 0

    @classmethod
    def of(cls, found: Recovery) -> Begun:
        """Return what is kept of an answer in NumPy arrays."""
        assert isinstance(found.status, Status), "one problem"
        return cls(
            torch.from_numpy(np.ascontiguousarray(found.U[:, : int(found.rank)])),
            found.status,
            float(found.residual),
            float(found.rank_confidence),
            float(found.error_estimate),
            torch.from_numpy(found.curvature),
            int(found.samples),
            int(found.starts),
            int(found.others),
            int(found.steps),
            found.rank_path,
            int(found.others_agreeing),
        )

    def to_store(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file keeps: plain values, and arrays by name."""
        plain = self._asdict()
        arrays = {"begun.U": self.U.numpy(), "begun.curvature": self.curvature.numpy()}
        if self.path is not None:
            arrays |= {f"begun.path.{name}": getattr(self.path, name) for name in _PATH}
        for name in ("U", "curvature", "path"):
            del plain[name]
        return plain | {"status": self.status.name}, arrays

    @classmethod
    def from_store(cls, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Begun:
        """Restore what `to_store` returned."""
        path = None
        if "begun.path.rank" in arrays:
            path = RankPath(*(arrays[f"begun.path.{name}"] for name in _PATH))
        rest: dict[str, Any] = {**plain, "status": Status[plain["status"]]}
        U, curvature = (torch.from_numpy(arrays[f"begun.{n}"]) for n in ("U", "curvature"))
        return cls(U=U, curvature=curvature, path=path, **rest)
