"""The web UI in a real browser, next to a real pipeline: what a user sees, and can do.

The tests follow one another on one run, as a user would, and none ends a part of it. With
EBBFLOW_PICTURES=1 they also write the pictures of the guides to docs/images.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.ui.browser import find_cut_off, find_overlaps, find_ragged, open_page
from tests.ui.orders import RED_WITHIN, SOON, Orders, node, run_orders, visit
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.story]

IMAGES = Path(__file__).parents[2] / "docs/images"


@pytest.fixture(scope="module")
def orders(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    with run_orders(tmp_path_factory.mktemp("orders")) as orders:
        orders.wait_until(lambda: min(map(orders.dead_letters, ("enrich", "store"))) > 5)
        yield orders


@pytest.fixture(scope="module")
def page(browser: Browser, orders: Orders) -> Iterator[Page]:
    with open_page(browser, orders.address) as page:
        yield page


WANTED = bool(os.environ.get("EBBFLOW_PICTURES"))


TYPICAL_FOLDERS = """() => {
    for (const pre of document.querySelectorAll(".traceback")) {
        pre.textContent = pre.textContent
            .replaceAll(/"[^"]*\\/src\\/ebbflow\\//g, '"/opt/ebbflow/src/ebbflow/')
            .replaceAll(/"[^"]*\\/steps[.]py"/g, '"/srv/shop/steps.py"');
    }
}"""
"""Replaces this machine's folders in the tracebacks of a picture with typical ones."""


def take_picture(page: Page, name: str, width: int = 1280) -> None:
    """Writes a picture for the guides, if pictures are wanted."""
    if not WANTED:
        return
    expect(page.locator(".notice")).to_have_count(0, timeout=SOON)
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(1_500)
    page.evaluate(TYPICAL_FOLDERS)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.set_viewport_size({"width": 1280, "height": 800})


@contextmanager
def resized(page: Page, width: int) -> Iterator[None]:
    """Shows the same view in a window of another width."""
    page.set_viewport_size({"width": width, "height": 800})
    yield
    page.set_viewport_size({"width": 1280, "height": 800})


def fact(page: Page, name: str) -> Locator:
    return page.locator(f'.panel [data-fact="{name}"]')


def read_number(text: str | None) -> float:
    match = re.search(r"[\d,.]+", text or "")
    return float(match.group().replace(",", "")) if match else 0.0


def test_the_graph_shows_the_flow_of_messages(page: Page) -> None:
    for vertex in ("in", "enrich", "price", "store", "notify"):
        expect(node(page, vertex)).to_be_visible(timeout=SOON)
    expect(page.locator(".heart")).to_have_text("live", timeout=SOON)
    expect(node(page, "store")).to_have_class(re.compile(r"\bok\b"), timeout=SOON)
    expect(node(page, "store").locator(".rates")).not_to_have_text("0/s", timeout=SOON)
    expect(page.locator(".edge.flow").first).to_be_attached()


def test_numbers_update_by_themselves(page: Page) -> None:
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
    expect(group).to_contain_text("steps.py:27")
    expect(group.locator("pre")).to_contain_text('order["name"] = CUSTOMERS[order["customer"]]')


def test_a_parked_message_shows_its_due_time(page: Page) -> None:
    visit(page, "vertices", "enrich")
    parked = fact(page, "parked")
    # Shortly before midnight the text includes the day.
    due = re.compile(r"next due ([A-Z]\w+ \d+ )?\d\d:\d\d:\d\d, in \d+ min")
    expect(parked).to_contain_text(due, timeout=SOON)
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
    if WANTED:  # With some history the charts have something to show.
        page.wait_for_timeout(45_000)
    take_picture(page, "phone", width=390)
    visit(page, "vertices", "enrich")
    take_picture(page, "page")


def test_problems_use_the_full_width(page: Page) -> None:
    visit(page)
    problem = page.get_by_label("Problems").locator("li").first
    width = problem.bounding_box()["width"]
    for part in (".what", ".next"):
        assert problem.locator(part).bounding_box()["width"] > 0.9 * width


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_all_numbers_of_the_overview_fit(page: Page, width: int) -> None:
    visit(page)
    expect(page.locator(".vertices tbody tr").first).to_be_visible()
    with resized(page, width):
        page.locator(".vertices [data-name=pending]").first.evaluate(
            "cell => { cell.firstChild.textContent = '≈ 1,234,903'; }"
        )
        page.locator(".sums dd.number").nth(2).evaluate(
            "cell => { cell.firstChild.textContent = '1,234,903'; }"
        )
        assert find_cut_off(page, ".vertices th, .vertices td, .sums > div, .sums dd") == []
        assert find_overlaps(page, ".vertices tr, .sums > div") == []
        assert find_ragged(page, ".sums") == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_an_open_vertex_leaves_the_table_readable(page: Page, width: int) -> None:
    visit(page, "vertices", "enrich")
    expect(fact(page, "parked")).to_be_visible()
    with resized(page, width):
        assert find_cut_off(page, ".vertices th, .vertices td, .facts > div, .facts dd") == []
        assert find_cut_off(page, "main .scroll") == []
        assert find_ragged(page, ".sums, .facts") == []
        assert find_cut_off(page, ".sums > div, .sums dd, .sums dt, .letters .tools") == []


