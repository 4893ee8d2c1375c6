"""The tutorial on an experiment of one's own shows the template and what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

from cli_support import check_transcript
from posquad.experiments.claims import RULES
from posquad.experiments.own import template

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "own-experiment.md").read_text(encoding="utf-8")


def test_the_page_shows_the_template():
    (included,) = re.findall(r"\{literalinclude\} (\S+)", PAGE)
    assert (DOCS / included).read_text(encoding="utf-8") == template()
    assert f"has {len(template().splitlines())} lines" in PAGE


def test_the_page_shows_what_the_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_transcript(PAGE) == 3


def test_the_page_names_every_rule_that_compares():
    table = PAGE.split("| rule |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", table)) >= set(RULES) - {"none"}
