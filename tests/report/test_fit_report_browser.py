"""The report of a fit in a real headless Chromium: it loads nothing, runs nothing, fits a phone."""

from __future__ import annotations

import itertools
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from browser_support import LUMINANCE, watched_pages
from posquad import IdentifiabilityWarning
from posquad.cli.demo_data import make
from posquad.estimator import PositiveQuadraticRegressor
from posquad.io.tables import Samples
from posquad.report.fit_figures import panels
from posquad.report.fit_report import render
from posquad.report.fitted_model import FittedModel

HOSTILE = "<img src=x onerror=alert(1)>"
LONG = "a_name_without_a_blank_" * 8
KINDS = {"recovery": "Certified", "noisy": "Best fit", "few": "Not identified"}


def fitted(name: str, first: str = "x1", response: str = "y") -> FittedModel:
    columns = make(name)
    y = columns.pop("y")
    X = np.column_stack(list(columns.values()))
    rank = 2 if name == "few" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentifiabilityWarning)
        model = PositiveQuadraticRegressor(rank, certify=True).fit(X, y)
    features = (first, *list(columns)[1:])
    samples = Samples(Path(f"{name}.csv"), X, y, None, features, True, response)
    return FittedModel(
        model, samples, model.predict(X), 1.0, f"posquad fit {first}", Path("fit/model.json")
    )


@pytest.fixture(scope="module")
def fits():
    return {name: fitted(name) for name in KINDS}


@pytest.fixture(scope="module")
def pages(fits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    found = {name: render(fit) for name, fit in fits.items()}
    found["hostile"] = render(fitted("noisy", HOSTILE, f"response {HOSTILE}"))
    found["long"] = render(fitted("noisy", LONG, LONG))
    for name, text in found.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in found}


@pytest.fixture
def opened(browser, pages):
    with watched_pages(browser) as open_page:
        yield lambda name, **options: open_page(pages[name].as_uri(), **options)


@pytest.mark.parametrize("name", [*KINDS, "hostile"])
def test_the_page_loads_nothing_and_reports_no_errors(opened, pages, name):
    watched = opened(name)
    watched.page.wait_for_timeout(200)
    address = pages[name].as_uri()
    assert [u for u in watched.requests if u != address and not u.startswith("data:")] == []
    assert (watched.console, watched.errors, watched.dialogs) == ([], [], [])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', pages[name].read_text())
    assert "default-src 'none'" in policy.group(1)
    assert "unsafe" not in policy.group(1)


@pytest.mark.parametrize("name", KINDS)
def test_the_answer_comes_first_and_every_picture_has_words(opened, fits, name):
    page = opened(name).page
    section = page.locator("main > section").first
    assert KINDS[name] in section.locator("h2").inner_text()
    assert section.locator("li").count() >= 1
    images = page.eval_on_selector_all("img", "all => all.map(i => [i.naturalWidth, i.alt])")
    assert len(images) == len(panels(fits[name]))
    assert all(width > 0 and len(alt) > 30 for width, alt in images)
    levels = page.eval_on_selector_all("h1,h2,h3", "all => all.map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert page.eval_on_selector_all("th:not([scope])", "all => all.length") == 0


@pytest.mark.parametrize("name", [*KINDS, "long", "hostile"])
@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_horizontal_scroll(opened, name, width):
    page = opened(name, viewport={"width": width, "height": 800}).page
    inside, outside = page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert inside <= outside


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened, name, scheme):
    page = opened(name, color_scheme=scheme).page
    found = page.evaluate(LUMINANCE)
    assert len(found) > 50
    assert [entry for entry in found if entry[0] < 4.5] == []
    page.emulate_media(media="print")
    assert [entry for entry in page.evaluate(LUMINANCE) if entry[0] < 4.5] == []


def test_names_of_columns_are_only_text(opened):
    page = opened("hostile").page
    text = page.locator("body").inner_text()
    assert f"response {HOSTILE}" in text
    assert page.locator("th", has_text=HOSTILE).count() == 1
    assert page.locator("img[src='x']").count() == 0
