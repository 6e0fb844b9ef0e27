"""A real browser for the tests of the web UI: the machine's Chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

STATIC = Path(__file__).parents[2] / "src/ebbflow/ui/static"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Chromium refuses to run as root with a sandbox; in containers tests often are root.
_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
# A slow, busy machine is not a fault of the web UI.
_PATIENCE = 60_000
expect.set_options(timeout=_PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a test file; the tests are skipped where none is installed."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or make test as root")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, address: str = "", **options: Any) -> Iterator[Page]:
    """Opens a separate page, and fails if it reports an error to the console."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(_PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: _note(message, errors))
    try:
        if address:
            page.goto(address)
        yield page
        assert not errors
    finally:
        context.close()


def _note(message: ConsoleMessage, errors: list[str]) -> None:
    # Failed network requests are part of many tests; errors in the page's own code are not.
    if message.type == "error" and "Failed to load resource" not in message.text:
        errors.append(message.text)


def serve_files(page: Page) -> None:
    """Serves the files of the package to a page without a server, at http://page/."""
    page.route("http://page/**", _answer)
    page.goto("http://page/blank")


def _answer(route: Route) -> None:
    name = urlsplit(route.request.url).path.removeprefix("/static/")
    path = STATIC / name
    if path.is_file():
        kind = _TYPES.get(path.suffix, "text/plain")
        route.fulfill(body=path.read_bytes(), content_type=f"{kind}; charset=utf-8")
    else:
        route.fulfill(body="<!doctype html><title>blank</title>", content_type="text/html")


_OVERLAPS = """selector => {
    const rects = (element) => {
        const range = document.createRange();
        range.selectNodeContents(element);
        return [...range.getClientRects()];
    };
    const meet = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right
        && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
    const touch = (one, other) => rects(one).some(a => rects(other).some(b => meet(a, b)));
    return [...document.querySelectorAll(selector)].flatMap(parent => {
        const parts = [...parent.children];
        return parts.flatMap((one, at) => parts.slice(at + 1)
            .filter(other => touch(one, other)).map(other => [one.innerText, other.innerText]));
    });
}"""
_CUT_OFF = """selector => [...document.querySelectorAll(selector)]
    .filter(element => element.clientWidth && element.scrollWidth > element.clientWidth + 1)
    .map(element => element.innerText)"""
_RAGGED = """selector => [...document.querySelectorAll(selector)].filter(box => {
    const edge = box.getBoundingClientRect().right - 2;
    const rows = new Map();
    for (const cell of box.children) {
        const { top, right } = cell.getBoundingClientRect();
        rows.set(Math.round(top), Math.max(right, rows.get(Math.round(top)) ?? 0));
    }
    return [...rows.values()].some(right => right < edge);
}).map(box => box.innerText)"""


def find_overlaps(page: Page, selector: str) -> list[list[str]]:
    """Returns pairs of texts that are printed over each other inside one of the elements."""
    return page.evaluate(_OVERLAPS, selector)


def find_cut_off(page: Page, selector: str) -> list[str]:
    """Returns the texts of the elements that are wider than their box."""
    return page.evaluate(_CUT_OFF, selector)


def find_ragged(page: Page, selector: str) -> list[str]:
    """Returns the texts of the grids in which a row of cells ends before the right edge."""
    return page.evaluate(_RAGGED, selector)
