"""A user logs in with the token in a real browser: by a form, and by a URL that is then removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ui.browser import open_page
from tests.ui.ui_client import UiClient, serve_ui

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("pages-are-kept-to-those-who-may")]

TOKEN = "let me in & out"


@pytest.fixture(scope="module")
def secured(link) -> Iterator[UiClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBBFLOW_UI_TOKEN", TOKEN)
        with serve_ui(link, secured=True) as ui:
            yield ui


@pytest.fixture
def page(browser: Browser, secured: UiClient) -> Iterator[Page]:
    with open_page(browser, ignore_https_errors=True) as page:
        yield page


def address(secured: UiClient, rest: str = "") -> str:
    return f"https://localhost:{secured.port}/{rest}"


def test_typing_the_token_logs_in_and_puts_it_in_no_url(page: Page, secured: UiClient):
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(address(secured))
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button").click()
    expect(page.get_by_text("This token is wrong.")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button").click()
    expect(page.get_by_role("banner")).to_be_visible()
    assert [url for url in urls if "token" in url or "let+me" in url] == []
    (cookie,) = page.context.cookies()
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")


def test_the_url_with_the_token_is_removed_from_the_history(page: Page, secured: UiClient):
    page.goto("about:blank")
    page.goto(address(secured, "?token=let+me+in+%26+out"))
    expect(page.get_by_role("banner")).to_be_visible()
    assert page.url == address(secured)
    page.go_back()
    assert page.url == "about:blank"
