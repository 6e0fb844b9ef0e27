"""What the streams of a pipeline hold: rows that wait, rows that are parked, and dead letters.

Only headers are read, each once. The headers of a frame say how many rows it holds and, if it is
parked, until when and why. A ``Backlog`` remembers the frames that it has read and that are not
settled yet. It reads at most ``MOST`` new frames at a time, and estimates the rest until it has
caught up.

``LetterCauses`` counts the causes of the stored dead letters themselves, so no crash, restart,
replay or purge makes the counts wrong. There may be very many dead letters: a reader with little
time reads some and continues the next time, those of its own run first. Each takes a few bytes of
memory.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ebbflow.engine.causes import CauseCount, CauseCounter, CauseGroups
from ebbflow.engine.dead_letter import PREFIX, describe_cause
from ebbflow.engine.position import Mark, Position
from ebbflow.engine.publications import MOVED_FROM, REASONS, ROWS
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import NANOS, Deliveries
from ebbflow.nats.stored import read_after, take_snapshot
from ebbflow.status.model import NONE_PARKED, Cause, Parked, list_causes
from ebbflow.streams.names import Names, VertexStreams

MOST = 2_000
"""The most frames of one stream whose headers are read at a time."""

_SCHEDULE, _AT = "Nats-Schedule", "@at "
_SHOWN = 5
_FULL = 0.95
_NEW = Position("")
# Seconds that the server may take to store a due frame again after it has deleted it.
_MOVING_WITHIN = 1.0


@dataclass(frozen=True, slots=True)
class VertexBacklog:
    """The rows that wait for a vertex, in its buffer or due again, and those that are parked.

    ``exact`` is ``False`` if ``pending`` is an estimate. ``full`` if a buffer of the vertex has no
    room. ``oldest`` is when the oldest of the waiting rows was stored.
    """

    pending: int = 0
    exact: bool = True
    parked: Parked = NONE_PARKED
    full: bool = False
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class _SeenFrame:
    """The facts in a frame's headers: its rows and, if it is parked, until when and why."""

    rows: int
    due: float | None = None
    reasons: Sequence[tuple[str, int]] = ()
    subject: str = ""
    moved_from: str = ""
    stored: float = 0.0


@dataclass(slots=True)
class _StreamMemory:
    """The frames of one stream that were read, up to and including the sequence ``seen``."""

    frames: dict[int, _SeenFrame] = field(default_factory=dict)
    seen: int = 0
    checked: float = 0.0
    unread: int = 0
    moving_since: float | None = None

    def is_moving(self, parked: Container[str], last_seq: int) -> bool:
        """Returns whether the server is moving a due frame, which is in neither place meanwhile.

        The server deletes the frame before it stores it again. A frame that is missing for longer
        was purged.
        """
        now = datetime.now(UTC).timestamp()
        due = (f for f in self.frames.values() if f.due is not None and f.due <= now)
        if last_seq > self.seen or all(frame.subject in parked for frame in due):
            self.moving_since = None
            return False
        if self.moving_since is None:
            self.moving_since = now
        return now - self.moving_since < _MOVING_WITHIN

    def is_any_due(self) -> bool:
        """Returns whether the server may have moved a parked frame by now."""
        now = datetime.now(UTC).timestamp()
        return any(frame.due is not None and frame.due <= now for frame in self.frames.values())

    def forget(self, done: int, parked: Container[str] | None) -> None:
        """Forgets frames that are settled, and those that the server moved because they were due.

        ``parked`` are the subjects of all parked frames, if the server was asked for them. A moved
        frame names the subject it was parked on.
        """
        moved = {frame.moved_from for frame in self.frames.values()}
        for seq, frame in [*self.frames.items()]:
            if frame.due is None:
                is_gone = seq <= done
            else:
                is_moved = parked is not None and frame.subject not in parked
                is_gone = is_moved or frame.subject in moved
            if is_gone:
                del self.frames[seq]

    def rows(self, parked: bool) -> int:
        """Returns the rows that are known to wait, or to be parked."""
        return sum(f.rows for f in self.frames.values() if (f.due is not None) is parked)

    def oldest(self) -> float | None:
        """Returns when the oldest waiting frame was stored, in seconds since 1970."""
        return min((f.stored for f in self.frames.values() if f.due is None), default=None)

    def estimate_unread(self) -> int:
        """Returns an estimate of the rows in the frames that were not read yet."""
        known = len(self.frames)
        average = sum(f.rows for f in self.frames.values()) / known if known else 1.0
        return round(self.unread * average)


