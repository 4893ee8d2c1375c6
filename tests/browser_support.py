"""A real headless Chromium for the tests of pages, and what is asked of every page."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PLACES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def unavailable(reason):
    """Skip, or fail where a browser was promised."""
    if os.environ.get("POSQUAD_REQUIRE_BROWSER"):
        pytest.fail(f"POSQUAD_REQUIRE_BROWSER is set, but {reason}")
    pytest.skip(reason)


@contextmanager
def launched():
    """A headless Chromium."""
    found = os.environ.get("POSQUAD_BROWSER") or next(filter(None, map(shutil.which, PLACES)), None)
    if found is None:
        unavailable("no Chromium was found on the path")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


class Watched:
    """A page, and everything that it asked for or complained about."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests, self.console, self.errors, self.dialogs = [], [], [], []
        self.refused = {}
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda r: self.refused.update({r.url: r.failure}))
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._close)
        self.page.goto(address, wait_until="load")

    def _close(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()


@contextmanager
def watched_pages(browser):
    """A function that opens an address with the options of a browser context."""
    pages = []

    def open_page(address, **options):
        pages.append(Watched(browser, address, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()


LUMINANCE = """
() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = text => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, k) => {
    const v = c[k] / 255;
    return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor);
      if (c[3] === 255) return c;
      if (c[3] !== 0) return null;
    }
    return rgba(getComputedStyle(document.documentElement).colorScheme.includes('dark')
      && matchMedia('(prefers-color-scheme: dark)').matches ? '#121212' : '#fff');
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || e.closest('svg')) continue;
    const below = ground(e), style = getComputedStyle(e);
    const [a, b] = [light(rgba(style.color)), below ? light(below) : -1];
    const ratio = below ? (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) : 0;
    found.push([ratio, e.className || e.tagName, text.slice(0, 40)]);
  }
  return found;
}
"""
