"""The report in a real headless Chromium: what readers see, hear and print, and what cannot run."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import io
import itertools
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser_support import LUMINANCE, unavailable, watched_pages
from drawing_support import OnlySvg
from posquad.experiments import registry, report, reproduce
from posquad.experiments.claims import Agreement
from posquad.report import figures
from posquad.report.figures import Drawing

HOSTILE = "<img src=x onerror=alert(1)>"
CHANGES = {
    "exp1": {"seeds": "2", "steps": "10"},
    "exp5": {"tolerance": "1e-9"},
    "exp6": {"samples": "5"},
}
SCHEMES = ["light", "dark"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cheap run of three experiments, its folder and its outcome."""
    folder = tmp_path_factory.mktemp("report")
    parameters = reproduce.plan(["exp1", "exp5", "exp6"], changes=CHANGES)
    with pytest.MonkeyPatch.context() as patch:
        save = figures.save_figures  # the page shows the SVG image only
        patch.setattr(figures, "save_figures", lambda figure, *rest: save(OnlySvg(figure), *rest))
        outcome = reproduce.reproduce(folder, parameters, command="posquad reproduce --only 1,5,6")
    return folder, parameters, outcome


@pytest.fixture(scope="module")
def address(made):
    return (made[0] / "report.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """Opens the report, or another page, with the options of a browser context."""
    with watched_pages(browser) as open_page:
        yield lambda where=address, **options: open_page(where, **options)


def test_the_page_loads_nothing_and_reports_no_errors(opened, address):
    watched = opened()
    watched.page.wait_for_timeout(200)
    outside = [url for url in watched.requests if url != address and not url.startswith("data:")]
    assert outside == []
    assert watched.console == []
    assert watched.errors == []


def test_the_policy_is_there_and_stops_a_script(opened, made, tmp_path):
    page = (made[0] / "report.html").read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "script-src" not in policy or "script-src 'none'" in policy
    script = "<script>document.title = 'changed'</script>"
    image = "<img src='data:,' onerror=\"document.title = 'changed'\">"
    style = "<style>h1 { display: none }</style>"
    outside = "<img src='https://example.invalid/x.png'>"  # announced, then refused by the policy
    attacked = tmp_path / "attacked.html"
    attacked.write_text(page.replace("</main>", script + image + style + outside + "</main>"))
    watched = opened(attacked.as_uri())
    watched.page.wait_for_timeout(200)
    assert watched.page.title() != "changed"
    assert watched.page.locator("h1").is_visible()
    assert any("Content Security Policy" in line for line in watched.console)
    assert watched.refused["https://example.invalid/x.png"] == "csp"


def test_all_images_are_rendered_and_described(opened, made):
    page = opened().page
    images = page.eval_on_selector_all(
        "img", "all => all.map(i => [i.complete, i.naturalWidth, i.alt, i.src.slice(0, 26)])"
    )
    panels = sum(len(registry.EXPERIMENTS[key].panels) for key in made[1])
    assert len(images) == panels
    for complete, width, alt, source in images:
        assert complete
        assert width > 0
        assert len(alt) > 30
        assert source == "data:image/svg+xml;base64,"
    for picture in page.locator("svg[role=img]").all():
        assert picture.get_attribute("aria-label")


# 320 is the width at which the Web Content Accessibility Guidelines ask for it (1.4.10, reflow).
@pytest.mark.parametrize("width", [320, 360, 390, 768, 1280])
def test_no_horizontal_scroll(opened, width):
    page = opened(viewport={"width": width, "height": 800}).page
    for _ in range(2):  # once as it opens, once with everything unfolded
        inside, outside = page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert inside <= outside
        page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=float).mean(-1)


def test_dark_pages_have_light_ink(opened):
    """In an image of either page the ink, its extreme, lies on the other side of the ground."""
    seen = {}
    for scheme in SCHEMES:
        page = opened(color_scheme=scheme).page
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        shot = pixels(page.locator("figure img").first.screenshot())
        seen[scheme] = (ground, np.median(shot), shot.min(), shot.max())
    assert seen["light"][0] != seen["dark"][0]
    _, ground, darkest, _ = seen["light"]
    assert ground > 200
    assert darkest < 80
    _, ground, _, lightest = seen["dark"]
    assert ground < 60
    assert lightest > 180


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_chips_have_contrast(opened, scheme):
    """At least 4.5 to 1, the level AA of the Web Content Accessibility Guidelines."""
    page = opened(color_scheme=scheme).page
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    found = page.evaluate(LUMINANCE)
    assert len(found) > 200
    assert any("chip" in where for _, where, _ in found)
    weak = [entry for entry in found if entry[0] < 4.5]
    assert weak == []


def test_headings_do_not_skip_levels(opened):
    levels = opened().page.eval_on_selector_all(
        "h1,h2,h3,h4,h5,h6", "all => all.map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_links_lead_somewhere(opened, made):
    page = opened().page
    links = page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
    ids = page.eval_on_selector_all("[id]", "all => all.map(e => e.id)")
    assert len(set(ids)) == len(ids)
    inside = [link[1:] for link in links if link.startswith("#")]
    assert {"summary", "exp1", "exp5", "exp6"} <= set(inside)
    assert set(inside) <= set(ids)
    files = [link for link in links if not link.startswith("#")]
    for link in files:
        assert not re.match(r"[a-z]+:|//", link)
        assert (made[0] / link).is_file(), link


def test_language_title_and_landmarks(opened):
    page = opened().page
    assert page.get_attribute("html", "lang") == "en"
    assert len(page.title()) > 5
    for landmark in ("main", "header", "footer", "nav"):
        assert page.locator(landmark).count() == 1
    unnamed = page.eval_on_selector_all(
        "[role=region]:not([aria-label]):not([aria-labelledby])", "a => a.length"
    )
    assert unnamed == 0
    assert page.eval_on_selector_all("th:not([scope])", "all => all.length") == 0


def test_keyboard(opened):
    """Tab reaches the skip link, which is then visible and leads to the summary; Enter unfolds."""
    page = opened().page
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.get_attribute("href") == "#summary"
    box = focused.bounding_box()
    assert box["x"] >= 0
    assert box["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("() => location.hash") == "#summary"
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.tagName") == "SUMMARY":
            break
    details = page.locator("details", has=page.locator(":focus"))
    assert details.get_attribute("open") is None
    page.keyboard.press("Enter")
    assert details.get_attribute("open") is not None


def test_focus_is_visible(opened):
    page = opened().page
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    outline = page.evaluate(
        "() => { const s = getComputedStyle(document.activeElement);"
        " return [s.outlineStyle, parseFloat(s.outlineWidth)]; }"
    )
    assert outline[0] != "none"
    assert outline[1] >= 2


def test_printing_hides_only_screen_controls(opened, made):
    page = opened().page
    screen = page.locator("main").inner_text()
    page.emulate_media(media="print")
    assert not page.locator("a.skip").is_visible()
    everything = ("h1", "h2", "h3", "figure img", "table.claims tr", "#summary", ".scroll > table")
    for selector in everything:
        for element in page.locator(selector).all():
            folded = element.evaluate("e => !!e.closest('details:not([open])')")
            assert folded or element.is_visible(), selector
    paper = page.locator("main").inner_text()
    for line in made[2].judged:
        words = line.claim.statement.partition("$")[0]  # a formula is shown in its own way
        assert words in screen
        assert words in paper
    assert [entry for entry in page.evaluate(LUMINANCE) if entry[0] < 4.5] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_paper_has_dark_ink_whatever_the_screen(opened, scheme):
    """The colour that fills most shapes of the document, its letters, is dark."""
    document = opened(color_scheme=scheme).page.pdf(format="A4")
    assert document.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", document)) >= 4  # each experiment begins a page
    fills = collections.Counter()
    for packed in re.findall(rb"(?s)stream\r?\n(.*?)endstream", document):
        with contextlib.suppress(zlib.error):
            drawn = zlib.decompress(packed)
            fills.update(re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) rg", drawn))
    (commonest, _), *_ = fills.most_common(1)
    assert max(map(float, commonest)) < 0.3


def test_the_file_is_small(made):
    assert (made[0] / "report.html").stat().st_size < 3_000_000


def test_hostile_text_is_shown_as_text(opened, made, monkeypatch, tmp_path):
    """Title, remark, claim, reason and command, each with markup that would run a script."""
    _, parameters, outcome = made
    experiment = registry.EXPERIMENTS["exp5"]
    panel = dataclasses.replace(
        experiment.panels[0], title=f"panel {HOSTILE}", describe=lambda m: f'alt "{HOSTILE}'
    )
    table = dataclasses.replace(experiment.tables[0], title=f"table {HOSTILE}")
    hostile = dataclasses.replace(
        experiment,
        title=f"title {HOSTILE}",
        question=f"question {HOSTILE}",
        labels=(f"label {HOSTILE}",),
        panels=(panel,),
        tables=(table,),
    )
    monkeypatch.setitem(registry.EXPERIMENTS, "exp5", hostile)
    (record,) = (r for r in outcome.records if r.experiment == "exp5")
    measured = dataclasses.replace(record.measured, remarks=[f"remark {HOSTILE}"])
    record = dataclasses.replace(record, measured=measured, finished=HOSTILE)
    judged = next(j for j in outcome.judged if j.claim.experiment == "exp5")
    claim = dataclasses.replace(
        judged.claim, statement=f"statement {HOSTILE}", note=f"note {HOSTILE}", label=HOSTILE
    )
    lines = tuple(
        dataclasses.replace(judged, claim=dataclasses.replace(claim, id=f"x.{v.value}"),
                            why=f"why {HOSTILE}", verdict=v)
        for v in Agreement
    )  # fmt: skip
    changed = dataclasses.replace(outcome, records=(record,), judged=lines)
    svg = "<svg xmlns='http://www.w3.org/2000/svg' width='4' height='3'/>"
    images = {panel.key: Drawing(svg, panel.describe(measured))}
    page = report.render(
        changed, {"exp5": parameters["exp5"]}, images, quick=False, command=f"command {HOSTILE}"
    )
    assert HOSTILE not in page
    target = Path(tmp_path / "hostile.html")
    target.write_text(page)
    watched = opened(target.as_uri())
    watched.page.wait_for_timeout(200)
    assert watched.dialogs == []
    assert watched.console == []
    assert watched.requests == [
        url for url in watched.requests if url == target.as_uri() or url.startswith("data:")
    ]
    text = watched.page.locator("body").inner_text()
    for word in (
        "title",
        "question",
        "label",
        "panel",
        "table",
        "remark",
        "statement",
        "why",
        "note",
        "command",
    ):
        assert f"{word} {HOSTILE}" in text, word
    assert watched.page.locator("img").count() == 1
    assert HOSTILE in watched.page.locator("img").get_attribute("alt")
    decoded = base64.b64decode(watched.page.locator("img").get_attribute("src").split(",")[1])
    assert decoded.startswith(b"<svg")


def test_a_missing_browser_is_skipped_or_refused(monkeypatch):
    monkeypatch.delenv("POSQUAD_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="none here"):
        unavailable("none here")
    monkeypatch.setenv("POSQUAD_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="none here"):
        unavailable("none here")
