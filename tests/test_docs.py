"""The pages of the documentation, checked without building them; `make docs` builds them."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import pytest

import posquad
from posquad.core.layers import LAYERS
from posquad.labels import labels

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BUILT = {"_build", "auto_gallery", "generated"}
PAGES = sorted(page for page in DOCS.rglob("*.md") if not BUILT & set(page.parts))
LINKING = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}|:{3,})[^\n]*\n.*?^\1\s*$", re.MULTILINE | re.DOTALL)

# Experiments are data for the report, and the command line documents itself with --help.
WITHOUT_PAGE = re.compile(r"posquad\.(experiments\.exp\d\.(run|panels)|cli)\b")


@pytest.fixture(scope="module")
def extensions():
    """The modules of the site that need no Sphinx."""
    sys.path.insert(0, str(DOCS / "_extensions"))
    yield importlib.import_module
    sys.path.remove(str(DOCS / "_extensions"))


def public_modules() -> list[str]:
    source = Path(posquad.__file__).parent
    names = [info.name for info in pkgutil.walk_packages([str(source)], "posquad.")]
    return [n for n in names if "._" not in n and n != "posquad.__main__"]


def test_every_public_name_has_a_place_in_the_reference(extensions):
    inventory = extensions("inventory")
    documented = {id(thing) for thing in inventory.documented().values()}
    missing = [
        f"{module_name}.{name}"
        for module_name in public_modules()
        if not WITHOUT_PAGE.match(module_name)
        for name in getattr(importlib.import_module(module_name), "__all__", ())
        if id(getattr(importlib.import_module(module_name), name)) not in documented
    ]
    assert missing == []


def test_every_name_of_the_package_is_documented_under_one_address(extensions):
    inventory = extensions("inventory")
    homes = {name: inventory.home(f"posquad.{name}") for name in inventory.public_names("posquad")}
    assert homes["recover"] == "posquad.recovery.recover"
    assert inventory.home("posquad.certificates.FINDINGS").endswith("certificate.FINDINGS")
    assert homes["RankOne"] == "posquad.problems.measurements.RankOne"
    assert all(homes.values()), homes
    assert inventory.public_names("posquad.estimator") == ["PositiveQuadraticRegressor"]
    assert inventory.home("posquad.sharpen") is None
    assert (
        inventory.home("posquad.theory.effective_step") == "posquad.theory.effective.effective_step"
    )


def test_the_label_map_shows_every_label_and_only_names_that_have_a_page(extensions):
    rows = extensions("labelrows").rows()
    assert [row.name for row in rows] == list(labels())
    by_number = [row.number for row in extensions("labelrows").by_number()]
    assert by_number.index("Theorem 3.9") == by_number.index("Theorem 3.7") + 1
    assert sorted(by_number) == sorted(row.number for row in rows)
    home = extensions("inventory").home
    assert [name for row in rows for name in row.functions if home(name) is None] == []


def test_every_page_is_reached_from_the_first_one():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for line in tree.splitlines():
                name = re.sub(r".*<(.*)>", r"\1", line).strip()
                if name and not name.startswith((":", "auto_gallery")):
                    waiting.append((page.parent / f"{name}.md").resolve())
    assert reached == set(PAGES)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and MyST make them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_every_relative_link_leads_somewhere():
    broken = []
    for page in LINKING:
        for link in LINK.findall(page.read_text("utf-8")):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append((str(page.relative_to(ROOT)), link))
    assert broken == []


def test_the_architecture_drawing_shows_the_imports_of_the_sources():
    drawn = runpy.run_path(str(DOCS / "figures" / "architecture.py"))
    imports, source = drawn["subpackage_imports"](), Path(posquad.__file__).parent
    assert set(imports) == set(LAYERS)
    for name in LAYERS:
        text = "".join(path.read_text("utf-8") for path in (source / name).rglob("*.py"))
        lines = re.findall(r"^ *(?:from|import) posquad(?:\.| import )(\w+)", text, re.MULTILINE)
        assert imports[name] == (set(lines) & set(LAYERS)) - {name}
    # An arrow that is left out must follow from the others.
    arrows = drawn["direct"](imports)
    for name in LAYERS:
        reached, waiting = set(), list(arrows[name])
        while waiting:
            reached.add(here := waiting.pop())
            waiting += arrows[here]
        assert imports[name] <= reached


def test_the_modules_named_in_the_architecture_exist():
    text = (DOCS / "architecture.md").read_text("utf-8")
    walks = text.split("\n## ")[1:]
    titles = ["Recover", "Fit", "Reproduce", "Certify", "Tensors of an image", "Sweep"]
    assert [walk.split("\n")[0] for walk in walks] == titles
    named = set(re.findall(r"`(posquad(?:\.\w+)+)`", text))
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()
    assert all(len(re.findall(r"`posquad\.\w+\.\w+", walk)) >= 6 for walk in walks)
    assert all(f"(api/{name}.md)" in text for name in LAYERS)


def test_the_readme_is_short_and_its_scores_are_those_of_the_page():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 120
    scores = readme.split("<!-- scores -->")[1].split("<!-- /scores -->")[0]
    rows = [line for line in scores.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5
    assert set(rows) <= set((DOCS / "measured.md").read_text("utf-8").splitlines())


def test_every_drawing_is_used_and_every_one_used_exists():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    used = set(re.findall(r"```\{drawing\} (\w+)", text))
    assert used == {script.stem for script in (DOCS / "figures").glob("*.py")}
    concepts = {page.stem for page in (DOCS / "concepts").glob("*.md")} - {"index"}
    assert concepts == {"quotient", "flow", "curvature", "recovery", "selection"} <= used


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Shape `[..., d, r]`.", "Shape ``[..., d, r]``."),
        ("of ``code`` and `more`", "of ``code`` and ``more``"),
        ("(`lem:factor-gradient`)", "(:ref:`lem:factor-gradient <paper-lem-factor-gradient>`)"),
        ("`broken\n    in two`", "``broken in two``"),
        ("mean Q* and |x| and lambda_ too", r"mean Q\* and \|x\| and lambda\_ too"),
        ("Attributes:\n    a_, b_: of c_", "Fields:\n    a_, b_: of c\\_"),
        ("words\n\n>>> 2 ** 3  # `a`\n8", "words\n\n>>> 2 ** 3  # `a`\n8"),
    ],
)  # fmt: skip
def test_docstrings_become_markup(extensions, written, shown):
    assert extensions("docstrings").converted(written, set(labels())) == shown


def test_fields_of_results_are_explained_by_their_comments(extensions):
    text = "\n".join(extensions("docstrings").complete(posquad.Spectrum))
    assert "    values: `[..., m]` NaN where not converged" in text
    assert "Fields:" in text
    listed = re.findall(r"^    (\w+):", text, re.MULTILINE)
    assert listed == list(posquad.Spectrum.__dataclass_fields__)


def test_members_of_enumerations_are_listed_with_their_sentences(extensions):
    lines = extensions("docstrings").complete(posquad.Status)
    for status in posquad.Status:
        assert lines[lines.index(f"`{status.name}`") + 1] == f"    {status.value}"


def test_the_site_check_finds_what_needs_the_network_or_is_missing(tmp_path, extensions):
    sys.path.insert(0, str(DOCS))
    check = importlib.import_module("check_site")
    sys.path.remove(str(DOCS))
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="other.html#here"></a><a href="#top"></a>'
        '<a href="https://example.org">a plain link is not fetched</a>'
    )
    (tmp_path / "other.html").write_text('<p id="here"></p>')
    assert check.problems(tmp_path) == []
    check.page.cache_clear()
    (tmp_path / "other.html").write_text(
        '<script src="https://example.org/a.js"></script><link rel="stylesheet" href="//b/c.css">'
        '<img src="gone.png">'
    )
    (tmp_path / "local.css").write_text("@import '../basic.css'; a { background: url(b.png) }")
    (tmp_path / "remote.css").write_text("@import url('https://example.org/font.css');")
    assert check.problems(tmp_path) == [
        "index.html: other.html#here names an anchor that is not there",
        "other.html: fetches https://example.org/a.js from the network",
        "other.html: fetches //b/c.css from the network",
        "other.html: gone.png is not there",
        "remote.css: fetches from the network",
    ]
