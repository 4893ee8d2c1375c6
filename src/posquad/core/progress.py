"""How far a long computation has come."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told, at every record."""

    time: float  # smallest time (flow) or step count (descent) over the running trajectories
    end: float  # where it will stop at the latest
    loss: float  # largest loss of the batch
    running: int  # trajectories that have not ended
