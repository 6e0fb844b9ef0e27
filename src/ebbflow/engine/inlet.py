"""The streams of rows that a vertex task reads, and the intake that takes chunks from them.

An ``Inlet`` is a buffer, a generator or a source; the stream of redeliveries is also one. All
inlets have the same interface, with defaults that do nothing, and the task never asks for the kind
of an inlet. An inlet guarantees that its rows can be read again after a crash: by ``take_until``,
exactly as they were cut, or because the source redelivers rows that were not acknowledged. Rows are
acknowledged only after they are recorded as done.

``Watermark`` is the time up to which all messages have been read, according to their writers.

An ``Intake`` takes rows from the inlet, from the redeliveries, or from both. In an ordered vertex a
row that must be redelivered blocks its partition until it is processed. No row overtakes it, not
even across a restart: the position includes how often it was delivered and when it is due, and is
exact to the row. Such a vertex takes one frame at a time, and nothing while a row is held. While a
system is unavailable, a probe is a single row, alternately a new row and a redelivered one: bad
messages at the head of one stream cannot hide that the system is back.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from ebbflow.domain.message import NackOptions
from ebbflow.domain.outcome import Counts, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.account import HeldRow
from ebbflow.engine.frames import Rows
from ebbflow.engine.outage import Waiting
from ebbflow.engine.position import NOTHING, Held, Known, Mark, Span, with_awaited, without_awaited
from ebbflow.engine.publications import due_of, redelivered_rows
from ebbflow.engine.redelivery import due_time
from ebbflow.engine.source_columns import NO_OFFSETS, OFFSETS
from ebbflow.engine.verdict import Verdict

Origin = tuple[str | None, datetime | None]
"""The task that wrote a frame, and its watermark then."""

_PAUSED_FOR = 1.0
_HELD_ROW = Counts(read=1, redelivered=1)
_STATE = ("deliveries", "failures", "retries", "nack_reason")

NEVER = 3600.0
"""Seconds between looks at an inlet that wakes its task by itself."""


NACKS = pa.schema(
    [
        pa.field("offset", OFFSETS, nullable=False),
        ("delay", pa.int64()),
        ("max_deliveries", pa.int64()),
        ("reason", pa.string()),
    ]
)
"""Rows that a source is to redeliver: their offsets, and the options of their nacks."""

NO_NACKS = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in NACKS.types], schema=NACKS)


@dataclass(frozen=True, slots=True)
class SourceAcks:
    """The acks and nacks of a chunk's rows, for the source that they came from.

    ``acks`` are offsets, ``nacks`` are rows of ``NACKS``, and ``ids`` are the messages that are
    acknowledged.
    """

    acks: pa.BinaryArray
    nacks: pa.RecordBatch
    ids: pa.StringArray

    def __len__(self) -> int:
        return len(self.acks) + int(self.nacks.num_rows)

    @classmethod
    def join(cls, several: Sequence[SourceAcks]) -> SourceAcks:
        """Returns the acks and nacks of several chunks together."""
        return cls(
            pa.concat_arrays([ends.acks for ends in several]),
            pa.concat_batches([ends.nacks for ends in several]),
            pa.concat_arrays([ends.ids for ends in several]),
        )


class Inlet(ABC):
    """A replayable stream of rows. Used on a worker, by the task's own thread only."""

    mark: Mark
    """The mark behind the last row taken."""

    known: Known = NOTHING
    """What was read of each writer's last chunk; empty unless the stream may hold copies."""

    passed: Mark | None = None
    """The mark behind which only copies have been read so far, if any."""

    origins: Sequence[Origin] = ()
    """The writers of the last frames taken; empty unless tasks write the stream."""

    redelivers_itself: bool = False
    """Whether the source itself redelivers nacked rows."""

    @property
    def waiting(self) -> Waiting | None:
        """The system that is down, if the inlet waits for one."""
        return None

    @property
    def exhausted(self) -> bool:
        """Whether no more rows will ever arrive."""
        return False

    @property
    def frames_waiting(self) -> int:
        """How many frames have arrived and wait to be taken; 0 for an inlet without frames."""
        return 0

    def ready_in(self) -> float:
        """Returns the seconds until the next look; arrivals wake the task earlier."""
        return NEVER

    @abstractmethod
    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that have arrived, and moves ``mark`` behind them."""

    def take_frame(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows of one frame; ``give_back`` can undo it in part."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read in order")

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Puts back all but the first ``used`` rows of the last frame taken."""
        # No default: an inlet that did nothing here would lose the held row and the rows behind it.
        raise NotImplementedError(f"{type(self).__name__} cannot be read in order")

    @abstractmethod
    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Returns exactly the rows up to ``end``, with the ids they had before.

        A source returns none: it redelivers the rows, as they were not acknowledged.
        """

    def take_offsets(self) -> pa.BinaryArray:
        """Returns the offsets of the rows taken since the last call, if they have any."""
        return NO_OFFSETS

    def acknowledge(self, ends: SourceAcks) -> None:  # noqa: B027 - nothing to do
        """Schedules the acks and nacks of recorded rows. Safe to call from any thread."""

    def forget(self, done: Mark) -> None:  # noqa: B027 - nothing to do
        """Deletes everything up to ``done``, which is recorded as settled."""

    def close(self, for_good: bool = False) -> None:  # noqa: B027 - nothing to do
        """Stops reading; ``for_good`` when no other task follows."""


def source_acks(
    offsets: pa.BinaryArray, rows: Rows, returned: Mapping[int, Redeliver | Retry]
) -> SourceAcks:
    """Returns the acks and nacks for the last rows of a chunk, which are those with offsets."""
    first = len(rows) - len(offsets)
    ids = rows.batch.column("id").slice(first)
    if not returned:
        return SourceAcks(offsets, NO_NACKS, ids)
    ended = [index for index in range(len(offsets)) if index + first not in returned]
    kept = pa.array(ended, pa.int64())
    return SourceAcks(offsets.take(kept), _nacks(offsets, first, returned), ids.take(kept))


def _nacks(
    offsets: pa.BinaryArray, first: int, returned: Mapping[int, Redeliver | Retry]
) -> pa.RecordBatch:
    asked = [asked_for(how) for how in returned.values()]
    columns = [
        offsets.take(pa.array([index - first for index in returned], pa.int64())),
        pa.array([options.delay for options in asked], pa.int64()),
        pa.array([options.max_deliveries for options in asked], pa.int64()),
        pa.array([options.reason for options in asked], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=NACKS)


def asked_for(how: Redeliver | Retry) -> NackOptions:
    """Returns the options of user code's nack, or those that back-off makes for a failure."""
    if isinstance(how, Retry):
        return NackOptions(how.delay, reason=how.error)
    return how.options or NackOptions(how.delay, reason=how.reason)