def test_a_vertex_shows_its_condition_once(page: Page) -> None:
    visit(page)
    row = page.locator(".vertices tbody tr", has_text="notify")
    expect(row).to_have_text(re.compile("^notify ?running(?!.*running)", re.DOTALL))


def test_pending_and_parked_have_separate_charts(page: Page) -> None:
    visit(page)
    charts = page.get_by_label("Charts over time")
    titles = ["Throughput", "Pending", "Parked", "Dead letters"]
    expect(charts.locator("figure h3")).to_have_text(titles)
    ranges = charts.get_by_role("group", name="Time shown").bounding_box()
    for figure in charts.locator("figure").all():
        assert figure.bounding_box()["y"] >= ranges["y"] + ranges["height"]


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (["letters"], "orders/letters"),
        (["dead-letters", "seven"], "orders/dead-letters/seven"),
        (["vertices", "stroe"], "stroe"),
    ],
)
def test_an_unknown_address_is_not_found(page: Page, parts: list[str], what: str) -> None:
    visit(page, *parts)
    missing = page.get_by_role("alert")
    expect(missing).to_contain_text("Not found")
    expect(missing).to_contain_text(what)
    expect(page.locator("nav [aria-current]")).to_have_count(0)
    missing.get_by_role("link", name="Dead letters").click()
    expect(page.get_by_label("Dead letters", exact=True).last).to_be_visible()
    expect(missing).to_have_count(0)


def test_the_list_shows_the_reason_of_a_nack_and_begins_with_the_newest(
    page: Page, orders: Orders
) -> None:
    visit(page, "dead-letters?reason=has%20no%20address&order=oldest")
    why = page.locator(".list td.words")

    def refresh() -> bool:
        page.get_by_role("button", name="Refresh").click()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        return why.count() > 0

    orders.wait_until(refresh)
    rule = "redelivered once, max_deliveries is 1"
    expect(why.first).to_have_text(f"order 27 has no address: {rule}")
    visit(page, "dead-letters")
    numbers = page.locator(".list .row")
    expect(why.filter(has_text="KeyError").first).to_be_visible()
    shown = [*map(int, numbers.all_text_contents())]
    assert shown == sorted(shown, reverse=True)
    page.get_by_role("combobox", name="Order").select_option("Oldest first")
    expect(numbers.first).to_have_text("1")
    assert "order=oldest" in page.url


def test_the_most_frequent_causes_add_up_and_link_to_their_dead_letters(page: Page) -> None:
    visit(page, "dead-letters")
    causes = page.get_by_label("What fails most")
    expect(causes).to_contain_text("KeyError: 'c-13'", timeout=SOON)
    counts, total = causes.evaluate("""section => [
        [...section.querySelectorAll("li .number")].map(count => count.innerText),
        section.querySelector(".counted").innerText,
    ]""")
    assert sum(map(read_number, counts)) == read_number(total)
    causes.get_by_role("link", name="KeyError: 'c-13'").click()
    expect(page.get_by_role("combobox", name="Vertex")).to_have_value("enrich")
    why = page.locator(".list td.words")
    expect(why.filter(has_not_text="KeyError: 'c-13'")).to_have_count(0)
    expect(why.first).to_be_visible()


def is_focused(row: Locator) -> bool:
    return bool(row.evaluate("row => row === document.activeElement"))


def test_dead_letters_can_be_browsed_with_the_keyboard(page: Page) -> None:
    visit(page, "dead-letters?vertex=enrich")
    rows = page.locator(".list .row")
    expect(rows.nth(2)).to_be_visible(timeout=SOON)
    search = page.locator("#search")
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("c-13")
    page.keyboard.press("Escape")
    expect(search).to_have_value("")
    expect(search).to_be_focused()
    page.keyboard.press("Escape")
    expect(search).not_to_be_focused()
    until(lambda: is_focused(rows.first) or page.keyboard.press("j"))  # the list may still change
    page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(search).to_have_value("")
    expect(rows.first).to_be_focused()
    page.keyboard.press("Enter")
    panel = page.locator(".panel.letter")
    expect(panel).to_have_accessible_name(f"Dead letter {rows.first.text_content()}")
    page.keyboard.press("j")
    expect(panel).to_have_accessible_name(f"Dead letter {rows.nth(1).text_content()}")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(rows.nth(1)).to_be_focused()


