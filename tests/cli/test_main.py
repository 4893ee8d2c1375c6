"""The command line: exit statuses, sentences, files, and what happens when things go wrong."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import Result
from rich.console import Console
from rich.progress import Progress

import posquad
from cli_support import command as posquad_command
from experiments_support import contents, falsified, measured, small_record, stand_in
from posquad.__main__ import main as program
from posquad.cli import failure
from posquad.cli import reproduce_progress as progress
from posquad.cli.main import main
from posquad.experiments.claims import claims
from posquad.experiments.records import record_key
from posquad.experiments.registry import EXPERIMENTS
from posquad.experiments.reproduce import plan
from posquad.experiments.suite import paper_suite
from posquad.report import figures
from posquad.report.formulas import as_plain
from posquad.report.panel import Panel

FIELDS = (
    *("id", "experiment", "label", "statement", "kind", "published", "printed", "measured"),
    *("tolerance", "verdict", "why", "note", "source", "given", "changed"),
)


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def reproduce(out: Path, *arguments: object) -> Result:
    return posquad_command("reproduce", "--only", "5,6", "--out", out, *arguments)


def assert_refused(result: Result, *words: str) -> None:
    """Status 2, one sentence on standard error, no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    for word in words:
        assert word in result.stderr


def strict_json(path: Path) -> list[dict]:
    """Parsed as a standard JSON parser would: NaN and Infinity are errors."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


# Exit status 0 and 1.


def test_a_run_whose_strict_claims_hold_exits_with_0(calls, out):
    result = reproduce(out)
    assert result.exit_code == 0, result.output
    assert [key for key, _ in calls] == ["exp5", "exp6"]
    assert "[1/2] exp5" in result.stdout
    assert "[2/2] exp6" in result.stdout
    assert f"Report: {out / 'report.html'}" in result.stdout
    assert "hold given choices of ours; none differs" in result.stdout
    assert result.stderr == ""


def test_claims_json_has_the_documented_fields(calls, out):
    reproduce(out)
    entries = strict_json(out / "claims.json")
    expected = [claim for claim in claims() if claim.experiment in ("exp5", "exp6")]
    assert len(entries) == len(expected)
    for entry, claim in zip(entries, expected, strict=True):
        assert set(entry) == set(FIELDS)
        for name in ("id", "experiment", "label", "kind", "source"):
            assert entry[name] == getattr(claim, name)
        for name in ("statement", "note"):  # as text, with formulas that a terminal can show
            assert entry[name] == as_plain(getattr(claim, name))
            assert not set("$\\{}") & set(entry[name])
        assert entry["printed"] == claim.published
        assert entry["kind"] in {"identity", "deterministic", "statistical", "qualitative"}
        assert entry["verdict"] in {"holds", "differs", "not-comparable"}
        assert isinstance(entry["tolerance"], str)
        if isinstance(claim.published, str):
            assert entry["published"] == float(claim.published)
        if entry["verdict"] != "not-comparable":
            assert entry["measured"] is not None


def test_a_strict_claim_that_differs_exits_with_1_and_is_named(calls, monkeypatch, out):
    answer = falsified("exp5", "lyapunov_max", 0.25)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    result = reproduce(out)
    assert result.exit_code == 1
    (affected,) = [claim for claim in claims() if claim.measure == "lyapunov_max"]
    assert affected.kind in {"identity", "deterministic"}
    assert "1 differs" in result.stdout
    assert f"differs: {affected.id}: published" in result.stdout
    assert "measured 0.25" in result.stdout
    assert (out / "report.html").exists()
    verdicts = {entry["id"]: entry["verdict"] for entry in strict_json(out / "claims.json")}
    assert [name for name, word in verdicts.items() if word == "differs"] == [affected.id]
    assert reproduce(out).exit_code == 1  # also from the record


def test_a_qualitative_claim_that_differs_is_named_and_exits_with_0(calls, monkeypatch, out):
    answer = falsified("exp5", "stop_changes", False)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    result = reproduce(out)
    assert result.exit_code == 0
    (affected,) = [claim for claim in claims() if claim.measure == "stop_changes"]
    assert f"differs: {affected.id}: published in words, measured false" in result.stdout


def test_a_changed_parameter_is_marked_and_a_claim_that_differs_says_so(monkeypatch, out):
    """The paper's y is (1, 0.3); with another one the minimum trace is another number."""
    unpictured = dataclasses.replace(EXPERIMENTS["exp6"], panels=())
    monkeypatch.setitem(EXPERIMENTS, "exp6", unpictured)
    arguments = ("--only", "6", "--set", "exp6.y=1,0.4", "--set", "exp6.samples=3", "--out", out)
    result = posquad_command("reproduce", *arguments)
    assert result.exit_code == 1
    changed = "exp6.y = (1, 0.4) (paper: (1, 0.3))"
    assert f"Changed by you: {changed}, exp6.samples = 3 (default: 400)." in result.stdout
    assert "0 of 28 published claims hold as printed;" in result.stdout
    assert "hold with parameters that you changed;" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if "exp6.minimum-trace:" in line]
    assert (
        f"published 1.3, measured 1.4; off by 1e+08 times the tolerance; you changed {changed}"
        in line
    )
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<td>changed by you (paper: (1, 0.3))</td>" in page
    assert (
        "<strong>Changed by you:</strong> <code>exp6.y = (1, 0.4) (paper: (1, 0.3))</code>" in page
    )
    entries = {entry["id"]: entry for entry in strict_json(out / "claims.json")}
    assert entries["exp6.minimum-trace"]["changed"][0] == changed


