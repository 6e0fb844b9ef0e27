"""Where messages are now: every stream of a pipeline that holds messages, searched for some ids.

Nothing has to be kept for it: what is on its way is in a buffer, in a redelivery stream, in the
ledger of its source or among the dead letters, and the positions say what of that is done.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa

from ebbflow.engine import frames
from ebbflow.engine.dead_letter import PREFIX
from ebbflow.engine.position import Mark, Position
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_after
from ebbflow.operations.tracing.way import Family, Where, Whereabouts
from ebbflow.status.model import WorkInHand
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions

_SCHEDULE = "Nats-Schedule"


class Search:
    """Looks for a message and its family in the streams of a pipeline. Runs on the link's loop.

    ``in_hand`` is what the one task of a vertex says to have taken: that many messages behind its
    position, of which nothing is recorded while user code works on them.
    """

    def __init__(
        self,
        link: Link,
        names: Names,
        streams: list[str],
        family: Family,
        in_hand: Mapping[str, WorkInHand] | None = None,
    ) -> None:
        self._in_hand = in_hand or {}
        self._link = link
        self._names = names
        self._streams = set(streams)
        self._family = family

    async def look(self) -> list[Whereabouts]:
        """Returns where they are, each once."""
        positions = await read_positions(self._link.client, self._names)
        places: dict[tuple[str, str, str], Whereabouts] = {}
        async for place in self._search_all(positions):
            places.setdefault((place.vertex, place.message, place.where), place)
        return [*places.values()]

    async def _search_all(
        self, positions: dict[tuple[str, int], Position]
    ) -> AsyncIterator[Whereabouts]:
        for vertex, partition in sorted(self._names.partitions_in(self._streams)):
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

    async def _search_buffer(
        self, vertex: str, partition: int, position: Position
    ) -> AsyncIterator[Whereabouts]:
        stream, done = self._names.buffer(vertex, partition), position.done.inlet
        ahead, held, taken = 0, position.held, self._in_hand.get(vertex)
        async for mark, rows, _ in self._read_rows(stream, "", done):
            for row in self._family.find(rows.column("id")):
                message, at = rows.column("id")[row].as_py(), Mark(mark.seq, mark.row + row)
                if held is not None and not ahead and not row:
                    yield Whereabouts(vertex, message, "held", held.reason, _from_ms(held.due))
                elif taken is not None and ahead + row < taken.messages:
                    yield Whereabouts(vertex, message, "in hand", since=taken.since)
                elif at < position.intent.inlet:
                    yield Whereabouts(vertex, message, "in hand")
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
                is_in_hand = Mark(mark.seq, mark.row + row) < position.intent.redelivery
                where: Where = "in hand" if is_in_hand else "redelivery"
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
                    # An entry of no deliveries says that the message has ended since.
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
        """Yields the rows behind a mark, frame by frame, with where each begins."""
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
