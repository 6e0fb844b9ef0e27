"""The dead letters of a pipeline: list, show, replay and purge them.

Letters are numbered by their place in the dead-letter stream; a number is never used again. The
id of a message may be on several letters: it can die at two vertices, or again after a replay.

A replay publishes a letter's message to the redeliveries of its vertex and deletes the letter only
when JetStream has confirmed that. A crash in between duplicates at most and never loses. The
publication's id holds the letter's number: repeating a replay within the stream's duplicate window
(two minutes) makes no copy, while a message that died again is a new letter and is sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from ebbflow.buffers.names import Names
from ebbflow.buffers.streams import explain_unknown
from ebbflow.core import frames
from ebbflow.core.dead_letter import PREFIX, Letter
from ebbflow.errors import EbbflowError
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.nats.publish import PublishRetry, publish
from ebbflow.nats.stored import StoredMessage, read_one, read_page, take_snapshot

_PAGE = 256
_PAGE_BYTES = 4 * 1024 * 1024
_IN_FLIGHT = 64
_PATIENT = PublishRetry(attempts=-1, ack_wait=20)
_SHOWN = 8

Which = int | str
"""A letter by its number, or all letters of a message by its id."""

Refused = dict[str, set[int]]
"""Why letters cannot be replayed, with their numbers."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A letter and its number in the dead-letter stream."""

    number: int
    letter: Letter


