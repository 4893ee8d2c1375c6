"""What happens at half and at double the constants of `recover` that were chosen by measurement.

    python benchmarks/tuning.py [--problems 16] [--field spread rate]

Prints, for every field of `Sizes`, `Schedule` and `Acceptance` whose source is "Measured", the
share of problems that are RECOVERED, the wrong ones among them, the share of noisy problems that
end as BEST_FIT, and the processor time, all relative to the default. Times are of one thread. The
rows are those of the table in `docs/tuning.md`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from posquad import Status, recover
from posquad.geometry import dimension
from posquad.recovery import tuning
from posquad.recovery.tuning import Tuning

SHAPES = [(10, 2, 1.1), (10, 2, 2.0), (6, 3, 1.25), (20, 2, 1.25), (40, 1, 1.5), (12, 2, 4.0)]
SHAPES += [(40, 3, 1.05)]  # where starts are reflected


@dataclass
class Tally:
    """Outcomes of one setting."""

    recovered: int = 0
    wrong: int = 0
    settled: int = 0
    seconds: float = 0.0


def measured_fields() -> Iterator[tuple[str, str]]:
    """Group and name of every number whose source is a measurement."""
    tree = ast.parse(Path(tuning.__file__).read_text())
    for group in ("sizes", "schedule", "acceptance"):
        body = next(
            node.body
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name.lower() == group
        )
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                source = ast.literal_eval(text.value)
                if "Measured" in source and isinstance(field.target, ast.Name):
                    yield group, field.target.id


def changed(group: str, name: str, factor: float) -> Tuning:
    """The default with one number multiplied; an integer stays one."""
    part = getattr(tuning.DEFAULT, group)
    value = getattr(part, name)
    new = max(1, round(value * factor)) if isinstance(value, int) else value * factor
    return replace(tuning.DEFAULT, **{group: replace(part, **{name: new})})


def measure(setting: Tuning, problems: int) -> Tally:
    """Exact problems near the information limit, and as many with 10% noise at n = 4p."""
    tally = Tally()
    for d, r, ratio in SHAPES:
        p = dimension(d, r)
        for seed in range(problems):
            rng = np.random.default_rng([seed, d, r])
            U = rng.standard_normal((d, r))
            for n, noise in ((max(p + 1, round(ratio * p)), 0.0), (4 * p, 0.1)):
                X = rng.standard_normal((n, d))
                y = np.square(X @ U).sum(1) * (1 + noise * rng.standard_normal(n))
                begin = time.process_time()
                found = recover(X, y, r, tuning=setting, time_limit=60)
                tally.seconds += time.process_time() - begin
                if noise:
                    tally.settled += found.status is Status.BEST_FIT
                elif found.status is Status.RECOVERED:
                    tally.recovered += 1
                    away = np.linalg.norm(found.Q.dense() - U @ U.T) / np.linalg.norm(U @ U.T)
                    tally.wrong += bool(away > 1e-5)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=16, help="problems per shape")
    parser.add_argument("--field", nargs="*", help="only these fields")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total = len(SHAPES) * options.problems
    measure(tuning.DEFAULT, 1)  # the first calls import and warm up
    base = measure(tuning.DEFAULT, options.problems)
    print(f"| field | value | recovered of {total} | wrong | best fit of {total} | time |")
    print("|---|---|---|---|---|---|")
    show("default", "", base, f"{base.seconds:.1f} s")
    for group, name in measured_fields():
        if options.field is not None and name not in options.field:
            continue
        for factor in (0.5, 2.0):
            setting = changed(group, name, factor)
            value = getattr(getattr(setting, group), name)
            tally = measure(setting, options.problems)
            show(f"`{name}`", f"{value:g}", tally, f"{tally.seconds / base.seconds:.2f}")


def show(name: str, value: str, tally: Tally, seconds: str) -> None:
    """Print a row of the table."""
    counts = f"{tally.recovered} | {tally.wrong} | {tally.settled}"
    print(f"| {name} | {value} | {counts} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
