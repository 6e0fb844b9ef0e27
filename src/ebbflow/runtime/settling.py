"""Settles the chunks of a task, in the one order that neither loses nor duplicates a message.

    intent → acks and nacks of the previous chunk to the source → histories → redeliveries, dead
    letters, answers, outputs, late publications of observers (trail, audit rows) → done

If a task stops in between, the next task finds the intent, cuts the same chunk and settles it
again. It recognises what is already stored by its id. The next chunk's intent also records that
this chunk is done. So one write serves both, and user code works on the next chunk while this one
is being published. A chunk that publishes nothing, or only answers, trail and audit rows, has no
intent: it waits to be recorded with the next ones.

The order is the guarantee. The comments in this module say which wrong edit loses a message and
which duplicates one. The crash tests run this module and fail when the order is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from ebbflow.domain.outcome import Counts, DeadLetter
from ebbflow.engine.account import ChunkObserver, ChunkRecord
from ebbflow.engine.inlet import Intake, SourceAcks
from ebbflow.engine.position import (
    ChunkCounts,
    Held,
    Mark,
    Position,
    Span,
    with_awaited,
    without_awaited,
)
from ebbflow.engine.publications import ChunkNumber, Publication
from ebbflow.engine.settlement import Settlement, unawaited
from ebbflow.runtime.ports import Clock, InFlight, Stopping, TaskJournal

_PURGE_EVERY = 0.25
# Seconds that a chunk waits to be recorded with the next one: usually, and at most.
_SOON, _LATE = 0.01, 0.25
# In a steady trickle, a chunk waits for the next one this many times the last gap.
_GAPS = 3
_LOOK_EVERY = 0.25
# The same after another loop of the task has worked, which may have made room.
_AT_ONCE = 0.001


class Unsettled(BaseException):
    """A stopping task gave up a chunk that could not be published; the next task replays it.

    Not an ``Exception``: user code did not raise it, and a stream map must not catch it.
    """


class RecordedState(NamedTuple):
    """The state of a task that is recorded with its position, under the names in ``Position``."""

    exhausted: bool
    halted: str | None
    paused: bool
    runs_inline: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The end of a chunk that is published or being published, and not yet recorded as done."""

    end: Span
    counts: ChunkCounts
    watermark: datetime | None
    held: Held | None = None
    back: SourceAcks | None = None
    chunks: int = 1

    def joined(self, chunk: ChunkEnd) -> ChunkEnd:
        """Returns the joint end of this chunk and the next one, which no source waits for."""
        assert chunk.back is None
        watermark, counts = chunk.watermark or self.watermark, self.counts + chunk.counts
        chunks = self.chunks + chunk.chunks
        return replace(chunk, counts=counts, watermark=watermark, back=self.back, chunks=chunks)


class Confirmed(NamedTuple):
    """The outcome of a published chunk: its counts, and what was not stored.

    ``unawaited`` are the redeliveries that were not stored. ``refused`` are the rows that became
    dead letters because the server refused their publications.
    """

    counts: ChunkCounts
    unawaited: Sequence[str] = ()
    refused: Mapping[int, DeadLetter] = MappingProxyType({})


