"""Redeliveries of a vertex that another vertex's task ran inline, on a real server.

The vertex's own task reads and deletes them, perhaps before the chunk they came from is replayed.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from ebbflow.domain.outcome import Counts, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import Mark, Span, known_of_redeliveries
from ebbflow.engine.publications import Chunk, Place, build_redeliveries
from ebbflow.engine.settlement import Settlement
from ebbflow.streams import catalogue
from ebbflow.streams.positions import PositionStore
from ebbflow.streams.publish_settlement import publish_settlement, without_stored
from ebbflow.streams.reader import FrameReader
from tests.waiting import until

PLACE = Place("b", 0, (), 1_000_000)
DELAYS = [None, 50]


def chunk(number: int) -> Settlement:
    """What the task a.0 publishes of the rows that b nacks of its chunk of that number."""
    ids = [f"m{number}/a", f"n{number}/a"]
    batch = frames.batch_of({"id": ids, "value": [b"", b""]}, 2)
    key = f"life:a:0:{number}-{number + 1}:0-0"
    own = Chunk(key, Rows(batch), writer="a.0", via="b")
    again = {n: Redeliver(delay or 0, "not yet", 0) for n, delay in enumerate(DELAYS)}
    publications = [*build_redeliveries(own, again, PLACE, datetime.now(UTC))]
    return Settlement(publications, Counts(), {})


class OtherTask:
    """The task of b: reads its redeliveries, records that and has them deleted."""

    def __init__(self, link, names):
        self.link, self.names = link, names
        self.store = PositionStore(link.client, names, "b", 0)
        self.position = link.run(self.store.claim())

    def read_all(self, frames_to_read: int) -> list[str]:
        stream, done = self.names.redelivery("b", 0), self.position.done
        subject, known = self.names.due_subject("b", 0), known_of_redeliveries(done.known)
        wake = threading.Event()
        reader = FrameReader(self.link, stream, subject, done.redelivery, wake, known)
        ids: list[str] = []

        def take() -> bool:
            ids.extend(i for b in reader.take(100) for i in b.column("id").to_pylist())
            return len(ids) >= frames_to_read

        until(take)
        end = Span(Mark(), reader.mark, reader.known)
        self.position = self.position.settled(end, Counts())
        self.link.run(self.store.write(self.position))
        reader.forget(end.redelivery)
        reader.close()
        return ids


@pytest.fixture
def task(link, names, ensure):
    ensure(catalogue.redelivery_config(names, "b", 0))
    ensure(catalogue.positions_config(names))
    return OtherTask(link, names)


def replayed(link, names, number: int) -> int:
    """How many redeliveries a replay of the chunk publishes."""
    left = link.run(without_stored(link.client, names, chunk(number), Mark()))
    return len(left.publications)


@pytest.mark.guarantee("at-least-once")
def test_a_replay_finds_redeliveries_that_another_task_has_read(link, names, task):
    assert replayed(link, names, 1) == 2, "nothing is stored yet"
    link.run(publish_settlement(link.client, names, chunk(1)))
    assert replayed(link, names, 1) == 0, "they are in the stream"
    assert sorted(task.read_all(2)) == ["m1/a", "n1/a"]
    assert replayed(link, names, 1) == 0, "they are in the record of their reader"


def test_a_reader_knows_the_last_chunk_of_a_writer_only(link, names, task):
    for number in (1, 2):
        link.run(publish_settlement(link.client, names, chunk(number)))
    assert len(task.read_all(4)) == 4
    assert replayed(link, names, 2) == 0
    assert replayed(link, names, 3) == 2
