"""Publishing a settlement on JetStream, stage after stage, all of it confirmed.

``NatsJournal`` is the record of one partition, and everything that its task publishes. A chunk
counts as done only when ``publish_settlement`` has returned. Until then its position is not
written, and the task that takes the partition over publishes the same messages with the same ids.

The server drops copies by itself, but only for two minutes: then it forgets ids. After that a
replay would store dead letters and redeliveries twice, and these have no reader that recognises
copies: dead letters are read by people, and redeliveries in the order in which they are due. So a
replay looks up first what is stored, with ``without_stored``. Everything that the first attempt has
stored is still there, since only the replaying task reads its redeliveries. For a chunk that is
settled for the first time nothing is looked up, as long as the server answers.

A publication without an answer is looked up before it is sent again, for the same reason: a server
that was killed does not know the id of a redelivery that it has moved meanwhile. See ``_Copies``.

A publication that the server refuses for good because of a message is divided until that message is
alone (``engine.refused``). Any other refusal is an error: no message is to blame for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from ebbflow.domain.errors import BufferFull, MessageTooLarge, PermanentPublishError
from ebbflow.domain.message import Ack
from ebbflow.engine.position import Mark, Position
from ebbflow.engine.publications import LATE, MOVED_FROM, PARKED_ON, Publication, Stage
from ebbflow.engine.refused import cut_dead_letter, divide, explain_refusal
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.bulk import publish_all, publish_lanes
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.publish import (
    BUFFER,
    MSG_ID,
    FindCopy,
    PublishRetry,
    Tally,
    WaitForRoom,
    check_size,
    publish,
)
from ebbflow.nats.stored import read_after, read_page, take_snapshot
from ebbflow.nats.wire import Publishes
from ebbflow.streams.catalogue import DUPLICATE_WINDOW
from ebbflow.streams.ledger import Ledger
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore

T = TypeVar("T")

IN_FLIGHT = 256
# The headers that identify a stored redelivery.
_MARKS = (MSG_ID, MOVED_FROM, PARKED_ON)
FROM_THE_START = Mark()
# Only people delete dead letters, so a server knows their ids for its whole window, even after a
# restart. Looking for them means reading all dead letters of the vertex.
_DEAD_LETTERS_ARE_KNOWN = DUPLICATE_WINDOW / 2
# Stages with a message for each row of the chunk, in any order; none of them may be discarded.
_A_MESSAGE_EACH = frozenset({Stage.DEAD_LETTER, Stage.ANSWER})
_REFUSALS = (PermanentPublishError, MessageTooLarge)


async def publish_settlement(
    client: SecuredClient,
    names: Names,
    settlement: Settlement,
    retry: PublishRetry = BUFFER,
    tally: Tally | None = None,
    done: Mark = FROM_THE_START,
) -> list[Publication]:
    """Publishes all of a settlement; returns the publications that are not stored.

    These are outputs that a full buffer did not take, and publications that the server refuses
    because of a message. If there are any, the publications of observers are left out, because they
    would not be true. Returns when everything else is confirmed; raises the first error that
    waiting cannot fix. ``done`` is how far the redeliveries are read and recorded; later ones are
    not deleted.
    """
    copies = _Copies(client, names, settlement, done)
    publisher = _StagePublisher(client, names, retry, tally, copies)
    for stage in settlement.stages():
        # A stage begins when the previous one is confirmed, so a crash cannot change the order of
        # stages: see ``Stage``.
        if stage[0].stage in LATE and publisher.unstored:
            break
        await publisher.publish_stage(stage)
    return publisher.unstored


class _StagePublisher:
    """Publishes the stages of one settlement, and collects what is not stored."""

    def __init__(
        self,
        client: SecuredClient,
        names: Names,
        retry: PublishRetry,
        tally: Tally | None,
        copies: _Copies,
    ) -> None:
        self._client = client
        self._names = names
        self._retry = retry
        self._tally = tally
        self._copies = copies
        self.unstored: list[Publication] = []

    async def publish_stage(self, stage: list[Publication]) -> None:
        if len(stage) == 1:
            await self._publish_one(stage[0])
        elif stage[0].stage in _A_MESSAGE_EACH:
            await self._publish_each(stage)
        else:
            await publish_lanes(_split_lanes(stage), self._publish_one, IN_FLIGHT)

    async def _publish_each(self, stage: list[Publication]) -> None:
        room, find = WaitForRoom.FOREVER, self._copies.row_finder(stage)
        try:
            rows = _encode(self._client, self._names, stage)
            await publish_all(
                self._client, rows, self._retry, room=room, tally=self._tally, find_copy=find
            )
        except _REFUSALS as error:
            if explain_refusal(error, "") is None:
                raise
            # One by one, with the same ids: the server drops those that are stored already.
            await publish_lanes(_split_lanes(stage), self._publish_one, IN_FLIGHT)

    async def _publish_one(self, publication: Publication) -> None:
        find_copy = self._copies.finder(publication)
        client, names, retry, tally = self._client, self._names, self._retry, self._tally
        try:
            if not await _publish(client, names, publication, retry, tally, find_copy):
                self.unstored.append(publication)
        except _REFUSALS as error:
            why = explain_refusal(error, _name_stream(names, publication))
            if why is None or not await self._publish_refused(publication, why):
                raise

    async def _publish_refused(self, publication: Publication, why: str) -> bool:
        """Stores the parts that the server accepts; ``False`` if no message is to blame."""
        if publication.stage is Stage.DEAD_LETTER:
            if (letter := cut_dead_letter(publication)) is not None:
                await self._publish_one(letter)
            return letter is not None
        if publication.stage in LATE:
            return False
        pieces = divide(publication)
        parents = () if pieces else publication.parents
        self.unstored.append(replace(publication, parents=parents, refusal=why))
        for piece in pieces:  # one after the other, as an ordered edge requires
            if not await self._copies.find_piece(piece):
                await self._publish_one(piece)
        return True


def _encode(client: SecuredClient, names: Names, stage: list[Publication]) -> Publishes:
    """Returns the encoded messages; ``MessageTooLarge`` before any of them is sent."""
    rows = Publishes.of(
        (subject, headers | {MSG_ID: publication.msg_id}, publication.payload)
        for publication in stage
        for subject, headers in (address(names, publication),)
    )
    for headers, payload in zip(rows.headers, rows.payloads, strict=True):
        check_size(client.max_payload, payload, headers)
    return rows


def _split_lanes(stage: list[Publication]) -> list[list[Publication]]:
    """Splits a stage into lanes for concurrent publishing; each ordered partition is one lane."""
    lanes: dict[object, list[Publication]] = defaultdict(list)
    for number, publication in enumerate(stage):
        ordered = (publication.target, publication.partition)
        lanes[ordered if publication.ordered else number].append(publication)
    return [*lanes.values()]


async def _publish(
    client: SecuredClient,
    names: Names,
    publication: Publication,
    retry: PublishRetry,
    tally: Tally | None,
    find_copy: FindCopy | None,
) -> bool:
    """Returns ``True`` when it is stored, ``False`` when a full buffer discarded it."""
    subject, headers = address(names, publication)
    room = WaitForRoom.NO if publication.discards else WaitForRoom.FOREVER
    try:
        await publish(
            client,
            subject,
            publication.payload,
            headers,
            msg_id=publication.msg_id,
            retry=retry,
            room=room,
            tally=tally,
            find_copy=find_copy,
        )
    except BufferFull:
        return False
    return True


def _name_stream(names: Names, publication: Publication) -> str:
    """Returns the stream that stores a publication, for error texts."""
    vertex, partition = publication.target, publication.partition
    match publication.stage:
        case Stage.OUTPUT | Stage.HAND_OVER:
            return names.buffer(vertex, partition)
        case Stage.ANSWER:
            return f"KV_{vertex}"
        case Stage.REDELIVER:
            return names.redelivery(vertex, partition)
        case _:
            return address(names, publication)[0]


def address(names: Names, publication: Publication) -> tuple[str, dict[str, str]]:
    """Returns the subject a publication goes to, and its headers."""
    vertex, partition = publication.target, publication.partition
    if publication.stage in (Stage.OUTPUT, Stage.HAND_OVER):
        return names.buffer_subject(vertex, partition), publication.headers
    if publication.stage is Stage.ANSWER:
        return f"$KV.{publication.target}.{publication.key}", publication.headers
    if publication.stage is Stage.DEAD_LETTER:
        return names.dead_letter_subject(vertex), publication.headers
    if publication.stage is Stage.TRAIL:
        return names.trail_subject(vertex), publication.headers
    if publication.stage is Stage.AUDIT:
        return names.audit_subject(vertex, partition), publication.headers
    due_subject = names.due_subject(vertex, partition)
    if publication.due is None:
        return due_subject, publication.headers
    schedule = {
        "Nats-Schedule": f"@at {format_time(publication.due)}",
        "Nats-Schedule-Target": due_subject,
    }
    # The subject must be unique: a second schedule on it would replace the first.
    subject = names.later_subject(vertex, partition, publication.token)
    return subject, publication.headers | schedule


def format_time(epoch_ms: int) -> str:
    """Returns the time in the form of the server's schedules."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


