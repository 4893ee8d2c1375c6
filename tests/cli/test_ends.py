"""How commands end early: Ctrl-C at any time, an output that takes no more, a closed pipe."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import posquad.__main__ as program
from posquad.cli import certify, demo, predict
from posquad.cli import main as command_line
from posquad.cli.main import main

INTERRUPTED = "Interrupted: nothing was written.\n"


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (certify, "certify", ["certify", "data.npz", "factor.npz"]),
        (predict, "load_model", ["predict", "fit", "data.npz"]),
        (demo, "make", ["demo", "few"]),
        (command_line, "_claim_row", ["claims"]),
    ],
)
def test_ctrl_c_in_every_command(tmp_path, monkeypatch, module, name, words):
    monkeypatch.chdir(tmp_path)
    X = np.arange(6.0).reshape(3, 2)
    np.savez("data.npz", X=X, y=X[:, 0] ** 2)
    np.savez("factor.npz", U=np.eye(2)[:, :1])
    (tmp_path / "reproduction").mkdir()
    (tmp_path / "reproduction" / "claims.json").write_text('[{"verdict": "holds"}]')
    monkeypatch.setattr(module, name, interrupt)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 130
    assert (result.stdout, result.stderr) == ("", INTERRUPTED)
    assert "130 after Ctrl-C" in " ".join(CliRunner().invoke(main, [words[0], "-h"]).stdout.split())


def test_ctrl_c_during_the_imports(monkeypatch, capsys):
    monkeypatch.setattr(program, "optional", interrupt)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 130
    assert tuple(capsys.readouterr()) == ("", INTERRUPTED)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_an_output_that_takes_no_more_is_one_sentence():
    words = [sys.executable, "-m", "posquad", "demo", "--list"]
    with open("/dev/full", "wb") as full:
        run = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert run.returncode == 2
    expected = "Error: standard output: expected a place to write to; got No space left on device\n"
    assert run.stderr == expected


def test_a_closed_pipe_is_quiet():
    words = [sys.executable, "-m", "posquad", "demo", "--list"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as lines:
        assert lines.read() == ""
    assert process.wait(timeout=120) == 1
