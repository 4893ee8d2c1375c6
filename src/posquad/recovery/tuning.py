"""Constants of `recover`: what it may form, how it searches, and what a status requires.

Every field says what it means and where its value comes from: it is *derived* (a formula), *cited*,
*measured* by a benchmark, or a definition or choice. `docs/tuning.md` has the table that
`benchmarks/tuning.py` prints: what happens at half and at double a measured value. A caller can
pass other values as `recover(..., tuning=Tuning(...))`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from posquad.core.arrays import require_instance
from posquad.recovery.acceptance import Acceptance
from posquad.recovery.schedule import Schedule
from posquad.recovery.sizes import Sizes


@dataclass(frozen=True)
class Tuning:
    """All constants of one call of `recover`."""

    sizes: Sizes = field(default_factory=Sizes)
    schedule: Schedule = field(default_factory=Schedule)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def __post_init__(self) -> None:
        for name, kind in (("sizes", Sizes), ("schedule", Schedule), ("acceptance", Acceptance)):
            require_instance(
                name, getattr(self, name), kind, f"posquad.recovery.tuning.{kind.__name__}"
            )


DEFAULT = Tuning()
