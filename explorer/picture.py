"""Take the picture of the explorer that the README shows: docs/images/explorer.png.

Run by `make explorer-picture`, with a Chromium on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

from posquad.report.explorer import explorer_path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser_support import launched  # noqa: E402

VIEW = "scene=recovery&n=5&set=9"

if __name__ == "__main__":
    with launched() as browser:
        page = browser.new_context(viewport={"width": 1120, "height": 900}).new_page()
        page.goto(f"{explorer_path().as_uri()}#{VIEW}")
        page.wait_for_timeout(1000)
        # The link shows where the file lies on this machine.
        page.evaluate("document.querySelectorAll('.link').forEach(e => { e.hidden = true; })")
        box = page.locator("main section:not([hidden]) .figures").bounding_box()
        assert box is not None
        page.screenshot(
            path=ROOT / "docs" / "images" / "explorer.png",
            clip={"x": 0, "y": 0, "width": 1120, "height": box["y"] + box["height"] + 16},
        )
