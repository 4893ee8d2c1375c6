"""What happens at half and at double every constant of `recover`.

    python benchmarks/tuning.py --workers 16 [--fields | --methods] [--only NAME ...]
        [--record FILE] [--minutes M] [--docs docs/tuning.md]

`--fields` measures the fields of `Sizes`, `Schedule` and `Acceptance`, `--methods` the numbers that
the modules of `posquad.recovery` assign to names in capitals; without either, both are measured.
Each setting is measured in a process of its own, in one thread, on the problems of
`tuning_problems.py`, after a warm-up; the default is measured at the start and at the end. A call
that takes more than a minute of processor time is ended, and so is a setting that takes more than
five minutes. First, one run of the default finds which constants are read at all; the others are
listed, not measured.

`--record` appends every result to a file, from which the next call with the same file goes on:
settings that it holds are not measured again. No new setting is begun after `--minutes`; 0 measures
nothing. `--docs` writes the tables of the record into the page, and all settings as CSV beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import posquad
from timing import machine, write_between
from tuning_constants import Constant, all_constants, readers
from tuning_problems import cases
from tuning_tables import DEFAULT, Row, full_table, page

WORKER = Path(__file__).with_name("tuning_worker.py")
PACKAGE = Path(posquad.__file__).parent
SETTING_LIMIT = 300.0  # seconds of one setting
GROUPS = ("fields", "methods")


@dataclass(frozen=True)
class Setting:
    """A constant and the value that is tried; neither for the default."""

    group: str = ""
    constant: Constant | None = None
    new: float | None = None

    @property
    def label(self) -> str:
        return DEFAULT if self.constant is None else self.constant.label

    def key(self, problems: int) -> tuple[Any, ...]:
        """What tells a result of the record that it is of this setting."""
        value = None if self.constant is None else self.constant.value
        return self.label, value, self.new, problems


def key_of(row: Row) -> tuple[Any, ...]:
    return row["label"], row["value"], row["new"], row["problems"]


def settings_of(group: str, constants: list[Constant]) -> list[Setting]:
    tried = [(c, c.scaled(factor)) for c in constants for factor in (0.5, 2.0)]
    return [Setting(group, constant, new) for constant, new in tried if new is not None]


def call_worker(asked: dict[str, Any], limit: float | None) -> tuple[list[dict[str, Any]], str]:
    """The lines that a worker wrote, and why it ended early."""
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    begun = subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | one,
    )
    try:
        written, errors = begun.communicate(timeout=limit)
        trouble = ""
    except subprocess.TimeoutExpired:
        begun.kill()
        written, errors = begun.communicate()
        trouble = f"ended after {limit:.0f} s of wall time"
    except BaseException:
        begun.kill()
        raise
    lines = [json.loads(line) for line in written.splitlines() if line.endswith("}")]
    if not trouble and not any("end" in line or "refused" in line for line in lines):
        last = (errors.strip().splitlines() or ["no message"])[-1]
        trouble = f"the process ended with code {begun.returncode}: {last}"
    return lines, trouble


def measured(setting: Setting, problems: int) -> Row:
    """What a setting answers."""
    asked: dict[str, Any] = {"problems": problems}
    constant = setting.constant
    if constant is not None:
        asked |= {"constant": asdict(constant), "new": setting.new}
    lines, ended = call_worker(asked, SETTING_LIMIT)
    families: dict[str, list[float]] = {}
    residuals, trouble = {}, [ended] if ended else []
    for line in lines:
        if "refused" in line:
            trouble.append(f"refused: {line['refused']}")
        if "case" not in line:
            continue
        sums = families.setdefault(line["family"], [0, 0, 0, 0.0])
        for k, what in enumerate(("total", "good", "wrong", "seconds")):
            sums[k] += line[what]
        if any(value is not None for value in line["residuals"]):
            residuals[f"{line['family']}: {line['case']}"] = [
                None if v is None else float(f"{v:.9e}") for v in line["residuals"]
            ]
        if "error" in line:
            trouble.append(f"{line['family']}: {line['error']}")
    return {
        "group": setting.group, "label": setting.label,
        "source": constant.source if constant else "",
        "value": constant.value if constant else None, "new": setting.new,
        "problems": problems, "families": families, "residuals": residuals,
        "trouble": list(dict.fromkeys(trouble)),
    }  # fmt: skip


def reached(constants: list[Constant], problems: int, pool: ThreadPoolExecutor) -> list[str]:
    """Labels of the constants that a line reads which the default runs."""
    lines: set[tuple[str, int]] = set()
    asked = {"problems": problems, "trace": str(PACKAGE)}
    families = dict.fromkeys(case.family for case in cases(1))
    for told, trouble in pool.map(
        lambda family: call_worker(asked | {"families": [family]}, None), families
    ):
        if trouble:
            raise SystemExit(f"the default fails: {trouble}")
        lines |= {(path, number) for line in told for path, number in line.get("lines", ())}
    run = {(_module(path), number) for path, number in lines}
    return [c.label for c, read in readers(constants, PACKAGE).items() if read & run]


def _module(path: str) -> str:
    place = Path(path).relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(place.parts).removesuffix(".__init__")


class Record:
    """Results, and the file that keeps them, if there is one."""

    def __init__(self, path: Path | None):
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.lock = threading.Lock()

    def add(self, line: dict[str, Any]) -> None:
        with self.lock:
            self.lines.append(line)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps(line) + "\n")

    @property
    def rows(self) -> list[Row]:
        return [line for line in self.lines if "families" in line]

    def reached(self, problems: int) -> set[str] | None:
        found = [line for line in self.lines if "reached" in line and line["problems"] == problems]
        return set(found[-1]["reached"]) if found else None


def measure_all(
    settings: list[Setting], options: argparse.Namespace, record: Record, known: list[Constant]
) -> None:
    """Measure what the record does not hold yet, between two runs of the default."""
    problems, begin = options.problems, time.perf_counter()
    run = time.strftime("%Y-%m-%d %H:%M:%S")
    with ThreadPoolExecutor(options.workers) as pool:
        if record.reached(problems) is None:
            record.add({"problems": problems, "reached": reached(known, problems, pool)})
        read = record.reached(problems) or set()
        done = {key_of(row) for row in record.rows}
        todo = [s for s in settings if s.label in read and s.key(problems) not in done]
        if not todo:
            return
        total = len(todo) + 2
        where = f"{machine()}, {options.workers} settings at a time"
        print(f"{total} settings; {where}", flush=True)

        def one(place: int, setting: Setting) -> None:
            late = time.perf_counter() - begin > 60 * options.minutes
            if late and setting.constant is not None:
                return
            row = measured(setting, problems)
            record.add(row | {"run": run, "place": place, "machine": where})
            sums = [sum(family[k] for family in row["families"].values()) for k in range(4)]
            value = "" if setting.new is None else f" = {setting.new:.4g}"
            counts = f"{sums[1]:.0f} good, {sums[2]:.0f} wrong of {sums[0]:.0f}, {sums[3]:.1f} s"
            more = "; ".join(["", *row["trouble"]])
            print(f"[{place + 1}/{total}] {setting.label}{value}: {counts}{more}", flush=True)

        order = [Setting(), *todo, Setting()]
        list(pool.map(one, range(total), order))
    if options.minutes < float("inf"):
        left = total - 2 - sum(r["run"] == run and r["new"] is not None for r in record.rows)
        print(f"{left} settings are left for the next call with the same record")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1, help="settings measured at a time")
    parser.add_argument("--problems", type=int, default=3, help="problems of each small kind")
    parser.add_argument("--fields", action="store_true", help="only the fields of Tuning")
    parser.add_argument("--methods", action="store_true", help="only the numbers of the modules")
    parser.add_argument("--only", nargs="+", help="only these, by label or by the end of it")
    parser.add_argument("--list", action="store_true", help="print the labels, and measure nothing")
    parser.add_argument("--record", type=Path, help="file of results, to which new ones are added")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after this")
    parser.add_argument("--docs", type=Path, help="page whose tables are renewed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Constant]] = dict(zip(GROUPS, all_constants(), strict=True))
    wanted = [g for g in GROUPS if getattr(options, g)] or list(GROUPS)
    chosen = {g: [c for c in found[g] if _is_chosen(c, options.only)] for g in wanted}
    if not any(chosen.values()):
        parser.error(f"no constant is called {options.only}")
    settings = [s for g in wanted for s in settings_of(g, chosen[g])]
    if options.list:
        print("\n".join(dict.fromkeys(s.label for s in settings)))
        return
    record = Record(options.record)
    if options.minutes > 0:
        measure_all(settings, options, record, [c for g in GROUPS for c in found[g]])
    read = record.reached(options.problems)
    valid = {s.key(options.problems) for g in GROUPS for s in settings_of(g, found[g])}
    valid.add(Setting().key(options.problems))
    rows = [row for row in record.rows if key_of(row) in valid]
    rows.sort(key=lambda row: (row["run"], row["place"]))
    for g in wanted:
        if not any(row["group"] == g for row in rows):
            continue
        unread = [] if read is None else [c.label for c in chosen[g] if c.label not in read]
        text = page(g, rows, unread, len(found[g]))
        print(f"\n{text}")
        if options.docs is not None:
            write_between(options.docs, f"<!-- {g} -->", f"<!-- /{g} -->", f"\n{text}\n")
    if options.docs is not None:
        options.docs.with_suffix(".csv").write_text(full_table(rows), encoding="utf-8")


def _is_chosen(constant: Constant, only: list[str] | None) -> bool:
    return only is None or any(f".{constant.label}".endswith(f".{name}") for name in only)


if __name__ == "__main__":
    main()
