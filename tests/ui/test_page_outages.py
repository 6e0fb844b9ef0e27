"""The web UI when a part of what it shows ends: a vertex, then the whole run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, TimeoutError, expect

from tests.long_tests import are_long_tests_wanted
from tests.ui.browser import open_page
from tests.ui.orders import SOON, Orders, node, run_orders, visit

pytestmark = pytest.mark.slow


RED_WITH_ADVICE = """() =>
    document.querySelector('.node[data-vertex="price"]').classList.contains("error") &&
    [...document.querySelectorAll("li.error")].some(
        (problem) => problem.textContent.includes("price") &&
            problem.querySelector(".next")?.textContent,
    )"""


def kill_until_red(orders: Orders, page: Page) -> None:
    """Ends the worker; again if it was back before the page could show it.

    Soon, so that the waits before a restart grow: they are short again after five good seconds.
    """
    wanted = are_long_tests_wanted()
    for _ in range(1 if wanted else 20):
        orders.kill_worker("price")
        with contextlib.suppress(TimeoutError):
            page.wait_for_function(RED_WITH_ADVICE, timeout=5_000 if wanted else 2_000)
            return
    pytest.fail("the killed vertex did not turn red")


def test_a_killed_vertex_is_red_within_five_seconds_and_a_server_that_is_gone_is_told(
    browser: Browser, tmp_path: Path
) -> None:
    with run_orders(tmp_path) as orders, open_page(browser, orders.address) as page:
        visit(page)
        expect(node(page, "price")).to_have_class(re.compile(r"\bok\b"), timeout=SOON)
        kill_until_red(orders, page)

        orders.process.terminate()
        expect(page.locator(".lost-line")).to_contain_text("does not answer", timeout=SOON)
        expect(page.locator(".heart")).to_have_text("reconnecting")
        expect(node(page, "store")).to_be_visible()
