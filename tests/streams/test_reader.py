"""Reading frames: in order, exactly once, starting at any mark."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from functools import partial

import pytest

from ebbflow.domain.outcome import Counts, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import NOTHING, Known, Mark, known_of_redeliveries
from ebbflow.engine.publications import FROM, Chunk, Place, build_redeliveries, due_of
from ebbflow.engine.settlement import Settlement
from ebbflow.nats import api, pull
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.pull import LightConsumer, PullConsumer
from ebbflow.nats.stored import read_one
from ebbflow.streams import catalogue
from ebbflow.streams.publish_settlement import publish_settlement
from ebbflow.streams.reader import FrameReader
from tests.waiting import let_time_pass, until


@pytest.fixture
def buffer(link, names, ensure):
    """Publishes frames with that many rows each; row numbers continue."""
    ensure(catalogue.buffer_config(names, "v", 0, 10_000))
    made = 0

    def write(*sizes):
        nonlocal made
        for size in sizes:
            ids = [str(n) for n in range(made, made + size)]
            made += size
            batch = frames.batch_of({"id": ids, "value": [b"x"] * size}, size)
            subject = names.buffer_subject("v", 0)
            link.run(publish(link.client, subject, frames.encode(batch), retry=BUFFER))

    return write


@pytest.fixture
def reader(link, names):
    """Opens readers at a mark; they are closed at the end."""
    opened = []

    def start(mark=Mark()):  # noqa: B008
        opened.append(
            FrameReader(
                link, names.buffer("v", 0), names.buffer_subject("v", 0), mark, threading.Event()
            )
        )
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def ids(batches):
    return [row for batch in batches for row in batch.column("id").to_pylist()]


def take(reader, rows, seconds=120):
    """Takes rows until there are that many, waiting for arrivals."""
    found = []
    deadline = time.monotonic() + seconds
    while len(found) < rows and time.monotonic() < deadline:
        found += ids(reader.take(rows - len(found)))
        if len(found) < rows:
            reader._wake.wait(0.05)
            reader._wake.clear()
    return found


def test_many_small_frames_are_queued_at_once(link, names, buffer, reader):
    buffer(*[1] * 700)
    one = reader()

    take(one, 300)  # frames have been seen to be small
    deadline = time.monotonic() + 120
    while len(one._queue) < 400 and time.monotonic() < deadline:
        one._wake.wait(0.05)
        one._wake.clear()

    assert len(ids(one.take(500))) == 400


def test_rows_are_read_in_order_and_the_mark_advances_row_by_row(buffer, reader):
    buffer(3, 4)
    one = reader()

    assert take(one, 2) == ["0", "1"]
    assert one.mark == Mark(0, 2)
    assert take(one, 3) == ["2", "3", "4"]
    assert one.mark == Mark(1, 2)
    assert take(one, 2) == ["5", "6"]
    assert one.mark == Mark(2)


def test_reading_continues_in_the_middle_of_a_frame(buffer, reader):
    buffer(3, 4)

    assert take(reader(Mark(1, 2)), 2) == ["5", "6"]


def test_a_replay_reads_exactly_the_rows_up_to_its_mark(buffer, reader):
    buffer(5, 5, 5)
    one = reader(Mark(0, 3))

    assert ids(one.take_until(Mark(2, 1))) == [str(n) for n in range(3, 11)]
    assert one.mark == Mark(2, 1)
    assert take(one, 4) == ["11", "12", "13", "14"]


def test_more_frames_than_the_window_all_arrive(buffer, reader):
    one = reader()
    buffer(*[2] * 300)

    assert take(one, 600) == [str(n) for n in range(600)]


@pytest.mark.parametrize("rest", ["one by one", "for a replay"])
def test_more_frames_are_requested_however_they_are_taken(monkeypatch, buffer, reader, rest):
    """While the whole window is queued nothing is requested, and no arrival requests more."""
    monkeypatch.setattr(pull, "MOST_MESSAGES", pull._WINDOW)
    buffer(*[1] * 200)
    one = reader()
    deadline = time.monotonic() + 120
    while len(one._queue) < pull._WINDOW and time.monotonic() < deadline:
        one._wake.wait(0.05)
        one._wake.clear()

    if rest == "for a replay":
        assert len(ids(one.take_until(Mark(200), timeout=10))) == 200
        return
    taken = []
    while len(taken) < 200 and time.monotonic() < deadline:
        taken += ids(one.take_frame(10))
    assert len(taken) == 200


def test_done_frames_are_deleted_and_the_others_stay(link, names, buffer, reader):
    buffer(1, 1, 1)
    one = reader()
    take(one, 2)
    link.run(one._purge(one.mark.seq))

    assert link.run(api.read_state(link.client, names.buffer("v", 0))).messages == 1
    assert take(reader(one.mark), 1) == ["2"]


def test_a_reader_whose_consumer_vanished_continues_after_the_last_frame(link, buffer, reader):
    buffer(1, 1)
    one = reader()
    assert take(one, 2) == ["0", "1"]
    link.run(api.call(link.client, f"CONSUMER.DELETE.{one.stream}.{one._follower.consumer.name}"))
    buffer(1, 1)

    assert take(one, 2) == ["2", "3"]


def test_frames_that_a_consumer_delivers_again_are_taken_once(link, names, buffer, monkeypatch):
    """A server may begin earlier than requested, on a replica that lags behind."""
    make = LightConsumer.make

    async def make_early(self, client, subject, after, idle):
        return await make(self, client, subject, max(0, after - 2), idle)

    monkeypatch.setattr(LightConsumer, "make", make_early)
    buffer(1, 1, 1, 1, 1)
    wake = threading.Event()
    one = FrameReader(link, names.buffer("v", 0), names.buffer_subject("v", 0), Mark(2), wake)
    assert take(one, 3) == ["2", "3", "4"]
    link.run(api.call(link.client, f"CONSUMER.DELETE.{one.stream}.{one._follower.consumer.name}"))
    buffer(1, 1)

    assert take(one, 2) == ["5", "6"]
    assert take(one, 1, seconds=0.5) == []
    one.close()


@pytest.mark.parametrize("frames_after", [0, 1])
def test_a_lost_frame_is_requested_again(link, names, buffer, monkeypatch, frames_after):
    """The next frame reveals the gap, or else the heartbeat of the consumer does."""
    receive, lost = PullConsumer._receive, []

    def lose_the_first(self, parcel):
        if parcel.replies[0].startswith(b"$JS.ACK.") and not lost:
            lost.append(parcel)
            parcel = parcel.cut(1, len(parcel))
        if parcel:
            receive(self, parcel)

    monkeypatch.setattr(PullConsumer, "_receive", lose_the_first)
    wake = threading.Event()
    one = FrameReader(link, names.buffer("v", 0), names.buffer_subject("v", 0), Mark(), wake)
    buffer(*[1] * (1 + frames_after))

    assert take(one, 1 + frames_after) == [str(number) for number in range(1 + frames_after)]
    assert len(lost) == 1
    one.close()


class Writer:
    """Publishes frames of one writer to the buffer, each as part of a chunk."""

    def __init__(self, link, names):
        self._link = link
        self._names = names

    def write(self, chunk, *row_ids):
        batch = frames.batch_of({"id": row_ids, "value": [b"x"] * len(row_ids)}, len(row_ids))
        mark = frames.fingerprint(row_ids)
        msg_id = f"life:w:0:{chunk}-{chunk + 1}:0-0:v:{mark}"
        subject = self._names.buffer_subject("v", 0)
        sent = publish(
            self._link.client, subject, frames.encode(batch), {FROM: "w.0"}, msg_id=msg_id
        )
        assert not self._link.run(sent).duplicate
        let_time_pass(0.15)  # the server's window


@pytest.fixture
def writer(link, names, ensure):
    """Writes to a buffer that forgets every id before the next frame arrives."""
    ensure(catalogue.buffer_config(names, "v", 0, 10_000) | {"duplicate_window": 100_000_000})
    return Writer(link, names)


@pytest.fixture
def reader_with(link, names):
    opened = []

    def start(mark=Mark(), known=NOTHING):  # noqa: B008
        buffer, subject = names.buffer("v", 0), names.buffer_subject("v", 0)
        opened.append(FrameReader(link, buffer, subject, mark, threading.Event(), known))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.guarantee("at-least-once")
def test_frames_that_were_read_before_are_skipped(writer, reader_with):
    reader = reader_with()
    writer.write(1, "a", "b")
    writer.write(1, "a", "b")
    writer.write(1, "c")
    writer.write(2, "d")
    writer.write(1, "c")
    writer.write(1, "late", "and", "different")
    assert take(reader, 4) == ["a", "b", "c", "d"]
    assert take(reader, 1, seconds=0.5) == []
    assert (reader.mark, reader.passed) == (Mark(6), Mark(4))
    reader.forget(Mark(6))
    assert reader.passed is None

    another = reader_with(Mark(4), reader.known)
    writer.write(3, "e")
    assert take(another, 1) == ["e"], "it knows what the first one knew"


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("behind", [("c",), ("d",), ("c", "d")], ids=["copy", "new", "both"])
def test_a_replay_ends_where_the_first_attempt_ended_whatever_follows(writer, reader_with, behind):
    """If it included copies that arrived later, it would be another chunk with other ids."""
    reader = reader_with()
    writer.write(1, "a", "b")
    writer.write(1, "c")
    writer.write(1, "c")
    assert take(reader, 3) == ["a", "b", "c"]
    assert take(reader, 1, seconds=0.5) == []
    assert reader.mark == Mark(3), "behind the copy"

    for one in behind:
        writer.write(1, one)
    again = reader_with()
    until(lambda: len(again._queue) == 3 + len(behind))
    taken = again.take_until(Mark(3))
    assert [batch.num_rows for batch in taken] == [2, 1]
    assert (again.mark, again.known) == (reader.mark, reader.known)
    assert take(again, 1, seconds=0.5) == [one for one in behind if one == "d"]


def test_a_partly_read_frame_is_not_a_copy_of_itself(writer, reader_with):
    reader = reader_with()
    writer.write(1, "a", "b", "c")
    first = until(lambda: reader.take(2))
    assert ids(first) == ["a", "b"]
    assert reader.known == NOTHING

    another = reader_with(reader.mark, reader.known)
    assert take(another, 1) == ["c"]
    (piece,) = reader.take(1)
    assert "w.0" in reader.known
    reader.give_back(piece, 0)
    assert (reader.mark, reader.known) == (Mark(0, 2), NOTHING)
    assert take(reader, 1) == ["c"]


def test_the_rest_of_a_frame_keeps_its_own_origin(link, names, ensure, reader):
    """The watermark of the frame behind it is ahead of these rows."""
    ensure(catalogue.buffer_config(names, "v", 0, 10))
    subject = names.buffer_subject("v", 0)
    for writer in ("in.0", "in.1"):
        batch = frames.batch_of({"id": ["a", "b"], "value": [b"x"] * 2}, 2)
        link.run(publish(link.client, subject, frames.encode(batch), {FROM: writer}, retry=BUFFER))
    reading = reader()
    assert take(reading, 1) == ["a"]
    rest, origins = [], []
    while len(rest) < 3:
        rest += ids(reading.take(10))
        origins += [writer for writer, _ in reading.origins]
        reading._wake.wait(0.05)

    assert rest == ["b", "a", "b"]
    assert origins == ["in.0", "in.1"]


def test_a_redelivery_that_the_server_has_moved_twice_is_read_once(link, names, ensure):
    ensure(catalogue.redelivery_config(names, "v", 0))
    stream, due = names.redelivery("v", 0), names.due_subject("v", 0)

    def is_stored(number: int) -> bool:
        return link.run(read_one(link.client, stream, seq=number)) is not None

    def move(*parked: str) -> None:
        """Parks frames and waits until the server has moved them; the same one may be repeated."""
        for token in parked:
            batch = frames.batch_of({"id": [token], "value": [b"x"]}, 1)
            schedule = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": due}
            subject = names.later_subject("v", 0, token)
            parking = publish(link.client, subject, frames.encode(batch), schedule, retry=BUFFER)
            parked_at = link.run(parking).seq
            until(partial(is_stored, parked_at + 1))

    def start(mark: Mark, known: Known) -> FrameReader:
        return FrameReader(link, stream, due, mark, threading.Event(), known)

    move("a", "b", "b", "c")
    first = start(Mark(), NOTHING)
    assert take(first, 3) == ["a", "b", "c"]
    assert first.mark == Mark(8), "each was parked before it was moved"
    first.close()
    move("c", "d", "d")
    second = start(first.mark, known_of_redeliveries(first.known))
    assert take(second, 1) == ["d"]
    assert take(second, 1, seconds=1) == []
    assert (second.mark, second.passed) == (Mark(14), Mark(12)), "it moves behind copies"
    second.close()


def test_redeliveries_of_a_vertex_that_ran_inline_arrive_with_the_time_they_are_due(
    link, names, buffer, reader
):
    batch = frames.batch_of({"id": ["m/a", "n/a"], "value": [b"", b""]}, 2)
    chunk = Chunk("life:a:0:1-2:0-0", Rows(batch), writer="a.0", via="v")
    again = {0: Redeliver(0, "not yet", 0), 1: Redeliver(60_000, "not yet", 0)}
    place, now = Place("v", 0, (), 1_000_000), datetime.now(UTC)
    handed_over = Settlement([*build_redeliveries(chunk, again, place, now)], Counts(), {})

    link.run(publish_settlement(link.client, names, handed_over))
    buffer(1)
    read, taken = reader(), []
    until(lambda: len(taken.extend(read.take(100)) or taken) == 3)

    assert ids(taken) == ["m/a", "n/a", "0"]
    assert [row for piece in taken for row in piece.column("deliveries").to_pylist()] == [2, 2, 1]
    at_once, later, usual = (due_of(piece) for piece in taken)
    assert (at_once, usual) == (0, None)
    assert abs(later - now.timestamp() * 1000 - 60_000) < 1_000
