"""What of a replayed chunk is stored already: looked up, because the server forgets ids.

For two minutes the server drops copies by itself. After that a replay would write dead letters and
redeliveries twice, and these have no reader that knows copies: people read the one, and the other
come in the order in which they are due. So whoever replays looks first. Everything that the first
attempt has stored is still there then: nobody but the task that replays reads its redeliveries.
Nothing is looked up for a chunk that is settled for the first time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from ebbflow.buffers.carry_out import address
from ebbflow.buffers.names import Names
from ebbflow.core.position import Mark
from ebbflow.core.publications import Publication, Stage
from ebbflow.core.settlement import Settlement
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import MSG_ID
from ebbflow.nats.pull import LightConsumer
from ebbflow.nats.stored import read_page, snapshot

# The server leaves the id out when a schedule comes due, but names the subject it waited on.
_SCHEDULER = "Nats-Scheduler"
_AT_A_TIME = 1_000
_ANSWER_WITHIN = 10.0
_IDLE_CONSUMER = 30.0
_NANOS = 1_000_000_000


async def without_stored(
    client: SecuredClient, names: Names, settlement: Settlement, repeated: Mark | None
) -> Settlement:
    """The settlement without the letters and redeliveries that an earlier attempt has stored.

    ``repeated`` is how far the redeliveries are read; ``None`` if there was no earlier attempt.
    """
    if repeated is None:
        return settlement
    letters = [p for p in settlement.publications if p.stage is Stage.DEAD_LETTER]
    again = [p for p in settlement.publications if p.stage is Stage.REDELIVER]
    stored = {
        *await _stored_letters(client, names, letters),
        *await _stored_redeliveries(client, names, again, repeated.seq),
    }
    if not stored:
        return settlement
    left = [p for p in settlement.publications if p.msg_id not in stored]
    return replace(settlement, publications=left)


async def _stored_letters(
    client: SecuredClient, names: Names, letters: Sequence[Publication]
) -> set[str]:
    """The ids of those that are among the vertex's dead letters."""
    wanted = {letter.msg_id for letter in letters}
    if not wanted:
        return wanted
    stream, subject = names.dead_letters, names.dead_letter_subject(letters[0].target)
    there = await snapshot(client, stream)
    found: set[str] = set()
    start = there.first
    while page := await read_page(client, stream, subject, start, there):
        found |= wanted & {message.headers.get(MSG_ID, "") for message in page}
        start = page[-1].seq + 1
    return found


async def _stored_redeliveries(
    client: SecuredClient, names: Names, again: Sequence[Publication], done: int
) -> set[str]:
    """The ids of those that wait for their time, or are due and not read."""
    if not again:
        return set()
    stream = names.redelivery(again[0].target, again[0].partition)
    marks: set[str] = set()
    for headers in await _headers_after(client, stream, done):
        marks |= {headers.get(MSG_ID, ""), headers.get(_SCHEDULER, "")}
    return {p.msg_id for p in again if not marks.isdisjoint((p.msg_id, address(names, p)[0]))}


async def _headers_after(client: SecuredClient, stream: str, after: int) -> list[dict[str, str]]:
    """The headers of all messages behind a sequence, in order.

    One that comes due meanwhile is moved to the end, so it is met at its old place or there.
    """
    consumer = LightConsumer(stream)
    inbox = await client.subscribe(client.new_inbox(), pending_msgs_limit=-1)
    try:
        facts = await consumer.make(client, "", after, _IDLE_CONSUMER, headers_only=True)
        left = int(facts["num_pending"])
        found: list[dict[str, str]] = []
        while left:
            request = {"batch": _AT_A_TIME, "expires": int(_ANSWER_WITHIN / 2 * _NANOS)}
            await client.publish(
                consumer.pull_subject, json.dumps(request).encode(), reply=inbox.subject
            )
            for _ in range(_AT_A_TIME):
                message = await inbox.next_msg(timeout=_ANSWER_WITHIN)
                headers = dict(message.headers or {})
                if "Status" in headers:  # what was left is gone
                    return found
                found.append(headers)
                left = int(message.reply.rpartition(".")[2])
                if not left:
                    break
        return found
    finally:
        await inbox.unsubscribe()
        await consumer.forget(client)
