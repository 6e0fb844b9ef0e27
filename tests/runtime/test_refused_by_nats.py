"""Tasks on a real server whose streams were edited so that they reject one message in 100.

The message is a dead letter that names the cause, its neighbours are done, and no task fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from random import Random
from typing import Any

import pytest

from ebbflow import Datum, Message, Nack, Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.domain.outcome import Counts
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.position import Mark, Position
from ebbflow.engine.publications import Publication, Stage
from ebbflow.engine.refused import REASON
from ebbflow.engine.settlement import Settlement
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_subject
from ebbflow.operations.sending import Sender, SentMessage
from ebbflow.runtime import provision
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.run_setup import store_spec
from ebbflow.spark.epoch import run_partition
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions
from ebbflow.streams.publish_settlement import NatsJournal
from tests.waiting import let_time_pass

ROWS, LARGE = 100, 42
SMALL_LIMIT = 20_000
VALUE = Random(1).randbytes(2 * SMALL_LIMIT)
_numbers = count()


class Killed(Exception):
    """The task was killed in the middle."""


class Task:
    """A map task and the sink behind it, on the server of the tests."""

    def __init__(self, link: Link, code: Callable[[Datum], Message]) -> None:
        name = f"refused-{next(_numbers)}"
        pipeline = (
            Pipeline(name, inline=False).source("in", Generator(messages=1)).map("work", code)
        )
        spec = pipeline.sink("out", Blackhole()).spec
        self.names = Names(name)
        self._link = link
        plans = make_plans(spec, link.server, link.client.max_payload, None)
        self._plans = {plan.vertex: plan for plan in plans}
        link.run(provision.provision(link, plans, 1))
        link.run(store_spec(link.client, self.names, spec))

    def edit(self, stream: str, **changes: Any) -> None:
        """An operator edits a stream."""
        info = self._link.run(api.call(self._link.client, f"STREAM.INFO.{stream}"))
        config = info["config"] | changes
        self._link.run(api.call(self._link.client, f"STREAM.UPDATE.{stream}", config))

    def send(self) -> None:
        """Sends the messages to the map, one of them large."""
        values = [VALUE if n == LARGE else b"%d" % n for n in range(ROWS)]
        messages = [SentMessage(value, f"m{n}") for n, value in enumerate(values)]
        list(Sender(self._link, self.names, "work").send(messages))

    def run(self, vertex: str = "work", seconds: float = 3.0) -> None:
        """Runs a task for an epoch."""
        run_partition([self._plans[vertex]], 0, seconds)

    def position(self, vertex: str = "work") -> Position:
        """The recorded position of the task."""
        return self._link.run(read_positions(self._link.client, self.names))[vertex, 0]

    def letters(self) -> list[Letter]:
        """The dead letters."""
        stream, subject = self.names.dead_letters, self.names.dead_letter_subject()
        stored = self._link.run(read_subject(self._link.client, stream, subject))
        return [Letter.from_message(one.payload, one.headers) for one in stored]

    def read_outputs(self) -> Counts:
        """Lets the sink read all outputs; returns its counts."""
        self.run("out")
        return self.position("out").counts


@pytest.fixture
def task(link: Link) -> Callable[[Callable[[Datum], Message]], Task]:
    def start(code: Callable[[Datum], Message]) -> Task:
        task = Task(link, code)
        task.send()
        return task

    return start


def forward(datum: Datum) -> Message:
    return Message(datum.value)


def nack_once(datum: Datum) -> Message:
    if datum.deliveries == 1:
        raise Nack(delay="10ms", reason="not yet")
    return Message(datum.value)


def check_letter(task: Task, stream: str) -> Letter:
    (letter,) = task.letters()
    assert (letter.id, letter.vertex, letter.reason) == (f"m{LARGE}", "work", REASON)
    assert letter.value == VALUE
    assert str(letter.error).startswith(
        f"the stream {stream} refused it: message size exceeds maximum allowed (10054)"
    )
    return letter


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_an_output_that_its_buffer_rejects_is_a_dead_letter(task):
    work = task(forward)
    buffer = work.names.buffer("out", 0)
    work.edit(buffer, max_msg_size=SMALL_LIMIT)
    work.run()
    check_letter(work, buffer)
    counts, rest = work.position().counts, ROWS - 1
    assert counts == Counts(read=ROWS, written=rest, done=rest, dead_lettered=1)
    assert not work.position().replays
    assert work.read_outputs() == Counts(read=rest, written=rest, done=rest)


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_redelivery_that_its_stream_rejects_is_a_dead_letter(task):
    work = task(nack_once)
    redelivery = work.names.redelivery("work", 0)
    work.edit(redelivery, max_msg_size=SMALL_LIMIT)
    work.run()
    letter = check_letter(work, redelivery)
    assert str(letter.error).endswith("to be redelivered: not yet")
    counts, rest = work.position().counts, ROWS - 1
    assert counts == Counts(ROWS + rest, rest, done=rest, redelivered=rest, dead_lettered=1)
    known = work.position().done.known
    assert [writer for writer in known if writer.startswith("awaited ")] == []
    assert work.read_outputs().done == rest


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("code", [forward, nack_once])
def test_a_replay_stores_neither_the_dead_letter_nor_a_piece_twice(task, monkeypatch, code):
    """Even if the server has forgotten all ids in the meantime."""
    work = task(code)
    names = work.names
    limited = names.buffer("out", 0) if code is forward else names.redelivery("work", 0)
    for stream in (names.buffer("out", 0), names.redelivery("work", 0), names.dead_letters):
        limit = SMALL_LIMIT if stream == limited else -1
        work.edit(stream, max_msg_size=limit, duplicate_window=100_000_000)
    publish = NatsJournal.publish

    async def killed_after_letters(
        self: NatsJournal, settlement: Settlement, done: Mark
    ) -> Collection[Publication]:
        stored = await publish(self, settlement, done)
        if settlement.of_stage(Stage.DEAD_LETTER):
            raise Killed
        return stored

    with monkeypatch.context() as patched:
        patched.setattr(NatsJournal, "publish", killed_after_letters)
        with pytest.raises(Killed):
            work.run()
    assert work.position().replays
    assert len(work.letters()) == 1
    let_time_pass(0.3)  # the server's window, and its timer

    work.run()
    assert len(work.letters()) == 1
    counts, rest = work.position().counts, ROWS - 1
    again = rest if code is nack_once else 0
    assert counts == Counts(ROWS + again, rest, done=rest, redelivered=again, dead_lettered=1)
    assert work.read_outputs().read == rest


def test_a_dead_letter_that_is_too_large_for_its_stream_is_cut(task):
    work = task(forward)
    work.edit(work.names.buffer("out", 0), max_msg_size=SMALL_LIMIT)
    work.edit(work.names.dead_letters, max_msg_size=SMALL_LIMIT)
    work.run()
    (letter,) = work.letters()
    assert (letter.id, letter.reason, letter.size) == (f"m{LARGE}", REASON, len(VALUE))
    assert 0 < len(letter.value) < SMALL_LIMIT
    assert VALUE.startswith(letter.value)
    assert work.position().counts.dead_lettered == 1
