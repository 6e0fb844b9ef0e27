"""Where a message is now: every stream of a pipeline that holds messages, searched for its ids.

A message is forwarded under ids that extend its own (``in-12`` becomes ``in-12/enrich``), so its
``Family`` is all ids that begin with its id, and the ids of the messages that it came from.

This needs no extra records: an unsettled message is in a buffer, in a redelivery stream, in the
ledger of its source or among the dead letters, and the positions say which of those are done.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.engine import frames
from ebbflow.engine.dead_letter import PREFIX
from ebbflow.engine.position import Mark, Position
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_after
from ebbflow.status.model import WorkInFlight
from ebbflow.streams.names import Names, parse_stream
from ebbflow.streams.positions import read_positions

_SCHEDULE = "Nats-Schedule"

Where = Literal["buffer", "in flight", "redelivery", "parked", "held", "source", "dead letter"]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a message is now.

    ``due`` is when it is due, ``number`` that of its dead letter, ``ahead`` how many messages
    are before it, ``since`` when it began to be in flight.
    """

    vertex: str
    message: str
    where: Where
    why: str | None = None
    due: datetime | None = None
    number: int | None = None
    ahead: int | None = None
    since: datetime | None = None

    @property
    def words(self) -> str:
        """Where it is, in one line for people."""
        why = f": {self.why}" if self.why else ""
        match self.where:
            case "buffer":
                return f"waits in the buffer of {self.vertex}, {self._describe_ahead()}"
            case "in flight":
                since = f" since {_time(self.since)}" if self.since else ""
                return f"is in flight at {self.vertex}{since}"
            case "redelivery":
                return f"is due again at {self.vertex}{why}"
            case "parked":
                return f"is parked at {self.vertex} until {_time(self.due)}{why}"
            case "held":
                return (
                    f"is held at {self.vertex} until {_time(self.due)}, "
                    f"and later messages wait{why}"
                )
            case "source":
                return f"went back to the source of {self.vertex}, which redelivers it{why}"
            case "dead letter":
                return f"is dead letter {self.number} of {self.vertex}{why}"

    def _describe_ahead(self) -> str:
        if not self.ahead:
            return "next"
        return f"{self.ahead:,} {'message' if self.ahead == 1 else 'messages'} ahead of it"


def _time(time: datetime | None) -> str:
    return "later" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


# --- the ids that belong to a message -----------------------------------------------------------


class Family:
    """The ids that belong to a message: its own, those of its ancestors and of its outputs."""

    def __init__(self, message: str) -> None:
        steps = message.split("/")
        self.own = message
        self.ancestors = tuple("/".join(steps[:end]) for end in range(1, len(steps)))
        self.prefix = f"{message}/"

    def has(self, message: str) -> bool:
        """Returns whether a message belongs to the family."""
        return message == self.own or message.startswith(self.prefix) or message in self.ancestors

    def find(self, ids: pa.StringArray) -> list[int]:
        """Returns the rows whose ids belong to the family."""
        # Fast, by the common prefix; then exactly, as other ids may have the same prefix.
        root = (self.ancestors or (self.own,))[0]
        rows = pc.indices_nonzero(pc.starts_with(ids, root)).to_pylist()
        return [row for row in rows if self.has(ids[row].as_py())]