def test_an_unchanged_run_has_no_banner(calls, out):
    result = reproduce(out, "--seed", "3")  # another seed is no change of the experiment
    assert "Changed by you" not in result.stdout
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Changed by you" not in page
    assert "changed by you (default: 0)" in page  # the seed, in the table of parameters


def test_without_a_value_that_was_asked_for_its_claims_are_not_comparable(calls, monkeypatch, out):
    """Not run is neither a success nor a failure: status 0."""
    answer = measured("exp5")
    answer.coords["epsilon"] = np.array([0.5, 0.25, 0.2, 0.05])  # without 0.1
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    result = reproduce(out)
    assert result.exit_code == 0
    words = {entry["id"]: entry for entry in strict_json(out / "claims.json")}
    assert words["exp5.stop-base"]["verdict"] == "not-comparable"
    assert words["exp5.stop-base"]["why"] == "this run has no single value at epsilon = 0.1"
    assert words["exp5.stop-base"]["measured"] is None


# Reuse.


def test_the_second_run_reuses_records_and_fresh_does_not(calls, out):
    assert "done in" in reproduce(out).stdout
    before = contents(out / "records")
    again = reproduce(out)
    assert again.exit_code == 0
    assert again.stdout.count("reused from an earlier run") == 2
    assert len(calls) == 2
    assert contents(out / "records") == before
    fresh = reproduce(out, "--fresh")
    assert "reused" not in fresh.stdout
    assert len(calls) == 4


def test_seed_and_set_change_the_key_and_are_recorded(calls, out):
    def added(*options):
        """Experiment and parameters of the records that this run adds, by their key."""
        before = set((out / "records").glob("*.json"))
        reproduce(out, *options)
        paths = sorted(set((out / "records").glob("*.json")) - before)
        words = [json.loads(path.read_text()) for path in paths]
        assert [path.stem for path in paths] == [f"{w['experiment']}-{w['key']}" for w in words]
        return [(w["experiment"], w["parameters"]) for w in words]

    assert [experiment for experiment, _ in added()] == ["exp5", "exp6"]
    second = added("--seed", 5)
    assert [(e, p["seed"]) for e, p in second] == [("exp5", 5), ("exp6", 5)]
    ((experiment, parameters),) = added(
        "--seed", 5, "--set", "exp5.epsilons=0.5,0.1", "--set", "exp5.y = 1, 1, 1"
    )
    assert experiment == "exp5"
    assert parameters["epsilons"] == [0.5, 0.1]
    assert parameters["y"] == [1.0, 1.0, 1.0]
    assert [key for key, _ in calls] == ["exp5", "exp6", "exp5", "exp6", "exp5"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "exp5.epsilons=0.5,0.1" in page


def test_quick_runs_are_recorded_separately(calls, out):
    reproduce(out)
    reproduce(out, "--quick")
    assert [key for key, _ in calls] == ["exp5", "exp6", "exp6"]  # exp5 has nothing to shorten
    assert calls[-1][1].samples == EXPERIMENTS["exp6"].quick["samples"]
    assert "quick run" in (out / "report.html").read_text(encoding="utf-8")


# Ctrl-C: 130.


def test_ctrl_c_exits_with_130_keeps_what_is_finished_and_goes_on(calls, monkeypatch, out):
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls, problem=KeyboardInterrupt()))
    result = reproduce(out)
    assert result.exit_code == 130
    assert "Interrupted" in result.stdout
    assert "Traceback" not in result.output
    assert list((out / "records").glob("exp5-*.json"))
    assert not list((out / "records").glob("exp6-*"))
    assert "This run was not finished" in (out / "report.html").read_text(encoding="utf-8")
    assert {entry["experiment"] for entry in strict_json(out / "claims.json")} == {"exp5"}
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls))
    result = reproduce(out)
    assert result.exit_code == 0
    assert [key for key, _ in calls] == ["exp5", "exp6", "exp6"]


