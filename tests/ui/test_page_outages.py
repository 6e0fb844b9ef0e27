"""The web UI when a part of what it shows ends: a vertex, then the whole run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.ui.browser import open_page
from tests.ui.orders import RED_WITHIN, SOON, node, run_orders, visit

pytestmark = pytest.mark.slow


def test_a_killed_vertex_is_red_within_five_seconds_and_a_server_that_is_gone_is_told(
    browser: Browser, tmp_path: Path
) -> None:
    with run_orders(tmp_path) as orders, open_page(browser, orders.address) as page:
        visit(page)
        expect(node(page, "price")).to_have_class(re.compile(r"\bok\b"), timeout=SOON)
        orders.kill_worker("price")
        expect(node(page, "price")).to_have_class(re.compile(r"\berror\b"), timeout=RED_WITHIN)
        problem = page.get_by_label("Problems").locator("li.error", has_text="price")
        expect(problem.locator(".next")).not_to_be_empty(timeout=RED_WITHIN)

        orders.process.terminate()
        expect(page.locator(".lost-line")).to_contain_text("does not answer", timeout=SOON)
        expect(page.locator(".heart")).to_have_text("reconnecting")
        expect(node(page, "store")).to_be_visible()