class Settling:
    """The position of one task, and the chunk that it has in flight. Used by the task's thread.

    ``meanwhile`` is called repeatedly while the task waits for the server. It returns whether the
    task did something that may end the wait.
    """

    def __init__(
        self,
        journal: TaskJournal,
        intake: Intake,
        position: Position,
        stopping: Stopping,
        clock: Clock,
        meanwhile: Callable[[], bool],
        observers: Sequence[ChunkObserver] = (),
    ) -> None:
        self._journal = journal
        self._intake = intake
        self._stopping = stopping
        self._clock = clock
        self._meanwhile = meanwhile
        self._observers = observers
        self.position = position
        self._in_flight: InFlight[Confirmed] | None = None
        self._unawaited: Sequence[str] = ()
        self._timed: ChunkRecord | None = None
        self._unrecorded: ChunkEnd | None = None
        self._purged = self._begun = clock.monotonic()
        self._last, self._soon = -math.inf, _SOON

    # --- where the task is ----------------------------------------------------------------------

    @property
    def start(self) -> Span:
        """Where the next chunk begins."""
        return self._unrecorded.end if self._unrecorded else self.position.done

    @property
    def number(self) -> ChunkNumber:
        """The number of the next chunk, which is the same in a replay, and this task's claim."""
        unrecorded = self._unrecorded.chunks if self._unrecorded else 0
        return ChunkNumber(self.position.chunks + unrecorded + 1, self.position.epoch)

    @property
    def held(self) -> Held | None:
        """The row that an ordered vertex holds, as of the last chunk."""
        return self._unrecorded.held if self._unrecorded else self.position.held

    def held_for(self) -> float:
        """Returns the seconds until the held row may be tried again; 0 if there is none."""
        if (held := self.held) is None:
            return 0.0
        return held.due / 1000 - self._clock.now().timestamp()

    def record_soon(self) -> float:
        """Returns the seconds that a chunk may still wait to be recorded with the next one."""
        if self._unrecorded is None:
            return 0.0
        return self._begun + self._soon - self._clock.monotonic()

    # --- a chunk --------------------------------------------------------------------------------

    def skip_replay(self, end: Span) -> None:
        """Gives up the chunk that was begun: its source redelivers all its rows."""
        self.position = self.position.settled(end, Counts())

    def begin(self, settlement: Settlement, chunk: ChunkEnd, record: ChunkRecord) -> None:
        """Starts to settle a chunk once the previous one is confirmed; one write records both.

        Returns while the chunk is being published. A chunk that needs no intent, such as a sink's,
        waits a moment to be recorded with the next ones.
        """
        self._note_gap()
        chunk = self._await_redeliveries(chunk, settlement.awaited)
        if not settlement.needs_intent and chunk.back is None and self._may_join():
            before, counts = self._join(chunk)
            if settlement.publications:
                answering = self._answer(settlement, before, counts, record)
                self._in_flight = self._journal.submit(answering)
            else:
                record.end()
            return
        self._start(settlement, chunk.end, record)
        self._begun = self._clock.monotonic()
        self._unrecorded = self._without_unawaited(chunk)

    def _await_redeliveries(self, chunk: ChunkEnd, tokens: Sequence[str]) -> ChunkEnd:
        """Notes the frames that the chunk redelivers; returns the chunk's end with them."""
        # Noted before they are published, and in the same record as the end of the chunk: the
        # intake skips a frame that is not awaited. Leaving one out here loses its messages.
        lineage, number = self.position.lineage, self.number.number
        self._intake.await_redeliveries(lineage, number, tokens)
        known = with_awaited(chunk.end.known, lineage, number, tokens)
        if known is chunk.end.known:
            return chunk
        return replace(chunk, end=replace(chunk.end, known=known))

    def _without_unawaited(self, chunk: ChunkEnd) -> ChunkEnd:
        """Returns the end of a chunk without redeliveries that turned out not to be stored."""
        if not self._unawaited:
            return chunk
        known = without_awaited(chunk.end.known, self._unawaited)
        return replace(chunk, end=replace(chunk.end, known=known))

    def _note_gap(self) -> None:
        """Adapts the wait for the next chunk to the time since the last one."""
        # Recording a chunk by itself costs as much as settling it. A chunk that waits for its
        # record is confirmed, and is only replayed if the task is lost meanwhile.
        now = self._clock.monotonic()
        gap, self._last = now - self._last, now
        self._soon = max(_SOON, min(_LATE, _GAPS * gap)) if gap < _LATE else _SOON

    def _may_join(self) -> bool:
        """Whether the unrecorded chunks may wait longer."""
        return self._unrecorded is None or self.record_soon() > 0

    def _join(self, chunk: ChunkEnd) -> tuple[ChunkCounts, ChunkCounts]:
        """Adds a chunk to the unrecorded ones; returns the counts before and after that."""
        # Without an intent: no replay has to cut this chunk again (``Settlement.needs_intent``).
        # The chunk in flight is confirmed first, as in ``_start``: the record covers both.
        self.confirm()
        chunk, before = self._without_unawaited(chunk), self._unrecorded
        if before is None:
            self._begun = self._clock.monotonic()
            self._unrecorded = chunk
            return ChunkCounts(), chunk.counts
        self._unrecorded = before.joined(chunk)
        return before.counts, self._unrecorded.counts

    async def _answer(
        self,
        settlement: Settlement,
        before: ChunkCounts,
        counts: ChunkCounts,
        record: ChunkRecord,
    ) -> Confirmed:
        began = self._clock.monotonic()
        unstored = await self._publish(settlement, self.position)
        record.publish = self._clock.monotonic() - began
        record.end()
        return Confirmed(before + settlement.all_counts(unstored) if unstored else counts)

    def emit(self, part: Settlement, end: Span) -> Confirmed:
        """Publishes a part of the current chunk, up to ``end``; returns its outcome.

        The chunk stays begun and not done: after a crash it is replayed as a whole, and outputs
        that the same rows yield again are recognised as copies.
        """
        self._start(part, end)
        # Wait here: ``begin`` assumes that the previous chunk is in flight, and not a part.
        return self._wait()

    def _start(self, settlement: Settlement, end: Span, record: ChunkRecord | None = None) -> None:
        # Confirm first. The write below says that the previous chunk is done. If one of its
        # publications is unconfirmed, it would never be replayed, and its messages would be lost.
        self.confirm()
        before, self._unrecorded = self._unrecorded, None
        self.position = _with_end(self.position, before).intending(end, settlement.inline_paths())
        self._timed = record
        self._in_flight = self._journal.submit(self._carry_out(self.position, settlement, before))

    async def _carry_out(
        self, position: Position, settlement: Settlement, before: ChunkEnd | None
    ) -> Confirmed:
        """Settles one chunk. The order of these steps must not change."""
        # The intent before the first publication. The other way round, a crash leaves publications
        # without a record: the next task cuts other chunks, whose ids differ, and the same messages
        # are stored twice. A task that has been replaced also finds out here, from ``Fenced``,
        # before it has published anything.
        record, began = self._timed, self._clock.monotonic()
        await self._journal.write(position)
        recorded = self._clock.monotonic()
        # The source only after the record. If it is acknowledged before the chunk is confirmed, a
        # crash loses messages that exist nowhere else. If it is acknowledged before the record, it
        # does not redeliver them, and they are never counted. Not later either: publications may
        # wait long for room.
        await self._notify_source(before)
        # Histories before the chunk is done: if the source redelivers a nacked message whose
        # history is not stored, it counts as a first delivery and never reaches ``max_deliveries``.
        if settlement.histories is not None:
            await self._journal.write_histories(settlement.histories)
        unstored = await self._publish(settlement, position)
        if record is not None:
            record.settle, record.publish = recorded - began, self._clock.monotonic() - recorded
            record.end()
        counts = settlement.all_counts(unstored)
        if not unstored:
            return Confirmed(counts)
        return Confirmed(counts, unawaited(unstored), settlement.refused_rows(unstored))

    async def _publish(self, settlement: Settlement, position: Position) -> Collection[Publication]:
        done = position.done.redelivery
        return await publish_all_of(
            settlement, self._journal, done, position.repeated, self._observers
        )

    async def _notify_source(self, recorded: ChunkEnd | None) -> None:
        """Acknowledges and nacks the rows of a chunk that is recorded as done."""
        if recorded is not None and recorded.back is not None:
            self._intake.inlet.acknowledge(recorded.back)
            # After the record, too: until then a crash makes the source redeliver the messages,
            # and their deliveries must be counted on from the stored history.
            await self._journal.end_histories(recorded.back.ids)

    # --- its end --------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Waits until the chunk in flight is confirmed, if there is one."""
        if self._in_flight is None:
            return
        counts, self._unawaited, _ = self._wait()
        assert self._unrecorded is not None
        if counts is not self._unrecorded.counts:
            self._unrecorded = replace(self._unrecorded, counts=counts)
        if self._unawaited:
            # Or they would be awaited forever. The chunk that is about to begin lists them, too.
            self._intake.stop_awaiting(self._unawaited)
            self._unrecorded = self._without_unawaited(self._unrecorded)
        self._forget(self.position)

    def _wait(self) -> Confirmed:
        """Waits until the chunk in flight is confirmed; gives it up if a stop takes too long."""
        assert self._in_flight is not None
        patience = _LOOK_EVERY
        while True:
            try:
                confirmed = self._in_flight.result(patience)
            except TimeoutError:
                if not self._in_flight.done():
                    patience = _AT_ONCE if self._help() else _LOOK_EVERY
                    continue
                confirmed = self._in_flight.result()  # raises the error if it failed
            # Cleared only now: a failed chunk stays in flight, so that nothing is recorded over it
            # even if user code, in whose call a part was published, has swallowed the error.
            self._in_flight = None
            return confirmed

    def _help(self) -> bool:
        """Lets the task do other work; gives up the chunk in flight if the task has to stop."""
        assert self._in_flight is not None
        try:
            helped = self._meanwhile()
            if self._stopping.grace_is_over:
                raise Unsettled
        except Unsettled:
            # Neither confirmed nor recorded: the intent stays, and the chunk is replayed.
            self._in_flight.cancel()
            raise
        return helped

    def record(self, state: RecordedState) -> None:
        """Records that everything in flight is done, and the state of the task."""
        self.confirm()
        position = _with_end(self.position, self._unrecorded)
        position = replace(position, **state._asdict())
        position = self._without_copies(position)
        if position != self.position:
            self._journal.submit(self._write_down(position, self._unrecorded)).result()
            self.position, self._unrecorded = position, None
        self._forget(position, at_once=True)

    def is_recorded(self, state: RecordedState) -> bool:
        """Whether ``record`` would have nothing to write."""
        position = replace(self.position, **state._asdict())
        is_behind_copies = self._without_copies(position) != position
        return self._unrecorded is None and not is_behind_copies and position == self.position

    async def _write_down(self, position: Position, before: ChunkEnd | None) -> None:
        # In this order, as in ``_carry_out``: a message acknowledged first is never counted.
        await self._journal.write(position)
        await self._notify_source(before)

    def _without_copies(self, position: Position) -> Position:
        """Moves the position behind the copies at its end, if there is nothing else there.

        Only in the stream that has them: in the other one, rows that were taken and not settled
        would be lost. ``known`` stays as it is, since a copy adds nothing to it.
        """
        end, inlet, redeliveries = position.done, self._intake.inlet, self._intake.redeliveries
        if inlet.passed == end.inlet:
            end = replace(end, inlet=inlet.mark)
        if redeliveries.passed == end.redelivery:
            end = replace(end, redelivery=redeliveries.mark)
        return (
            position
            if end == position.done
            else position.settled(end, Counts(), held=position.held)
        )

    def _forget(self, position: Position, at_once: bool = False) -> None:
        """Deletes from the streams what is recorded as done."""
        # Never more: the streams hold the only copy of a chunk that is begun and not done.
        now = self._clock.monotonic()
        if at_once or now - self._purged > _PURGE_EVERY:
            self._purged = now
            self._intake.forget(position.done)


