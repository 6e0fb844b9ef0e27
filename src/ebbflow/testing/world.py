"""NATS in memory and a virtual clock: the environment of a simulated pipeline.

The production chunk loop runs in it as on a worker: ``MemoryInlet`` is its inlet, ``MemoryJournal``
its journal, ``VirtualClock`` its clock. The server does what JetStream does for the engine: it
drops copies by their ids, moves parked frames when they are due, and replaces a position only for
the task that claimed it last. Nothing here decides about a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Event
from typing import Any

import pyarrow as pa
from typing_extensions import override

from ebbflow.domain.errors import Fenced
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.inlet import Inlet, Origin
from ebbflow.engine.position import Known, Mark, Position, Stamp, is_copy, with_frame
from ebbflow.engine.publications import (
    DUE,
    FROM,
    REDELIVERED_BY,
    WATERMARK,
    Publication,
    Stage,
    with_due,
)
from ebbflow.engine.settlement import Settlement

_HISTORY = ("deliveries", "failures", "retries", "first_seen", "nack_reason")


class Crashed(BaseException):
    """The worker of a task crashed. A ``BaseException``, so that user code does not catch it."""


class VirtualClock:
    """A clock whose time passes only when the simulation moves it.

    ``on_wait`` is called when a task would wait; it ends the task's epoch, and so its turn.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.start = (start or datetime.now(UTC)).replace(microsecond=0)
        self._start_ms = round(self.start.timestamp() * 1000)
        self.now_ms = self._start_ms
        self.on_wait: Callable[[], None] = lambda: None

    @property
    def elapsed(self) -> timedelta:
        """The time since the clock was made."""
        return timedelta(milliseconds=self.now_ms - self._start_ms)

    def at(self, ms: int) -> timedelta:
        """Returns a time of the server as the time since the clock was made."""
        return timedelta(milliseconds=ms - self._start_ms)

    def monotonic(self) -> float:
        """Returns the time in seconds; it never decreases."""
        return self.now_ms / 1000

    def now(self) -> datetime:
        """Returns the time of day in the simulation."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def wait(self, wake: Event, seconds: float, /) -> None:
        """Ends the task's turn, because other vertices may produce messages for it."""
        self.on_wait()

    def sleep(self, seconds: float, /) -> None:
        """Moves the clock forward."""
        self.now_ms += max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A message in a buffer or a redelivery stream; ``origin`` is its writer and watermark."""

    batch: pa.RecordBatch
    msg_id: str
    stamp: Stamp | None = None
    origin: Origin = (None, None)


@dataclass
class PartitionStreams:
    """The server's state of one partition: its streams, its position and its histories."""

    vertex: str
    partition: int
    buffer: list[StoredFrame] = field(default_factory=list)
    due: list[StoredFrame] = field(default_factory=list)
    parked: list[tuple[int, int, StoredFrame]] = field(default_factory=list)
    histories: dict[str, dict[str, Any]] = field(default_factory=dict)
    revision: int = 1

    def __post_init__(self) -> None:
        self.latest = Position(f"simulated-{self.vertex}-{self.partition}")
        """The last written record, before it was serialized."""
        self.stored = self.latest.to_json()

    @property
    def position(self) -> Position:
        """The last written record, deserialized."""
        return Position.from_json(self.stored)

    def count_unread(self) -> int:
        """Returns how many messages wait here, parked ones included."""
        done = self.latest.done
        unread = [*self.buffer[done.inlet.seq :], *self.due[done.redelivery.seq :]]
        unread += [frame for _, _, frame in self.parked]
        rows = sum(int(frame.batch.num_rows) for frame in unread)
        return rows - done.inlet.row - done.redelivery.row