def age_of(since: datetime | None, at: datetime) -> float | None:
    """Returns the seconds since a time, if there is one; never negative, as clocks may differ."""
    return None if since is None else max(0.0, round((at - since).total_seconds(), 3))


class Backlog:
    """The backlog of one vertex. Everything here runs on the loop of the client.

    ``most`` frames of a stream are read at a time. The memory of a stream is rebuilt after
    ``recheck_every`` seconds.
    """

    def __init__(
        self,
        client: SecuredClient,
        names: Names,
        streams: VertexStreams,
        most: int = MOST,
        recheck_every: float = 10.0,
    ) -> None:
        self._most, self._recheck_every = most, recheck_every
        self._client = client
        self._names = names
        self._streams = streams
        self._memories: dict[str, _StreamMemory] = {}

    async def look(self, positions: Sequence[Position | None]) -> VertexBacklog:
        """Returns the backlog now; ``positions`` are those of the partitions, in order."""
        now = datetime.now(UTC).timestamp()
        parts = [
            await self._look_at(partition, position or _NEW, now)
            for partition, position in enumerate(positions)
        ]
        return _add(parts)

    async def _look_at(self, partition: int, position: Position, now: float) -> VertexBacklog:
        names, vertex, done = self._names, self._streams.vertex, position.done
        pending, full, unread, oldest = 0, False, 0, None
        if self._streams.has_buffer:
            buffer = names.buffer(vertex, partition)
            memory, full = await self._read(buffer, done.inlet, now)
            pending, unread = memory.rows(parked=False), memory.estimate_unread()
            oldest = memory.oldest()
            pending = max(0, pending + unread - done.inlet.row * bool(pending + unread))
        redelivery = names.redelivery(vertex, partition)
        again, _ = await self._read(redelivery, done.redelivery, now)
        held = _held(position, now)
        return VertexBacklog(
            max(0, pending + again.rows(parked=False) - held.messages),
            not unread and not again.unread,
            _add_parked([_parked(again), held]),
            full,
            _time(min(filter(None, (oldest, again.oldest())), default=None)),
        )

    async def _read(self, stream: str, done: Mark, now: float) -> tuple[_StreamMemory, bool]:
        """Reads new frames' headers; returns the memory of the stream, and whether it is full."""
        memory = self._memories.setdefault(stream, _StreamMemory())
        # One answer has both: a frame that is moved later counts as parked until the next read.
        parked_only = {"subjects_filter": self._names.later_subject("*", "*")}
        asks = memory.is_any_due()
        facts = await api.call(self._client, f"STREAM.INFO.{stream}", parked_only if asks else None)
        state = facts["state"]
        parked = _subjects_of(facts) if asks else None
        if parked is not None and memory.is_moving(parked, state["last_seq"]):
            return memory, _is_full(facts)
        if not state["messages"]:
            self._memories[stream] = _StreamMemory(seen=state["last_seq"])
            return self._memories[stream], False
        if now - memory.checked > self._recheck_every and state["messages"] <= self._most:
            memory = self._memories[stream] = _StreamMemory(checked=now)
        # Frames that are done need no reading: they may stay in the stream for a while.
        memory.seen = max(memory.seen, done.seq if stream in self._buffers() else 0)
        if memory.seen < state["last_seq"] and await self._read_after(stream, memory):
            memory.seen = max(memory.seen, state["last_seq"])
        memory.forget(done.seq, parked)
        memory.unread = max(0, state["last_seq"] - memory.seen)
        return memory, _is_full(facts)

    def _buffers(self) -> set[str]:
        vertex, partitions = self._streams.vertex, range(self._streams.partitions)
        return {self._names.buffer(vertex, partition) for partition in partitions}

    async def _read_after(self, stream: str, memory: _StreamMemory) -> bool:
        """Reads the headers of new frames; returns whether all were read."""
        frames = read_after(self._client, stream, "", memory.seen, headers_only=True)
        read = 0
        async with contextlib.aclosing(frames):
            async for deliveries in frames:
                read += len(deliveries)
                for seq, frame in _frames_of(deliveries):
                    memory.frames[seq] = frame
                memory.seen = deliveries.seqs[-1]
                if read >= self._most:
                    return False
        return True


