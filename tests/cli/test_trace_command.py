"""``ebbflow trace``: the path of a message or a request, wherever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app
from ebbflow.domain.outcome import DeadLetter
from ebbflow.engine.position import Mark
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names
from tests.connectors.serving.desk import Desk, at, row
from tests.streams.audited import Audited

Trace = Callable[..., Result]


@pytest.fixture
def desk(link: Link, names: Names, tmp_path: Path) -> Desk:
    return Desk(link, tmp_path, names)


@pytest.fixture
def trace(desk: Desk, state: Path) -> Trace:
    """``ebbflow trace`` on the test's own pipeline."""

    def invoke(*args: str, pipeline: str = desk.names.pipeline) -> Result:
        return CliRunner().invoke(app, ["trace", pipeline, *args, "--state", str(state)])

    return invoke


def test_trace_shows_the_path_of_a_message_and_where_it_is_now(
    link: Link, names: Names, state: Path, tmp_path: Path
) -> None:
    audited = Audited(link, names, str(tmp_path))
    audited.settle("in", "in-7", at=at(1))
    audited.settle("work", "in-7", outcomes={0: DeadLetter("no", "Bad: 1")}, at=at(2))
    command = ["trace", names.pipeline, "in-7", "--state", str(state)]
    result = CliRunner().invoke(app, command)
    assert result.stdout.splitlines()[:2] == [
        "message:   in-7",
        "now:       in-7 is dead letter 1 of work: no; Bad: 1",
    ]
    assert "2027-01-15 UTC" in result.stdout
    assert cells(result) == [
        ["08:00:01.000", "in", "in-7", "1", "done", ""],
        ["08:00:02.000", "work", "in-7", "1", "dead_lettered", "no; Bad: 1"],
    ]
    facts = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert facts["now"][0]["number"] == 1
    assert facts["request"] is None


def test_a_message_that_has_ended_is_not_in_flight(
    link: Link, names: Names, state: Path, tmp_path: Path
) -> None:
    Audited(link, names, str(tmp_path)).settle("out", "in-8", at=at(1))
    result = CliRunner().invoke(app, ["trace", names.pipeline, "in-8", "--state", str(state)])
    assert result.stdout.splitlines()[1] == ("now:       it has ended; nothing of it is in flight")


def cells(result: Result) -> list[list[str]]:
    lines = [line for line in result.stdout.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_trace_shows_the_path_of_a_request_while_it_is_open_and_after_its_end(
    desk: Desk, trace: Trace
) -> None:
    with desk.opened() as book:
        desk.submit(book, "r")
        assert "now:       r waits in the buffer of in, next" in trace("r").stdout

        desk.report("in", row("r", "done", "out:r/1", at=at(1)))
        desk.report("out", row("r/1", "redelivered", reason="busy", due=at(5), at=at(2)))
        desk.settle(Mark(1))
        result = trace("r")
        assert result.exit_code == 0, result.output + repr(result.exception)
        assert result.stdout.splitlines()[:4] == [
            "request:   r",
            "status:    in-progress",
            "accepted:  2027-01-15 08:00:01.000",
            "ended:     not yet",
        ]
        again = "busy; due 08:00:05.000"
        assert cells(result) == [
            ["08:00:01.000", "in", "r", "1", "done", ""],
            ["08:00:02.000", "out", "r/1", "1", "redelivered", again],
        ]

        dead = row("r/1", "dead_lettered", deliveries=2, reason="failures", error="No: 1", at=at(6))
        desk.report("out", dead)
        desk.wait(book, "r")
        desk.run(book._records.flush())
    result = trace("r")
    assert "status:    failed" in result.stdout
    assert "failure:   at out: failures: No: 1" in result.stdout
    facts = json.loads(trace("r", "--json").stdout)
    assert facts["request"]["failure"] == {"vertex": "out", "reason": "failures", "error": "No: 1"}
    assert [step["outcome"] for step in facts["steps"]] == ["done", "redelivered", "dead_lettered"]
    assert facts["steps"][1]["due"] == at(5).isoformat()


def test_a_request_is_found_before_its_record_is_written(desk: Desk, trace: Trace) -> None:
    with desk.opened() as book:
        desk.submit(book, "r")
        desk.run(book._trail.close())
        desk.serve("r", b"answer")
        assert "status:    completed" in trace("r").stdout
        assert "answers:   1" in trace("r").stdout


def test_an_unknown_message_is_reported_in_one_line(desk: Desk, trace: Trace, link: Link) -> None:
    with desk.opened():
        unknown = trace("other")
    assert unknown.exit_code == 3
    assert unknown.stderr.startswith(
        f"ebbflow: There is no message 'other' in {desk.names.pipeline} now"
    )
    assert "No pipeline 'nowhere' has run here" in trace("r", pipeline="nowhere").stderr