class World:
    """The server, which uses the time of the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.partitions: dict[tuple[str, int], PartitionStreams] = {}
        self.letters: list[Letter] = []
        self.letter_ids: set[str] = set()
        self._seen: set[tuple[Stage, str, int, str]] = set()
        self._numbers = count()

    def add(self, vertex: str, partitions: int) -> None:
        """Makes the streams of a vertex."""
        for number in range(partitions):
            self.partitions[vertex, number] = PartitionStreams(vertex, number)

    def publish(self, publication: Publication) -> None:
        """Stores a message, unless its stream has stored the same id before."""
        stage, target = publication.stage, publication.target
        known = (stage, target, publication.partition, publication.msg_id)
        if known in self._seen:
            return
        self._seen.add(known)
        match stage:
            case Stage.DEAD_LETTER:
                self.letters.append(Letter.from_message(publication.payload, publication.headers))
                self.letter_ids.add(publication.msg_id)
            case Stage.OUTPUT | Stage.HAND_OVER:
                stamp = Stamp.of(publication.headers.get(FROM), publication.msg_id)
                streams = self.partitions[target, publication.partition]
                streams.buffer.append(_frame(publication, stamp))
            case Stage.REDELIVER:
                self._redeliver(publication)
            case Stage.ANSWER | Stage.TRAIL | Stage.AUDIT:
                pass  # nothing in the simulation reads them

    def _redeliver(self, publication: Publication) -> None:
        streams = self.partitions[publication.target, publication.partition]
        sender = publication.headers.get(REDELIVERED_BY)
        moved = sender is not None or publication.due is not None
        now = self.clock.monotonic()
        stamp = Stamp.of_redelivery(publication.token, now, sender) if moved else None
        frame = _frame(publication, stamp)
        if publication.due is None or publication.due <= self.clock.now_ms:
            streams.due.append(frame)
        else:
            heapq.heappush(streams.parked, (publication.due, next(self._numbers), frame))

    def move_due(self) -> None:
        """Moves the parked frames that are due."""
        for streams in self.partitions.values():
            while streams.parked and streams.parked[0][0] <= self.clock.now_ms:
                streams.due.append(heapq.heappop(streams.parked)[2])

    def holds(self, publication: Publication, done: Mark) -> bool:
        """Returns whether a redelivery or a dead letter is stored already, for a replay to skip."""
        if publication.stage is Stage.DEAD_LETTER:
            return publication.msg_id in self.letter_ids
        if publication.stage is not Stage.REDELIVER:
            return False
        streams = self.partitions[publication.target, publication.partition]
        stored = [*streams.due[done.seq :], *(frame for _, _, frame in streams.parked)]
        return any(frame.msg_id == publication.msg_id for frame in stored)


def _frame(publication: Publication, stamp: Stamp | None) -> StoredFrame:
    batch, headers = frames.decode(publication.payload), publication.headers
    if (due := headers.get(DUE)) is not None:
        batch = with_due(batch, int(due))
    watermark = headers.get(WATERMARK)
    time = datetime.fromisoformat(watermark) if watermark else None
    return StoredFrame(batch, publication.msg_id, stamp, (headers.get(FROM), time))


class MemoryInlet(Inlet):
    """Reads a growing list of frames from a mark on and skips copies, as on a worker."""

    def __init__(self, stream: Sequence[StoredFrame], start: Mark, known: Known) -> None:
        self._stream = stream
        self.mark = self._before = start
        self.known = self._known_before = known

    @property
    def rows_left(self) -> bool:
        """Whether there are frames after the mark."""
        return self.mark.seq < len(self._stream)

    @override
    def take(self, limit: int) -> list[pa.RecordBatch]:
        self.origins = origins = list[Origin]()
        return self._cut(limit, len(self._stream), origins)

    @override
    def take_frame(self, limit: int) -> list[pa.RecordBatch]:
        self.origins = origins = list[Origin]()
        return self._cut(limit, 1, origins)

    @override
    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        self.origins = origins = list[Origin]()
        taken: list[pa.RecordBatch] = []
        while self.mark < end:
            self._skip_copies(end)
            if self.mark < end:
                taken += self._cut(self._rows_until(end), 1, origins)
        return taken

    def _rows_until(self, end: Mark) -> int:
        if self.mark.seq < end.seq:
            return int(self._stream[self.mark.seq].batch.num_rows) - self.mark.row
        return end.row - self.mark.row

    def _cut(self, limit: int, most: int, origins: list[Origin]) -> list[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        while limit > 0 and len(taken) < most:
            self._skip_copies()
            if not self.rows_left:
                break
            taken.append(self._next_piece(limit, origins))
            limit -= taken[-1].num_rows
        return taken

    def _next_piece(self, limit: int, origins: list[Origin]) -> pa.RecordBatch:
        self._before, self._known_before, self.passed = self.mark, self.known, None
        frame = self._stream[self.mark.seq]
        rest = frame.batch.slice(self.mark.row)
        piece = rest.slice(0, limit)
        origins.append(frame.origin)
        if piece.num_rows == rest.num_rows:
            self.mark = Mark(self.mark.seq + 1)
            if frame.stamp is not None:
                self.known = with_frame(self.known, frame.stamp)
        else:
            self.mark = Mark(self.mark.seq, self.mark.row + piece.num_rows)
        return piece

    def _skip_copies(self, end: Mark | None = None) -> None:
        while self.rows_left and not self.mark.row and (end is None or self.mark < end):
            stamp = self._stream[self.mark.seq].stamp
            if stamp is None or not is_copy(self.known, stamp):
                return
            self.passed = self.mark if self.passed is None else self.passed
            self.mark = Mark(self.mark.seq + 1)

    @override
    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        self.mark = Mark(self._before.seq, self._before.row + used)
        self.known = self._known_before


class FinishedStep:
    """A step of the journal that has already finished, because nothing in memory takes time."""

    def __init__(self, step: Coroutine[Any, Any, Any]) -> None:
        self._error: Exception | None = None
        try:
            step.send(None)
        except StopIteration as end:
            self._value = end.value
        except Exception as error:
            self._error = error
        else:
            raise AssertionError("a step in memory must not wait")

    def result(self, timeout: float | None = None) -> Any:
        """Returns the result of the step, or raises its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        """Returns ``True``: the step has finished."""
        return True

    def cancel(self) -> bool:
        """Returns ``False``: a finished step cannot be cancelled."""
        return False