def _subjects_of(facts: dict[str, Any]) -> dict[str, int] | None:
    """Returns the subjects in an answer; ``None`` if there are too many for one answer."""
    subjects: dict[str, int] = facts["state"].get("subjects") or {}
    return subjects if len(subjects) >= facts.get("total", 0) else None


def _is_full(facts: dict[str, Any]) -> bool:
    state, config = facts["state"], facts["config"]
    most, bytes_ = config.get("max_msgs", -1), config.get("max_bytes", -1)
    return bool(0 < most <= state["messages"] or 0 < bytes_ * _FULL <= state["bytes"])


def _frames_of(deliveries: Deliveries) -> Iterable[tuple[int, _SeenFrame]]:
    parcel = deliveries.parcel
    for row, seq in enumerate(deliveries.seqs):
        subject = parcel.subjects[row].decode()
        if not subject.endswith(".replayed"):  # these are marks of a replay, not messages
            stored = deliveries.nanos[row] / NANOS
            yield seq, _read_frame(subject, stored, parcel.headers(row) or {})


def _read_frame(subject: str, stored: float, headers: dict[str, str]) -> _SeenFrame:
    schedule = headers.get(_SCHEDULE, "")
    due = None
    if schedule.startswith(_AT):
        due = datetime.fromisoformat(schedule.removeprefix(_AT)).timestamp()
    reasons = tuple((text, count) for text, count in json.loads(headers.get(REASONS, "[]")))
    moved_from = headers.get(MOVED_FROM, "")
    return _SeenFrame(int(headers.get(ROWS, "1")), due, reasons, subject, moved_from, stored)


def _parked(memory: _StreamMemory) -> Parked:
    frames = [frame for frame in memory.frames.values() if frame.due is not None]
    reasons = CauseCounter()
    for frame in frames:
        reasons.update(frame.reasons)
    messages = sum(frame.rows for frame in frames) + memory.estimate_unread()
    due = min((frame.due for frame in frames if frame.due is not None), default=None)
    shown = list_causes(reasons.causes(), messages, _SHOWN)
    return Parked(messages, _time(due), shown, not memory.unread)


def _held(position: Position, now: float) -> Parked:
    """Returns, as parked, the row that an ordered vertex holds until it is due, in its buffer."""
    held = position.held
    if held is None or held.due / 1000 <= now:
        return NONE_PARKED
    reasons = (Cause(held.reason, 1),) if held.reason else ()
    return Parked(1, _time(held.due / 1000), reasons)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _add(parts: Sequence[VertexBacklog]) -> VertexBacklog:
    return VertexBacklog(
        sum(part.pending for part in parts),
        all(part.exact for part in parts),
        _add_parked([part.parked for part in parts]),
        any(part.full for part in parts),
        min((part.oldest for part in parts if part.oldest), default=None),
    )


def _add_parked(parts: Sequence[Parked]) -> Parked:
    reasons, messages = CauseCounter(), sum(part.messages for part in parts)
    for part in parts:
        reasons.update((cause.text, cause.count) for cause in part.reasons if not cause.rest)
    return Parked(
        messages,
        min((part.next_due for part in parts if part.next_due), default=None),
        list_causes(reasons.causes(), messages, _SHOWN),
        all(part.exact for part in parts),
    )


# --- dead letters -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """Dead letters after ``seen``, up to and including ``end``."""

    seen: int
    end: float = math.inf


