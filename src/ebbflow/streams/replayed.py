"""Finding out what of a replayed chunk is stored already, because the server forgets ids.

For two minutes the server drops copies by itself. After that a replay would write dead letters and
redeliveries twice, and these have no reader that knows copies: people read the one, and the other
come in the order in which they are due. So whoever replays looks first. Everything that the first
attempt has stored is still there then: nobody but the task that replays reads its redeliveries.
Nothing is looked up for a chunk that is settled for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ebbflow.engine.position import Mark
from ebbflow.engine.publications import MOVED_FROM, Publication, Stage
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.behind import read_behind
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import MSG_ID
from ebbflow.nats.stored import read_page, take_snapshot
from ebbflow.streams.carry_out import address
from ebbflow.streams.names import Names


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
    batches = read_behind(client, stream, "", after, headers_only=True)
    parcels = [batch.parcel async for batch in batches]
    return [parcel.headers(row) or {} for parcel in parcels for row in range(len(parcel))]