async def publish_all_of(
    settlement: Settlement,
    journal: TaskJournal,
    done: Mark,
    repeated: Mark | None,
    observers: Sequence[ChunkObserver],
) -> Collection[Publication]:
    """Publishes a settlement and amends it if needed; returns the publications not stored.

    ``done`` is how far the redeliveries are read, ``repeated`` the same if the chunk was begun
    before.
    """
    # The server recognises copies for two minutes only. A replay that does not look before it
    # publishes stores dead letters and redeliveries a second time.
    missing = await journal.without_stored(settlement, repeated)
    # Redeliveries, dead letters, answers, outputs, trail, audit rows: the order of ``Stage``.
    # Redeliveries are stored before outputs, and both before trail and audit rows report them.
    unstored = await journal.publish(missing, done)
    # Before the record: a row that the server refuses is lost without its dead letter, and the
    # record makes the audit rows valid that were published last.
    if (amended := settlement.amended(unstored, observers)) is not None:
        await journal.publish(await journal.without_stored(amended, repeated), done)
    return unstored


def _with_end(position: Position, chunk: ChunkEnd | None) -> Position:
    """The position after a chunk that is confirmed."""
    if chunk is None:
        return position
    return position.settled(
        chunk.end,
        chunk.counts.own,
        chunk.watermark,
        chunk.held,
        chunks=chunk.chunks,
        inline=chunk.counts.inline,
    )
