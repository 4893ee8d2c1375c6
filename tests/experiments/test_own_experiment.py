"""An experiment from a file: the template, what is refused before anything runs, and the record."""

from __future__ import annotations

import json
import re

import pytest

from cli_support import command as posquad_command
from experiments_support import contents
from posquad.core.errors import PosquadError
from posquad.experiments import records
from posquad.experiments.own import load_suite, template
from posquad.experiments.records import record_key

MINE = template()


@pytest.fixture
def file(tmp_path):
    """Writes a file with this source and returns its path."""

    def write(source=MINE, name="mine.py"):
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        return path

    return write


def test_the_template_has_thirty_lines_and_they_fit():
    lines = MINE.splitlines()
    assert len(lines) == 30
    assert max(len(line) for line in lines) <= 100


def test_the_template_is_written_and_runs_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = posquad_command("experiment", "new", "mine.py")
    assert new.exit_code == 0, new.output
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == MINE
    command = "posquad reproduce --experiment mine.py --out mine"
    assert new.stdout.splitlines()[-1] == f"Next: {command}"
    result = posquad_command(*command.split()[1:])
    assert result.exit_code == 0, result.output
    assert "[1/1] mine How many measurements are enough? ..." in result.stdout
    assert "The claim holds (" in result.stdout
    (entry,) = json.loads((tmp_path / "mine" / "claims.json").read_text())
    assert (entry["id"], entry["verdict"], entry["source"]) == ("mine.enough", "holds", "own")
    assert entry["statement"] == "Relative error at n = 32"
    assert entry["measured"] < 1e-8
    page = (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    assert "<h1>How many measurements are enough?</h1>" in page
    assert "<title>posquad: How many measurements are enough?</title>" in page
    assert "Quotient Dynamics" not in page  # nothing of the paper's report
    assert (
        "published"
        not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
        .split("<footer")[0]
        .split("How a verdict")[0]
    )
    assert "posquad reproduce --experiment mine.py --out mine" in page
    assert (tmp_path / "mine" / "figures" / "mine-error.svg").exists()
    shown = posquad_command("claims", "--out", "mine")
    assert "mine.enough" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "The claim holds."


def test_a_claim_that_does_not_hold_differs(file, tmp_path):
    """Four measurements do not determine five unknowns."""
    source = MINE.replace('where={"n": 32}', 'where={"n": 4}').replace(
        'measure="error",', 'measure="error", kind="identity",'
    )
    result = posquad_command("reproduce", "--experiment", file(source), "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "differs: mine.enough: expected at most 1e-08; measured 1." in result.stdout


def test_settings_seed_and_list_work_as_for_the_paper(file, tmp_path):
    path = file()
    listed = posquad_command("reproduce", "--experiment", path, "--list", "--set", "mine.d=7")
    assert "mine.d = 7\n      input dimension (changed by you (default: 5))" in listed.stdout
    result = posquad_command(
        "reproduce", "--experiment", path, "--set", "mine.samples=32", "--seed", 3, "--out",
        tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Changed by you: mine.samples = (32) (default: (4, 8, 16, 32))." in result.stdout
    wrong = posquad_command("reproduce", "--experiment", path, "--set", "exp2.n=3")
    assert wrong.exit_code == 2
    assert "experiment: expected one of mine; got exp2" in wrong.stderr


def test_a_title_of_its_own_and_a_published_number(file, tmp_path):
    source = MINE + 'TITLE = "Table 7 of somebody, measured"\n'
    source = source.replace('"at-most", "bound": 1e-8', '"near", "absolute": 1e-6').replace(
        'measure="error",', 'measure="error", published="0.0", kind="deterministic",'
    )
    suite = load_suite(file(source))
    assert suite.title == "Table 7 of somebody, measured"
    assert suite.claims[0].source == "paper"  # a published number is compared as such
    result = posquad_command("reproduce", "--experiment", file(source), "--out", tmp_path / "out")
    assert "1 of 1 published claim holds as printed; none differs" in result.stdout


REFUSED = {
    "syntax": ("def run(:", r"expected Python that can be imported; got SyntaxError"),
    "raises": ("import numpy\n1 / 0", r"got ZeroDivisionError: division by zero \(line 2\)$"),
    "empty": ("", r"expected a constant EXPERIMENT of type Experiment; got none$"),
    "other": ("EXPERIMENT = 3", r"expected a constant EXPERIMENT of type Experiment; got int$"),
    "key of the paper": (MINE.replace('"mine"', '"exp2"'), r"not one of the paper's; got 'exp2'$"),
    "key": (MINE.replace('"mine"', '"../x"'), r"small letters, digits and hyphens.*got '../x'$"),
    "panel": (MINE.replace('"mine-error"', '"../x"'), r"for each panel; got '../x'$"),
    "claims": (MINE + "CLAIMS = 3\n", r"expected CLAIMS to be a tuple of Claim; got int$"),
    "twice": (MINE + "CLAIMS = CLAIMS + CLAIMS\n", r"expected claims with different ids"),
    "experiment": (
        MINE.replace('Claim("mine.enough", "mine"', 'Claim("mine.enough", "yours"'),
        r"expected claims of the experiment 'mine'; got mine\.enough of 'yours'$",
    ),
    "rule": (MINE.replace('"at-most"', '"about"'), r"a rule for mine\.enough among printed, .*"),
    "bound": (MINE.replace(', "bound": 1e-8', ""), r"expected bound with the rule 'at-most' of"),
    "measure": (MINE.replace('measure="error"', 'measure=""'), r"a statement and a measure for"),
    "formula": (MINE.replace("$n = 32$", r"$\\nonsense$"), r"^formula: .*nonsense"),
    "parameters": (MINE.replace('own_parameter(5, "input dimension")', "5"), r"own_parameter or"),
    "title": (MINE + "TITLE = 3\n", r"expected TITLE to be text; got 3$"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_before_anything_runs(file, tmp_path, name):
    source, message = REFUSED[name]
    path = file(source)
    with pytest.raises(PosquadError, match=message):
        load_suite(path)
    result = posquad_command("reproduce", "--experiment", path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("return measured", "return {}"), "TypeError: `run` returned dict, not Measured"),
        (("    return measured\n", ""), "TypeError: `run` returned NoneType, not Measured"),
        (("rng, errors =", "1 / 0; rng, errors ="), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_run_that_fails_says_why_and_how_to_see_where(file, tmp_path, change, message):
    source = MINE.replace(*change)
    result = posquad_command("reproduce", "--experiment", file(source), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert message in result.stderr
    assert "--traceback" in result.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('measure="error"', 'measure="eror"'), "this run did not measure its quantity ('eror')"),
        (
            ('where={"n": 32}', 'where={"n": 33}'),
            "this run has no single value at n = 33 ('error')",
        ),
    ],
)
def test_a_claim_that_cannot_be_compared_says_why(file, tmp_path, change, reason):
    source = MINE.replace(*change)
    result = posquad_command("reproduce", "--experiment", file(source), "--out", tmp_path / "out")
    assert f"  cannot be compared: mine.enough: {reason}\n" in result.stdout


@pytest.mark.parametrize(("name", "got"), [("none.py", "no such file"), ("folder.py", "a folder")])
def test_a_file_that_is_not_there(tmp_path, name, got):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(PosquadError, match=rf"{name}: expected a Python file; .*got {got}$"):
        load_suite(tmp_path / name)


def test_numbers_of_the_paper_and_a_file_exclude_each_other(file):
    result = posquad_command("reproduce", "--experiment", file(), "--only", "2")
    assert result.exit_code == 2
    assert "--only: expected no numbers together with --experiment; got 2" in result.stderr


def test_new_changes_no_file_and_wants_a_python_name(file):
    path = file("mine")
    for arguments, words in (
        ([path], "expected a new file"),
        ([path.parent / "x.txt"], "expected a name that ends in .py; got .txt"),
    ):
        result = posquad_command("experiment", "new", *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
    assert contents(path.parent) == {"mine.py": b"mine"}


def test_the_key_of_a_record_follows_the_file_and_the_library(file, monkeypatch):
    """A changed file is run again; the same file under the same parameters is not."""
    first = load_suite(file()).experiments["mine"]
    key = record_key(first, first.parameters())
    again = load_suite(file()).experiments["mine"]
    assert record_key(again, again.parameters()) == key
    assert record_key(again, again.parameters(d=6)) != key
    other = load_suite(file(MINE.replace("rank=1", "rank=2"))).experiments["mine"]
    assert record_key(other, other.parameters()) != key
    names = [name for name, _ in records._sources(first.run.__module__)]
    assert names[0] == "mine.py"
    assert "recovery/api.py" in names  # what the file uses of the library


def test_an_experiment_without_claims_or_panels_is_reported(file, tmp_path):
    source = re.sub(r"CLAIMS = .*", "", MINE, flags=re.DOTALL)
    source = re.sub(r", panels=.*\)\)", ")", source, flags=re.DOTALL)
    suite = load_suite(file(source))
    assert suite.claims == ()
    assert suite.experiments["mine"].panels == ()
    result = posquad_command("reproduce", "--experiment", file(source), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "No claim belongs to this run" in result.stdout