class LetterCauses:
    """Counts the dead letters of a pipeline by cause. All runs on the loop of the client."""

    def __init__(self, client: SecuredClient, names: Names) -> None:
        self._client = client
        self._names = names
        self._stored: dict[str, int] = {}
        self._parts = [_Part(0)]
        self._groups = CauseGroups()
        self._numbers, self._codes = array("Q"), array("L")
        self._counts: Counter[int] = Counter()
        self._run_began = math.inf
        self._run_counts: Counter[int] = Counter()

    async def begin_run(self) -> None:
        """Counts dead letters from now on as those of this run."""
        state = await self._read_state()
        began = self._run_began = state["last_seq"] if state else 0
        self._parts = [_Part(began), _Part(0, began)]

    async def look(self, within: float = math.inf) -> None:
        """Reads the changes since the last call, for at most ``within`` seconds."""
        state, deadline = await self._read_state(), time.monotonic() + within
        if state is None:
            return
        subjects = state.get("subjects") or {}
        self._stored = {name.rpartition(".")[2]: count for name, count in subjects.items()}
        for part in self._parts:
            if not await self._read(part, min(part.end, state["last_seq"]), deadline):
                return
        if len(self._numbers) != state["messages"]:
            await self._forget_deleted()

    async def _read_state(self) -> dict[str, Any] | None:
        subject = self._names.dead_letter_subject()
        try:
            return await api.read_info(
                self._client, self._names.dead_letters, subjects_filter=subject
            )
        except api.ApiError as error:
            if error.code != api.NOT_FOUND:
                raise
            return None

    async def _read(self, part: _Part, last: float, deadline: float) -> bool:
        """Reads dead letters of a part; returns whether all were read."""
        if part.seen >= last:
            return True
        stream = self._names.dead_letters
        letters = read_after(self._client, stream, "", part.seen, headers_only=True)
        async with contextlib.aclosing(letters):
            async for deliveries in letters:
                self._note(deliveries, part.end)
                part.seen = deliveries.seqs[-1]
                if part.seen >= part.end or time.monotonic() > deadline:
                    break
            else:
                part.seen = max(part.seen, int(last))
        return part.seen >= last

    def _note(self, deliveries: Deliveries, end: float) -> None:
        for row, seq in enumerate(deliveries.seqs):
            if seq > end:
                return
            vertex = deliveries.parcel.subjects[row].rpartition(b".")[2].decode()
            code = self._groups.code(vertex, _cause_of(deliveries.parcel.headers(row) or {}))
            self._numbers.append(seq)
            self._codes.append(code)
            self._counts[code] += 1
            if seq > self._run_began:
                self._run_counts[code] += 1

    async def _forget_deleted(self) -> None:
        there = await take_snapshot(self._client, self._names.dead_letters)
        kept = [place for place, number in enumerate(self._numbers) if number in there]
        self._numbers = array("Q", [self._numbers[place] for place in kept])
        self._codes = array("L", [self._codes[place] for place in kept])
        self._counts = Counter(self._codes)

    @property
    def is_known(self) -> bool:
        """``True`` once dead letters were read, so that reading again is cheap."""
        return bool(self._numbers)

    def count(self, vertex: str) -> int:
        """Returns how many dead letters of the vertex are stored."""
        return self._stored.get(vertex, 0)

    def all_causes(self) -> list[CauseCount]:
        """Returns the causes of the dead letters of all vertices, the most frequent first."""
        return self._groups.describe(self._counts)

    def causes(self, vertex: str) -> tuple[Cause, ...]:
        """Returns the causes of its stored dead letters, the most frequent first; they add up."""
        own = [cause for cause in self.all_causes() if cause.group == vertex]
        return list_causes(own, self.count(vertex))

    def run_causes(self, vertex: str, total: int) -> tuple[Cause, ...]:
        """Returns the causes of this run's dead letters, of which there are ``total``."""
        causes = self._groups.describe(self._run_counts)
        return list_causes([cause for cause in causes if cause.group == vertex], total)


def _cause_of(headers: Mapping[str, str]) -> str:
    reason, error = headers.get(f"{PREFIX}Reason"), headers.get(f"{PREFIX}Error")
    if reason is None:
        return "unknown"
    return describe_cause(json.loads(reason), json.loads(error) if error else None)
