"""Commands of `posquad` run in this process, for the tests of the command line."""

from __future__ import annotations

import re
import shlex
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path

from click.testing import CliRunner, Result

from posquad.cli.main import main

FILES = {"model.json", "model.safetensors", "report.html"}
CERTIFICATE = {"model.certificate.json", "model.certificate.npz"}
"""What `posquad fit` writes, and what it writes beside where a proof was tried."""


def command(*arguments: object, input: str | bytes | None = None) -> Result:
    """A command of `posquad`, run in this process, with this text on standard input."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)


def check_transcript(text: str) -> int:
    """Run the commands that a page shows and compare what they print; return their number.

    `cat FILE` writes the file that the page shows.
    """
    steps = [
        part.partition("\n")[::2]
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for part in block.split("$ ")[1:]
    ]
    for line, expected in steps:
        words = shlex.split(line)
        if words[0] == "cat":
            Path(words[1]).write_text(expected, encoding="utf-8")
            continue
        assert words[0] == "posquad"
        result = command(*words[1:])
        assert OutputChecker().check_output(expected, result.output, ELLIPSIS), result.output
    return len(steps)


def assert_refused(result: Result, *words: str) -> None:
    """Status 2, one sentence on standard error, no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    for word in words:
        assert word in lines[0]
