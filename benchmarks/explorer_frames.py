"""CPU time of the redraws of the explorer: every position of every slider, in a headless Chromium.

    python benchmarks/explorer_frames.py

Prints the median and the longest time of the page's main thread between two positions of a slider,
layout and painting included; where a position takes several redraws, their mean. None may take
100 ms.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from posquad.report.explorer import explorer_path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser_support import launched

SCENES = (
    "scene=fiber",
    "scene=rate",
    "scene=rate&ratio=8&kappa=32",
    "scene=selection&finite=1",
    "scene=selection&system=free&finite=1",
    "scene=recovery",
)
SETTLED = """() => new Promise(done => {
  const check = () => posquadExplorer.busy() ? requestAnimationFrame(check) : done();
  requestAnimationFrame(() => requestAnimationFrame(check));
})"""


def main() -> None:
    with launched() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent() -> float:
            found = metrics.send("Performance.getMetrics")["metrics"]
            return 1e3 * {one["name"]: one["value"] for one in found}["TaskDuration"]

        for scene in SCENES:
            page.goto(f"{explorer_path().as_uri()}#{scene}")
            page.reload()
            page.evaluate(SETTLED)
            sliders = page.locator("main section:not([hidden]) input[type=range]:visible")
            for k in range(sliders.count()):
                slider, times = sliders.nth(k), []
                slider.press("Home")
                page.evaluate(SETTLED)
                for _ in range(int(slider.get_attribute("max") or 0)):
                    page.evaluate("posquadExplorer.redraws.length = 0")
                    before = spent()
                    slider.press("ArrowRight")
                    page.evaluate(SETTLED)
                    frames = max(1, page.evaluate("posquadExplorer.redraws.length"))
                    times.append((spent() - before) / frames)
                name = slider.get_attribute("id")
                print(
                    f"{scene:<38} {name:<16} {len(times):3d} positions, "
                    f"median {statistics.median(times):5.1f} ms, longest {max(times):5.1f} ms"
                )


if __name__ == "__main__":
    main()
