"""Lines of a run: time, level, vertex, text; nothing is repeated; JSON says the same."""

import io
import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from ebbflow.domain.outcome import Counts
from ebbflow.engine.outage import Waiting
from ebbflow.status.model import BackPressure, Cause
from ebbflow.status.terminal.lines import JsonLines, PlainLines
from ebbflow.streams.logs import LogEntry
from ebbflow.usercode.printing import Printed
from tests.status.terminal.samples import NOON, error, pipeline, troubled, vertex
from tests.waiting import let_time_pass


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def moment(self) -> datetime:
        return NOON + timedelta(seconds=self.now - 100.0)


class Plain:
    """Lines written to memory, with a clock that only the test advances."""

    def __init__(self, kind: type[PlainLines] = PlainLines, draining: bool = False) -> None:
        self.out, self.err, self.clock = io.StringIO(), io.StringIO(), Clock()
        self.lines = kind(
            self.out, self.err, draining=draining, clock=self.clock, now=self.clock.moment
        )

    @property
    def reported(self) -> list[str]:
        """The lines without the time."""
        return [line[20:] for line in self.err.getvalue().splitlines()]

    @property
    def objects(self) -> list[dict]:
        return [json.loads(line) for line in self.err.getvalue().splitlines()]


@pytest.fixture
def plain() -> Plain:
    return Plain()


def test_lines_contain_time_level_vertex_and_rate(plain):
    plain.lines.stage("starting Spark")
    plain.clock.now += 2.5
    plain.lines.look(pipeline(vertex("in", 4, rate_in=1234.5, pending=7), vertex("out")))

    here = NOON.astimezone()
    assert plain.err.getvalue().splitlines() == [
        f"{here:%Y-%m-%d %H:%M:%S} INFO    starting Spark",
        f"{here + timedelta(seconds=2.5):%Y-%m-%d %H:%M:%S} INFO    "
        "in: 1,234/s read=4 done=4 waiting=7",
    ]


def test_messages_and_prints_go_to_standard_output_and_the_rest_to_standard_error(plain):
    plain.lines.line("(out) [bold]as it is\x1b[0m")
    plain.lines.log(LogEntry(NOON, "m", 0, Printed("one\ntwo")))
    plain.lines.log(LogEntry(NOON, "m", 0, Printed("bad\nworse", "log", "error", "shop")))
    plain.lines.log(LogEntry(NOON, "m", 0, Printed("on standard error", "error")))

    assert plain.out.getvalue() == "(out) [bold]as it is\x1b[0m\n(m) one\n(m) two\n"
    assert plain.reported == ["ERROR   m: bad", "ERROR   m: worse", "INFO    m: on standard error"]


def test_changed_counts_are_reported_at_most_every_ten_seconds(plain):
    for second in range(30):
        plain.lines.look(pipeline(vertex("in", min(second, 14))))
        plain.clock.now += 1
    assert plain.reported == [
        "INFO    in: 0/s read=2 done=2",
        "INFO    in: 0/s read=12 done=12",
        "INFO    in: 0/s read=14 done=14",
    ]


def test_a_restart_is_reported_at_once_with_its_line_and_so_is_the_recovery(plain):
    failing = vertex(
        restarts=1, failure="KeyError: 'a'", errors=(error("KeyError", "'a'", "steps.py:6"),)
    )
    for status in (failing, failing, vertex(restarts=1)):
        plain.lines.look(pipeline(status))
    plain.lines.look(pipeline(vertex(restarts=2, failure="OSError: full")))
    step = "Correct the error at steps.py:6 and start the pipeline again; nothing is lost."
    assert plain.reported == [
        f"ERROR   in: restarting (restart 1): KeyError: 'a' → {step}",
        "INFO    in: running again",
        "ERROR   in: restarting (restart 2): OSError: full → "
        "Correct the error and start the pipeline again; nothing is lost.",
    ]


def test_a_source_that_fails_without_a_vertex_restart_is_reported_once_per_reason(plain):
    for failure in ("no file", "no file", "no table"):
        plain.lines.look(pipeline(vertex(failure=failure)))
    assert [line.partition(" →")[0] for line in plain.reported] == [
        "ERROR   in: restarting: no file",
        "ERROR   in: restarting: no table",
    ]


def test_a_lasting_problem_is_reported_less_and_less_often(plain):
    for second in range(100):
        waiting = Waiting("orders-db", float(second), 1.0)
        plain.lines.look(pipeline(vertex("db", waiting=waiting, failure="orders-db")))
        plain.clock.now += 1
    times = [line.partition("orders-db for ")[2].partition(";")[0] for line in plain.reported]
    assert times == ["less than 1 s", "10 s", "30 s", "1 min 10 s"]


