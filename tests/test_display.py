import io
import os
import time
from dataclasses import replace

import pytest
from rich.console import Console

from ebbflow.display import LiveTable, PlainLines, Rates, result_table, state_of
from ebbflow.nats.publish import Tally
from ebbflow.outcome import Counts
from ebbflow.status.model import PipelineStatus, VertexStatus


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Plain:
    """Plain lines that are written to memory, at a time that only the test moves on."""

    def __init__(self) -> None:
        self.out, self.err, self.clock = io.StringIO(), io.StringIO(), Clock()
        self.lines = PlainLines(self.out, self.err, self.clock)

    @property
    def told(self) -> list[str]:
        return self.err.getvalue().splitlines()


def view(read: int = 0, restarts: int = 0, failure: str | None = None) -> VertexStatus:
    counts = Counts(read=read, done=read)
    return VertexStatus("v", counts=counts, restarts=restarts, failure=failure)


def seen(**vertices: VertexStatus) -> PipelineStatus:
    """A pipeline of these vertices; ``in_`` is one that is called in."""
    named = {name.removesuffix("_"): vertex for name, vertex in vertices.items()}
    return PipelineStatus(
        "p", vertices=tuple(replace(vertex, name=name) for name, vertex in named.items())
    )


def test_what_vertices_print_goes_to_standard_output_and_all_else_to_standard_error() -> None:
    plain = Plain()
    plain.lines.stage("starting Spark")
    plain.lines.line("[bold]as it is\x1b[0m")
    plain.clock.now += 2.5
    plain.lines.look(seen(in_=view(read=4), out=view()))
    assert plain.out.getvalue() == "[bold]as it is\x1b[0m\n"
    assert plain.told == ["    0.0 s  starting Spark", "    2.5 s  in: read=4 done=4"]


def test_counts_are_told_when_they_changed_and_not_more_often_than_every_two_seconds() -> None:
    plain = Plain()
    for read in (0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 5):
        plain.lines.look(seen(in_=view(read)))
        plain.clock.now += 0.5
    assert plain.told == ["    2.0 s  in: read=4 done=4", "    5.0 s  in: read=5 done=5"]


def test_a_restart_is_told_at_once_and_once() -> None:
    plain = Plain()
    for failure in ("KeyError: 'a'", "KeyError: 'a'", None):
        plain.lines.look(seen(in_=view(restarts=1, failure=failure)))
    plain.lines.look(seen(in_=view(restarts=2, failure="OSError: full")))
    assert plain.told == [
        "    0.0 s  in: restarting (restart 1): KeyError: 'a'",
        "    0.0 s  in: restarting (restart 2): OSError: full",
    ]


def test_what_is_told_about_the_run_is_above_the_table_until_something_else_is() -> None:
    screen = io.StringIO()
    table = LiveTable(Console(file=screen, force_terminal=True, width=100, color_system=None))
    table.stage("running")
    table.stage("the disk of /srv is full, with 48 KiB left")
    table.look(seen(in_=view(read=4)))
    table.close()
    assert "the disk of /srv is full, with 48 KiB left" in screen.getvalue()


def test_a_source_that_fails_without_its_vertex_is_told_for_each_new_reason() -> None:
    plain = Plain()
    for failure in ("no file", "no file", "no table", None, "no table"):
        plain.lines.look(seen(in_=view(failure=failure)))
    assert plain.told == [
        "    0.0 s  in: restarting: no file",
        "    0.0 s  in: restarting: no table",
        "    0.0 s  in: restarting: no table",
    ]


def test_the_run_is_interrupted_when_nobody_reads_its_lines_any_more() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        lines = PlainLines(out, io.StringIO())
        with pytest.raises(KeyboardInterrupt):
            _print_and_wait(lines)
        lines.line("two")


def _print_and_wait(lines: PlainLines) -> None:
    lines.line("one")
    time.sleep(5)


def test_the_state_of_a_vertex_is_one_line() -> None:
    assert state_of(view()) == "running"
    assert state_of(view(restarts=2)) == "running, 2 restarts"
    assert state_of(view(restarts=1, failure="a\nb")) == r"restarting (restart 1): a\nb"


def test_the_rate_is_that_of_the_last_three_seconds() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert rates.update("in", 100) == 0
    for read in (200, 300, 400):
        clock.now += 1
        rate = rates.update("in", read)
    assert rate == 100
    for _ in range(6):
        clock.now += 1
        rate = rates.update("in", 400)
    assert rate == 0


def test_counters_that_counted_nothing_have_no_column() -> None:
    screen = io.StringIO()
    counted = {"in": Counts(read=3, done=3, written=3), "out": Counts(read=3, dead_lettered=3)}
    Console(file=screen, width=80).print(result_table(counted))
    titles = [cell.strip() for cell in screen.getvalue().splitlines()[1].split("┃")[1:-1]]
    assert titles == ["vertex", "read", "written", "done", "dead letters"]


def test_a_new_nack_reason_is_told_once() -> None:
    plain = Plain()
    nacked = VertexStatus("v", nack_reason="not yet")
    plain.lines.look(seen(in_=nacked))
    plain.lines.look(seen(in_=nacked))
    assert plain.told == ["    0.0 s  in: redelivered: not yet"]


def test_the_table_shows_a_row_a_vertex_with_lines_above_it() -> None:
    screen = io.StringIO()
    table = LiveTable(Console(file=screen, force_terminal=True, width=140, color_system=None))
    table.stage("starting Spark")
    table.stage("running")
    nacked = VertexStatus("v", counts=Counts(read=1200, redelivered=3), nack_reason="not [yet]")
    table.look(seen(in_=view(5), enrich=nacked))
    table.line("[bold]printed")
    table.close()
    shown = screen.getvalue()
    assert shown.startswith("starting Spark …\n")
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│ enrich")]
    cells = [cell.strip() for cell in rows[-1]]
    assert cells == ["enrich", "1,200", "0", "0", "3", "0", "running; not [yet]"]
    assert "[bold]printed\n" in shown


def test_a_long_call_is_told_when_it_is_seen_and_when_it_is_twice_as_long() -> None:
    plain = Plain()
    for seconds in (12.0, 13.0, 24.5, 30.0, None, 11.0):
        plain.lines.look(seen(m=VertexStatus("m", in_call=seconds)))

    assert [line.partition("m: ")[2] for line in plain.told] == [
        f"running, in a call for {seconds} s" for seconds in (12, 24, 11)
    ]


def test_what_publishing_has_met_with_is_part_of_the_state():
    tally = Tally(attempts=500, no_responders=2, full=1200)

    assert state_of(VertexStatus("m", publishing=tally)) == (
        "running, 2 times without a stream, 1,200 times at a full buffer"
    )
