"""The report of the reproduction: one self-contained HTML file.

The parts that every page shares (security policy, style sheet) are in `posquad.report.page`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from posquad.experiments.claims import Agreement, Judged
from posquad.experiments.framework import Parameters, ReportTable, describe_parameters
from posquad.experiments.records import Record
from posquad.experiments.registry import EXPERIMENTS
from posquad.report.figures import Drawing
from posquad.report.page import image, page

if TYPE_CHECKING:
    from posquad.experiments.reproduce import Outcome

__all__ = ["format_value", "interval", "measured_cell", "published_cell", "render"]

KINDS = ("identity", "deterministic", "statistical", "qualitative")
WORDS = {
    Agreement.HOLDS: ("holds", "✓"),
    Agreement.DIFFERS: ("differs", "≠"),
    Agreement.NOT_COMPARABLE: ("not comparable", "?"),
}


def render(
    outcome: Outcome,
    parameters: Mapping[str, Parameters],
    drawings: Mapping[str, Drawing],
    *,
    quick: bool,
    command: str,
) -> str:
    """Render the page for these records and verdicts; `drawings` maps panel keys to figures.

    >>> from posquad.experiments.reproduce import Outcome
    >>> page = render(Outcome((), (), (), False, 0.0), {}, {}, quick=True, command="posquad")
    >>> "Content-Security-Policy" in page
    True
    """
    published = [j for j in outcome.judged if j.claim.source == "paper"]
    filters = {"cell": measured_cell, "interval": interval, "published": published_cell}
    return page(
        "report.html.j2",
        styles=("report.css",),
        filters={"value": format_value, **filters},
        quick=quick,
        command=command,
        outcome=outcome,
        counts=_counts(published),
        kinds=[(kind, _counts([j for j in published if j.claim.kind == kind])) for kind in KINDS],
        ours=_counts([j for j in outcome.judged if j.claim.source != "paper"]),
        differing=[_line(j) for j in outcome.judged if j.verdict is Agreement.DIFFERS],
        incomparable=[_line(j) for j in outcome.judged if j.verdict is Agreement.NOT_COMPARABLE],
        missing=[EXPERIMENTS[key] for key in outcome.missing],
        sections=[_section(r, outcome, parameters, drawings) for r in outcome.records],
        computing=sum(record.seconds for record in outcome.records),
    )


def _section(
    record: Record,
    outcome: Outcome,
    parameters: Mapping[str, Parameters],
    drawings: Mapping[str, Drawing],
) -> dict[str, Any]:
    experiment = EXPERIMENTS[record.experiment]
    judged = [j for j in outcome.judged if j.claim.experiment == record.experiment]
    values = parameters[record.experiment]
    return {
        "experiment": experiment,
        "counts": _counts(judged),
        "claims": [_line(j) for j in judged],
        "remarks": record.measured.remarks,
        "panels": [
            {"panel": p, "words": drawings[p.key].words, "image": image(drawings[p.key].svg)}
            for p in experiment.panels
        ],
        "tables": [{"table": t, "rows": _rows(t, record)} for t in experiment.tables],
        "parameters": describe_parameters(values),
        "record": record,
        "alone": _alone(values, experiment.key),
    }


def _alone(parameters: Parameters, key: str) -> str:
    """Return the command that runs only this experiment, with these parameters."""
    default = EXPERIMENTS[key].parameters()
    changed = [
        f"--set '{key}.{f.name}={_written(getattr(parameters, f.name))}'"
        for f in fields(parameters)
        if getattr(parameters, f.name) != getattr(default, f.name)
    ]
    number = key.removeprefix("exp")
    return " ".join([f"posquad reproduce --only {number} --out {key}", *changed])


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        nested = isinstance(value[0], tuple)
        inner = ",".join(f"[{_written(v)}]" if nested else f"{v!r}" for v in value)
        return f"[{inner}]" if nested else inner
    return repr(value)


def _rows(table: ReportTable, record: Record) -> list[list[str]]:
    """Return the rows of a table, or one row with the reason if they cannot be made."""
    try:
        return table.rows(record.measured)
    except (LookupError, ArithmeticError, ValueError, TypeError) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        return [[f"This table cannot be made with these parameters ({reason})."]]


def _counts(judged: Any) -> dict[str, int]:
    counts = {verdict.name.lower(): 0 for verdict in Agreement}
    for j in judged:
        counts[j.verdict.name.lower()] += 1
    return counts | {"all": len(judged)}


def _line(judged: Judged) -> dict[str, Any]:
    word, sign = WORDS[judged.verdict]
    return {
        **{name: getattr(judged, name) for name in ("measured", "tolerance", "why")},
        **asdict(judged.claim),
        "rule": judged.tolerance,
        "word": word,
        "sign": sign,
        "verdict": judged.verdict.name.lower().replace("_", "-"),
    }


def format_value(value: Any) -> str:
    """Format a published or measured value in a few characters.

    >>> format_value(0.000123456), format_value([1.0, 0.5]), format_value(True), format_value(None)
    ('1.23456e-04', '(1, 0.5)', 'true', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return f"({', '.join(format_value(entry) for entry in value)})"
    size = abs(float(value))
    return f"{value:.5e}" if size and (size < 1e-3 or size >= 1e6) else f"{value:.7g}"


def measured_cell(value: Any) -> str:
    """Format a measured value; a distribution as its median and interval.

    >>> measured_cell({"median": 1.0, "interval": [0.5, 1.5], "percentile": 50, "samples": 9})
    '1 [0.5, 1.5]'
    """
    if isinstance(value, dict):
        return f"{format_value(value['median'])} {interval(value)}"
    return format_value(value)


def published_cell(claim: Mapping[str, Any]) -> str:
    """Format a published value with the paper's digits; a dash for one of our own checks.

    >>> published_cell({"source": "paper", "published": True, "tolerance": {"rule": "at-most"}})
    'in words'
    """
    if claim["source"] != "paper":
        return "\N{EM DASH}"
    return "in words" if claim["published"] is True else format_value(claim["published"])


def interval(summary: Mapping[str, Any]) -> str:
    """Format the interval of a distribution.

    >>> interval({"interval": [0.5, 1.5]})
    '[0.5, 1.5]'
    """
    low, high = summary["interval"]
    return f"[{low:.5g}, {high:.5g}]"
