"""The modules of the web UI that compute without drawing: layout, numbers, payloads and colours."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.ui.browser import STATIC, open_page, serve_files


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with open_page(browser) as page:
        serve_files(page)
        yield page


def call(page: Page, module: str, function: str, *arguments: Any) -> Any:
    """Calls a function of a module in the browser."""
    script = """async ([module, name, args]) => {
        const result = (await import(`/static/${module}.js`))[name](...args);
        return result?.nodes instanceof Map
            ? {...result, nodes: Object.fromEntries(result.nodes)} : result;
    }"""
    return page.evaluate(script, [module, function, list(arguments)])


SIZES = {"node": {"width": 140, "height": 60}, "gaps": {"layer": 56, "lane": 14}}


def make_graph(seed: int) -> tuple[list[str], list[dict[str, str]]]:
    """Thirty vertices with forward edges across up to three layers, and some backward edges."""
    chance = random.Random(seed)
    names = [f"v{number}" for number in range(30)]
    edges = [(chance.randrange(max(0, to - 6), to), to) for to in range(1, 30)]
    edges += [tuple(sorted(chance.sample(range(30), 2))) for _ in range(8)]
    edges += [(chance.randrange(15, 30), chance.randrange(15)) for _ in range(2)] + [(4, 4)]
    return names, [{"frm": names[frm], "to": names[to]} for frm, to in dict.fromkeys(edges)]


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("room", [900, 1e9])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_thirty_vertices_do_not_overlap(page: Page, seed: int, room: float, down: bool) -> None:
    names, edges = make_graph(seed)
    sizes = {**SIZES, "room": room, "down": down}
    layout = call(page, "layout", "place", names, edges, sizes)
    assert layout["nodes"].keys() == {*names}
    for left, right in itertools.combinations(layout["nodes"].values(), 2):
        apart = abs(left["x"] - right["x"]) >= 140 or abs(left["y"] - right["y"]) >= 60
        assert apart, (left, right)
    assert len(layout["edges"]) == len(edges)
    assert (layout["height"] if down else layout["width"]) <= max(room, 140 * 30 * 2)


def test_an_edge_across_layers_passes_next_to_the_vertices_between(page: Page) -> None:
    edges = [{"frm": a, "to": b} for a, b in ("ab", "bc", "ac")]
    layout = call(page, "layout", "place", ["a", "b", "c"], edges, SIZES)
    between = layout["edges"][2]["points"][1:3]
    top = layout["nodes"]["b"]["y"]
    assert all(not top <= y <= top + 60 for _, y in between)


def test_a_long_chain_continues_in_the_next_line(page: Page) -> None:
    names = [f"v{number}" for number in range(30)]
    edges = [{"frm": a, "to": b} for a, b in itertools.pairwise(names)]
    layout = call(page, "layout", "place", names, edges, {**SIZES, "room": 900})
    assert layout["width"] <= 900
    assert layout["bands"] == 8
    assert layout["nodes"]["v0"]["x"] == layout["nodes"]["v4"]["x"]


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("brief", 9_999, "9,999"),
        ("brief", 99_991, "100k"),
        ("brief", 12_345, "12.3k"),
        ("tiny", 999, "999"),
        ("tiny", 9_999, "10k"),
        ("tiny", 1_240, "1.2k"),
        ("tiny", 99_991, "100k"),
        ("tiny", 999_999, "1.0M"),
        ("rate", 0.44, "0.4"),
        ("rate", 56_100, "56.1k"),
        ("duration", 0.0031, "3.1 ms"),
        ("duration", 250, "4 min 10 s"),
        ("duration", 3_599.7, "1 h"),
        ("duration", 90_000, "1 d 1 h"),
    ],
)
def test_numbers_are_short_and_right(page: Page, function: str, value: float, text: str) -> None:
    assert call(page, "format", function, value) == text


@pytest.mark.parametrize(
    ("due", "words"),
    [
        ("2026-05-17T12:09:00Z", "next in 9 min"),
        ("2026-05-17T11:59:58Z", "due now"),
    ],
)
def test_a_due_time_is_shown_relative_to_now_and_a_past_one_as_due_now(
    page: Page, due: str, words: str
) -> None:
    noon = 1_779_019_200_000
    assert call(page, "format", "due", due, noon) == words


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        ({"reason": "ValueError", "error": "ValueError: no customer"}, "ValueError: no customer"),
        ({"reason": "7 is unknown", "error": "nacked twice"}, "7 is unknown: nacked twice"),
        ({"reason": "sink failure", "error": None}, "sink failure"),
    ],
)
def test_reason_and_error_are_both_shown(page: Page, letter: dict[str, str], words: str) -> None:
    assert call(page, "format", "why", letter) == words


DRAW_A_CHART = """async () => {
    const { html, render } = await import("/static/dom.js");
    const { Chart } = await import("/static/chart.js");
    const times = [1, 2, 3, 4].map(second => second * 1000);
    const series = [{
        name: "pending", tone: "first", values: [3, 4, 9000, 5],
        estimates: [false, false, true, true],
    }];
    render(html`<${Chart} title="Pending" times=${times} series=${series}
        format=${String} range=${4000} />`, document.body);
    const steps = kind => document.querySelector(`path.line${kind}`).getAttribute("d");
    return [steps(":not(.estimate)"), steps(".estimate"),
        document.querySelector(".legend").innerText];
}"""


def test_a_chart_marks_estimates(page: Page) -> None:
    exact, estimated, legend = page.evaluate(DRAW_A_CHART)
    assert (exact.count("L"), estimated.count("L")) == (1, 2)
    assert "pending ≈ 5" in legend
    assert "estimated" in legend


def test_json_is_indented_and_compacted_without_touching_numbers(page: Page) -> None:
    text = '{"id":12345678901234567890,"price":1.10,"tags":[],"text":"a, {b}: \\"c\\""}'
    shown = call(page, "payload", "asJson", {"text": text})
    assert '"id": 12345678901234567890,' in shown
    assert '"price": 1.10,' in shown
    assert json.loads(shown) == json.loads(text)
    assert shown.count("\n") == 5
    assert call(page, "payload", "compact", shown) == text
    assert call(page, "payload", "asJson", {"text": "{not json"}) is None


def test_bytes_are_shown_in_hex(page: Page) -> None:
    shown = call(page, "payload", "asHex", {"base64": "AP9BQg=="})
    assert shown == f"000000  {'00 ff 41 42':23}  {'':23}  ..AB"


def test_written_headers_are_read_back_unchanged(page: Page) -> None:
    headers = {"traceparent": "00-4b-00-01", "when": "12:30"}
    text = call(page, "payload", "writeHeaders", headers)
    assert call(page, "payload", "readHeaders", text) == headers


TEXT_ON_BACKGROUND = [
    *itertools.product(["text", "muted", "accent", "ok", "warn", "error"], ["surface", "back"]),
    *itertools.product(["text", "muted", "accent"], ["sunken"]),
    *itertools.product(["text", "error", "muted"], ["error-soft"]),
    *itertools.product(["text", "warn", "muted"], ["warn-soft"]),
    *itertools.product(["text", "accent"], ["accent-soft"]),
    *itertools.product(["on-tone"], ["accent", "error"]),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_a_readable_contrast(scheme: str) -> None:
    css = (STATIC / "theme.css").read_text()
    blocks = css.split("@media") if scheme == "light" else css.split('[data-scheme="dark"]')
    block = blocks[0] if scheme == "light" else blocks[-1]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for text, background in TEXT_ON_BACKGROUND:
        light, dark = sorted(map(luminance, (colours[text], colours[background])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, background)


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_system_and_the_chosen_dark_scheme_are_the_same() -> None:
    css = (STATIC / "theme.css").read_text()
    blocks = [re.findall(r"--[\w-]+: [^;]+", block) for block in css.split("color-scheme: dark;")]
    assert blocks[1] == blocks[2]


def test_no_file_refers_to_the_network() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix in {".js", ".css", ".html"}:
            addresses = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
            assert {*addresses} <= {"http://www.w3.org/2000/svg", *W3}, path


W3 = {
    "http://www.w3.org/1998/Math/MathML",
    "http://www.w3.org/1999/xhtml",
}
