"""The README repeats six rows of docs/comparison.md, with the same cells."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import posquad

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    """Name and cells of each row of the first Markdown table."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    found = {}
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        if line.startswith("|---"):
            continue
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        assert name not in found, f"two rows named {name}"
        found[name] = cells
    return found


def between_marks(text: str) -> str:
    assert text.count("<!-- comparison -->") == text.count("<!-- /comparison -->") == 1
    return text.split("<!-- comparison -->")[1].split("<!-- /comparison -->")[0]


def test_every_row_of_the_readme_is_a_row_of_the_page_with_the_same_cells():
    page, readme = rows(PAGE), rows(between_marks(README))
    written = runpy.run_path(str(ROOT / "benchmarks" / "peers_table.py"))["COMPACT"]
    assert set(readme) == {"", *written}
    assert len(written) == 6
    assert {name: page.get(name) for name in readme} == readme


def test_rows_keep_the_order_of_the_page():
    page, readme = rows(PAGE), rows(between_marks(README))
    assert [name for name in page if name in readme] == list(readme)


def test_what_the_page_says_of_posquad_is_still_so():
    """The two lines that a change of the library makes wrong without any run."""
    assert rows(PAGE)["scikit-learn estimator"][0] == "yes"
    arguments = ", ".join(inspect.signature(posquad.recover).parameters)
    assert f"`recover` takes {arguments}: no constraints" in PAGE


def test_the_page_says_for_every_cell_what_was_run():
    """One section per row, in it one line per package that is more than the cell."""
    for name in filter(None, rows(PAGE)):
        title = f"### {name[0].upper()}{name[1:]}\n"
        assert PAGE.count(title) == 1
        section = PAGE.split(title)[1].split("\n### ")[0]
        packages = rows(PAGE)[""]
        for package in packages:
            (line,) = [text for text in section.splitlines() if text.startswith(f"- {package}: ")]
            assert len(line) > len(f"- {package}: ")