class Feeder(NamedTuple):
    """A vertex that writes to another one: its tasks, and the vertices whose tasks may run it."""

    tasks: tuple[str, ...]
    inline: tuple[Feeder, ...] = ()

    def every_task(self) -> Iterator[str]:
        """Yields all tasks that may write the vertex's outputs."""
        yield from self.tasks
        for feeder in self.inline:
            yield from feeder.every_task()

    def watermark(self, latest: Mapping[str, datetime | None]) -> datetime | None:
        """Returns the vertex's watermark, from the latest ones of its tasks and those that run it.

        The later of both: rows that pass inline do not raise the watermark of the vertex's own
        tasks, and rows that pass through its buffer do not raise that of the inline tasks.
        """
        own = [latest[task] for task in self.tasks]
        inline = [feeder.watermark(latest) for feeder in self.inline]
        return max((time for time in map(_earliest, (own, inline)) if time), default=None)


def _earliest(times: Sequence[datetime | None]) -> datetime | None:
    """Returns the earliest time; ``None`` if one is missing, or there is none."""
    known = [time for time in times if time is not None]
    return min(known) if known and len(known) == len(times) else None


class Watermark:
    """The watermark of one task. ``feeders`` are the vertices that write to it."""

    def __init__(self, feeders: Iterable[Feeder], start: datetime | None) -> None:
        self.current = start
        self._feeders = tuple(feeders)
        tasks = (task for feeder in self._feeders for task in feeder.every_task())
        self._latest: dict[str, datetime | None] = dict.fromkeys(tasks)

    def follow(self, origins: Iterable[tuple[str | None, datetime | None]]) -> None:
        """Follows the frames of a chunk: the writer of each, and its watermark then.

        Of several frames of one writer the first counts for this chunk, because its rows may be
        older than the watermark of the last frame.
        """
        latest: dict[str, datetime] = {}
        for feeder, watermark in origins:
            if feeder in self._latest and watermark is not None:
                latest.setdefault(feeder, watermark)
        if not latest:
            return
        self._latest |= latest
        if earliest := _earliest([feeder.watermark(self._latest) for feeder in self._feeders]):
            self._rise(earliest)

    def follow_times(self, event_times: Iterable[datetime]) -> None:
        """Follows the event times of messages that a source has made."""
        earliest = min(event_times, default=None)
        if earliest is not None:
            self._rise(earliest)

    def _rise(self, to: datetime) -> None:
        if self.current is None or to > self.current:
            self.current = to


