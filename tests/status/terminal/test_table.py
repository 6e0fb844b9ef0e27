"""The live table keeps names and numbers whole at 80 columns; errors are listed below it."""

from __future__ import annotations

import io
import re
import typing

import pytest
from rich.console import Console

from ebbflow.domain.outcome import Counts
from ebbflow.status.model import Condition, VertexStatus
from ebbflow.status.terminal.table import LiveTable, draw_status, result_table
from ebbflow.streams.logs import LogEntry
from ebbflow.usercode.printing import Printed
from tests.status.terminal.samples import LONG, NOON, pipeline, troubled, vertex


def screen(width: int, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )


def drawn(status, width: int = 80, height: int = 24, **options) -> list[str]:
    console = screen(width, height)
    console.print(draw_status(status, console, **options))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cells(lines: list[str], name: str) -> list[str]:
    (row,) = [line for line in lines if line.split()[:1] == [name]]
    return row.split()


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_error_does_not_cut_names_and_numbers(width):
    busy = vertex("enrich", 1_234_567, rate_in=121_000.4, pending=65_432, kind="map")
    failing = vertex("a-long-name-of-a-sink", failure=LONG, restarts=12, kind="sink")
    lines = drawn(pipeline(vertex("in", 2_345_678, kind="source"), busy, failing), width)

    assert lines[0].split()[:5] == ["vertex", "state", "rate/s", "read", "waiting"]
    assert cells(lines, "enrich")[:5] == ["enrich", "running", "121,000", "1,234,567", "65,432"]
    assert cells(lines, "a-long-name-of-a-sink")[1] == "restarting"
    assert all(len(line) <= width for line in lines)
    below = " ".join(lines[5:])
    assert "restarting (restart 12): SparkRuntimeException: [CANNOT_PARSE_JSON_FIELD]" in below


def test_columns_that_do_not_fit_are_left_out_rather_than_cut():
    narrow, wide = drawn(troubled(), 50), drawn(troubled(), 120)

    assert narrow[0].split() == ["vertex", "state", "read", "waiting", "parked", "dead"]
    assert {"done", "written", "redelivered", "rate/s"} <= set(wide[0].split())
    assert cells(narrow, "look") == ["look", "running", "11", "0", "1", "1"]


def test_the_table_shows_stuck_vertices_parked_messages_and_vertices_that_never_opened():
    lines = drawn(troubled(), 80, 40)
    text = re.sub(r"\s+", " ", " ".join(lines))

    assert cells(lines, "slow")[:4] == ["slow", "stuck", "0", "0"]
    assert cells(lines, "opens")[1] == "restarting"
    assert "opens: restarting (restart 7): KeyError: 'password' → Correct the error" in text
    assert "at steps.py:6" in text
    assert "slow: stuck, in a call for 1 min 3 s" in text
    assert "look: 1 parked until" in text
    assert "in 7 min (waits for the moon)" in text
    assert "look: 1 dead letter: AttributeError" in text


def test_a_drain_shows_what_it_waits_for():
    text = re.sub(r"\s+", " ", " ".join(drawn(troubled(), 120, 40, draining=True)))

    assert "--drain waits for look (1), slow (4), opens slow:" in text
    assert drawn(pipeline(vertex("in", exhausted=True)), draining=True)[-1].split()[0] == "in"


def test_a_long_error_is_cut_before_the_advice_that_follows_it():
    status = pipeline(vertex("out", failure=f"{LONG} (store.py:6)", restarts=1))
    text = re.sub(r"\s+", " ", " ".join(drawn(status, 80, 40)))

    assert re.search(r"… → Correct the error[^…]*\.", text), text


@pytest.mark.parametrize("height", [12, 16, 24])
def test_the_table_fits_the_height_of_the_screen(height):
    status = troubled()
    failing = [vertex(f"v{number}", failure=LONG, restarts=1) for number in range(3)]
    both = pipeline(*status.vertices, *failing, links={"ui": "http://127.0.0.1:8900"})
    lines = drawn(both, 80, height, title="running", draining=True)

    assert len(lines) <= height
    assert lines[-1] == "web UI: http://127.0.0.1:8900"
    assert any(re.fullmatch(r"… and \d+ more", line) for line in lines)


def test_a_table_without_room_for_all_vertices_shows_those_in_trouble():
    calm = [vertex(f"v{number}", 5) for number in range(40)]
    lines = drawn(pipeline(*calm, vertex("bad", failure="no")), 80, 20, title="running")

    assert len(lines) <= 20
    assert "bad" in [line.split()[0] for line in lines if line]
    assert any(re.fullmatch(r"… and \d+ more vertices", line) for line in lines)


def test_large_numbers_and_long_names_are_shortened_readably():
    lines = drawn(pipeline(vertex("x" * 40, 123_456_789), vertex("y", 1, pending_exact=False)))

    assert cells(lines, "xxxxxxxxxxx…xxxxxxxxxxxx")[3] == "123.5M"
    assert "~0" in cells(lines, "y")


def test_the_output_of_a_run_is_shown_above_the_table():
    console = screen(100)
    table = LiveTable(console)
    table.stage("starting Spark")
    table.stage("running")
    table.look(pipeline(vertex("in", 5)))
    table.line("(out) id=in-1")
    table.log(LogEntry(NOON, "enrich", 0, Printed("[bold]two\nlines")))
    table.log(LogEntry(NOON, "enrich", 0, Printed("careful", "log", "warning", "shop")))
    table.stage("the disk of /srv is full, with 48 KiB left")
    table.look(pipeline(vertex("in", 7)))
    table.close()
    shown = console.file.getvalue()

    assert shown.startswith("starting Spark …\n")
    for line in ("(out) id=in-1", "(enrich) [bold]two", "(enrich) lines"):
        assert f"{line}\n" in shown
    assert "(enrich) WARNING careful\n" in shown
    assert "the disk of /srv is full, with 48 KiB left" in shown


def test_counters_at_zero_have_no_column_in_the_result():
    counted = {"in": Counts(read=3, done=3, written=3), "out": Counts(read=3, dead_lettered=3)}
    console = screen(80)
    console.print(result_table(counted, 80))

    titles = re.split(r"\s{2,}", console.file.getvalue().splitlines()[0].strip())
    assert titles == ["vertex", "read", "written", "done", "dead letters"]


def test_every_condition_has_a_colour():
    every = typing.get_args(Condition)
    lines = drawn(pipeline(*(VertexStatus(name, condition=name) for name in every)), height=40)

    assert [line.split()[0] for line in lines[2:12]] == list(every)
