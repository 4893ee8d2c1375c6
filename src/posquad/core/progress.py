"""Progress of a long computation."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """Argument of progress callbacks, which are called at every record."""

    time: float  # smallest time (flow) or step count (descent) over the running trajectories
    end: float  # largest time or step count that can be reached
    loss: float  # largest loss of the batch
    running: int  # trajectories that have not ended