def with_held(batch: pa.RecordBatch, held: Held | None) -> pa.RecordBatch:
    """Returns the rows, the first one in the state of the held row."""
    if held is None:
        return batch
    columns = {name: batch.column(name).to_pylist() for name in _STATE}
    state = (held.deliveries, held.failures, held.retries, held.reason)
    for column, value in zip(columns.values(), state, strict=True):
        column[0] = value
    return frames.with_columns(batch, **columns)


def settled_part(
    verdict: Verdict, inlet: Inlet, batch: pa.RecordBatch, now: datetime
) -> tuple[Verdict, Held | None]:
    """Returns the verdict on the rows that can be settled, and the row behind them if it is held.

    The inlet gets back the held row and all rows behind it: if these were settled with the others,
    they would overtake it or be lost.
    """
    end = verdict.first_held()
    if end is None:
        return verdict, None
    inlet.give_back(batch, end)
    outcome = verdict.outcomes.get(end)
    held = _held(batch, end, outcome, now) if isinstance(outcome, Redeliver | Retry) else None
    return verdict.cut(end), held


def _held(batch: pa.RecordBatch, index: int, outcome: Redeliver | Retry, now: datetime) -> Held:
    row = redelivered_rows(batch, [index], [outcome]).to_pylist()[0]
    now_ms = math.ceil(now.timestamp() * 1000)
    return Held(due_time(now_ms, outcome.delay), *(row[name] for name in _STATE))


def held_row(verdict: Verdict, batch: pa.RecordBatch, index: int) -> HeldRow:
    """Returns the row that is held, with its outcome."""
    return HeldRow(batch.slice(index, 1), verdict.outcomes[index])


