"""Publishing a settlement on JetStream, stage after stage, all of it confirmed.

A chunk counts as done only when ``publish_settlement`` has returned. Until then its position is not
written, and whoever takes the partition over publishes the same messages under the same ids.

The server forgets ids: for two minutes it drops copies by itself. After that a replay would write
dead letters and redeliveries twice, and these have no reader that knows copies: people read the
one, and the other come in the order in which they are due. So whoever replays looks first, with
``without_stored``. Everything that the first attempt has stored is still there then: nobody but the
task that replays reads its redeliveries. Nothing is looked up for a chunk that is settled for the
first time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from ebbflow.domain.errors import BufferFull
from ebbflow.engine.frames import fingerprint
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import MOVED_FROM, Publication, Stage
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.bulk import publish_all, publish_lanes
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import (
    BUFFER,
    MSG_ID,
    PublishRetry,
    Tally,
    WaitForRoom,
    check_size,
    publish,
)
from ebbflow.nats.stored import read_after, read_page, take_snapshot
from ebbflow.nats.wire import Publishes
from ebbflow.streams.names import Names

IN_FLIGHT = 256
# Stages with a message for each row of the chunk; in no order, and nothing of them is given up.
_A_MESSAGE_EACH = frozenset({Stage.DEAD_LETTER, Stage.ANSWER})


async def publish_settlement(
    client: SecuredClient,
    names: Names,
    settlement: Settlement,
    retry: PublishRetry = BUFFER,
    tally: Tally | None = None,
) -> list[Publication]:
    """Publishes all of a settlement; returns the outputs that a full buffer did not take.

    It returns when everything else is confirmed, and raises the first error that no wait mends.
    """
    discarded: list[Publication] = []

    async def publish_one(publication: Publication) -> None:
        if not await _publish(client, names, publication, retry, tally):
            discarded.append(publication)

    for stage in settlement.stages():
        # A stage begins when the one before it is confirmed. The order of stages is what a crash in
        # between may not turn around: see ``Stage``.
        if len(stage) > 1 and stage[0].stage in _A_MESSAGE_EACH:
            rows = _encode(client, names, stage)
            await publish_all(client, rows, retry, room=WaitForRoom.FOREVER, tally=tally)
        else:
            await publish_lanes(_split_lanes(stage), publish_one, IN_FLIGHT)
    return discarded


def _encode(client: SecuredClient, names: Names, stage: list[Publication]) -> Publishes:
    """Returns the messages for the wire; ``MessageTooLarge`` before any of them is sent."""
    rows = Publishes.of(
        (subject, headers | {MSG_ID: publication.msg_id}, publication.payload)
        for publication in stage
        for subject, headers in (address(names, publication),)
    )
    for headers, payload in zip(rows.headers, rows.payloads, strict=True):
        check_size(client.max_payload, payload, headers)
    return rows


def _split_lanes(stage: list[Publication]) -> list[list[Publication]]:
    """Splits what may be published side by side: all but the partitions of ordered edges."""
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
) -> bool:
    """Returns ``True`` when it is stored; only what may be discarded can fail to be."""
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
        )
    except BufferFull:
        return False
    return True


def address(names: Names, publication: Publication) -> tuple[str, dict[str, str]]:
    """Returns the subject a publication goes to, and its headers."""
    vertex, partition = publication.target, publication.partition
    if publication.stage is Stage.OUTPUT:
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
    # The subject must be this publication's own: a second schedule on it would replace the first.
    token = fingerprint([publication.msg_id])
    return names.later_subject(vertex, partition, token), publication.headers | schedule


def format_time(epoch_ms: int) -> str:
    """Returns the time as the server's schedules want it."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def without_stored(
    client: SecuredClient, names: Names, settlement: Settlement, repeated: Mark | None
) -> Settlement:
    """Returns the settlement without the letters and redeliveries that are stored already.

    ``repeated`` is how far the redeliveries are read; ``None`` if there was no earlier attempt.
    """
    if repeated is None:
        return settlement
    # Outputs and answers are not looked up: readers know copies of frames, and an answer that is
    # written again is the same entry. Leaving one out here that is not stored would lose it.
    letters = [p for p in settlement.publications if p.stage is Stage.DEAD_LETTER]
    again = [p for p in settlement.publications if p.stage is Stage.REDELIVER]
    stored = {
        *await _find_stored_letters(client, names, letters),
        *await _find_stored_redeliveries(client, names, again, repeated.seq),
    }
    if not stored:
        return settlement
    left = [p for p in settlement.publications if p.msg_id not in stored]
    return replace(settlement, publications=left)


async def _find_stored_letters(
    client: SecuredClient, names: Names, letters: Sequence[Publication]
) -> set[str]:
    """Returns the ids of those that are among the vertex's dead letters."""
    wanted = {letter.msg_id for letter in letters}
    if not wanted:
        return wanted
    stream, subject = names.dead_letters, names.dead_letter_subject(letters[0].target)
    there = await take_snapshot(client, stream)
    stored: set[str] = set()
    start = there.first
    while page := await read_page(client, stream, subject, start, there):
        stored |= wanted & {message.headers.get(MSG_ID, "") for message in page}
        start = page[-1].seq + 1
    return stored


async def _find_stored_redeliveries(
    client: SecuredClient, names: Names, again: Sequence[Publication], done: int
) -> set[str]:
    """Returns the ids of those that wait for their time, or are due and not read."""
    if not again:
        return set()
    stream = names.redelivery(again[0].target, again[0].partition)
    marks: set[str] = set()
    for headers in await _read_headers_after(client, stream, done):
        marks |= {headers.get(MSG_ID, ""), headers.get(MOVED_FROM, "")}
    return {p.msg_id for p in again if not marks.isdisjoint((p.msg_id, address(names, p)[0]))}


async def _read_headers_after(
    client: SecuredClient, stream: str, after: int
) -> list[dict[str, str]]:
    """Returns the headers of all messages behind a sequence, in order.

    One that comes due meanwhile is moved to the end, so it is met at its old place or there.
    """
    batches = read_after(client, stream, "", after, headers_only=True)
    parcels = [batch.parcel async for batch in batches]
    return [parcel.headers(row) or {} for parcel in parcels for row in range(len(parcel))]
