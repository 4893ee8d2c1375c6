"""Commands of `posquad` run in this process, for the tests of the command line."""

from __future__ import annotations

from click.testing import CliRunner, Result

from posquad.cli.main import main

FILES = {"model.json", "model.safetensors", "report.html"}
CERTIFICATE = {"model.certificate.json", "model.certificate.npz"}
"""What `posquad fit` writes, and what it writes beside where a proof was tried."""


def command(*arguments: object, input: str | bytes | None = None) -> Result:
    """A command of `posquad`, run in this process, with this text on standard input."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)


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