def test_a_click_on_a_row_opens_it_and_text_can_be_selected(page: Page) -> None:
    visit(page, "dead-letters?vertex=enrich")
    row = page.locator(".list tbody tr").nth(1)
    words = row.locator("td.words")
    box = words.bounding_box()
    page.mouse.move(box["x"] + 12, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    assert page.evaluate("getSelection().toString().trim()")
    panel = page.locator(".panel.letter")
    expect(panel).to_have_count(0)
    page.evaluate("getSelection().removeAllRanges()")
    row.locator("td").first.click(position={"x": 3, "y": 3})
    expect(panel).to_have_count(0)
    words.click()
    expect(panel).to_have_accessible_name(f"Dead letter {row.locator('.row').text_content()}")
    page.keyboard.press("Escape")


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_the_time_of_death_has_a_date_and_a_zone(page: Page, width: int) -> None:
    visit(page, "dead-letters?vertex=enrich")
    died = page.locator(".list tbody tr").first.locator("time")
    expect(died).to_have_text(re.compile(r"^[A-Z][a-z]{2} \d+ \d\d:\d\d:\d\d UTC([+-]\d+)?$"))
    with resized(page, width):
        assert find_cut_off(page, ".list td:has(time)") == []
        assert find_overlaps(page, ".list tr") == []


def test_a_dead_letter_is_opened_edited_replayed_and_arrives(page: Page, orders: Orders) -> None:
    visit(page, "dead-letters")
    page.locator("#search").fill('"number": 50,')
    rows = page.locator(".list tbody tr")
    expect(rows).to_have_count(1, timeout=SOON)
    rows.locator(".row").click()
    panel = page.locator(".panel.letter")
    expect(panel).to_contain_text("order 50 has a negative amount")
    expect(panel.locator("pre").first).to_contain_text('"amount": -1')
    page.get_by_role("button", name="Hex").click()
    expect(panel.locator("pre").first).to_contain_text("000000  7b 22")
    page.get_by_role("button", name="Edit and replay").click()
    value = page.get_by_label("Value", exact=True)
    value.fill(value.input_value().replace("-1", "12"))
    page.get_by_role("button", name="Replay edited").click()
    expect(page.locator(".notice")).to_contain_text("was sent back to store")
    orders.wait_until(lambda: bool(orders.stored(50)))
    assert [order["amount"] for order in orders.stored(50)] == [12]
    expect(rows).to_have_count(0, timeout=SOON)


def test_many_dead_letters_are_counted_before_they_are_replayed(page: Page, orders: Orders) -> None:
    visit(page, "dead-letters?vertex=enrich")
    row = page.locator(".list tbody tr").filter(has_text="KeyError").first
    expect(row).to_be_visible(timeout=SOON)
    before = row.locator(".row").text_content()
    if WANTED:
        row.locator(".row").click()
        expect(page.locator(".panel .traceback")).to_be_visible()
        take_picture(page, "letters")
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Replay matching…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(re.compile(r"\d+ dead letters? (is|are) matched by this filter"))
    dialog.get_by_role("button", name=re.compile(r"Replay \d+")).click()
    expect(page.locator(".notice").last).to_contain_text("sent back", timeout=SOON)
    expect(page.get_by_role("link", name=before or "", exact=True)).to_have_count(0)


def test_a_message_is_traced(page: Page) -> None:
    visit(page, "trace", "in-7")
    way = page.get_by_label("Path of in-7")
    expect(way).to_contain_text("parked", timeout=SOON)
    expect(way).to_contain_text("enrich")


def test_the_path_of_a_message_is_readable_on_a_phone(page: Page) -> None:
    message = "0f8fad5b-d9cb-469f-a165-70867728950e"
    step = {"message": message, "at": "2026-05-17T12:00:00Z", "reason": "not known yet"}
    ends = [("in", "done"), ("enrich-all-orders", "redelivered"), ("enrich", "dead_lettered")]
    path = {
        "now": [{"where": "dead letter", "message": message, "vertex": "enrich", "number": 12}],
        "steps": [step | {"vertex": name, "outcome": end, "delivery": 12} for name, end in ends],
    }
    page.route(f"**/trace/{message}", lambda route: route.fulfill(json=path))
    visit(page, "trace", message)
    expect(page.locator(".way li")).to_have_count(3)
    for width in (1280, 390):
        with resized(page, width):
            assert find_overlaps(page, ".way li, .places li") == []
            assert find_cut_off(page, ".way li > *, .places li > *") == []


def test_the_spec_is_shown(page: Page) -> None:
    visit(page, "spec")
    expect(page.locator(".spec pre")).to_contain_text("steps:enrich")


def test_a_vertex_is_paused_and_resumed(page: Page) -> None:
    visit(page, "vertices", "price")
    page.get_by_role("button", name="Pause price").click()
    expect(node(page, "price")).to_have_attribute("data-condition", "paused", timeout=SOON)
    waiting = page.locator('[data-sum="oldest waiting"]')
    expect(waiting).to_contain_text(re.compile(r"\d+ s.*at price", re.DOTALL), timeout=SOON)
    expect(fact(page, "oldest waiting")).to_contain_text(re.compile(r"\d+ s"))
    page.get_by_role("button", name="Resume price").click()
    expect(node(page, "price")).not_to_have_attribute("data-condition", "paused", timeout=SOON)