class DeadLetters:
    """The dead letters of one pipeline; get them with ``DeadLetters.open``.

    ``SetupError`` if there is no such pipeline.

    Works beside a running pipeline as well as without one. Blocks; used by one thread.
    """

    def __init__(self, link: Link, pipeline: str) -> None:
        self._link = link
        self._names = Names(pipeline)
        self._streams = set(link.run(api.list_streams(link.client, "ebb_")))
        if self._names.dead_letters not in self._streams:
            raise explain_unknown(pipeline, self._streams)
        self._routes: dict[str, Sequence[int]] = {}

    @classmethod
    @contextmanager
    def open(
        cls, pipeline: str, *, state: str | Path = ".ebbflow", nats: str | None = None
    ) -> Iterator[Self]:
        """Opens the letters of a pipeline where it runs: its state folder, or a server of yours.

        An embedded server that nobody runs is started for as long as the context lasts.
        """
        inbox = Names(pipeline).inbox
        with open_link_to_pipeline(Path(state), nats, inbox=inbox) as link:
            yield cls(link, pipeline)

    def counts(self) -> dict[str, int]:
        """Returns how many letters each vertex has; vertices without letters are left out."""
        info = self._link.run(self._read_info())
        subjects = info.get("subjects") or {}
        return {name.rpartition(".")[2]: count for name, count in sorted(subjects.items())}

    def list(self, vertex: str | None = None, limit: int | None = None) -> Iterator[StoredLetter]:
        """Yields the letters there are now, oldest first; reads them page by page."""
        left = limit
        for message in self._read_all(vertex):
            if left is not None:
                if left <= 0:
                    return
                left -= 1
            yield self._parse(message)

    def get(self, *which: Which) -> tuple[StoredLetter, ...]:
        """Returns the letters meant, oldest first; ``EbbflowError`` if some do not exist."""
        numbers = {number for number in which if isinstance(number, int)}
        ids = {message_id for message_id in which if isinstance(message_id, str)}
        letters = {message.seq: self._parse(message) for message in map(self._read, numbers)}
        if ids:
            letters |= {entry.number: entry for entry in self.list() if entry.letter.id in ids}
        for missing in sorted(ids - {entry.letter.id for entry in letters.values()}):
            raise self._explain_missing(f"of message {missing!r}")
        return tuple(letters[number] for number in sorted(letters))

    def replay(self, letters: Iterable[StoredLetter], *, dry_run: bool = False) -> int:
        """Sends messages back to their vertices as on their first delivery; returns how many.

        Letters that cannot be replayed stay where they are. They do not keep others from being
        replayed, and end the call with an ``EbbflowError`` that says why each of them stays.
        """
        replayed = 0
        refused: Refused = defaultdict(set)
        for page in _cut_pages(letters):
            sendable = [entry for entry in page if self._may_return(entry, refused)]
            if not dry_run:
                self._link.run(self._send_back(sendable))
            replayed += len(sendable)
        if refused:
            raise EbbflowError(_explain_refused(replayed, refused, dry_run))
        return replayed

    def numbers(self, *which: Which) -> Sequence[int]:
        """Returns the numbers of the letters meant, also of what is in the stream and no letter."""
        numbers = {self._read(number).seq for number in which if isinstance(number, int)}
        if ids := [message_id for message_id in which if isinstance(message_id, str)]:
            numbers |= {entry.number for entry in self.get(*ids)}
        return sorted(numbers)

    def purge(self, *which: Which) -> int:
        """Deletes the letters meant; returns how many. ``EbbflowError`` if one does not exist."""
        numbers = self.numbers(*which)
        self._link.run(self._delete_all(numbers))
        return len(numbers)

    def purge_all(self, vertex: str | None = None) -> int:
        """Deletes every letter, or every letter of one vertex; returns how many."""
        return self._link.run(self._purge_all(vertex or "*"))

    async def _purge_all(self, vertex: str) -> int:
        # Counted first: a purge that is repeated because its answer got lost finds nothing.
        info = await self._read_info(vertex)
        subject, last = self._names.dead_letter_subject(vertex), info["last_seq"]
        await api.purge(self._link.client, self._names.dead_letters, subject, last)
        return sum((info.get("subjects") or {}).values())

    # --- reading ----------------------------------------------------------------------------

    def _read_all(self, vertex: str | None) -> Iterator[StoredMessage]:
        # What dies while this runs is not part of it; a replay could go on for ever otherwise.
        run, client, stream = self._link.run, self._link.client, self._names.dead_letters
        subject = self._names.dead_letter_subject(vertex or "*")
        there = run(take_snapshot(client, stream))
        start = there.first
        while page := run(read_page(client, stream, subject, start, there)):
            yield from page
            start = page[-1].seq + 1

    def _read(self, number: int) -> StoredMessage:
        # From the leader: another server may still have a letter that was deleted.
        message = self._link.run(self._find(number)) if number > 0 else None
        if message is None:
            raise self._explain_missing(f"with number {number}")
        return message

    async def _find(self, number: int) -> StoredMessage | None:
        return await read_one(self._link.client, self._names.dead_letters, seq=number)

    async def _read_info(self, vertex: str = "*") -> dict[str, Any]:
        subject = self._names.dead_letter_subject(vertex)
        client, stream = self._link.client, self._names.dead_letters
        return await api.read_info(client, stream, subjects_filter=subject)

    def _parse(self, message: StoredMessage) -> StoredLetter:
        if f"{PREFIX}Id" not in message.headers:
            raise EbbflowError(
                f"Message {message.seq} of stream {self._names.dead_letters} is not a dead letter. "
                f"Remove it with: ebbflow dlq purge {self._names.pipeline} {message.seq}"
            )
        return StoredLetter(message.seq, Letter.from_message(message.payload, message.headers))

    def _explain_missing(self, which: str) -> EbbflowError:
        pipeline = self._names.pipeline
        return EbbflowError(
            f"There is no dead letter {which} in {pipeline}. "
            f"See which there are with: ebbflow dlq list {pipeline}"
        )

    # --- sending back -----------------------------------------------------------------------

    def _may_return(self, entry: StoredLetter, refused: Refused) -> bool:
        why = None
        if entry.letter.unread:
            why = (
                "a source could not read this, so there is no message to send back; correct the "
                "row, or the schema, and have the source read it again"
            )
        elif entry.letter.size is not None:
            why = (
                "the value was cut because it was too large to be kept whole; send the original "
                "message to the source again"
            )
        elif not self._partitions(entry.letter.vertex):
            why = (
                f"the pipeline has no vertex {entry.letter.vertex!r} any more; run a pipeline that "
                "has it once, then replay"
            )
        if why is not None:
            refused[why].add(entry.number)
        return why is None

    def _partitions(self, vertex: str) -> Sequence[int]:
        if vertex not in self._routes:
            self._routes[vertex] = self._find_partitions(vertex)
        return self._routes[vertex]

    def _find_partitions(self, vertex: str) -> Sequence[int]:
        first, last = self._names.redelivery(vertex, 0).split("_0_")
        middle = [
            name.removeprefix(f"{first}_").removesuffix(f"_{last}")
            for name in self._streams
            if name.startswith(f"{first}_") and name.endswith(f"_{last}")
        ]
        return sorted(int(partition) for partition in middle if partition.isdigit())

    async def _send_back(self, letters: Sequence[StoredLetter]) -> None:
        gate = asyncio.Semaphore(_IN_FLIGHT)
        ends = await asyncio.gather(
            *(self._return(entry, gate) for entry in letters), return_exceptions=True
        )
        for error in ends:
            if error is not None:
                raise error

    async def _return(self, entry: StoredLetter, gate: asyncio.Semaphore) -> None:
        """Publishes, has it confirmed, and only then deletes: the order is the guarantee."""
        async with gate:
            letter = entry.letter
            # A frame of its own for each letter: a repeated replay of other letters beside it
            # would cut larger frames differently, and copies would no longer be recognised.
            await publish(
                self._link.client,
                self._names.due_subject(letter.vertex, self._choose_partition(letter)),
                frames.encode(_to_row(letter)),
                msg_id=f"replay:{entry.number}:{frames.fingerprint([letter.id])}",
                retry=_PATIENT,
            )
            await self._delete(entry.number)

    def _choose_partition(self, letter: Letter) -> int:
        """Chooses the same partition each time: a stream recognises only copies of its own."""
        partitions = self._partitions(letter.vertex)
        digest = hashlib.blake2b(letter.id.encode(), digest_size=8).digest()
        return partitions[int.from_bytes(digest) % len(partitions)]

    # --- deleting ---------------------------------------------------------------------------

    async def _delete_all(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _IN_FLIGHT):
            await asyncio.gather(*map(self._delete, numbers[start : start + _IN_FLIGHT]))

    async def _delete(self, number: int) -> None:
        call = f"STREAM.MSG.DELETE.{self._names.dead_letters}"
        try:
            await api.call(self._link.client, call, {"seq": number, "no_erase": True})
        except api.ApiError as error:
            # The server has one answer for all reasons. Somebody else may have deleted it, or we
            # have, and the answer got lost.
            if await self._find(number) is not None:
                raise EbbflowError(f"Dead letter {number} was not deleted: {error}.") from error


