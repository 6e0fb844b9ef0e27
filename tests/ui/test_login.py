"""A person and the token, in a real browser: a form that is posted, and an address that goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ui.asking import Asking, asking
from tests.ui.browser import open_page

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("pages-are-kept-to-those-who-may")]

TOKEN = "let me in & out"


@pytest.fixture(scope="module")
def secured(link) -> Iterator[Asking]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBBFLOW_UI_TOKEN", TOKEN)
        with asking(link, secured=True) as page:
            yield page


@pytest.fixture
def page(browser: Browser, secured: Asking) -> Iterator[Page]:
    with open_page(browser, ignore_https_errors=True) as page:
        yield page


def address(secured: Asking, rest: str = "") -> str:
    return f"https://localhost:{secured.port}/{rest}"


def test_whoever_types_the_token_comes_in_and_it_is_in_no_address(page: Page, secured: Asking):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address(secured))
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button").click()
    expect(page.get_by_text("This token is wrong.")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button").click()
    expect(page.get_by_role("banner")).to_be_visible()
    assert [url for url in asked if "token" in url or "let+me" in url] == []
    (cookie,) = page.context.cookies()
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")


def test_the_address_with_the_token_is_taken_out_of_the_history(page: Page, secured: Asking):
    page.goto("about:blank")
    page.goto(address(secured, "?token=let+me+in+%26+out"))
    expect(page.get_by_role("banner")).to_be_visible()
    assert page.url == address(secured)
    page.go_back()
    assert page.url == "about:blank"