def test_ctrl_c_before_anything_is_finished_writes_no_report(calls, monkeypatch, out):
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, problem=KeyboardInterrupt()))
    result = reproduce(out)
    assert result.exit_code == 130
    assert "Report:" not in result.stdout
    assert not (out / "report.html").exists()
    assert [key for key, _ in calls] == ["exp5"]


def test_ctrl_c_while_figures_are_drawn_exits_with_130_too(calls, monkeypatch, out):
    """1 would say that a claim does not hold."""

    def interrupted(*_):
        raise KeyboardInterrupt

    panel = Panel("p", "title", "caption", lambda axes, result: None, lambda result: "words")
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, panels=(panel,)))
    monkeypatch.setattr(figures, "save_figures", interrupted)
    result = reproduce(out)
    assert list((out / "records").glob("exp6-*.json"))
    assert result.exit_code == 130


# Bad input and bad folders: 2.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "9"], ["expected one of exp1", "exp9"]),
        (["--only", "five"], ["expected one of exp1", "five"]),
        (["--only", "5;6"], ["expected one of exp1", "5;6"]),
        (["--only", "5", "--set", "exp5.m=3"], ["exp5.m", "epsilons", "no such parameter"]),
        (["--only", "5", "--set", "exp9.n=3"], ["expected one of exp1", "exp9"]),
        (["--only", "5", "--set", "exp2.n=3"], ["exp5", "parameters of exp2"]),
        (["--only", "6", "--set", "exp6.samples=many"], ["exp6.samples", "400", "many"]),
        (["--only", "6", "--set", "exp6.samples=1.5"], ["exp6.samples", "400", "1.5"]),
        (["--only", "6", "--set", "exp6.samples=0"], ["exp6.samples", "integers >= 1"]),
        (["--only", "5", "--set", "exp5.y=1,x"], ["exp5.y", "1.2,1.0,1.1", "1,x"]),
        (["--only", "5", "--set", "exp5.y=1,NaN,1"], ["exp5.y", "1,NaN,1"]),
        (["--only", "5", "--set", "exp5.tolerance=1" + "0" * 400], ["exp5.tolerance"]),
        (["--only", "5", "--set", "samples=3"], ["EXP.NAME=VALUE", "exp2.n=1600", "samples=3"]),
        (["--only", "5", "--set", "exp5.y"], ["EXP.NAME=VALUE", "exp5.y"]),
        (["--only", "5", "--set", "exp5.y="], ["EXP.NAME=VALUE"]),
        (["--only", "5", "--set", "exp5.=3"], ["EXP.NAME=VALUE"]),
        (["--only", "5", "--seed", "-1"], ["--seed"]),
        (["--only", "5", "--seed", "x"], ["--seed"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_bad_input_is_answered_with_a_sentence(calls, out, arguments, words):
    result = posquad_command("reproduce", "--out", out, *arguments)
    assert_refused(result, *words)
    assert calls == []
    assert not out.exists()


def test_an_unknown_command_is_refused():
    assert_refused(posquad_command("reprodcue"), "reprodcue")


@pytest.mark.parametrize("where", ["file", "below a file", "records is a file", "proc"])
def test_an_output_that_cannot_be_written_is_found_before_anything_runs(calls, tmp_path, where):
    taken = tmp_path / "taken"
    places = {"file": taken, "below a file": taken / "deeper"}
    places |= {"records is a file": tmp_path, "proc": Path("/proc/posquad")}
    blocked = tmp_path / "records" if where == "records is a file" else taken
    blocked.write_bytes(b"mine")
    assert_refused(reproduce(places[where]), str(places[where]))
    assert calls == []
    assert contents(tmp_path) == {blocked.name: b"mine"}


@pytest.mark.parametrize("name", ["json", "npz"])
def test_a_damaged_record_is_reported_and_nothing_is_changed(calls, out, name):
    reproduce(out)
    (path,) = (out / "records").glob(f"exp6-*.{name}")
    path.write_bytes(path.read_bytes()[:-50])
    before = contents(out)
    result = reproduce(out, "--set", "exp5.seed=4")
    assert_refused(result, f"{path.stem}.json", "nothing was changed", "--fresh")
    assert len(calls) == 2
    assert contents(out) == before
    assert reproduce(out, "--fresh").exit_code == 0
    assert reproduce(out).exit_code == 0


@pytest.mark.parametrize(
    "problem",
    [ValueError("shapes do not fit"), KeyError("shapes do not fit"), MemoryError("too large")],
    ids=lambda problem: type(problem).__name__,
)
def test_an_experiment_that_raises_exits_with_2_and_keeps_the_finished(
    calls, monkeypatch, out, problem
):
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls, problem=problem))
    result = reproduce(out)
    assert_refused(result, "exp6", type(problem).__name__, str(problem.args[0]))
    assert list((out / "records").glob("exp5-*.json"))
    assert "This run was not finished" in (out / "report.html").read_text(encoding="utf-8")
    assert {entry["experiment"] for entry in strict_json(out / "claims.json")} == {"exp5"}
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls))
    assert reproduce(out).exit_code == 0
    assert [key for key, _ in calls] == ["exp5", "exp6", "exp6"]