def _to_row(letter: Letter) -> pa.RecordBatch:
    """Returns the message as on its first delivery: nothing of its failures is kept."""
    metadata = [(group, list(entries.items())) for group, entries in letter.metadata.items()]
    columns = {
        "id": [letter.id],
        "keys": [letter.keys],
        "value": [letter.value],
        "event_time": [letter.event_time],
        "headers": [list(letter.headers.items())],
        "metadata": [metadata],
        "first_seen": [letter.first_seen],
    }
    return frames.batch_of(columns, 1)


def _cut_pages(letters: Iterable[StoredLetter]) -> Iterator[Sequence[StoredLetter]]:
    """Yields the letters in groups small enough to be held at once."""
    page: list[StoredLetter] = []
    size = 0
    for entry in letters:
        page.append(entry)
        size += len(entry.letter.value)
        if len(page) >= _PAGE or size >= _PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def _explain_refused(replayed: int, refused: Refused, dry_run: bool) -> str:
    verb = "Would replay" if dry_run else "Replayed"
    lines = [f"{verb} {replayed:,}, but not these:"]
    for why, numbers in refused.items():
        more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
        lines.append(f"  {', '.join(map(str, sorted(numbers)[:_SHOWN]))}{more}: {why}")
    return "\n".join(lines)
