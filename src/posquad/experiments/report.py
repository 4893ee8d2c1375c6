"""The report of the reproduction: one self-contained HTML file.

The parts that every page shares (security policy, style sheet) are in `posquad.report.page`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from posquad.core.citations import cite
from posquad.core.errors import DomainError
from posquad.core.extras import import_extra
from posquad.experiments.cells import (
    format_value,
    interval,
    measured_cell,
    published_cell,
    shorten_numbers,
)
from posquad.experiments.changes import changed_parameters, describe_sources
from posquad.experiments.choices import HOW, choices
from posquad.experiments.claims import Agreement, Judged
from posquad.experiments.framework import Experiment, Parameters, ReportTable
from posquad.experiments.headline import Counts, count, headline, standing
from posquad.experiments.records import Record
from posquad.experiments.suite import Suite, paper_suite
from posquad.report.figures import Drawing
from posquad.report.formulas import as_html, as_plain
from posquad.report.page import image, page

if TYPE_CHECKING:
    from posquad.experiments.reproduce import Outcome

__all__ = ["render"]

KINDS = ("identity", "deterministic", "statistical", "qualitative")
WORDS = {
    "printed": ("holds", "✓"),
    "given": ("holds, given our choice", "✓"),
    "changed": ("holds, as changed by you", "✓"),
    "differs": ("differs", "≠"),
    "unknown": ("not comparable", "?"),
}
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)(?!\w|\.\d)")
_SETTINGS_SHOWN = 4  # numbers of a tuple that are shown with a choice


def render(
    outcome: Outcome,
    parameters: Mapping[str, Parameters],
    drawings: Mapping[str, Drawing],
    *,
    quick: bool,
    command: str,
    suite: Suite | None = None,
) -> str:
    """Render the page for these records and verdicts; `drawings` maps panel keys to figures.

    >>> from posquad.experiments.reproduce import Outcome
    >>> page = render(Outcome((), (), (), False, 0.0), {}, {}, quick=True, command="posquad")
    >>> "Content-Security-Policy" in page
    True
    """
    suite = suite or paper_suite()
    lines = [_line(j) for j in outcome.judged]
    published = [line for line in lines if line["source"] == "paper"]
    counted = published or lines  # an experiment of the user may have no published claim
    changes = [
        change
        for key, values in parameters.items()
        for change in changed_parameters(suite.experiments[key], values, quick=quick)
    ]
    filters = {"cell": measured_cell, "interval": interval, "published": published_cell}
    filters |= {
        "short": shorten_numbers,
        "cite": cite,
        "emphasized": _emphasized,
        "plain": as_plain,
        "sentence": _sentence,
    }
    return page(
        "report.html.j2",
        styles=("report.css",),
        filters={"value": format_value, **filters},
        title=suite.title,
        published_run=bool(published) or not suite.file,
        quick=quick,
        command=command,
        outcome=outcome,
        headline=_capitalized(headline(lines)),
        dependence=_dependence(published),
        counts=count(counted),
        kinds=[(kind, count(k for k in counted if k["kind"] == kind)) for kind in KINDS],
        changes=changes,
        changed_keys=sorted({change.name.partition(".")[0] for change in changes}),
        chosen=_chosen(lines, parameters),
        findings=_findings(suite, outcome),
        differing=[line for line in lines if line["standing"] == "differs"],
        incomparable=[line for line in lines if line["standing"] == "unknown"],
        missing=[suite.experiments[key] for key in outcome.missing],
        sections=[
            _section(suite, r, lines, parameters[r.experiment], drawings, quick)
            for r in outcome.records
        ],
        computing=sum(record.seconds for record in outcome.records),
    )


def _section(
    suite: Suite,
    record: Record,
    lines: list[dict[str, Any]],
    parameters: Parameters,
    drawings: Mapping[str, Drawing],
    quick: bool,
) -> dict[str, Any]:
    experiment = suite.experiments[record.experiment]
    own = [line for line in lines if line["experiment"] == record.experiment]
    return {
        "experiment": experiment,
        "tally": _tally(own),
        "claims": own,
        "remarks": record.measured.remarks,
        "panels": [
            {"panel": p, "words": drawings[p.key].words, "image": image(drawings[p.key].svg)}
            for p in experiment.panels
        ],
        "tables": [{"table": t, "rows": _rows(t, record)} for t in experiment.tables],
        "parameters": describe_sources(experiment, parameters, quick=quick),
        "record": record,
        "alone": _alone(suite, experiment, parameters),
    }


def _alone(suite: Suite, experiment: Experiment, parameters: Parameters) -> str:
    """Return the command that runs only this experiment, with these parameters."""
    default, key = experiment.parameters(), experiment.key
    changed = [
        f"--set '{key}.{f.name}={_written(getattr(parameters, f.name))}'"
        for f in fields(parameters)
        if getattr(parameters, f.name) != getattr(default, f.name)
    ]
    which = f"--experiment {shlex.quote(suite.file)}" if suite.file else f"--only {key[3:]}"
    return " ".join([f"posquad reproduce {which} --out {key}", *changed])


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


def _line(judged: Judged) -> dict[str, Any]:
    entry = {**asdict(judged.claim), "verdict": judged.verdict.value, "changed": judged.changed}
    place = standing(entry)
    word, sign = WORDS[place]
    return entry | {
        "measured": judged.measured,
        "why": judged.why,
        "rule": judged.tolerance,
        "word": word,
        "sign": sign,
        "standing": place,
        "bold": judged.verdict is not Agreement.HOLDS,
    }


def _chosen(
    lines: list[dict[str, Any]], parameters: Mapping[str, Parameters]
) -> list[dict[str, Any]]:
    """List the choices on which claims of this run depend, with their values and these claims."""
    found = []
    for choice in choices().values():
        claims = [line for line in lines if choice.id in line["given"]]
        if not claims:
            continue
        values = parameters[choice.experiment]
        settings = [
            f"{choice.experiment}.{name} = {_brief(getattr(values, name))}"
            for name in choice.parameters
        ]
        found.append(
            {"choice": choice, "how": HOW[choice.how], "settings": settings, "claims": claims}
        )
    return found


def _brief(value: Any) -> str:
    """Format a parameter; of a long tuple only the first entries."""
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        return f"{len(value)} rows"
    if isinstance(value, tuple) and len(value) > _SETTINGS_SHOWN:
        shown = ", ".join(format_value(entry) for entry in value[:_SETTINGS_SHOWN])
        return f"({shown}, …; {len(value)} values)"
    return format_value(value)


def _findings(suite: Suite, outcome: Outcome) -> list[dict[str, Any]]:
    """Collect what each experiment found; an experiment without its numbers says nothing."""
    found = []
    for record in outcome.records:
        experiment = suite.experiments[record.experiment]
        if experiment.finding is None:
            continue
        try:
            words = experiment.finding(record.measured)
        except (LookupError, ArithmeticError, ValueError, TypeError):
            continue  # with unusual parameters; the section says what was measured
        found.append({"experiment": experiment, "words": words})
    return found


def _tally(lines: list[dict[str, Any]]) -> str:
    """Describe the claims of one experiment in a few words."""
    published = count(line for line in lines if line["source"] == "paper")
    others = count(line for line in lines if line["source"] != "paper")
    words = []
    if published.all:
        parts = [
            (published.printed, "as printed"),
            (published.given, "given choices of ours"),
            (published.changed, "as changed by you"),
        ]
        shown = ", ".join(f"{number} {how}" for number, how in parts if number)
        held = f"{published.holds} of {published.all} published claims hold"
        words.append(f"{held}{f' ({shown})' if shown else ''}{_not_held(published)}")
    if others.all:
        noun = "own checks" if published.all else "claims"
        words.append(f"{others.holds} of {others.all} {noun} hold{_not_held(others)}")
    return "; ".join(words)


def _not_held(counts: Counts) -> str:
    differs = f", {counts.differs} {'differs' if counts.differs == 1 else 'differ'}"
    unknown = f", {counts.unknown} not comparable"
    return (differs if counts.differs else "") + (unknown if counts.unknown else "")


def _dependence(lines: list[dict[str, Any]]) -> str:
    """Say how many claims hold only given choices of the more delicate kinds."""
    given = [line for line in lines if line["standing"] == "given"]
    ways = [{choices()[name].how for name in line["given"]} for line in given]
    matched, order = (sum(way in found for found in ways) for way in ("matched", "order"))
    if not (matched or order):
        return ""
    return (
        f"Of the {len(given)} that hold given choices of ours, {matched} depend on a choice made "
        f"so that the published value appears, and {order} compare only orders of magnitude on "
        "a problem of our own."
    )


def _sentence(text: str) -> Any:
    """Convert a sentence with formulas to HTML; a formula that is not TeX is shown as it is."""
    markup = import_extra("markupsafe", "lab").Markup
    short = shorten_numbers(text)
    try:
        return markup(as_html(_with_powers(short)))
    except DomainError:
        return markup.escape(short)


def _with_powers(text: str) -> str:
    """Write numbers such as 3.4e-04 as formulas, except in code and in other formulas."""
    pieces = re.split(r"(\$[^$]*\$|`[^`]*`)", text)
    pieces[::2] = [
        _POWER.sub(lambda m: rf"${m[1]}\times 10^{{{int(m[2])}}}$", piece) for piece in pieces[::2]
    ]
    return "".join(pieces)


def _emphasized(text: str) -> Any:
    """Put the numbers of a sentence in bold."""
    markup = import_extra("markupsafe", "lab").Markup
    return markup(
        re.sub(r"\b\d+(?: of \d+)?\b", r"<strong>\g<0></strong>", str(markup.escape(text)))
    )


def _capitalized(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
