"""Parked redeliveries that the server no longer moves are handled when a task starts."""

from __future__ import annotations

import time

import pytest

from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import NOTHING, Known, with_awaited
from ebbflow.engine.publications import PARKED_ON, REDELIVERED_BY, Publication, Stage
from ebbflow.engine.redelivery import due_time
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.stored import StoredMessage, read_subject
from ebbflow.streams import catalogue
from ebbflow.streams.overdue import PATIENCE, RedeliveryPlace, clear_overdue
from ebbflow.streams.publish_settlement import publish_settlement
from tests.waiting import until

LATER = 3_600_000


@pytest.fixture
def parked(link, names, ensure):
    """Parks a frame for each chunk; an hour later they would be overdue."""
    ensure(catalogue.redelivery_config(names, "v", 0))
    due = int(time.time() * 1000) + LATER
    frames = [
        Publication(
            *(Stage.REDELIVER, "v", 0, f"life:v:0:0-{chunk}:0-0:again:{chunk}", b"%d" % chunk),
            headers={REDELIVERED_BY: f"life:{chunk}"},
            due=due,
        )
        for chunk in (1, 2, 3)
    ]
    link.run(publish_settlement(link.client, names, Settlement(frames, Counts(), {})))
    return frames


def awaiting(*frames: Publication) -> Known:
    known = with_awaited(NOTHING, "life", 1, ())
    for frame in frames:
        chunk = int(frame.headers[REDELIVERED_BY].rpartition(":")[2])
        known = with_awaited(known, "life", chunk, [frame.token])
    return known


def read(link, names) -> list[StoredMessage]:
    return link.run(read_subject(link.client, names.redelivery("v", 0), ">"))


def clear(link, names, known: Known, chunks: int, late: float) -> tuple[int, int]:
    place = RedeliveryPlace(names, "v", 0, known, chunks)
    now = time.time() + LATER / 1000 + PATIENCE + late
    return link.run(clear_overdue(link.client, place, now))


@pytest.mark.guarantee("nothing-is-lost")
def test_overdue_frames_that_were_read_are_deleted_and_awaited_ones_are_moved(link, names, parked):
    assert clear(link, names, awaiting(parked[1]), chunks=3, late=5) == (2, 1)
    (moved,) = read(link, names)
    assert (moved.subject, moved.payload) == (names.due_subject("v", 0), b"2")
    assert moved.headers[PARKED_ON] == names.later_subject("v", 0, parked[1].token)
    assert moved.headers[REDELIVERED_BY] == "life:2"
    assert not [name for name in moved.headers if name in ("Nats-Schedule", "Nats-Rollup")]


@pytest.mark.guarantee("nothing-is-lost")
def test_an_overdue_frame_is_deleted_only_if_it_was_certainly_read(link, names, parked):
    """Later chunks may be of a task that has replaced this one; without knowledge, all are new."""
    assert clear(link, names, awaiting(), chunks=2, late=5) == (2, 1)
    assert [one.payload for one in read(link, names)] == [b"3"]


def test_frames_that_are_only_a_little_late_are_left_to_the_server(link, names, parked):
    assert clear(link, names, awaiting(), chunks=3, late=-5) == (0, 0)
    assert len(read(link, names)) == 3
    assert clear(link, names, NOTHING, chunks=3, late=5) == (0, 3)
    until(lambda: len(read(link, names)) == 3)
    assert all(PARKED_ON in one.headers for one in read(link, names))


@pytest.mark.guarantee("nothing-is-lost")
@pytest.mark.parametrize("years", [300, 10_000, 280_000])
def test_a_delay_beyond_the_times_that_the_server_supports_lasts_forever(
    link, names, ensure, years
):
    """The server immediately moves a message whose scheduled time its nanoseconds cannot hold."""
    ensure(catalogue.redelivery_config(names, "v", 0))
    now = int(time.time() * 1000)
    dues = {b"far": due_time(now, years * 365 * 86_400_000), b"soon": now + 1}
    frames = [
        Publication(Stage.REDELIVER, "v", 0, f"life:v:0:0-1:0-0:again:{name!r}", name, due=due)
        for name, due in dues.items()
    ]
    link.run(publish_settlement(link.client, names, Settlement(frames, Counts(), {})))
    due_subject = names.due_subject("v", 0)
    until(lambda: any(one.subject == due_subject for one in read(link, names)))
    assert {one.payload for one in read(link, names) if one.subject != due_subject} == {b"far"}
