"""The web UI when a vertex ends, and when the whole run ends."""

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
    """Kills the worker; again if it was back before the web UI could show it.

    Quickly, so that the waits before a restart grow: after five good seconds they are short again.
    """
    wanted = are_long_tests_wanted()
    for _ in range(1 if wanted else 20):
        orders.kill_worker("price")
        with contextlib.suppress(TimeoutError):
            page.wait_for_function(RED_WITH_ADVICE, timeout=5_000 if wanted else 2_000)
            return
    pytest.fail("the killed vertex did not turn red")


def test_a_killed_vertex_is_red_within_five_seconds_and_a_lost_server_is_reported(
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