LookUp = Callable[[], Awaitable[Mapping[str, Ack]]]


class _SharedLookup:
    """One lookup in a stream for all callers at the same time, as there are after an outage.

    Each caller passes the function to look up. Stored here, it would form a reference cycle that
    keeps each chunk in memory until the garbage collector stops the worker to free all of them.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._began = -math.inf
        self._stored: Mapping[str, Ack] = {}

    async def find(self, look_up: LookUp, msg_id: str) -> Ack | None:
        """Returns where it is stored, by a lookup that began after this call."""
        # An earlier lookup does not count: the unanswered attempt may have been stored since.
        asked = time.monotonic()
        async with self._lock:
            if self._began <= asked:
                began = time.monotonic()
                self._stored = await look_up()
                self._began = began  # only now: a lookup that failed does not count
            return self._stored.get(msg_id)


class _Copies:
    """Finds publications stored by unanswered attempts, before they are sent again.

    The server moves a redelivery that is due, and the moved message has no id. If the server is
    killed before it has confirmed, it knows only the ids of messages that are still stored, so it
    would store the same redelivery again. It knows the ids of other messages, but only for the
    duplicate window.
    """

    def __init__(
        self, client: SecuredClient, names: Names, settlement: Settlement, done: Mark
    ) -> None:
        self._client = client
        self._names = names
        self._settlement = settlement
        self._done = done
        self._redeliveries = settlement.of_stage(Stage.REDELIVER)
        self._began = time.monotonic()
        self._redelivery_lookup, self._letter_lookup = _SharedLookup(), _SharedLookup()

    def finder(self, publication: Publication) -> FindCopy | None:
        """Returns a function that finds a copy; ``None`` if its readers recognise copies."""
        if publication.stage is Stage.REDELIVER:
            return partial(
                self._redelivery_lookup.find, self._look_up_redeliveries, publication.msg_id
            )
        if publication.stage is Stage.DEAD_LETTER:
            return partial(self._find_letter, publication.msg_id)
        return None

    def row_finder(
        self, stage: Sequence[Publication]
    ) -> Callable[[int], Awaitable[Ack | None]] | None:
        """Returns a function that finds a copy of any row of a stage published together."""
        if stage[0].stage is not Stage.DEAD_LETTER:
            return None
        return lambda row: self._find_letter(stage[row].msg_id)

    async def find_piece(self, piece: Publication) -> Ack | None:
        """Returns where an earlier attempt has stored a piece of a redelivery that was refused."""
        # ``without_stored`` has not looked for it, because the piece did not exist then.
        if piece.stage is not Stage.REDELIVER:
            return None
        self._redeliveries.append(piece)
        return await self._redelivery_lookup.find(self._look_up_redeliveries, piece.msg_id)

    async def _find_letter(self, msg_id: str) -> Ack | None:
        if time.monotonic() - self._began < _DEAD_LETTERS_ARE_KNOWN:
            return None
        return await self._letter_lookup.find(self._look_up_letters, msg_id)

    async def _look_up_redeliveries(self) -> dict[str, Ack]:
        redeliveries, done = self._redeliveries, self._done.seq
        return await _find_stored_redeliveries(self._client, self._names, redeliveries, done)

    async def _look_up_letters(self) -> dict[str, Ack]:
        letters = self._settlement.of_stage(Stage.DEAD_LETTER)
        return await _find_stored_letters(self._client, self._names, letters)


async def without_stored(
    client: SecuredClient, names: Names, settlement: Settlement, repeated: Mark | None
) -> Settlement:
    """Returns the settlement without the dead letters and redeliveries that are stored already.

    ``repeated`` is how far the redeliveries are read; ``None`` if there was no earlier attempt.
    """
    if repeated is None:
        return settlement
    # Outputs and answers are not looked up: readers recognise copies of frames, and an answer that
    # is written again is the same entry. Omitting one by mistake would lose it.
    letters = settlement.of_stage(Stage.DEAD_LETTER)
    redeliveries = settlement.of_stage(Stage.REDELIVER)
    stored = {
        *await _find_stored_letters(client, names, letters),
        *await _find_stored_redeliveries(client, names, redeliveries, repeated.seq),
    }
    if not stored:
        return settlement
    left = [p for p in settlement.publications if p.msg_id not in stored]
    return replace(settlement, publications=left)


async def _find_stored_letters(
    client: SecuredClient, names: Names, letters: Sequence[Publication]
) -> dict[str, Ack]:
    """Returns the ids of the dead letters that are stored, and where."""
    wanted = {letter.msg_id for letter in letters}
    stored: dict[str, Ack] = {}
    stream = names.dead_letters
    for vertex in sorted({letter.target for letter in letters}):
        snapshot = await take_snapshot(client, stream)
        subject, start = names.dead_letter_subject(vertex), snapshot.first
        while page := await read_page(client, stream, subject, start, snapshot):
            seqs = {message.headers.get(MSG_ID, ""): message.seq for message in page}
            stored |= {one: Ack(stream, seqs[one], True, 0) for one in wanted & seqs.keys()}
            start = page[-1].seq + 1
    return stored


async def _find_stored_redeliveries(
    client: SecuredClient, names: Names, redeliveries: Sequence[Publication], done: int
) -> dict[str, Ack]:
    """Returns the ids of the redeliveries that are stored, parked, due or already read, and where.

    ``done`` is how far the redeliveries are read. All belong to the task's own partition.
    """
    if not redeliveries:
        return {}
    stream = names.redelivery(redeliveries[0].target, redeliveries[0].partition)
    marks: dict[str, int] = {}
    for seq, headers in await _read_headers_after(client, stream, done):
        marks |= {headers[name]: seq for name in _MARKS if name in headers}
    found = ((p.msg_id, {p.msg_id, address(names, p)[0]} & marks.keys()) for p in redeliveries)
    return {one: Ack(stream, marks[min(by)], True, 0) for one, by in found if by}


async def _read_headers_after(
    client: SecuredClient, stream: str, after: int
) -> list[tuple[int, dict[str, str]]]:
    """Returns the sequences and headers of all messages after a sequence, in order.

    A message that becomes due meanwhile is moved to the end, so it is read there or at its old
    place.
    """
    batches = [batch async for batch in read_after(client, stream, "", after, headers_only=True)]
    return [
        (seq, batch.parcel.headers(row) or {})
        for batch in batches
        for row, seq in enumerate(batch.seqs)
    ]


class NatsJournal:
    """The journal of one partition in JetStream. Its coroutines run on the link's loop."""

    def __init__(
        self,
        link: Link,
        names: Names,
        vertex: str,
        partition: int,
        run: str,
        retry: PublishRetry,
        tally: Tally,
    ) -> None:
        self._link = link
        self._names = names
        self._run = run
        self._retry = retry
        self._tally = tally
        self._store = PositionStore(link.client, names, vertex, partition, retry, tally)
        self.ledger: Ledger | None = None
        self.claimed: Position | None = None

    async def claim(self) -> Position:
        """Takes the partition over: from now on its previous task can no longer write."""
        self.claimed = await self._store.claim(self._run)
        return self.claimed

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when another task has claimed the partition."""
        await self._store.write(position)

    async def write_histories(self, rows: pa.RecordBatch) -> None:
        """Stores the history of rows for when their source redelivers them."""
        assert self.ledger is not None
        await self.ledger.write(rows, self._tally)

    async def end_histories(self, ids: pa.StringArray) -> None:
        """Deletes the histories of messages that have ended for good."""
        assert self.ledger is not None
        await self.ledger.end(ids, self._tally)

    async def without_stored(self, settlement: Settlement, repeated: Mark | None) -> Settlement:
        """Returns the settlement without the publications that an earlier attempt has stored."""
        return await without_stored(self._link.client, self._names, settlement, repeated)

    async def publish(self, settlement: Settlement, done: Mark) -> Collection[Publication]:
        """Stores the publications, stage by stage; returns those that are not stored."""
        return await publish_settlement(
            self._link.client, self._names, settlement, self._retry, self._tally, done
        )

    def submit(self, step: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on the link's loop."""
        return self._link.submit(step)