def test_traceback_shows_where_an_error_arose(calls, monkeypatch, out):
    problem = ValueError("shapes do not fit")
    monkeypatch.setitem(EXPERIMENTS, "exp6", stand_in("exp6", calls, problem=problem))
    result = reproduce(out, "--traceback")
    assert result.exception is not None
    assert result.exception.__cause__ is problem


def test_without_matplotlib_nothing_is_run_and_the_extra_is_named(calls, monkeypatch, out):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_refused(reproduce(out), "matplotlib", "pip install 'posquad[lab]'")
    assert calls == []
    assert not out.exists()


# posquad claims.


def test_claims_shows_a_finished_run(calls, out):
    reproduce(out)
    result = posquad_command("claims", "--out", out)
    assert result.exit_code == 0
    entries = strict_json(out / "claims.json")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["id", "kind", "published", "measured", "verdict"]
    for entry in entries:
        (line,) = [line for line in lines if line.split()[0] == entry["id"]]
        assert line.split()[1] == entry["kind"]
        depends = entry["verdict"] == "holds" and entry["given"]
        end = f"{entry['verdict']} (given our choice)" if depends else entry["verdict"]
        assert line.rstrip().endswith(f"  {end}")
    published = [entry for entry in entries if entry["source"] == "paper"]
    holding = [bool(entry["given"]) for entry in published if entry["verdict"] == "holds"]
    assert lines[-1] == (
        f"{holding.count(False)} of {len(published)} published claims hold as printed; "
        f"{holding.count(True)} hold given choices of ours; none differs; 2 cannot be compared; "
        "the additional check holds."
    )


def test_claims_can_be_limited_to_a_verdict(calls, monkeypatch, out):
    answer = falsified("exp5", "lyapunov_max", 0.25)
    monkeypatch.setitem(EXPERIMENTS, "exp5", stand_in("exp5", calls, answer=answer))
    reproduce(out)
    result = posquad_command("claims", "--out", out, "--verdict", "differs")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines()[1:] if line.startswith("exp")]
    assert [row.split()[0] for row in rows] == ["exp5.lyapunov"]
    assert_refused(posquad_command("claims", "--out", out, "--verdict", "maybe"), "not-comparable")


def test_claims_as_json_is_the_file(calls, out):
    reproduce(out)
    result = posquad_command("claims", "--out", out, "--json")
    assert json.loads(result.stdout) == strict_json(out / "claims.json")


def test_claims_of_a_folder_without_a_run(out):
    result = posquad_command("claims", "--out", out)
    assert_refused(result, str(out / "claims.json"), f"posquad reproduce --out {out}")
    assert not out.exists()


