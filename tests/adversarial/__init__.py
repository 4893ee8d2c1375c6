"""Adversarial trials: families of hard cases whose correct answers are known independently.

A family makes cases from a seed and reports which promises of the library were broken; none should
be. The tests run a few seeds of each family (`test_adversarial.py`), `make adversarial` runs more
(`benchmarks/adversarial.py`). When a case breaks a promise, it becomes a family here, so that later
changes are tested on it. Each module has a dictionary `FAMILIES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Result of one seed of a family."""

    broken: list[str] = field(default_factory=list)  # promises that were broken, in words
    said: Counter[str] = field(default_factory=Counter)  # how often each answer was given
    tried: int = 1  # cases made from this seed


@dataclass(frozen=True)
class Family:
    """Cases of one kind: the function that runs a seed, and the numbers of seeds to run.

    A family with no seed in the tests is expensive, or finds a known defect of the library.
    """

    run: Callable[[int], Outcome]
    in_tests: int
    in_full: int


def totals(family: Family, seeds: range) -> Outcome:
    """Combined result of a range of seeds; each broken promise names its seed."""
    total = Outcome(tried=0)
    for seed in seeds:
        one = family.run(seed)
        total.broken += [f"seed {seed}: {promise}" for promise in one.broken]
        total.said += one.said
        total.tried += one.tried
    return total
