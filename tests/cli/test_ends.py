"""How commands end early: Ctrl-C at any time, an output that takes no more, a closed pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import posquad
from posquad.__main__ import main as program
from posquad.cli import certify, claims, demo, info, predict
from posquad.cli.interrupts import allow_interrupt, leave_on_interrupt
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
        (claims, "_claim_row", ["claims"]),
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


@pytest.mark.parametrize("swallowed", [False, True], ids=["passed on", "swallowed"])
def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path, swallowed):
    """A module in the place of torch is interrupted; a package may swallow the exception."""
    interrupted = "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    if swallowed:
        interrupted = f"try:\n    {interrupted}\nexcept BaseException:\n    pass"
    (tmp_path / "torch.py").write_text(f"import os, signal, time\n{interrupted}\n")
    source = str(Path(posquad.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-m", "posquad", "info"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", INTERRUPTED)


def test_a_process_of_torchrun_that_is_ended_while_torch_is_imported_says_so(tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    source = str(Path(posquad.__file__).parents[1])
    known = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "posquad", "fit", "no.csv"],
        env=os.environ | known | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    sentence = "Error: group: expected all processes of the group to go on; got SIGTERM, as "
    assert run.returncode == 1
    assert run.stderr.startswith(sentence)
    assert len(run.stderr.splitlines()) == 1


def test_ctrl_c_is_left_to_the_command_once_it_is_imported(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["posquad", "info"])
    seen = []

    def interrupted():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            seen.append("KeyboardInterrupt")
        return {}

    monkeypatch.setattr(info, "system_information", interrupted)
    with pytest.raises(SystemExit):
        program()
    assert seen == ["KeyboardInterrupt"]


def test_ctrl_c_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    leave_on_interrupt()
    allow_interrupt()
    (tmp_path / "interrupted.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ncomplete = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def import_and_wait():
        import_module("interrupted")
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        import_and_wait()
    assert sys.modules["interrupted"].complete


def test_ctrl_c_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    try:
        leave_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_an_output_that_cannot_be_written_gives_one_sentence():
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
