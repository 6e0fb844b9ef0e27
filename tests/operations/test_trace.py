"""Where a message is now and its outcomes so far, for every place that it can be in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbflow.domain.outcome import DeadLetter, Redeliver
from ebbflow.engine.position import Mark
from ebbflow.nats import api
from ebbflow.operations.trace import MessageTrace, trace_on_link
from ebbflow.operations.trace_search import Family, Search
from ebbflow.spark.audit.files import BatchRows, TableFiles, write_files
from ebbflow.status.model import WorkInFlight
from tests.streams.audited import Audited

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)


@pytest.fixture
def audited(link, names, tmp_path: Path) -> Audited:
    return Audited(link, names, str(tmp_path))


def trace(audited: Audited, message: str) -> MessageTrace:
    return trace_on_link(audited.link, audited.names, message)


def now(audited: Audited, message: str) -> list[str]:
    return [f"{place.message} {place.words}" for place in trace(audited, message).now]


def write_table(audited: Audited, folder: Path) -> None:
    """Acts as the writer of the table."""
    stream = audited.stream()
    batch = audited.link.run(stream.begin_batch())
    rows = BatchRows(audited.link.server, audited.names.pipeline, batch)
    files = TableFiles(folder)
    files.keep(batch.name, write_files(rows, str(files.begin(batch.name))))
    audited.link.run(stream.finish_batch())


def test_a_message_waits_in_the_buffer_of_a_vertex_that_never_started(audited: Audited):
    audited.put("work", "in-1", "in-2", "in-12")
    assert now(audited, "in-1") == ["in-1 waits in the buffer of work, next"]
    assert now(audited, "in-12") == ["in-12 waits in the buffer of work, 2 messages ahead of it"], (
        "not in-1, which has the same prefix"
    )


def test_a_done_message_is_nowhere_a_read_one_in_flight_and_an_unread_one_waiting(audited: Audited):
    audited.put("work", "a", "b", "c")
    audited.take("work", Mark(0, 1), Mark(0, 2))
    assert now(audited, "a") == []
    assert now(audited, "b") == ["b is in flight at work"]
    assert now(audited, "c") == ["c waits in the buffer of work, 1 message ahead of it"]


def test_a_message_in_user_code_is_in_flight_since_the_time_that_its_task_reports(audited: Audited):
    audited.put("work", "a", "b")
    streams = audited.link.run(api.list_streams(audited.link.client, "ebb_"))

    def places(message: str) -> list[str]:
        taken = {"work": WorkInFlight(1, NOON)}
        search = Search(audited.link, audited.names, streams, Family(message), taken)
        return [place.words for place in audited.link.run(search.look())]

    assert places("a") == ["is in flight at work since 2026-05-17 12:00:00 UTC"]
    assert places("b") == ["waits in the buffer of work, 1 message ahead of it"]


def test_a_nacked_message_is_due_for_redelivery_or_parked_until_its_due_time(audited: Audited):
    outcomes = {0: Redeliver(0, "busy", 0), 1: Redeliver(3_600_000, "later", 0)}
    audited.settle("work", "a", "b", outcomes=outcomes)
    (again,) = trace(audited, "a").now
    assert (again.where, again.why) == ("redelivery", "busy")
    (parked,) = trace(audited, "b").now
    assert (parked.where, parked.why) == ("parked", "later")
    assert parked.due is not None
    assert timedelta() < parked.due - datetime.now(UTC) <= timedelta(hours=1, seconds=2)
    (step,) = trace(audited, "b").steps
    assert (step.outcome, step.final, step.due) == ("redelivered", False, parked.due)


def test_a_row_held_by_an_ordered_vertex_is_shown_with_its_due_time(audited: Audited):
    audited.put("work", "a", "b")
    audited.hold("work", round(NOON.timestamp() * 1000), "not yet")
    held = "a is held at work until 2026-05-17 12:00:00 UTC, and later messages wait: not yet"
    assert now(audited, "a") == [held]


def test_a_dead_letter_is_shown_with_its_number_and_cause(audited: Audited):
    audited.settle("work", "x", "a", outcomes={i: DeadLetter("no", "Bad: 1") for i in range(2)})
    assert now(audited, "a") == ["a is dead letter 2 of work: no; Bad: 1"]


def test_past_steps_are_read_from_the_table_and_newer_ones_from_the_stream(
    audited: Audited, tmp_path: Path
):
    audited.settle("in", "in-7", "in-8", at=NOON)
    busy = {0: Redeliver(0, "busy", 0)}
    audited.settle("work", "in-7", outcomes=busy, at=NOON + timedelta(seconds=1))
    write_table(audited, tmp_path)
    audited.settle("work", "in-7", deliveries=[2], at=NOON + timedelta(seconds=2))
    audited.settle("out", "in-7/work", at=NOON + timedelta(seconds=3))
    found = trace(audited, "in-7")
    assert found.kept
    assert [(s.vertex, s.message, s.delivery, s.outcome, s.sent_to) for s in found.steps] == [
        ("in", "in-7", 1, "done", ("work",)),
        ("work", "in-7", 1, "redelivered", ()),
        ("work", "in-7", 2, "done", ("out",)),
        ("out", "in-7/work", 1, "done", ()),
    ]
    assert [step.vertex for step in trace(audited, "in-7/work").steps] == [
        *("in", "work", "work", "out")
    ], "the steps of its parent belong to its past"
    assert trace(audited, "in-7/work").to_json()["steps"][-1]["at"] == "2026-05-17T12:00:03+00:00"


def test_a_reported_step_that_was_not_recorded_is_not_shown(audited: Audited):
    audited.settle("in", "a", record=False)
    assert trace(audited, "a").steps == ()


def test_without_a_table_the_trace_shows_where_the_message_is_and_what_to_add(
    link, names, tmp_path
):
    audited = Audited(link, names, str(tmp_path), audit=False)
    audited.settle("in", "a")
    found = trace(audited, "a")
    assert [place.words for place in found.now] == ["waits in the buffer of work, next"]
    assert not found.kept
    (note,) = found.notes
    assert "audit: {options: {path: FOLDER}}" in note
    assert not trace(audited, "other").is_known


def test_a_missing_table_is_reported_and_steps_in_the_stream_are_still_found(link, names, tmp_path):
    audited = Audited(link, names, str(tmp_path / "elsewhere"))
    audited.settle("in", "a")
    found = trace(audited, "a")
    assert [step.vertex for step in found.steps] == ["in"]
    assert "cannot be read here: There is no folder" in found.notes[0]
