"""The tables of `benchmarks/tuning.py`: what each setting changes, in Markdown and as CSV.

A row is what a setting answered: `families` gives, for each kind of problem, the numbers of
problems, good and wrong answers, and the seconds; `residuals` those of its best fits, case by case.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from statistics import mean
from typing import Any

Row = dict[str, Any]
WORSE = 1e-6  # relative excess over the least residual of any setting: not the best fit
NOISE = 1.4  # factor on the time that counts as the same: sixteen processes disturb each other
FAMILY_NOISE, FAMILY_SECONDS = 2.0, 0.1  # the same for one kind of problem, whose times are short
DEFAULT = "default"


@dataclass(frozen=True)
class Tally:
    """Good and wrong answers and seconds, of a kind of problem or of all."""

    total: int
    good: int
    wrong: int
    seconds: float


def least_residuals(rows: list[Row]) -> dict[str, list[float | None]]:
    """The least residual of each problem that any setting called a best fit."""
    least: dict[str, list[float | None]] = {}
    for row in rows:
        for case, residuals in row["residuals"].items():
            known = least.get(case, [None] * len(residuals))
            pairs = zip(known, residuals, strict=True)
            least[case] = [min((v for v in pair if v is not None), default=None) for pair in pairs]
    return least


def tallies(row: Row, least: dict[str, list[float | None]]) -> dict[str, Tally]:
    """Answers by kind of problem; a best fit that another setting improves on is wrong."""
    worse: dict[str, int] = {}
    for case, residuals in row["residuals"].items():
        family = case.split(":")[0]
        pairs = zip(residuals, least[case], strict=True)
        count = sum(v is not None and v > (b or 0) * (1 + WORSE) for v, b in pairs)
        worse[family] = worse.get(family, 0) + count
    return {
        family: Tally(total, good - worse.get(family, 0), wrong + worse.get(family, 0), seconds)
        for family, (total, good, wrong, seconds) in row["families"].items()
    }


def together(parts: dict[str, Tally]) -> Tally:
    values = list(parts.values())
    return Tally(
        sum(t.total for t in values),
        sum(t.good for t in values),
        sum(t.wrong for t in values),
        sum(t.seconds for t in values),
    )


@dataclass(frozen=True)
class Compared:
    """A setting beside the default of its run."""

    row: Row
    whole: Tally
    parts: dict[str, Tally]
    time: float  # ratio to the mean of the defaults at the start and at the end
    part_times: dict[str, float]
    differences: list[str]  # in words, by kind of problem

    @property
    def matters(self) -> bool:
        return bool(self.differences) or not 1 / NOISE <= self.time <= NOISE


def compared(rows: list[Row]) -> list[Compared]:
    """Every setting beside the defaults of its run, the defaults included."""
    least = least_residuals(rows)
    result = []
    for row in rows:
        known = [r for r in rows if r["label"] == DEFAULT]
        own = [r for r in known if r["run"] == row["run"]] or known
        defaults = [tallies(r, least) for r in own]
        parts = tallies(row, least)
        whole = together(parts)
        time = whole.seconds / mean(together(d).seconds for d in defaults)
        part_times, differences = {}, list(row["trouble"])
        for family, tally in parts.items():
            usual = mean(d[family].seconds for d in defaults)
            ratio = part_times[family] = tally.seconds / usual
            first, changes = defaults[0][family], []
            if tally.total < first.total:  # the process was ended
                continue
            for word in ("good", "wrong"):
                more = getattr(tally, word) - getattr(first, word)
                changes += [f"{more:+d} {word}"] if more else []
            long = abs(tally.seconds - usual) > FAMILY_SECONDS
            if long and not 1 / FAMILY_NOISE < ratio < FAMILY_NOISE:
                changes.append(f"time {ratio:.2g}")
            differences += [f"{family}: {', '.join(changes)}"] if changes else []
        result.append(Compared(row, whole, parts, time, part_times, differences))
    return result


def page(group: str, all_rows: list[Row], unreached: list[str], constants: int) -> str:
    """The text of one group between its marks: the settings that matter, and lists of the rest.

    `constants` is the number of constants of the group, measured or not.
    """
    everything = compared(all_rows)
    settings = [c for c in everything if c.row["group"] == group]
    runs = {c.row["run"] for c in settings}
    defaults = [c for c in everything if c.row["label"] == DEFAULT and c.row["run"] in runs]
    total = defaults[0].whole.total
    labels = list(dict.fromkeys(c.row["label"] for c in settings))
    shown = [c for c in settings if c.matters]
    matter = {c.row["label"] for c in shown}
    machines = dict.fromkeys(c.row["machine"] for c in settings)
    sources = any(c.row["source"] for c in settings)
    lines = [
        f"Of {constants} constants, {len(labels)} were measured, at {len(settings)} values in "
        f"all, each on the same {total} problems ({'; '.join(machines)}).",
        "",
        f"| constant | {'source | ' if sources else ''}default | tried | good of {total} | wrong "
        "| time | what differs |",
        "|---|" + ("---|" if sources else "") + "---|---|---|---|---|---|",
    ]
    for c in defaults:
        when = "at the start" if c.row["place"] == 0 else "at the end"
        noise = "; ".join(c.differences)
        cells = ["default, " + when, *([""] if sources else []), "", ""]
        time = f"{c.whole.seconds:.1f} s = {c.time:.2f}"
        lines.append(_line([*cells, str(c.whole.good), str(c.whole.wrong), time, noise]))
    for c in shown:
        row, answers = c.row, [str(c.whole.good), str(c.whole.wrong)]
        if c.whole.total < total:
            answers[0] += f" of {c.whole.total}"
        cells = [f"`{row['label']}`", *([row["source"]] if sources else [])]
        cells += [f"{row['value']:.4g}", f"{row['new']:.4g}"]
        lines.append(_line([*cells, *answers, f"{c.time:.2f}", "; ".join(c.differences)]))
    quiet = [label for label in labels if label not in matter]
    if quiet:
        start = "No value that was tried changes an answer or the time of: "
        lines += ["", start + _names(quiet) + "."]
    if unreached:
        start = "No line that reads one of these was run, so that they were not measured: "
        lines += ["", start + _names(unreached) + "."]
    return "\n".join(lines)


def _names(labels: list[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def full_table(rows: list[Row]) -> str:
    """All settings as CSV, with every kind of problem."""
    everything = compared(rows)
    families = list(everything[0].parts)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [f"{f}: {what}" for f in families for what in ("good", "wrong", "time")]
    start = ["group", "constant", "source", "default", "tried", "problems", "good", "wrong", "time"]
    writer.writerow([*start, "what differs", *heads])
    for c in everything:
        row, whole = c.row, c.whole
        cells = [row[k] for k in ("group", "label", "source", "value", "new")]
        cells += [whole.total, whole.good, whole.wrong, f"{c.time:.3f}", "; ".join(c.differences)]
        for family in families:
            if (tally := c.parts.get(family)) is None:  # ended before
                cells += ["", "", ""]
            else:
                cells += [tally.good, tally.wrong, f"{c.part_times[family]:.2f}"]
        writer.writerow(cells)
    return out.getvalue()
