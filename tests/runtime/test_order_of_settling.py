"""Why the order in the loop is needed: each test changes it and finds a loss or a duplicate.

The same runs of the unchanged loop lose nothing and duplicate nothing.
"""

from collections.abc import Iterator
from random import Random

import pytest

from ebbflow.engine.account import ChunkRecord
from ebbflow.engine.settlement import Settlement
from ebbflow.runtime.loop import ChunkLoop
from ebbflow.runtime.settling import ChunkEnd, Confirmed, Settling
from tests.runtime.crash_model import Chances, Rules, UserCode
from tests.runtime.crash_run import inlet_of, run_once, run_to_the_end
from tests.runtime.memory_server import Server
from tests.runtime.source_model import (
    LIMIT,
    KeepingTask,
    Limited,
    Outside,
    PulledTask,
    SourceServer,
    run_source,
)

ROWS = 5


def crashes() -> Iterator[Chances]:
    """A crash at each of the first steps, of tasks that cut chunks differently."""
    for seed in range(4):
        for crash_after in range(1, 12):
            yield Chances(Random(seed), crash_after)


def most_outputs() -> int:
    """How many outputs there are of messages that are forwarded once, at worst."""
    numbers = []
    for crash in crashes():
        server = Server(inlet_of(ROWS))
        run_to_the_end(server, UserCode(()), [crash])
        numbers.append(len(server.outputs))
    return max(numbers)


def lost() -> set[str]:
    """The messages of a buffer that are lost in any of the runs."""
    missing: set[str] = set()
    for crash in crashes():
        missing |= run_to_the_end(Server(inlet_of(ROWS)), UserCode(()), [crash])
    return missing


def lost_of_source() -> set[str]:
    """The messages of a source that are lost in any of the runs."""
    missing: set[str] = set()
    for crash in crashes():
        server = SourceServer([], outside=Outside.of(ROWS))
        missing |= run_source(server, UserCode(()), [crash])
    return missing


def fewest_counted() -> int:
    """How many messages of a source are counted as read, at worst."""
    numbers = []
    for crash in crashes():
        server = SourceServer([], outside=Outside.of(ROWS))
        run_source(server, UserCode(()), [crash], KeepingTask)
        numbers.append(server.position.counts.read)
    return min(numbers)


def most_deliveries() -> int:
    """How often a message that is always nacked has been delivered, as its handler sees it."""
    server, code = SourceServer([], outside=Outside.of(1)), Limited((), ["m0"])
    run_once(PulledTask, server, code, Rules(), Chances(Random(1), stop_after=60))
    return max(deliveries for _, deliveries in code.calls)


def test_the_shipped_order_loses_nothing_and_duplicates_nothing():
    assert (most_outputs(), lost(), lost_of_source()) == (ROWS, set(), set())
    assert (fewest_counted(), most_deliveries()) == (ROWS, LIMIT + 1)


def test_publications_before_the_intent_are_stored_twice(monkeypatch):
    async def publish_first(self, position, settlement, before):
        await self._journal.without_stored(settlement, position.repeated)
        discarded = await self._journal.publish(settlement, position.done.redelivery)
        await self._journal.write(position)
        await self._notify_source(before)
        return Confirmed(settlement.all_counts(discarded))

    monkeypatch.setattr(Settling, "_carry_out", publish_first)
    assert most_outputs() > ROWS


def test_a_begun_chunk_that_is_not_replayed_first_is_stored_twice(monkeypatch):
    monkeypatch.setattr(ChunkLoop, "_replay", lambda self: False)
    assert most_outputs() > ROWS


def test_a_chunk_that_is_recorded_before_it_is_confirmed_is_lost(monkeypatch):
    def not_confirm(self) -> None:
        self._in_flight = None

    monkeypatch.setattr(Settling, "confirm", not_confirm)
    assert lost()


def test_notifying_a_source_before_the_chunk_is_confirmed_loses_messages(monkeypatch):
    begin = Settling.begin

    def notify_first(self, settlement: Settlement, chunk: ChunkEnd, record: ChunkRecord) -> None:
        if chunk.back is not None:
            self._intake.inlet.acknowledge(chunk.back)
        begin(self, settlement, chunk, record)

    monkeypatch.setattr(Settling, "begin", notify_first)
    assert lost_of_source()


def test_notifying_a_source_before_the_record_leaves_messages_uncounted(monkeypatch):
    """It does not redeliver those messages, and the begun chunk is replayed without them."""

    async def notify_first(self, position, before):
        await self._notify_source(before)
        await self._journal.write(position)

    monkeypatch.setattr(Settling, "_write_down", notify_first)
    assert fewest_counted() < ROWS


def test_without_histories_a_nacked_message_is_redelivered_forever(monkeypatch):
    async def forget_histories(self, position, settlement, before):
        await self._journal.write(position)
        await self._notify_source(before)
        await self._journal.without_stored(settlement, position.repeated)
        done = position.done.redelivery
        return Confirmed(settlement.all_counts(await self._journal.publish(settlement, done)))

    monkeypatch.setattr(Settling, "_carry_out", forget_histories)
    assert most_deliveries() == 1


def test_a_frame_that_is_deleted_before_it_is_recorded_is_lost(monkeypatch):
    def forget_too_much(self, position, at_once=False) -> None:
        self._intake.forget(self._intake.end)

    monkeypatch.setattr(Settling, "_forget", forget_too_much)
    with pytest.raises(AssertionError, match="not recorded as done"):
        run_to_the_end(Server(inlet_of(ROWS, ROWS)), UserCode(()))