@dataclass(frozen=True, slots=True)
class Settleable:
    """The verdict on the rows to settle, the row held behind them, and the counts of that row."""

    verdict: Verdict
    held: Held | None
    counts: Counts | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that become one chunk. ``leaves_rows`` if more rows may wait that it had no room for.

    Rows that are ``in_order`` are settled up to the first that is held. Other rows may overtake
    each other: all are settled, and each is redelivered separately. Frames that are ``parked`` were
    decided and counted by a task that ran the vertex inline.
    """

    batches: list[pa.RecordBatch]
    in_order: bool = False
    leaves_rows: bool = False
    parked: list[pa.RecordBatch] = field(default_factory=list)

    @classmethod
    def of(cls, frames_read: list[pa.RecordBatch], **how: bool) -> Taken | None:
        """Returns the frames that were read as one chunk; ``None`` if there are none."""
        parked = [batch for batch in frames_read if due_of(batch) is not None]
        batches = [b for b in frames_read if due_of(b) is None] if parked else frames_read
        return cls(batches, **how, parked=parked) if frames_read else None

    def restore(self, held: Held | None) -> pa.RecordBatch:
        """Returns the rows as user code must see them, with the state of the ``held`` row."""
        batch = frames.concat(self.batches)
        return with_held(batch, held) if self.in_order else batch

    def cut(
        self,
        verdict: Verdict,
        inlet: Inlet,
        batch: pa.RecordBatch,
        held: Held | None,
        now: datetime,
    ) -> Settleable:
        """Returns the rows that can be settled, and gives the rest back to the inlet."""
        if not self.in_order:  # a replayed dead letter does not change the held row
            return Settleable(verdict, held)
        part, held = settled_part(verdict, inlet, batch, now)
        return Settleable(part, held, _HELD_ROW if held else None)


class Intake:
    """Both streams that a task reads, opened at its position. Used by the task's thread.

    A ``paused`` one takes nothing new. That of an ``ordered`` vertex takes at most one frame, or
    replayed dead letters, which have no order.
    """

    def __init__(
        self, inlet: Inlet, redeliveries: Inlet, paused: bool = False, ordered: bool = False
    ) -> None:
        self.inlet = inlet
        self.redeliveries = redeliveries
        self._paused = paused
        self._ordered = ordered
        self._probes = 0

    @property
    def end(self) -> Span:
        """The span behind the last rows taken."""
        known = {**self.inlet.known, **self.redeliveries.known}
        return Span(self.inlet.mark, self.redeliveries.mark, known)

    def await_redeliveries(self, lineage: str, chunk: int, tokens: Sequence[str]) -> None:
        """Notes the frames that a chunk redelivers."""
        self.redeliveries.known = with_awaited(self.redeliveries.known, lineage, chunk, tokens)

    def stop_awaiting(self, tokens: Sequence[str]) -> None:
        """Notes that some of these frames were not stored after all."""
        self.redeliveries.known = without_awaited(self.redeliveries.known, tokens)

    def take_again(self, intent: Span) -> Taken | None:
        """Returns exactly the rows up to ``intent``; ``None`` if a source redelivers all."""
        redelivered = self.redeliveries.take_until(intent.redelivery)
        batches = [*redelivered, *self.inlet.take_until(intent.inlet)]
        return Taken.of(batches, in_order=self._ordered and not redelivered)

    def take(self, limit: int, held: bool) -> Taken | None:
        """Returns up to ``limit`` rows that have arrived. ``held`` if a held row is not due yet."""
        if self._ordered:
            return self._take_in_order(limit, held)
        share = max(1, limit // 2)
        redelivered = self.redeliveries.take(share)
        room = max(1, limit - _count_rows(redelivered))
        new = self._take_new(room)
        leaves_rows = _count_rows(redelivered) >= share or _count_rows(new) >= room
        return Taken.of([*redelivered, *new], leaves_rows=leaves_rows)

    def _take_in_order(self, limit: int, held: bool) -> Taken | None:
        if redelivered := self.redeliveries.take(limit):
            return Taken(redelivered, leaves_rows=True)
        if held:  # any row taken now would overtake the held one
            return None
        fresh = self.inlet.take_frame(limit)
        return Taken.of(fresh, in_order=True, leaves_rows=True)

    def take_probe(self, held: bool) -> Taken | None:
        """Returns a single row, to find out whether a system is back.

        In an ordered vertex the held row comes first here, too.
        """
        if self._ordered:
            return self.take(1, held)
        self._probes += 1
        takes = (self._take_new, self.redeliveries.take)
        for take in takes if self._probes % 2 else reversed(takes):
            if batches := take(1):
                return Taken.of(batches)
        return None

    def _take_new(self, limit: int) -> list[pa.RecordBatch]:
        return [] if self._paused else self.inlet.take(limit)

    def ready_in(self) -> float:
        """Returns the seconds until there may be rows even if nothing arrives."""
        return _PAUSED_FOR if self._paused else self.inlet.ready_in()

    def forget(self, done: Span) -> None:
        """Deletes everything up to ``done``, which is recorded as settled."""
        self.inlet.forget(done.inlet)
        self.redeliveries.forget(done.redelivery)

    def close(self, for_good: bool) -> None:
        """Stops reading; ``for_good`` when no other task follows."""
        self.inlet.close(for_good=for_good)
        self.redeliveries.close()


def _count_rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)