class MemoryJournal:
    """The journal of one partition's task. ``step`` is called before each of its steps.

    If it raises ``Crashed``, earlier publications stay published, and nothing follows.
    """

    def __init__(
        self, world: World, streams: PartitionStreams, step: Callable[[], None] = lambda: None
    ) -> None:
        self._world = world
        self._streams = streams
        self._step = step
        self._revision = 0

    async def claim(self) -> Position:
        """Claims the partition from its previous task."""
        self._step()
        self._revision = self._streams.revision
        position = self._streams.position.claimed("simulation")
        self._replace(position)
        return position

    async def write(self, position: Position) -> None:
        """Replaces the record; raises ``Fenced`` if another task has claimed the partition."""
        self._step()
        self._replace(position)

    def _replace(self, position: Position) -> None:
        streams = self._streams
        if self._revision != streams.revision:
            raise Fenced(streams.vertex, streams.partition)
        streams.latest, streams.stored = position, position.to_json()
        streams.revision += 1
        self._revision = streams.revision

    async def write_histories(self, rows: pa.RecordBatch) -> None:
        """Stores the histories that rows need when their source redelivers them."""
        self._step()
        for row in rows.to_pylist():
            self._streams.histories[row["id"]] = {name: row[name] for name in _HISTORY}

    async def end_histories(self, ids: pa.StringArray) -> None:
        """Deletes the histories of messages that have ended for good."""
        for message_id in ids.to_pylist():
            self._streams.histories.pop(message_id, None)

    async def without_stored(self, settlement: Settlement, repeated: Mark | None) -> Settlement:
        """Returns the settlement without the publications that an earlier attempt stored."""
        if repeated is None:
            return settlement
        left = [p for p in settlement.publications if not self._world.holds(p, repeated)]
        return replace(settlement, publications=left)

    async def publish(self, settlement: Settlement, done: Mark) -> list[Publication]:
        """Stores the publications, stage by stage. Returns those that were refused: none."""
        for stage in settlement.stages():
            for publication in stage:
                self._step()
                self._world.publish(publication)
        return []

    def submit(self, step: Coroutine[Any, Any, Any]) -> FinishedStep:
        """Runs a step at once."""
        return FinishedStep(step)


def with_history(
    batch: pa.RecordBatch, histories: Mapping[str, Mapping[str, Any]]
) -> pa.RecordBatch:
    """Returns the rows of a source with the stored histories of earlier deliveries."""
    ids = batch.column("id").to_pylist()
    if not any(row_id in histories for row_id in ids):
        return batch
    columns = {name: batch.column(name).to_pylist() for name in _HISTORY}
    for index, row_id in enumerate(ids):
        for name, value in histories.get(row_id, {}).items():
            columns[name][index] = value
    return frames.with_columns(batch, **columns)
