"""The explorer in a real headless Chromium, opened from a file without a network.

Pages are loaded few times: most tests share one, and give it a state by its link.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from browser_support import LUMINANCE, Watched
from posquad.report.explorer import explorer_path

TESTS = Path(__file__).parents[1]
VECTORS = TESTS.parent / "explorer" / "vectors.json"
SCENES = ("fiber", "rate", "selection", "recovery")
ABSURD = (
    "scene=nothing",
    "scene=fiber&angle=NaN&size=-1e999&time=Infinity&target=__proto__&yaw=1e308",
    "scene=rate&kappa=0&ratio=-5&step=1e300",
    "scene=rate&kappa=,&ratio=%00&step=0x",
    "scene=selection&system=constructor&eps=0&shape=-1&weight=9e9&finite=maybe&step=NaN",
    "scene=selection&finite=1&step=2&eps=1&shape=4",
    "scene=selection&system=free&weight=0.5&eps=0.001&finite=1&step=2",
    "scene=recovery&n=2.7&set=-3&yaw=NaN&pitch=-9999",
    "scene=recovery&scene=fiber&n=<img src=x onerror=alert(1)>",
    "%E0%A4%A",
    "&&&===#" + "x" * 5000,
)

# Everything that a reader sees of the scene that is shown.
SEEN = """() => {
  const scene = document.querySelector('main section:not([hidden])');
  const drawn = [...scene.querySelectorAll('.stage')].map(stage => {
    const canvas = stage.querySelector('canvas');
    return stage.querySelector('svg').innerHTML + (canvas ? canvas.toDataURL() : '');
  });
  return {
    title: scene.querySelector('h2').textContent,
    sentence: scene.querySelector('.sentence').textContent,
    drawn,
    spoken: [...scene.querySelectorAll('.stage svg')].map(svg => svg.getAttribute('aria-label')),
    values: [...scene.querySelectorAll('.controls p:not([hidden])')].map(row => row.innerText),
  };
}"""

# Pairs of labels that overlap, and labels that leave their drawing.
CROWDED = """() => {
  const found = [];
  for (const svg of document.querySelectorAll('main section:not([hidden]) .stage svg')) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent);
    const boxes = texts.map(t => t.getBoundingClientRect());
    boxes.forEach((a, i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 2)
        found.push(texts[i].textContent + ' leaves the drawing');
      boxes.slice(0, i).forEach((b, j) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 3) found.push(texts[j].textContent + ' | ' + texts[i].textContent);
      });
    });
  }
  return found;
}"""


@pytest.fixture(scope="module")
def watched(browser):
    one = Watched(
        browser, explorer_path().as_uri(), offline=True, viewport={"width": 1280, "height": 900}
    )
    yield one
    one.context.close()
    # Whatever the tests did to it, the page asked for nothing and complained about nothing.
    asked = [url for url in one.requests if url.split("#")[0] != explorer_path().as_uri()]
    assert [url for url in asked if not url.startswith("data:")] == []
    assert (one.console, one.errors, one.dialogs) == ([], [], [])


@pytest.fixture
def page(watched):
    watched.page.set_viewport_size({"width": 1280, "height": 900})
    watched.page.emulate_media(color_scheme="light", media="screen")
    return watched.page


def settle(page):
    """Wait until everything that was asked for is drawn."""
    wait_until(page, "!posquadExplorer.busy()")


def wait_until(page, condition):
    """Wait frame by frame; `wait_for_function` evaluates strings, which the policy forbids."""
    page.evaluate(
        f"""() => new Promise(done => {{
          const check = () => ({condition}) ? done() : requestAnimationFrame(check);
          requestAnimationFrame(() => requestAnimationFrame(check));
        }})"""
    )


def go(page, fragment):
    page.evaluate("part => { location.hash = part; }", fragment)
    settle(page)
    return page.evaluate(SEEN)


def test_the_mathematics_of_the_page_agrees_with_posquad(page):
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert len(cases) >= 200
    answers = page.evaluate(
        "cases => cases.map(({kind, input}) => posquadExplorer.answer(kind, input))", cases
    )
    for one, answer in zip(cases, answers, strict=True):
        expected, found = np.array(one["answer"]), np.array(answer, float)
        assert found.shape == expected.shape, one
        assert abs(found - expected).max() <= 1e-9 * max(1.0, abs(expected).max()), one


@pytest.mark.parametrize("scene", SCENES)
def test_sliders_change_the_drawing_and_the_sentence(page, scene):
    go(page, f"scene={scene}" + ("&finite=1" if scene == "selection" else ""))
    sliders = page.locator("main section:not([hidden]) input[type=range]:visible")
    assert 2 <= sliders.count() <= 3
    for k in range(sliders.count()):
        before = page.evaluate(SEEN)
        sliders.nth(k).press("PageUp")
        settle(page)
        after = page.evaluate(SEEN)
        assert after["sentence"] != before["sentence"]
        assert after["drawn"] != before["drawn"]
        assert after["spoken"] != before["spoken"]
        assert after["values"] != before["values"]
        sliders.nth(k).press("ArrowLeft")
        settle(page)
        assert page.evaluate(SEEN)["drawn"] != after["drawn"]


@pytest.mark.parametrize("scene", SCENES)
def test_examples_and_reset_give_states_that_a_link_restores(page, scene):
    first = go(page, f"scene={scene}")
    assert page.evaluate("location.hash") == f"#scene={scene}"
    shown = page.locator("main section:not([hidden])")
    examples = shown.locator(".presets button")
    states = {}
    for k in range(examples.count() - 1):
        examples.nth(k).click()
        settle(page)
        states[page.evaluate("location.hash")] = page.evaluate(SEEN)
    assert len(states) == examples.count() - 1
    assert all(state["sentence"] != first["sentence"] for state in states.values())
    examples.last.click()
    settle(page)
    assert page.evaluate(SEEN) == first
    for fragment, state in states.items():
        assert go(page, fragment) == state
    assert shown.locator(".link input").input_value() == page.url


def test_a_link_is_restored_by_a_fresh_page_too(browser, page):
    state = go(page, "scene=rate&kappa=8&ratio=2&step=0.25")
    assert state["values"][0].endswith("8")
    fresh = Watched(browser, page.url, offline=True, viewport={"width": 1280, "height": 900})
    settle(fresh.page)
    assert fresh.page.evaluate(SEEN) == state
    fresh.context.close()


@pytest.mark.parametrize("fragment", ABSURD)
def test_absurd_links_do_no_harm(page, watched, fragment):
    state = go(page, fragment)
    words = " ".join([state["sentence"], *state["spoken"], *state["values"]])
    assert len(state["sentence"]) > 60
    assert re.search(r"NaN|undefined|null|not a number|object", words) is None
    assert not any("NaN" in drawn for drawn in state["drawn"])
    assert (watched.errors, watched.dialogs) == ([], [])


@pytest.mark.parametrize("width", [360, 1280])
def test_labels_do_not_overlap_and_nothing_scrolls_sideways(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    for fragment in (
        "scene=fiber&time=6", "scene=rate", "scene=rate&kappa=32&ratio=0.5&step=2",
        "scene=rate&kappa=1&step=0.0001", "scene=rate&ratio=1.25", "scene=selection",
        "scene=selection&system=free&finite=1", "scene=recovery", "scene=recovery&n=14&set=9",
    ):  # fmt: skip
        go(page, fragment)
        assert page.evaluate(CROWDED) == [], fragment
        inside, outside = page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert inside <= outside, fragment


def test_a_resized_window_is_drawn_again(page):
    wide = go(page, "scene=selection")
    page.set_viewport_size({"width": 420, "height": 700})
    settle(page)
    narrow = page.evaluate(SEEN)
    assert narrow["drawn"] != wide["drawn"]
    assert narrow["sentence"] == wide["sentence"]
    page.set_viewport_size({"width": 1280, "height": 900})
    settle(page)
    assert page.evaluate(SEEN)["drawn"] == wide["drawn"]


@pytest.mark.parametrize("scene", ["fiber", "recovery"])
def test_the_figure_in_space_turns_by_keys_buttons_and_dragging(page, scene):
    state = go(page, f"scene={scene}")
    stage = page.locator("main section:not([hidden]) .turnable")
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
        stage.press(key)
        settle(page)
        turned = page.evaluate(SEEN)
        assert turned["drawn"] != state["drawn"]
        state = turned
    page.get_by_role("button", name="Turn left").locator("visible=true").click()
    settle(page)
    assert "yaw=" in page.evaluate("location.hash")
    box = stage.bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 190)
    page.mouse.up()
    settle(page)
    assert "pitch=" in page.evaluate("location.hash")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_text_has_contrast(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1280 if scheme == "light" else 360, "height": 800})
    page.evaluate((TESTS / "assets" / "axe.min.js").read_text(encoding="utf-8"))
    for scene in SCENES:
        go(page, f"scene={scene}")
        details = page.locator("main section:not([hidden]) details")
        details.evaluate("element => { element.open = true; }")
        found = page.evaluate("() => axe.run().then(result => result.violations)")
        assert [(v["id"], v["impact"], v["nodes"][0]["html"]) for v in found] == []
        assert [entry for entry in page.evaluate(LUMINANCE) if 0 < entry[0] < 4.5] == []


def test_every_control_is_reached_by_the_keyboard_with_a_visible_focus(page):
    for scene in SCENES:
        go(page, f"scene={scene}")
        expected = page.evaluate(
            """() => [...document.querySelectorAll('a, button, input, select, summary, .turnable')]
              .filter(e => e.checkVisibility()).length"""
        )
        page.keyboard.press("Tab")  # only then does a browser show the focus
        page.locator(".skip").focus()
        reached = set()
        for _ in range(expected):
            where, outline = page.evaluate(
                """() => { const e = document.activeElement, s = getComputedStyle(e);
                  e.dataset.mark ??= Math.random(); return [e.dataset.mark, s.outlineStyle]; }"""
            )
            reached.add(where)
            assert outline != "none", page.evaluate("document.activeElement.outerHTML")
            page.keyboard.press("Tab")
        assert len(reached) == expected


def test_play_can_be_stopped_and_ends_by_itself_at_once_with_reduced_motion(page):
    go(page, "scene=fiber&time=0")
    page.get_by_role("button", name="Play").click()
    wait_until(page, "!location.hash.endsWith('time=0')")
    page.get_by_role("button", name="Stop").click()
    settle(page)
    stopped = page.evaluate(SEEN)
    assert stopped["values"][2] != go(page, "scene=fiber&time=0")["values"][2]
    page.wait_for_timeout(100)
    assert page.get_by_role("button", name="Play").is_visible()
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="Show the end").click()
    settle(page)
    assert page.evaluate("location.hash") == "#scene=fiber&time=6"
    page.emulate_media(reduced_motion="no-preference")


def test_print_shows_the_state_in_dark_ink_on_white(page):
    go(page, "scene=rate&kappa=8")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("nav").is_hidden()
    assert page.locator(".presets:visible").count() == 0
    assert page.locator("main section:not([hidden]) output:visible").count() == 3
    assert page.locator("main section:not([hidden]) .sentence").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert [entry for entry in page.evaluate(LUMINANCE) if 0 < entry[0] < 4.5] == []


def test_a_redraw_takes_less_than_a_tenth_of_a_second(page):
    """The median over the redraws of a slider, of each scene: one that another program interrupts
    does not count. `benchmarks/explorer_frames.py` measures the longest in CPU time."""
    for scene in SCENES:
        go(page, f"scene={scene}")
        page.evaluate("posquadExplorer.redraws.length = 0")
        slider = page.locator("main section:not([hidden]) input[type=range]").first
        for _ in range(9):
            slider.press("ArrowRight")
            settle(page)
        times = page.evaluate("posquadExplorer.redraws")
        assert len(times) >= 9
        assert statistics.median(times) < 100