class Search:
    """Looks for a message and its family in the streams of a pipeline. Runs on the link's loop.

    ``in_flight`` has, for vertices with one task, how many messages after the position are in
    flight. Streams do not record that while user code works on them.
    """

    def __init__(
        self,
        link: Link,
        names: Names,
        streams: list[str],
        family: Family,
        in_flight: Mapping[str, WorkInFlight] | None = None,
    ) -> None:
        self._in_flight = in_flight or {}
        self._link = link
        self._names = names
        self._streams = set(streams)
        self._family = family

    async def look(self) -> list[Whereabouts]:
        """Returns where the messages of the family are, each place once."""
        positions = await read_positions(self._link.client, self._names)
        places: dict[tuple[str, str, str], Whereabouts] = {}
        async for place in self._search_all(positions):
            places.setdefault((place.vertex, place.message, place.where), place)
        return [*places.values()]

    async def _search_all(
        self, positions: dict[tuple[str, int], Position]
    ) -> AsyncIterator[Whereabouts]:
        for vertex, partition in sorted(self._list_partitions()):
            # A vertex that has never begun has no position, and messages may wait for it.
            position = positions.get((vertex, partition), Position(""))
            if self._names.buffer(vertex, partition) in self._streams:
                async for place in self._search_buffer(vertex, partition, position):
                    yield place
            if self._names.redelivery(vertex, partition) in self._streams:
                async for place in self._search_redeliveries(vertex, partition, position):
                    yield place
        async for place in self._search_ledger():
            yield place
        async for place in self._search_letters():
            yield place

    def _list_partitions(self) -> set[tuple[str, int]]:
        """Returns the partitions of all vertices that have a buffer or redeliveries."""
        parsed = filter(None, map(parse_stream, self._streams))
        own = (stream for stream in parsed if stream.pipeline == self._names.pipeline)
        return {(stream.vertex, stream.partition) for stream in own if stream.vertex}

    async def _search_buffer(
        self, vertex: str, partition: int, position: Position
    ) -> AsyncIterator[Whereabouts]:
        stream, done = self._names.buffer(vertex, partition), position.done.inlet
        ahead, held, taken = 0, position.held, self._in_flight.get(vertex)
        async for mark, rows, _ in self._read_rows(stream, "", done):
            for row in self._family.find(rows.column("id")):
                message, at = rows.column("id")[row].as_py(), Mark(mark.seq, mark.row + row)
                if held is not None and not ahead and not row:
                    yield Whereabouts(vertex, message, "held", held.reason, _from_ms(held.due))
                elif taken is not None and ahead + row < taken.messages:
                    yield Whereabouts(vertex, message, "in flight", since=taken.since)
                elif at < position.intent.inlet:
                    yield Whereabouts(vertex, message, "in flight")
                else:
                    yield Whereabouts(vertex, message, "buffer", ahead=ahead + row)
            ahead += rows.num_rows

    async def _search_redeliveries(
        self, vertex: str, partition: int, position: Position
    ) -> AsyncIterator[Whereabouts]:
        names, done = self._names, position.done.redelivery
        stream = names.redelivery(vertex, partition)
        due_subject = names.due_subject(vertex, partition)
        async for mark, rows, _ in self._read_rows(stream, due_subject, done):
            for row in self._family.find(rows.column("id")):
                is_in_flight = Mark(mark.seq, mark.row + row) < position.intent.redelivery
                where: Where = "in flight" if is_in_flight else "redelivery"
                yield Whereabouts(vertex, *_message(rows, row), where, _reason(rows, row))
        later = names.later_subject(vertex, partition)
        async for _, rows, headers in self._read_rows(stream, later, Mark()):
            for row in self._family.find(rows.column("id")):
                due = _parse_schedule(headers.get(_SCHEDULE, ""))
                yield Whereabouts(vertex, *_message(rows, row), "parked", _reason(rows, row), due)

    async def _search_ledger(self) -> AsyncIterator[Whereabouts]:
        if self._names.ledger not in self._streams:
            return
        returned: dict[tuple[str, str], Whereabouts | None] = {}
        async for batch in read_after(self._link.client, self._names.ledger, "", 0):
            for number in range(len(batch.seqs)):
                rows = frames.decode(batch.parcel.payload(number))
                vertex = batch.parcel.subjects[number].decode().split(".")[-2]
                for row in self._family.find(rows.column("id")):
                    (message,) = _message(rows, row)
                    # An entry with zero deliveries says that the message has ended since.
                    is_void = rows.column("deliveries")[row].as_py() == 0
                    place = Whereabouts(vertex, message, "source", _reason(rows, row))
                    returned[vertex, message] = None if is_void else place
        for place_or_none in returned.values():
            if place_or_none is not None:
                yield place_or_none

    async def _search_letters(self) -> AsyncIterator[Whereabouts]:
        stream = self._names.dead_letters
        async for batch in read_after(self._link.client, stream, "", 0, headers_only=True):
            for number, seq in enumerate(batch.seqs):
                headers = batch.parcel.headers(number) or {}
                message = json.loads(headers.get(f"{PREFIX}Id", '""'))
                if self._family.has(message):
                    vertex = batch.parcel.subjects[number].decode().rpartition(".")[2]
                    why = "; ".join(_words(headers, "Reason", "Error"))
                    yield Whereabouts(vertex, message, "dead letter", why or None, number=seq)

    async def _read_rows(
        self, stream: str, subject: str, done: Mark
    ) -> AsyncIterator[tuple[Mark, pa.RecordBatch, dict[str, str]]]:
        """Yields the rows after a mark, frame by frame, each with the mark where it begins."""
        first = done.row
        async for batch in read_after(self._link.client, stream, subject, done.seq):
            for number, seq in enumerate(batch.seqs):
                rows = frames.decode(batch.parcel.payload(number)).slice(first)
                yield Mark(seq - 1, first), rows, batch.parcel.headers(number) or {}
                first = 0


def _message(rows: pa.RecordBatch, row: int) -> tuple[str]:
    return (rows.column("id")[row].as_py(),)


def _reason(rows: pa.RecordBatch, row: int) -> str | None:
    reason: str | None = rows.column("nack_reason")[row].as_py()
    return reason


def _words(headers: dict[str, str], *names: str) -> Iterator[str]:
    for name in names:
        if text := headers.get(PREFIX + name):
            yield str(json.loads(text))


def _parse_schedule(text: str) -> datetime | None:
    time = text.removeprefix("@at ").strip()
    return datetime.fromisoformat(time) if time else None


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
