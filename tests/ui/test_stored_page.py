"""The web UI at its limits, without a run: thirty vertices and a hundred thousand dead letters."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from ebbflow.nats.link import Link
from ebbflow.nats.publish import publish
from ebbflow.status.model import BackPressure, Concern, EdgeStatus, Parked, VertexStatus
from ebbflow.streams.names import Names
from tests.deadletters.written import LETTER
from tests.ui.browser import open_page
from tests.ui.shown import Shown
from tests.ui.ui_client import serve_ui

pytestmark = [pytest.mark.slow, pytest.mark.long]

LETTERS = 100_000
LAYERS = (2, 4, 5, 5, 5, 4, 3, 2)
CONDITIONS = ("running", "busy", "waiting", "restarting", "halted", "paused", "stuck")


def make_vertices() -> tuple[VertexStatus, ...]:
    """Thirty vertices in all conditions, with names and numbers of all lengths."""
    later = datetime.now(UTC) + timedelta(minutes=5)
    layers = [(layer, number) for layer, size in enumerate(LAYERS) for number in range(size)]
    vertices = []
    for at, (layer, number) in enumerate(layers):
        kind = "source" if layer == 0 else "sink" if layer == len(LAYERS) - 1 else "map"
        vertex = VertexStatus(
            name_of(layer, number),
            kind=kind,
            condition=CONDITIONS[at % 14] if at % 14 < len(CONDITIONS) else "running",
            rate_in=10.0 ** (at % 6),
            rate_out=10.0 ** (at % 6),
            pending=7 ** (at % 7),
            parked=Parked(at % 3 * 1240, later),
        )
        vertices.append(vertex)
    first = vertices[2]
    full = BackPressure(name_of(2, 0), datetime.now(UTC))
    return (*vertices[:2], replace(first, back_pressure=full), *vertices[3:])


def name_of(layer: int, number: int) -> str:
    return f"step-{layer}-{number}" + ("-of-all-orders" if number == 1 else "")


def make_edges() -> tuple[EdgeStatus, ...]:
    return tuple(
        EdgeStatus(name_of(layer, number % size), name_of(layer + 1, number), rate=1200.0)
        for layer, size in enumerate(LAYERS[:-1])
        for number in range(LAYERS[layer + 1])
    )


@pytest.fixture(scope="module")
def shown(link: Link) -> Iterator[Shown]:
    shown = Shown(link, Names("wide"))
    bury_many(shown)
    for number in range(3):
        shown.bury(id=f"other-{number}", vertex=name_of(7, 0))
    problem = Concern("error", name_of(1, 0), "it does not move", "Look at its errors.")
    shown.publish_status(vertices=make_vertices(), edges=make_edges(), problems=(problem,))
    ended = threading.Event()
    publisher = threading.Thread(target=keep_publishing, args=(shown, ended))
    publisher.start()
    yield shown
    ended.set()
    publisher.join()


def keep_publishing(shown: Shown, ended: threading.Event) -> None:
    """Publishes the state repeatedly, as a run does: a run that stops publishing counts as lost."""
    while not ended.wait(1):
        shown.publish_status()


def bury_many(shown: Shown) -> None:
    """Stores the dead letters without waiting for each."""
    vertex = name_of(3, 0)
    subject = shown.names.dead_letter_subject(vertex)
    common = replace(LETTER, vertex=vertex).to_headers()

    async def fill() -> None:
        client = shown.link.client
        for number in range(1, LETTERS + 1):
            headers = common | {"Ebbflow-Id": json.dumps(f"in-{number}")}
            value = b'{"order": %d}' % number
            if number % 2_000:
                await client.publish(subject, value, headers=headers)
            else:  # The server drops what it cannot keep up with, so wait for it now and then.
                await publish(client, subject, value, headers)

    shown.link.run(fill(), timeout=120)


@pytest.fixture(scope="module")
def address(link: Link, shown: Shown) -> Iterator[str]:
    with serve_ui(link) as ui:
        yield f"http://127.0.0.1:{ui.port}/#/{shown.name}"


@pytest.fixture(scope="module")
def page(browser: Browser, address: str) -> Iterator[Page]:
    with open_page(browser, address) as page:
        yield page


def visit(page: Page, address: str) -> None:
    page.evaluate("hash => { location.hash = hash }", address.partition("#")[2])


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_thirty_vertices_stay_readable(browser: Browser, address: str, width: int) -> None:
    size = {"width": width, "height": 800}
    # Without motion: vertices that move to new places may cross one another.
    with open_page(browser, address, viewport=size, reduced_motion="reduce") as page:
        expect(page.locator(".node")).to_have_count(30)
        assert not overlaps(page), "vertices overlap"
        assert not overflowing(page), "numbers overflow their vertex"
        if width >= 1000:
            spill = page.evaluate(
                "() => { const graph = document.querySelector('.graph');"
                " return graph.scrollWidth - graph.clientWidth }"
            )
            assert spill <= 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        bad = page.locator('.node[data-condition="halted"]').first
        expect(bad).to_have_class(re.compile("error"))
        expect(bad).to_contain_text("halted")
        expect(page.locator(".edge.full")).to_have_count(1)


def overlaps(page: Page) -> bool:
    return page.evaluate("""() => {
        const boxes = [...document.querySelectorAll('.node')].map(e => e.getBoundingClientRect());
        return boxes.some((a, i) => boxes.slice(i + 1).some(b =>
            a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
    }""")


def overflowing(page: Page) -> list[str]:
    return page.evaluate("""() => [...document.querySelectorAll('.node')]
        .filter(node => [...node.querySelectorAll('.figure, .rates, .full')].some(part =>
            part.getBoundingClientRect().right > node.getBoundingClientRect().right))
        .map(node => node.innerText)""")


def test_a_hundred_thousand_dead_letters_are_listed_page_by_page(page: Page, address: str) -> None:
    visit(page, f"{address}/dead-letters")
    expect(page.locator(".total")).to_have_text("100,003 stored")
    rows = page.locator(".list tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("other-2")
    page.get_by_role("button", name="Older").click()
    expect(rows.first).to_contain_text("in-99953")
    page.get_by_role("button", name="Newer").click()
    expect(rows.first).to_contain_text("other-2")
    page.get_by_role("combobox", name="Order").select_option("Oldest first")
    expect(rows.first).to_contain_text("in-1")
    page.get_by_role("button", name="Newer").click()
    expect(rows.first).to_contain_text("in-51")


def test_a_search_finds_the_last_of_100_000_dead_letters(page: Page, address: str) -> None:
    visit(page, f"{address}/dead-letters?text=%3A%2099999%7D")
    rows = page.locator(".list tbody tr")
    expect(rows).to_have_count(1, timeout=60_000)
    expect(rows).to_contain_text("in-99999")


def test_dead_letters_can_be_opened_and_closed_with_the_keyboard_alone(
    page: Page, address: str
) -> None:
    visit(page, f"{address}/dead-letters?order=oldest")
    expect(page.locator(".list .row").first).to_have_text("1")
    page.locator(".list .row").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Dead letter 2", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Dead letter 2", exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="2", exact=True)).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()


def test_a_purge_counts_first_and_requires_the_count_as_confirmation(
    page: Page, address: str
) -> None:
    visit(page, f"{address}/dead-letters?vertex={name_of(7, 0)}")
    rows = page.locator(".list tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Purge matching…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 dead letters are matched by this filter")
    confirm = dialog.get_by_role("button", name="Purge 3")
    expect(confirm).to_be_disabled()
    page.keyboard.press("Escape")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Purge matching…").click()
    dialog.get_by_label("Type 3 to confirm").fill("3")
    confirm.click()
    expect(rows).to_have_count(0)
    visit(page, f"{address}/dead-letters")
    expect(page.locator(".total")).to_have_text("100,000 stored")


def test_the_colour_scheme_follows_the_system_until_one_is_chosen(
    browser: Browser, address: str
) -> None:
    with open_page(browser, address, color_scheme="dark") as page:
        assert background(page) == "rgb(14, 19, 24)"
        switch = page.get_by_role("button", name=re.compile("Colours"))
        switch.click()
        expect(switch).to_have_accessible_name("Colours: Light. Change")
        assert background(page) == "rgb(244, 246, 248)"
        page.reload()
        assert background(page) == "rgb(244, 246, 248)"


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def test_a_missing_dead_letter_is_reported(page: Page, address: str) -> None:
    visit(page, f"{address}/dead-letters/{LETTERS + 1}")
    expect(page.get_by_role("alert")).to_contain_text("there is no dead letter 100001")
