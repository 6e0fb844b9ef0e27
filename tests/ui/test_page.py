"""The page in a real browser, beside a real pipeline: what a person sees, and can do.

The tests follow one another on one run, as a person would. With EBBFLOW_PICTURES=1 they also
write the pictures of the guides to docs/images.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.long_tests import are_long_tests_wanted
from tests.ui.browser import open_page
from tests.ui.orders import Orders, run_orders

pytestmark = pytest.mark.slow

IMAGES = Path(__file__).parents[2] / "docs/images"
SOON = 120_000
"""Milliseconds that a busy machine may take for what comes at once on others."""
RED_WITHIN = 5_000 if are_long_tests_wanted() else SOON


@pytest.fixture(scope="module")
def orders(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    with run_orders(tmp_path_factory.mktemp("orders")) as orders:
        yield orders


@pytest.fixture(scope="module")
def page(browser: Browser, orders: Orders) -> Iterator[Page]:
    with open_page(browser, orders.address) as page:
        yield page


WANTED = bool(os.environ.get("EBBFLOW_PICTURES"))


def take_picture(page: Page, name: str, width: int = 1280) -> None:
    """Writes a picture for the guides, if it was asked for."""
    if not WANTED:
        return
    expect(page.locator(".notice")).to_have_count(0, timeout=SOON)
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(1_500)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.set_viewport_size({"width": 1280, "height": 800})


def visit(page: Page, *parts: str) -> None:
    """Follows a link of the page, without loading it anew."""
    page.evaluate("hash => { location.hash = hash }", "#/" + "/".join(["orders", *parts]))


def node(page: Page, vertex: str) -> Locator:
    return page.locator(f'.node[data-vertex="{vertex}"]')


def fact(page: Page, name: str) -> Locator:
    return page.locator(f'.panel [data-fact="{name}"]')


def read_number(text: str | None) -> float:
    match = re.search(r"[\d,.]+", text or "")
    return float(match.group().replace(",", "")) if match else 0.0


def test_the_graph_shows_what_passes(page: Page) -> None:
    for vertex in ("in", "enrich", "price", "store", "notify"):
        expect(node(page, vertex)).to_be_visible(timeout=SOON)
    expect(page.locator(".heart")).to_have_text("live", timeout=SOON)
    expect(node(page, "store")).to_have_class(re.compile(r"\bok\b"), timeout=SOON)
    expect(node(page, "store").locator(".rates")).not_to_have_text("0/s", timeout=SOON)
    expect(page.locator(".edge.flow").first).to_be_attached()


def test_numbers_move_by_themselves(page: Page) -> None:
    visit(page, "vertices", "store")
    read = page.locator(".totals tr", has_text="read").locator("td").first
    expect(read).not_to_have_text("0", timeout=SOON)
    before = read.text_content()
    expect(read).not_to_have_text(before or "", timeout=RED_WITHIN)
    assert read_number(read.text_content()) > read_number(before)
    drawn = page.locator(".panel .chart path.line").first
    expect(drawn).to_have_attribute("d", re.compile("M.*L"), timeout=SOON)


def test_an_error_shows_with_its_traceback(page: Page) -> None:
    visit(page, "vertices", "enrich")
    group = page.locator(".error-group", has_text="KeyError").first
    expect(group).to_contain_text("'c-13'", timeout=SOON)
    expect(group).to_contain_text("steps.py:25")
    expect(group.locator("pre")).to_contain_text('order["name"] = CUSTOMERS[order["customer"]]')


def test_a_parked_message_shows_its_due_time(page: Page) -> None:
    visit(page, "vertices", "enrich")
    parked = fact(page, "parked")
    expect(parked).to_contain_text(re.compile(r"next due \d\d:\d\d:\d\d, in \d+ min"), timeout=SOON)
    expect(page.get_by_label("Parked because")).to_contain_text("the customer is not known yet")
    assert read_number(node(page, "enrich").locator(".figure").nth(1).text_content()) >= 1


def test_chunks_show_the_time_of_their_stages(page: Page) -> None:
    visit(page, "vertices", "enrich")
    stages = page.locator(".stages tbody tr")
    expect(stages).to_have_count(4, timeout=SOON)
    expect(page.locator(".timeline rect.stage").first).to_be_attached(timeout=SOON)


def test_problems_say_what_to_do_next(page: Page) -> None:
    visit(page)
    problems = page.get_by_label("Problems")
    expect(problems).to_contain_text("dead letter", timeout=SOON)
    expect(problems.locator(".next").first).to_contain_text("ebbflow dlq list orders")
    if WANTED:  # With some minutes of a past the charts have something to show.
        page.wait_for_timeout(45_000)
    take_picture(page, "phone", width=390)
    visit(page, "vertices", "enrich")
    take_picture(page, "page")


def test_a_dead_letter_is_opened_edited_replayed_and_arrives(page: Page, orders: Orders) -> None:
    visit(page, "dead-letters")
    page.locator("#search").fill('"number": 50,')
    rows = page.locator(".list tbody tr")
    expect(rows).to_have_count(1, timeout=SOON)
    rows.locator("button").click()
    panel = page.get_by_label("Letter", exact=False).last
    expect(panel).to_contain_text("order 50 has a negative amount")
    expect(panel.locator("pre").first).to_contain_text('"amount": -1')
    page.get_by_role("button", name="Hex").click()
    expect(panel.locator("pre").first).to_contain_text("000000  7b 22")
    page.get_by_role("button", name="Edit and replay").click()
    value = page.get_by_label("Value", exact=True)
    value.fill(value.input_value().replace("-1", "12"))
    page.get_by_role("button", name="Replay edited").click()
    expect(page.locator(".notice")).to_contain_text("is on its way to store again")
    orders.wait_until(lambda: bool(orders.stored(50)))
    assert [order["amount"] for order in orders.stored(50)] == [12]
    expect(rows).to_have_count(0, timeout=SOON)


def test_many_letters_are_counted_before_they_are_replayed(page: Page, orders: Orders) -> None:
    visit(page, "dead-letters?vertex=enrich")
    rows = page.locator(".list tbody tr")
    expect(rows.first).to_contain_text("KeyError", timeout=SOON)
    before = rows.first.locator(".row").text_content()
    if WANTED:
        rows.first.locator("button").click()
        expect(page.locator(".panel .traceback")).to_be_visible()
        take_picture(page, "letters")
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Replay matching…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(re.compile(r"\d+ letters? (is|are) matched by this filter"))
    dialog.get_by_role("button", name=re.compile(r"Replay \d+")).click()
    expect(page.locator(".notice").last).to_contain_text("sent back", timeout=SOON)
    expect(page.get_by_role("button", name=before or "", exact=True)).to_have_count(0)


def test_a_message_is_traced(page: Page) -> None:
    visit(page, "trace", "in-7")
    way = page.get_by_label("Way of in-7")
    expect(way).to_contain_text("parked", timeout=SOON)
    expect(way).to_contain_text("enrich")


def test_the_spec_is_shown(page: Page) -> None:
    visit(page, "spec")
    expect(page.locator(".spec pre")).to_contain_text("steps:enrich")


def test_a_vertex_is_paused_and_resumed(page: Page) -> None:
    visit(page, "vertices", "price")
    page.get_by_role("button", name="Pause price").click()
    expect(node(page, "price")).to_have_attribute("data-condition", "paused", timeout=SOON)
    page.get_by_role("button", name="Resume price").click()
    expect(node(page, "price")).not_to_have_attribute("data-condition", "paused", timeout=SOON)


def test_a_killed_vertex_is_red_within_five_seconds(page: Page, orders: Orders) -> None:
    visit(page)
    expect(node(page, "price")).to_have_class(re.compile(r"\bok\b"), timeout=SOON)
    orders.kill_worker("price")
    expect(node(page, "price")).to_have_class(re.compile(r"\berror\b"), timeout=RED_WITHIN)
    problem = page.get_by_label("Problems").locator("li.error", has_text="price")
    expect(problem.locator(".next")).not_to_be_empty(timeout=RED_WITHIN)


def test_the_page_says_that_the_server_is_gone(page: Page, orders: Orders) -> None:
    visit(page)
    orders.process.terminate()
    expect(page.locator(".lost-line")).to_contain_text("does not answer", timeout=SOON)
    expect(page.locator(".heart")).to_have_text("reconnecting")
    expect(node(page, "store")).to_be_visible()
