"""The main job: what is run, what is kept, what is written, whatever happens in between."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import shlex
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from experiments_support import REAL, contents, falsified, measured, stand_in
from posquad.core.errors import DomainError, MissingExtraError, NonFiniteError, PosquadError
from posquad.core.extras import import_extra
from posquad.core.files import FileError
from posquad.experiments import cells, report, suite
from posquad.experiments.claims import Agreement, claims, compare_claim
from posquad.experiments.framework import ReportTable
from posquad.experiments.records import load, record_key
from posquad.experiments.registry import EXPERIMENTS
from posquad.experiments.reproduce import ExperimentError, Outcome, Watcher, plan
from posquad.experiments.reproduce import reproduce as run
from posquad.report import figures
from posquad.report.formulas import as_plain
from posquad.report.panel import Panel

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"


def recorded(folder, key, **options):
    """The record that a run of this plan left, or None."""
    values = plan([key], **options)[key]
    return load(folder / "records", key, record_key(EXPERIMENTS[key], values))


def ran(calls: list) -> list[str]:
    return [key for key, _ in calls]


# What to run.


def test_plan_is_every_experiment_with_the_papers_parameters():
    parameters = plan()
    assert list(parameters) == [f"exp{k}" for k in range(1, 9)]
    assert all(values == EXPERIMENTS[key].parameters() for key, values in parameters.items())
    assert (parameters["exp2"].d, parameters["exp2"].r, parameters["exp2"].n) == (8, 2, 800)


def test_plan_keeps_the_order_of_the_paper_and_runs_nothing_twice():
    assert list(plan(["exp6", "exp5", "exp6"])) == ["exp5", "exp6"]


def test_plan_quick_seed_and_changes_in_that_order():
    changes = {"exp1": {"seeds": "3"}, "exp2": {"seed": "9"}}
    parameters = plan(["exp1", "exp2"], quick=True, seed=5, changes=changes)
    assert parameters["exp1"].seeds == 3  # quick says otherwise
    assert parameters["exp1"].steps == EXPERIMENTS["exp1"].quick["steps"]
    assert parameters["exp1"].seed == 5
    assert parameters["exp2"].seed == 9


@pytest.mark.parametrize(
    ("only", "changes", "message"),
    [
        (["exp9"], {}, r"^experiment: expected one of exp1, .*exp8; got exp9$"),
        ([], {"exp9": {"n": "1"}}, r"^experiment: expected one of .*; got exp9$"),
        (
            ["exp5"],
            {"exp2": {"n": "1"}},
            r"^set: .*to run \(exp5\); got parameters of exp2$",
        ),
        (["exp5"], {"exp5": {"m": "1"}}, r"^exp5\.m: expected one of seed, .*no such parameter$"),
        (["exp5"], {"exp5": {"seed": "x"}}, r"^exp5\.seed: expected something like 0; got x$"),
    ],
)
def test_plan_refuses_what_it_does_not_know(only, changes, message):
    with pytest.raises(DomainError, match=message):
        plan(only, changes=changes)


# A run and its record.


def test_a_run_leaves_records_claims_and_report(calls, tmp_path):
    outcome = run(tmp_path, plan(["exp5", "exp6"]))
    assert ran(calls) == ["exp5", "exp6"]
    assert outcome.missing == ()
    assert not outcome.interrupted
    assert [record.experiment for record in outcome.records] == ["exp5", "exp6"]
    expected = [claim.id for claim in claims() if claim.experiment in ("exp5", "exp6")]
    assert [j.claim.id for j in outcome.judged] == expected
    entries = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert [entry["id"] for entry in entries] == expected
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    names = {name.split("/")[0] for name in contents(tmp_path)}
    assert names == {"records", "claims.json", "report.html"}
    assert not [name for name in contents(tmp_path) if "partial" in name or "probe" in name]


def test_the_record_says_what_was_asked_and_where_it_was_computed(calls, tmp_path):
    parameters = plan(["exp5"], seed=11, changes={"exp5": {"y": "1,1,1"}})
    run(tmp_path, parameters)
    key = record_key(EXPERIMENTS["exp5"], parameters["exp5"])
    path = tmp_path / "records" / f"exp5-{key}.json"
    words = json.loads(path.read_text(encoding="utf-8"))
    assert words["parameters"]["seed"] == 11
    assert words["parameters"]["y"] == [1.0, 1.0, 1.0]
    assert words["parameters"] == json.loads(json.dumps(dataclasses.asdict(parameters["exp5"])))
    assert words["key"] == key
    assert {"posquad", "python", "torch", "numpy", "scipy"} <= set(words["system"])
    assert words["system"]["threads"] == 1
    assert words["seconds"] >= 0
    assert words["finished"].endswith("Z")


@pytest.mark.parametrize("problem", [None, ValueError("no"), KeyboardInterrupt()])
def test_experiments_run_on_one_thread_and_the_number_is_restored(monkeypatch, tmp_path, problem):
    seen = []

    class Spy(Watcher):
        def advances(self, fraction):
            seen.append(torch.get_num_threads())

    noted = stand_in("exp5", [], problem=problem)

    def watched(parameters, progress):
        progress(0.5)
        return noted.run(parameters, progress)

    watched.__module__ = noted.run.__module__
    monkeypatch.setitem(EXPERIMENTS, "exp5", dataclasses.replace(noted, run=watched))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if isinstance(problem, ValueError):
            with pytest.raises(ExperimentError):
                run(tmp_path, plan(["exp5"]), watcher=Spy())
        else:
            run(tmp_path, plan(["exp5"]), watcher=Spy())
        assert torch.get_num_threads() == 2
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(threads)


def test_the_watcher_is_called_in_order(calls, tmp_path):
    told = []

    class Spy(Watcher):
        def begins(self, experiment, position, total):
            told.append(("begins", experiment.key, position, total))

        def advances(self, fraction):
            told.append(("advances", fraction))

        def ends(self, experiment, record, *, reused):
            told.append(("ends", experiment.key, record.experiment, reused))

        def writes(self, what):
            told.append(("writes", what))

    run(tmp_path, plan(["exp5"]))
    run(tmp_path, plan(["exp5", "exp6"]), watcher=Spy())
    assert [event for event in told if event[0] != "writes"] == [
        ("begins", "exp5", 1, 2),
        ("ends", "exp5", "exp5", True),
        ("begins", "exp6", 2, 2),
        ("advances", 1.0),
        ("ends", "exp6", "exp6", False),
    ]
    assert told[-1] == ("writes", "report")


# Reuse.


def test_the_same_parameters_are_not_computed_twice(calls, tmp_path):
    first = run(tmp_path, plan(["exp5", "exp6"]))
    before = contents(tmp_path / "records")
    again = run(tmp_path, plan(["exp5", "exp6"]))
    assert ran(calls) == ["exp5", "exp6"]
    assert contents(tmp_path / "records") == before
    assert [j.as_dict() for j in again.judged] == [j.as_dict() for j in first.judged]


def test_fresh_computes_again(calls, tmp_path):
    run(tmp_path, plan(["exp5"]))
    run(tmp_path, plan(["exp5"]), fresh=True)
    assert ran(calls) == ["exp5", "exp5"]


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"changes": {"exp5": {"epsilons": "0.5,0.25"}}}], ids=["seed", "set"]
)
def test_other_parameters_are_computed_and_the_first_record_is_kept(calls, tmp_path, change):
    run(tmp_path, plan(["exp5"]))
    before = contents(tmp_path / "records")
    run(tmp_path, plan(["exp5"], **change))
    assert ran(calls) == ["exp5", "exp5"]
    assert recorded(tmp_path, "exp5").key != recorded(tmp_path, "exp5", **change).key
    assert before.items() <= contents(tmp_path / "records").items()
    assert len(contents(tmp_path / "records")) == 4
    run(tmp_path, plan(["exp5"], **change))
    run(tmp_path, plan(["exp5"]))  # and back again
    assert len(calls) == 2


def test_a_change_to_one_experiment_reruns_only_that_one(calls, tmp_path):
    run(tmp_path, plan(["exp5", "exp6"]))
    run(tmp_path, plan(["exp5", "exp6"], changes={"exp6": {"samples": "7"}}))
    assert ran(calls) == ["exp5", "exp6", "exp6"]
    assert calls[-1][1].samples == 7


# Things that go wrong.


def test_ctrl_c_keeps_what_is_finished_and_the_next_run_goes_on(calls, monkeypatch, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls, problem=KeyboardInterrupt()))
    outcome = run(tmp_path, plan(["exp5", "exp6", "exp7"]))
    assert outcome.interrupted
    assert outcome.missing == ("exp6", "exp7")
    assert {j.claim.experiment for j in outcome.judged} == {"exp5"}
    assert recorded(tmp_path, "exp5") is not None
    assert recorded(tmp_path, "exp6") is None
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This run was not finished" in page
    assert EXPERIMENTS["exp7"].title in page
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls))
    outcome = run(tmp_path, plan(["exp5", "exp6"]))
    assert not outcome.interrupted
    assert ran(calls) == ["exp5", "exp6", "exp6"]
    assert "This run was not finished" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_ctrl_c_in_the_first_experiment_leaves_an_earlier_report_alone(
    calls, monkeypatch, tmp_path
):
    run(tmp_path, plan(["exp5"]))
    before = contents(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, problem=KeyboardInterrupt()))
    outcome = run(tmp_path, plan(["exp5"], seed=3))
    assert outcome.interrupted
    assert outcome.records == ()
    assert contents(tmp_path) == before


PROBLEMS = [
    ValueError("shapes do not fit"),
    ZeroDivisionError("division by zero"),
    NonFiniteError("X", expected="finite", got="NaN"),
    np.linalg.LinAlgError("Singular matrix"),
    RuntimeError("invalid argument"),
    KeyError("tabled_budget"),
    TypeError("'float' object cannot be interpreted as an integer"),
    MemoryError("Unable to allocate 745. GiB"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_an_experiment_that_raises_is_named_and_the_finished_ones_are_kept(
    calls, monkeypatch, tmp_path, problem
):
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls, problem=problem))
    with pytest.raises(ExperimentError) as caught:
        run(tmp_path, plan(["exp5", "exp6"]))
    assert isinstance(caught.value, PosquadError)
    assert caught.value.argument == "exp6"
    assert type(problem).__name__ in str(caught.value)
    assert caught.value.__cause__ is problem  # for --traceback
    assert recorded(tmp_path, "exp5") is not None
    assert recorded(tmp_path, "exp6") is None
    entries = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert {entry["experiment"] for entry in entries} == {"exp5"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="exp5"' in page
    assert 'id="exp6"' not in page
    assert "This run was not finished" in page
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls))
    run(tmp_path, plan(["exp5", "exp6"]))
    assert ran(calls) == ["exp5", "exp6", "exp6"]


def test_an_experiment_that_raises_first_leaves_an_earlier_report_alone(
    calls, monkeypatch, tmp_path
):
    run(tmp_path, plan(["exp5"]))
    before = contents(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, problem=ValueError("no")))
    with pytest.raises(ExperimentError):
        run(tmp_path, plan(["exp5", "exp6"], seed=3))
    assert ran(calls) == ["exp5", "exp5"]  # what comes after it is not run
    assert contents(tmp_path) == before


def test_a_measurement_that_is_infinite_does_not_lose_the_run(calls, monkeypatch, tmp_path):
    """JSON has no infinity; the claims of a diverged run must be written all the same."""
    answer = falsified("exp5", "lyapunov_max", np.inf)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    outcome = run(tmp_path, plan(["exp5"]))
    (affected,) = [j for j in outcome.judged if j.claim.measure == "lyapunov_max"]
    assert affected.verdict is Agreement.DIFFERS  # an identity, so it must be finite
    json.loads((tmp_path / "claims.json").read_text(), parse_constant=pytest.fail)
    assert (tmp_path / "report.html").exists()


def test_a_damaged_record_stops_the_run_before_it_starts_and_nothing_is_changed(calls, tmp_path):
    run(tmp_path, plan(["exp5", "exp6"]))
    (path,) = (tmp_path / "records").glob("exp6-*.json")
    path.write_bytes(path.read_bytes()[:100])
    before = contents(tmp_path)
    calls.clear()
    message = r"exp6-[0-9a-f]{16}\.json: expected a complete record; nothing was changed"
    with pytest.raises(FileError, match=message):
        run(tmp_path, plan(["exp5", "exp6"], changes={"exp5": {"seed": "2"}}))
    assert calls == []
    assert contents(tmp_path) == before
    run(tmp_path, plan(["exp5"]))  # its neighbour is not affected
    run(tmp_path, plan(["exp6"]), fresh=True)
    assert ran(calls) == ["exp6"]
    assert recorded(tmp_path, "exp6") is not None


@pytest.mark.parametrize("where", ["out", "out/deeper", "records", "figures"])
def test_a_file_in_the_way_is_found_before_any_experiment_starts(calls, tmp_path, where):
    inside = where in ("records", "figures")
    blocked = tmp_path / "out" / where if inside else tmp_path / "out"
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_bytes(b"mine")
    with pytest.raises(FileError) as caught:
        run(tmp_path / ("out" if inside else where), plan(["exp5"]))
    assert str(blocked) in str(caught.value)
    assert calls == []
    assert contents(tmp_path) == {blocked.relative_to(tmp_path).as_posix(): b"mine"}


@pytest.mark.parametrize("name", ["claims.json", "report.html"])
def test_a_folder_in_the_way_of_a_result_is_found_before_any_experiment_starts(
    calls, tmp_path, name
):
    (tmp_path / name / "inside").mkdir(parents=True)
    with pytest.raises(FileError, match=rf"{name}: expected a file; got a folder"):
        run(tmp_path, plan(["exp5"]))
    assert calls == []
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_found_before_any_experiment_starts(
    calls, monkeypatch, tmp_path, package
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"^{package}: .*posquad\[lab\]"):
        run(tmp_path / "out", plan(["exp5"]))
    assert calls == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import a_package_that_is_nowhere", ModuleNotFoundError),
        ("from math import no_such_name", ImportError),
    ],
    ids=["needs-another", "broken"],
)
def test_a_broken_package_is_not_called_missing(monkeypatch, tmp_path, source, error):
    (tmp_path / "posquad_test_broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error) as caught:
        import_extra("posquad_test_broken", "lab")
    assert not isinstance(caught.value, MissingExtraError)
    with pytest.raises(MissingExtraError, match=r"^posquad_test_absent: .*posquad\[lab\]"):
        import_extra("posquad_test_absent.part", "lab")


# The report.


class Page(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text, self.style = "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "style" and not self.style:
            self.style = data
        self.text += data


def dots(axes, result):
    axes.plot([1.0, 2.0], [1.0, 4.0])
    axes.set_xlabel(HOSTILE.replace("$", ""))


@pytest.fixture
def hostile(monkeypatch, tmp_path):
    """A page every word of which comes from somebody who means harm."""
    answer = measured("exp5")
    answer.remarks.append(HOSTILE)
    panel = Panel("exp5-dots", HOSTILE, HOSTILE, dots, lambda result: HOSTILE, HOSTILE)
    table = ReportTable("t", HOSTILE, (HOSTILE,), lambda result: [[HOSTILE, HOSTILE]], HOSTILE)
    experiment = stand_in(
        "exp5",
        [],
        answer=answer,
        title=HOSTILE,
        question=HOSTILE,
        labels=(HOSTILE,),
        panels=(panel,),
        tables=(table,),
    )
    monkeypatch.setitem(EXPERIMENTS, "exp5", experiment)
    words = dict.fromkeys(("id", "label", "statement", "note"), HOSTILE)
    evil = [dataclasses.replace(claim, **words) for claim in claims() if claim.experiment == "exp5"]
    none = {"rule": "none", "reason": HOSTILE}
    evil += [
        dataclasses.replace(evil[0], measure="base_stop", where=w, tolerance=none)
        for w in ({"epsilon": 0.1}, {"epsilon": 0.3})
    ]
    monkeypatch.setattr(suite, "claims", lambda: tuple(evil))
    run(tmp_path, plan(["exp5"]), command=HOSTILE)
    return tmp_path


def test_hostile_text_is_escaped(hostile):
    source = (hostile / "report.html").read_text(encoding="utf-8")
    assert "<script" not in source.lower()
    page = Page(source)
    assert page.text.count(HOSTILE) > 20
    for tag, attributes in page.tags:
        assert tag != "script"
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert not set(attributes) - {
            *("alt", "aria-hidden", "aria-label", "aria-labelledby", "charset", "class", "content"),
            *("data-label", "height", "href", "http-equiv", "id", "lang", "name", "open", "rel"),
            *("preserveaspectratio", "role", "scope", "src", "tabindex", "value", "viewbox"),
            *("mathvariant", "stretchy", "lspace", "rspace"),
            *("width", "x", "y", "title", "colspan", "rowspan", "loading", "decoding", "fill", "d"),
        }
    (image,) = [a for tag, a in page.tags if tag == "img"]
    assert HOSTILE in image["alt"]


def test_the_drawing_is_text_safe_too(hostile):
    svg = (hostile / "figures" / "exp5-dots.svg").read_text(encoding="utf-8")
    assert "<script" not in svg.lower()
    assert "<svg" in svg
    assert "prefers-color-scheme" not in svg  # the file is for papers, the report has the theme
    assert (hostile / "figures" / "exp5-dots.pdf").read_bytes().startswith(b"%PDF")
    assert (hostile / "figures" / "exp5-dots.png").read_bytes().startswith(b"\x89PNG")
    source = (hostile / "report.html").read_text(encoding="utf-8")
    themed = figures.themed_svg(svg)
    assert themed.startswith("<svg")
    assert base64.b64encode(themed.encode()).decode() in source


def broken(*_):
    raise ZeroDivisionError("no such number")


@pytest.mark.parametrize("part", ["draw", "describe"])
def test_a_panel_that_cannot_be_drawn_is_replaced_by_a_sentence(calls, monkeypatch, tmp_path, part):
    good = Panel("exp5-good", "good", "caption", dots, lambda result: "seen well")
    bad = dataclasses.replace(good, key="exp5-bad", title="bad", **{part: broken})
    table = ReportTable("t", "title", ("one",), broken)
    monkeypatch.setitem(
        EXPERIMENTS, "exp5", stand_in("exp5", calls, panels=(bad, good), tables=(table,))
    )
    run(tmp_path, plan(["exp5"]))
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    (image,) = [a for tag, a in page.tags if tag == "img"]
    assert image["alt"] == "good. seen well"
    reason = "with these parameters (ZeroDivisionError: no such number)"
    assert f"This panel cannot be drawn {reason}." in page.text
    assert f"cannot be made {reason}" in page.text
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        *("exp5-good.pdf", "exp5-good.png", "exp5-good.svg")
    ]
    assert not [a for _, a in page.tags if "exp5-bad" in a.get("href", "")]


def test_errors_outside_a_panel_are_not_caught(monkeypatch, tmp_path):
    """A disk that is full, and Ctrl-C."""
    panel = Panel("p", "title", "caption", dots, lambda result: "words")
    (tmp_path / "p.svg").mkdir()
    with pytest.raises(FileError, match=r"p\.svg"):
        figures.draw(panel, measured("exp5"), tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        figures.draw(dataclasses.replace(panel, draw=interrupted), measured("exp5"), tmp_path)


def test_the_page_needs_nothing_from_outside_and_forbids_it(calls, tmp_path):
    run(tmp_path, plan(["exp5"]))
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    (policy,) = [
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy  # otherwise the browser drops the style sheet
    for _, attributes in page.tags:
        for name in ("src", "href"):
            target = attributes.get(name, "#")
            assert target.startswith(("#", "data:", "figures/"))
    assert "@import" not in page.style
    assert "url(" not in page.style


def test_a_check_of_our_own_is_called_so_where_it_cannot_be_compared(calls, monkeypatch, tmp_path):
    answer = measured("exp5")
    (own,) = [c for c in claims() if c.experiment == "exp5" and c.source != "paper"]
    del answer.quantities[own.measure]
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    run(tmp_path, plan(["exp5"]), quick=True)
    text = " ".join(Page((tmp_path / "report.html").read_text(encoding="utf-8")).text.split())
    assert "0 of 1 additional checks hold; 1 of them cannot be compared." in text
    told = f"{own.statement} : not a published number; this run did not measure its quantity."
    assert told.replace(" :", ":") in text.replace(" :", ":")
    assert own.measure not in text


def test_the_summary_counts_what_was_judged(calls, monkeypatch, tmp_path):
    answer = falsified("exp5", "stop_changes", False)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    outcome = run(tmp_path, plan(["exp5"]), quick=True)
    text = " ".join(Page((tmp_path / "report.html").read_text(encoding="utf-8")).text.split())
    paper = [j for j in outcome.judged if j.claim.source == "paper"]
    counts = {word: sum(j.verdict is word for j in paper) for word in Agreement}
    assert counts[Agreement.DIFFERS] == 1
    assert len(outcome.judged) == len(paper) + 1
    assert "the additional check holds." in text
    total = sum(counts.values())
    assert f"0 of {total} published claims hold as printed;" in text  # the system is ours
    assert f"{counts[Agreement.HOLDS]} hold given choices of ours; 1 differs;" in text
    assert f"{counts[Agreement.NOT_COMPARABLE]} cannot be compared" in text
    (differs,) = [j for j in outcome.judged if j.verdict is Agreement.DIFFERS]
    assert as_plain(differs.claim.statement) in text
    assert "What differs, and why" in text
    assert "quick run" in text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("key", REAL)
def test_the_command_in_the_report_gives_the_same_parameters(key, quick):
    values = plan([key], quick=quick, seed=3)[key]
    changes = {"exp5": {"B": "[[1, 0.1], [1e-5, 2]]", "epsilons": "0.5"}}.get(key, {})
    values = plan([key], quick=quick, seed=3, changes={key: changes})[key]
    words = shlex.split(report._alone(suite.paper_suite(), EXPERIMENTS[key], values))
    number = key.removeprefix("exp")
    assert words[:6] == ["posquad", "reproduce", "--only", number, "--out", key]
    again: dict[str, str] = {}
    for option, text in zip(words[6::2], words[7::2], strict=True):
        assert option == "--set"
        name, _, value = text.partition("=")
        again[name.removeprefix(f"{key}.")] = value
    found = plan([key], changes={key: again})[key]
    assert found == values
    assert record_key(EXPERIMENTS[key], found) == record_key(EXPERIMENTS[key], values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (19, "19"),
        (1.3, "1.3"),
        (0.001, "0.001"),
        (0.0009, "9.00000e-04"),
        (2.0127e16, "2.01270e+16"),
        (-1e-9, "-1.00000e-09"),
        (True, "true"),
        (False, "false"),
        (None, "none"),
        ("4.96e-16", "4.96e-16"),
        ([0.3, 0.0], "(0.3, 0)"),
        (((1.0, 2.0), (3.0, 4.0)), "((1, 2), (3, 4))"),
    ],
)
def test_values_in_few_characters(value, text):
    assert cells.format_value(value) == text


@pytest.mark.parametrize(
    ("source", "published", "text"),
    [
        ("paper", "4.96e-16", "4.96e-16"),
        ("paper", ["1", "1/3"], "(1, 1/3)"),
        ("paper", True, "in words"),
        ("posquad", True, "\N{EM DASH}"),
        ("posquad", "1", "\N{EM DASH}"),
    ],
)
def test_what_is_published(source, published, text):
    assert cells.published_cell({"source": source, "published": published}) == text


def test_render_of_an_unfinished_run_with_nothing_judged(calls, tmp_path):
    outcome = Outcome(records=(), judged=(), missing=("exp5",), interrupted=True, seconds=0.0)
    page = report.render(outcome, plan(["exp5"]), {}, quick=False, command="posquad reproduce")
    assert "This run was not finished" in page
    assert "No claim belongs to this run" in " ".join(Page(page).text.split())


def test_pictures_do_not_depend_on_the_date(calls, tmp_path):
    """The same measurement gives the same files, so a changed figure is a changed result."""
    panel = Panel("p", "title", "caption", dots, lambda result: "words")
    drawings, files = [], []
    for name in ("one", "other"):
        drawings.append(figures.draw(panel, measured("exp5"), tmp_path / name))
        files.append(contents(tmp_path / name))
    assert drawings[0] == drawings[1]
    assert files[0] == files[1]
    assert set(files[0]) == {"p.svg", "p.pdf", "p.png"}
    assert drawings[0].words == "words"
    assert "prefers-color-scheme:dark" in drawings[0].svg.replace(" ", "")


def test_judging_does_not_change_the_measurement(calls):
    result = measured("exp5")
    for claim in claims():
        if claim.experiment == "exp5":
            compare_claim(claim, result)
    untouched = measured("exp5")
    for name in result.quantities:
        assert result[name].tobytes() == untouched[name].tobytes()