def test_an_error_is_reported_when_new_and_each_time_its_count_grows_tenfold(plain):
    for count in (1, 2, 9, 10, 12, 100):
        group = error("ValueError", "not seven\nmore", "steps.py:3", count)
        plain.lines.look(pipeline(vertex(errors=(group,))))
    assert plain.reported == [
        "WARNING in: ValueError: not seven (steps.py:3)",
        "WARNING in: ValueError: not seven (steps.py:3), 10 times",
        "WARNING in: ValueError: not seven (steps.py:3), 100 times",
    ]


def test_errors_at_the_same_line_are_reported_together_whatever_their_text(plain):
    groups = ()
    for number in range(30):
        groups = (error("ValueError", f"not a number: in-{number}", "steps.py:19"), *groups)
        plain.lines.look(pipeline(vertex(errors=groups[:20])))
    assert plain.reported == [
        "WARNING in: ValueError: not a number: in-0 (steps.py:19)",
        "WARNING in: ValueError: not a number: in-9 (steps.py:19), 10 times",
    ]


def test_a_new_nack_reason_is_reported_once(plain):
    for _ in range(2):
        plain.lines.look(pipeline(vertex(nack_reasons=(Cause("not\nyet", 1),))))
    assert plain.reported == ["INFO    in: redelivered: not\\nyet"]


def test_similar_nack_reasons_share_a_line_until_they_are_ten_times_as_many(plain):
    for customers in (1, 2, 9, 12, 998):
        reasons = tuple(Cause(f"customer x{n} is not known", 1) for n in range(customers))
        plain.lines.look(pipeline(vertex("m", nack_reasons=reasons)))
    assert plain.reported == [
        "INFO    m: redelivered: customer x0 is not known",
        "INFO    m: redelivered: customer x0 is not known (12 times)",
        "INFO    m: redelivered: customer x0 is not known (998 times)",
    ]


def test_a_long_call_is_reported_once_and_again_when_it_has_lasted_twice_as_long(plain):
    for seconds in (12.0, 13.0, 24.5, 30.0, None, 11.0):
        plain.lines.look(pipeline(vertex("m", in_call=seconds)))
    assert plain.reported == [f"WARNING m: in one call for {seconds} s" for seconds in (12, 24, 11)]


def test_a_full_buffer_is_reported_once(plain):
    for pressure in (None, BackPressure("out", NOON), BackPressure("out", NOON)):
        plain.lines.look(pipeline(vertex("m", back_pressure=pressure)))
    assert plain.reported == ["WARNING m: the buffer of out is full; waits for room"]


def test_a_stalled_drain_reports_what_it_waits_for():
    plain = Plain(draining=True)
    for _ in range(60):
        plain.lines.look(troubled())
        plain.clock.now += 1
    waits = [line for line in plain.reported if "--drain" in line]
    assert len(waits) == 3
    assert waits[0].startswith("INFO    --drain waits for look: 1 parked until ")
    assert waits[0].endswith(
        "in 7 min (waits for the moon) | slow: 4 waiting; in one call for 1 min 3 s | "
        "opens: never opened: KeyError: 'password' (steps.py:6)"
    )


def test_json_lines_report_the_same_events_with_their_details():
    plain = Plain(JsonLines)
    plain.lines.stage("running")
    plain.clock.now += 3
    plain.lines.look(
        pipeline(vertex("m", 5, rate_in=1.5, errors=(error("ValueError", "x", "s.py:3"),)))
    )
    stage, problem, progress = plain.objects

    assert stage == {
        "time": "2026-11-16T12:00:00.000+00:00",
        "level": "info",
        "event": "stage",
        "message": "running",
    }
    assert (problem["event"], problem["level"], problem["vertex"], problem["where"]) == (
        ("error", "warning", "m", "s.py:3")
    )
    assert (progress["event"], progress["read"], progress["rate_in"]) == ("progress", 5, 1.5)


def test_json_lines_are_objects_on_both_streams():
    plain = Plain(JsonLines)
    plain.lines.line("(out) id=1\n(out) id=2")
    plain.lines.log(LogEntry(NOON, "m", 1, Printed("hello")))
    plain.lines.log(LogEntry(NOON, "m", 1, Printed("careful", "log", "warning", "shop")))
    first, _, hello = [json.loads(line) for line in plain.out.getvalue().splitlines()]
    (log,) = plain.objects

    assert (first["event"], first["message"]) == ("message", "(out) id=1")
    assert (hello["event"], hello["vertex"], hello["partition"]) == ("print", "m", 1)
    assert (log["event"], log["level"], log["logger"]) == ("log", "warning", "shop")
    assert datetime.fromisoformat(log["time"]).tzinfo == UTC


def test_a_run_is_interrupted_when_the_reader_of_its_output_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        lines = PlainLines(out, io.StringIO())
        with pytest.raises(KeyboardInterrupt):
            _print_and_wait(lines)
        lines.line("two")


def _print_and_wait(lines: PlainLines) -> None:
    lines.line("one")
    let_time_pass(5)


def test_zero_counts_are_not_reported(plain):
    plain.clock.now += 60
    plain.lines.look(pipeline(vertex("in"), vertex("out", counts=Counts())))
    assert plain.reported == []
