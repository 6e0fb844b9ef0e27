"""A real browser for the tests of the page: Chromium as the machine has it, without a window."""

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
# A machine that does much else at the same time is no fault of the page.
_PATIENCE = 60_000
expect.set_options(timeout=_PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file of tests; skipped where there is none."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or make test as root")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, address: str = "", **options: Any) -> Iterator[Page]:
    """Opens a page of its own, and fails if it reports an error to the console."""
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
    # What the network refuses is part of many tests; what the page's own code does wrong is not.
    if message.type == "error" and "Failed to load resource" not in message.text:
        errors.append(message.text)


def serve_files(page: Page) -> None:
    """Gives a page the files of the package without a server, at http://page/."""
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