ENTRY = dict.fromkeys(FIELDS, "x") | {"measured": 1.0, "published": 1.0, "printed": "1.0"}
ENTRY |= {"source": "paper", "verdict": "holds", "given": [], "changed": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        '[{"id": "exp5.paths"',
        "3",
        "null",
        "{}",
        "[1]",
        '[{"id": "a"}]',
        json.dumps([ENTRY | {"verdict": "probably"}]),
        json.dumps([ENTRY | {"verdict": None}]),
        json.dumps([ENTRY | {"measured": {"median": 1.0}}]),
        json.dumps([ENTRY | {"measured": {"median": 1.0, "interval": [1.0]}}]),
        json.dumps([ENTRY | {"printed": {}}]),
        json.dumps([{name: value for name, value in ENTRY.items() if name != "printed"}]),
        json.dumps([{name: value for name, value in ENTRY.items() if name != "source"}]),
        json.dumps([ENTRY | {"id": 5}]),
        "\x00",
    ],
)
def test_claims_of_a_damaged_file(out, text):
    out.mkdir()
    (out / "claims.json").write_text(text)
    assert_refused(posquad_command("claims", "--out", out), str(out / "claims.json"))
    assert contents(out) == {"claims.json": text.encode()}


def test_claims_of_a_file_that_is_not_text(out):
    out.mkdir()
    (out / "claims.json").write_bytes(b"\xff\xfe")
    assert_refused(posquad_command("claims", "--out", out), str(out / "claims.json"))


def test_markup_in_claims_is_shown_as_text(out):
    """Square brackets are markup to rich; in a claim they are text."""
    out.mkdir()
    hostile = ENTRY | {"id": "[red]a[/blue]", "printed": "[bold]1", "measured": "[/]2"}
    (out / "claims.json").write_text(json.dumps([hostile]))
    result = posquad_command("claims", "--out", out)
    assert result.exit_code == 0, result.exception
    for word in ("[red]a[/blue]", "[bold]1", "[/]2"):
        assert word in result.stdout


def test_claims_shows_the_papers_digits_and_none_for_checks_of_our_own(out):
    out.mkdir()
    rows = {"a": {"printed": "4.960e-16"}, "b": {"printed": True}, "c": {"source": "posquad"}}
    entries = [ENTRY | {"id": name} | changes for name, changes in rows.items()]
    (out / "claims.json").write_text(json.dumps(entries))
    lines = posquad_command("claims", "--out", out).stdout.splitlines()[1:4]
    assert [line.split()[2:-2] for line in lines] == [["4.960e-16"], ["in", "words"], ["—"]]


# posquad info, help, list.


def test_info_names_versions():
    result = posquad_command("info")
    assert result.exit_code == 0
    found = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert found["posquad"] == posquad.__version__
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    for package in ("matplotlib", "jinja2", "click", "rich"):
        assert found[package] == version(package)


@pytest.mark.parametrize(
    ("command", "examples"),
    [
        ([], ["posquad reproduce", "reproduce ", "claims ", "info "]),
        (["reproduce"], ["posquad reproduce --quick --only 1,4", "--set exp2.n=1600", "130"]),
        (["claims"], ["posquad claims --verdict differs"]),
        (["experiment"], ["posquad experiment new my.py", "reproduce --experiment my.py"]),
        (["info"], ["versions"]),
    ],
    ids=["main", "reproduce", "claims", "experiment", "info"],
)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_has_examples(command, examples, option):
    result = posquad_command(*command, option)
    assert result.exit_code == 0
    for example in examples:
        assert example in result.stdout


def test_the_examples_in_the_help_are_valid(tmp_path, monkeypatch):
    """Every line that starts with `posquad reproduce` parses and plans; none is run."""
    monkeypatch.chdir(tmp_path)
    assert posquad_command("experiment", "new", "my.py").exit_code == 0
    text = posquad_command("reproduce", "--help").stdout
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("posquad ")]
    assert len(lines) >= 3
    for words in lines:
        assert posquad_command(*words[1:], "--list").exit_code == 0


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_do_not_import_torch(tmp_path, option):
    """Importing torch takes seconds; a user who asks for the version must not wait for it."""
    code = (
        f"import atexit, sys; sys.argv = ['posquad', '{option}']\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib'}\n"
        "atexit.register(lambda: print('imported:', sorted(heavy & set(sys.modules))))\n"
        "from posquad.__main__ import main; main()"
    )
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("imported: []\n")
    assert len(result.stdout.splitlines()) > 1


def test_help_lists_every_command_with_its_sentence():
    """The sentences stand in one table, read without importing the commands."""
    context = click.Context(main)
    lines = posquad_command("--help").stdout.split("Commands:\n")[1].splitlines()
    found = dict(line.split(maxsplit=1) for line in lines)
    files = {path.stem for path in Path(failure.__file__).parent.glob("*.py")}
    assert (
        set(found)
        == set(main.list_commands(context))
        == {name for name in files if main.get_command(context, name) is not None}
    )
    for name, sentence in found.items():
        assert sentence.endswith(".")
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_version():
    assert posquad_command("--version").stdout.strip().endswith(posquad.__version__)


