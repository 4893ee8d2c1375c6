"""Adversarial trials: families of hard cases, each with the truth about it known by other means.

A family makes cases from a seed and says which promises were broken; none should be. The tests run
each family over some seeds (`test_adversarial.py`), `make adversarial` over more
(`benchmarks/adversarial.py`). A case that breaks a promise becomes a family here, so that later
changes meet it again. Each room has a module with a dictionary `FAMILIES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What one seed of a family showed."""

    broken: list[str] = field(default_factory=list)  # promises that were broken, in words
    said: Counter[str] = field(default_factory=Counter)  # how often which answer was given
    tried: int = 1  # cases made from this seed


@dataclass(frozen=True)
class Family:
    """Cases of one kind: what runs a seed, and how many seeds the tests and the full run take."""

    run: Callable[[int], Outcome]
    in_tests: int
    in_full: int


def totals(family: Family, seeds: range) -> Outcome:
    """Everything that a range of seeds showed; what was broken names its seed."""
    total = Outcome(tried=0)
    for seed in seeds:
        one = family.run(seed)
        total.broken += [f"seed {seed}: {promise}" for promise in one.broken]
        total.said += one.said
        total.tried += one.tried
    return total