def test_list_shows_parameters_with_changes_and_runs_nothing(calls, out):
    result = reproduce(out, "--list", "--set", "exp6.samples=7", "--seed", 3)
    assert result.exit_code == 0
    assert "exp6.samples = 7\n" in result.stdout
    assert "exp5.seed = 3\n" in result.stdout
    assert "exp5.epsilons = (0.5, 0.25, 0.1, 0.05)\n" in result.stdout
    assert "(paper)" in result.stdout
    assert "(chosen here)" in result.stdout
    assert "exp1." not in result.stdout
    assert calls == []
    assert not out.exists()


# Progress.


def test_plain_lines_without_a_terminal(calls, out):
    assert "\x1b" not in reproduce(out).stdout
    with progress.watcher_for(paper_suite(), plan(["exp5"]), quick=False) as watcher:
        assert isinstance(watcher, progress.Lines)


def test_a_bar_in_expected_seconds_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **options: Console(file=text, force_terminal=True, width=120)
    )
    parameters = plan(["exp1", "exp5"])
    weights = [EXPERIMENTS[key].seconds for key in parameters]
    with progress.watcher_for(paper_suite(), parameters, quick=False) as watcher:
        assert isinstance(watcher, progress.Bar)
        assert isinstance(watcher.progress, Progress)
        (task,) = watcher.progress.tasks
        assert task.total == pytest.approx(sum(weights))
        watcher.begins(EXPERIMENTS["exp1"], 1, 2)
        assert EXPERIMENTS["exp1"].title in task.description
        watcher.advances(0.5)
        assert task.completed == pytest.approx(weights[0] / 2)
        watcher.advances(3.0)  # an experiment that miscounts does not eat its neighbour's share
        assert task.completed == pytest.approx(weights[0])
        watcher.ends(EXPERIMENTS["exp1"], small_record(experiment="exp1"), reused=False)
        watcher.begins(EXPERIMENTS["exp5"], 2, 2)
        watcher.ends(EXPERIMENTS["exp5"], small_record(), reused=True)
        assert task.completed == pytest.approx(task.total)
        watcher.writes("report")
        assert "report" in task.description
    assert "exp1" in text.getvalue()
    assert "reused" in text.getvalue()


# As a program.


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    source = str(Path(posquad.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_real_run_from_another_folder(tmp_path):
    """`python -m posquad`, a real experiment with its figures, from another folder."""
    cheaper = ("--set", "exp5.tolerance=1e-9")
    result = python("-m", "posquad", "reproduce", "--only", "5", *cheaper, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    out = tmp_path / "reproduction"
    panels = [panel.key for panel in EXPERIMENTS["exp5"].panels]
    drawn = {f"figures/{key}.{form}" for key in panels for form in ("svg", "pdf", "png")}
    names = set(contents(out))
    key = record_key(
        EXPERIMENTS["exp5"], plan(["exp5"], changes={"exp5": {"tolerance": "1e-9"}})["exp5"]
    )
    kept = {f"records/exp5-{key}.{form}" for form in ("json", "npz")}
    assert names == drawn | kept | {"report.html", "claims.json"}
    assert (out / "report.html").stat().st_size < 3_000_000
    assert "posquad reproduce --only 5" in (out / "report.html").read_text(encoding="utf-8")
    entries = strict_json(out / "claims.json")
    assert {entry["experiment"] for entry in entries} == {"exp5"}
    assert not [entry["id"] for entry in entries if entry["verdict"] == "differs"]


def test_without_click_the_program_names_the_extra(tmp_path):
    code = (
        "import sys, runpy; sys.modules['click'] = None; sys.argv = ['posquad', 'info']; "
        "runpy.run_module('posquad', run_name='__main__')"
    )
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "click" in result.stderr
    assert "pip install 'posquad[lab]'" in result.stderr


@pytest.mark.parametrize("package", ["click", "rich"])
def test_the_entry_point_needs_each_package_of_the_extra(monkeypatch, capsys, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as caught:
        program()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"Error: the command line needs {package}: ")
    assert "pip install 'posquad[lab]'" in captured.err


def test_the_entry_point_starts_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["posquad", "--version"])
    with pytest.raises(SystemExit) as caught:
        program()
    assert caught.value.code == 0
    assert posquad.__version__ in capsys.readouterr().out
