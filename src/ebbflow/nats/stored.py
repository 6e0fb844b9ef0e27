"""Reading the messages of a stream, never staler than the moment of the call.

Any replica answers a direct read, and one that lags behind answers with what it has. So the leader
is asked first for the last sequence. An answer that falls short of that is requested again, and in
the end the messages are requested from the leader. While there is no leader, reads wait for one. A
server without a cluster is read directly.

``read_after`` reads in bulk instead, with a consumer. Unlike a ``Follower`` it ends when it has
reached the last message. Readers get either everything or an error, never a part.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import NANOS, Deliveries, LightConsumer, PullConsumer, PullRequest, PullState
from ebbflow.nats.wire import Parcel, Publishes, read_headers, write_headers

_NO_MESSAGE = 10037
# The server that got the request may hang; a repeated request usually goes to another one.
_SILENCE = Backoff("500ms", factor=2.0, cap="4s")
_PAUSE = 0.05
_SUBJECT, _SEQUENCE, _STORED_AT = "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"
_LOOKS = 10
_IN_FLIGHT = 16
_PAGE = 1_000
_PAGE_BYTES = 4 * 1024 * 1024
# The server refuses to collect the last messages of more than 1024 subjects at once.
_MOST_SUBJECTS = 1000
# Limits of a consumer that reads in bulk.
_AT_A_TIME = 1_000
_BYTES_AT_A_TIME = 32 * 1024 * 1024
_ANSWER_WITHIN = 10.0
_IDLE_CONSUMER = 30.0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a stream; ``stored`` is the time when it was stored, in the server's form."""

    seq: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    stored: str = ""


class StoredPage(Sequence[StoredMessage]):
    """Messages that were read together, over the buffer that they arrived in.

    A reader that needs few of them searches ``parcel``, and gets objects only for those.
    """

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self.seqs = [_read_seq(parcel.block(row)) for row in range(len(parcel))]

    @classmethod
    def of(cls, message: StoredMessage | None = None) -> StoredPage:
        """Returns a page of one message, or an empty one."""
        if message is None:
            return cls(Parcel(b""))
        own = {_SUBJECT: message.subject, _SEQUENCE: str(message.seq), _STORED_AT: message.stored}
        block = write_headers(message.headers | own)
        edges = [0, len(block), len(block) + len(message.payload)]
        return cls(Parcel(block + message.payload, [b""], [b""], edges))

    def __len__(self) -> int:
        return len(self.seqs)

    @overload
    def __getitem__(self, row: int) -> StoredMessage: ...
    @overload
    def __getitem__(self, row: slice) -> list[StoredMessage]: ...
    def __getitem__(self, row: int | slice) -> StoredMessage | list[StoredMessage]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        headers = self.parcel.headers(row) or {}
        subject, stored = headers.pop(_SUBJECT, ""), headers.pop(_STORED_AT, "")
        headers.pop(_SEQUENCE, None)
        return StoredMessage(self.seqs[row], subject, headers, self.parcel.payload(row), stored)

    def pick(self, snapshot: StreamSnapshot) -> StoredPage:
        """Returns the messages that are part of the snapshot."""
        rows = [row for row, seq in enumerate(self.seqs) if seq in snapshot]
        return self if len(rows) == len(self) else StoredPage(self.parcel.pick(rows))


def _read_seq(block: bytes) -> int:
    # The server adds its own headers after those of the message.
    start = block.rfind(b"\r\n" + _SEQUENCE.encode() + b":") + len(_SEQUENCE) + 3
    return int(block[start : block.index(b"\r\n", start)])


async def read_last(client: SecuredClient, stream: str, subject: str) -> list[StoredMessage]:
    """Returns the last message on each subject that matches, oldest first."""
    if client.is_on_a_single_server:
        # No other server can be ahead of it, so its answer need not be checked.
        messages, end = await _ask(client, stream, {"multi_last": [subject]}, _SILENCE.seconds(1))
        if end.get("Status") in ("204", "404") and not int(end.get("Nats-Num-Pending", 0)):
            return [*messages]
    try:
        known = await api.read_info(client, stream, subjects_filter=subject)
    except api.ApiError as error:
        if error.code == api.NOT_FOUND:
            return []
        raise
    subjects = known.get("subjects") or {}
    for _ in range(_LOOKS if 0 < len(subjects) <= _MOST_SUBJECTS else 0):
        messages, end = await _direct_read(client, stream, {"multi_last": [subject]})
        if _is_whole(end, known["last_seq"]):
            return [*messages]
        await asyncio.sleep(_PAUSE)
    return await _read_last_from_leader(client, stream, subjects)


def _is_whole(end: dict[str, str], last_seq: int) -> bool:
    up_to, left_out = end.get("Nats-UpTo-Sequence", 0), end.get("Nats-Num-Pending", 0)
    return int(up_to) >= last_seq and not int(left_out)


async def _read_last_from_leader(
    client: SecuredClient, stream: str, subjects: Iterable[str]
) -> list[StoredMessage]:
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def read(subject: str) -> StoredMessage | None:
        async with gate:
            return await read_one(client, stream, last_by_subj=subject)

    messages = await asyncio.gather(*map(read, subjects))
    return sorted(filter(None, messages), key=lambda message: message.seq)


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The messages that a stream holds at one moment, according to its leader.

    A replica may not have some of them yet, and may still have others that were deleted.
    """

    first: int
    last: int
    deleted: frozenset[int]

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last and seq not in self.deleted


async def take_snapshot(client: SecuredClient, stream: str, gaps: bool = True) -> StreamSnapshot:
    """Asks the leader which messages the stream has now.

    Without ``gaps`` it is not asked which were deleted in between: a server without a cluster never
    returns deleted messages, and the list of them may be long.
    """
    facts = await api.read_info(client, stream, **({"deleted_details": True} if gaps else {}))
    deleted = frozenset(facts.get("deleted") or ())
    return StreamSnapshot(max(1, facts["first_seq"]), facts["last_seq"], deleted)


async def read_page(
    client: SecuredClient,
    stream: str,
    subject: str,
    start: int,
    snapshot: StreamSnapshot,
    most: int = _PAGE,
) -> StoredPage:
    """Returns the next messages on a subject, from a sequence on; empty when there are no more."""
    while start <= snapshot.last:
        page = await _read_next(
            client, stream, subject, start, min(most, snapshot.last - start + 1)
        )
        if not page:
            break
        if messages := page.pick(snapshot):
            return messages
        start = page.seqs[-1] + 1
    return StoredPage.of()


async def _read_next(
    client: SecuredClient, stream: str, subject: str, start: int, most: int
) -> StoredPage:
    """Returns the next messages that a replica has, or else the leader's next message."""
    request = {"seq": start, "next_by_subj": subject, "batch": most, "max_bytes": _PAGE_BYTES}
    page, _ = await _direct_read(client, stream, request)
    if page or client.is_on_a_single_server:
        return page
    return StoredPage.of(await read_one(client, stream, seq=start, next_by_subj=subject))


async def read_subject(client: SecuredClient, stream: str, subject: str) -> list[StoredMessage]:
    """Returns every message on a subject, oldest first."""
    messages: list[StoredMessage] = []
    snapshot = await take_snapshot(client, stream)
    start = snapshot.first
    while page := await read_page(client, stream, subject, start, snapshot):
        messages += page
        start = page.seqs[-1] + 1
    return messages


async def read_one(client: SecuredClient, stream: str, **which: Any) -> StoredMessage | None:
    """Returns one message from the leader, by ``seq``, by ``last_by_subj`` or the next one."""
    try:
        answer = await api.call(client, f"STREAM.MSG.GET.{stream}", which)
    except api.ApiError as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    return _read_message(answer["message"])


def _read_message(message: dict[str, Any]) -> StoredMessage:
    headers = read_headers(b64decode(message.get("hdrs", "")))
    payload = b64decode(message.get("data", ""))
    seq, subject = message["seq"], message["subject"]
    return StoredMessage(seq, subject, headers, payload, message["time"])


async def read_many(
    client: SecuredClient, stream: str, seqs: Sequence[int]
) -> list[StoredMessage | None]:
    """Returns messages from the leader by their sequences, in that order; ``None`` if gone."""
    subject = f"$JS.API.STREAM.MSG.GET.{stream}".encode()
    bodies = [json.dumps({"seq": seq}).encode() for seq in seqs]
    rows = Publishes.plain([subject] * len(seqs), bodies)
    answers = await client.request_all(rows, _SILENCE.seconds(1))
    messages: list[StoredMessage | None] = []
    for seq, answer in zip(seqs, answers, strict=True):
        facts = json.loads(answer) if isinstance(answer, bytes) else {}
        # On any other answer, or none, read it with ``read_one``, which retries or raises.
        known = "message" in facts
        messages.append(
            _read_message(facts["message"]) if known else await read_one(client, stream, seq=seq)
        )
    return messages


async def _direct_read(
    client: SecuredClient, stream: str, request: dict[str, Any]
) -> tuple[StoredPage, dict[str, str]]:
    """Returns a replica's messages and its closing status; asks again while there is no answer."""
    deadline = time.monotonic() + api.PATIENCE
    attempt = 0
    while True:
        attempt += 1
        messages, end = await _ask(client, stream, request, _SILENCE.seconds(attempt))
        status = end.get("Status", "silence")
        if status == "204" or (status == "404" and not messages):
            return messages, end
        if status not in ("silence", "503", "404"):
            raise api.ApiError(int(status), end.get("Description", "refused"))
        if time.monotonic() > deadline:
            raise JetStreamUnavailable(f"DIRECT.GET.{stream}", api.PATIENCE, status)
        await asyncio.sleep(_PAUSE)


async def _ask(
    client: SecuredClient, stream: str, request: dict[str, Any], silence: float
) -> tuple[StoredPage, dict[str, str]]:
    subject, payload = f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode()
    parcels: list[Parcel] = []
    news = asyncio.Event()

    def take(parcel: Parcel) -> None:
        parcels.append(parcel)
        news.set()

    inbox = client.new_inbox()
    listening = await client.listen(inbox, take)
    try:
        async with client.unless_denied(subject):
            await client.publish(subject, payload, reply=inbox)
            while True:
                async with asyncio.timeout(silence):
                    await news.wait()
                news.clear()
                if (end := _read_end(parcels[-1])) is not None:
                    answer = Parcel.join(parcels)
                    return StoredPage(answer.cut(0, len(answer) - 1)), end
    except TimeoutError:
        return StoredPage.of(), {}
    finally:
        await listening.unsubscribe()


def _read_end(parcel: Parcel) -> dict[str, str] | None:
    """Returns the closing status of an answer; ``None`` if the last message is not a status."""
    headers = parcel.headers(len(parcel) - 1) or {}
    return headers if "Status" in headers else None


async def read_after(
    client: SecuredClient, stream: str, subject: str, after: int, *, headers_only: bool = False
) -> AsyncGenerator[Deliveries]:
    """Yields the messages after a sequence, in order; an empty subject means all.

    ``JetStreamUnavailable`` when the server stops answering before the end.
    """
    batches: list[Deliveries] = []
    consumer = LightConsumer(stream)
    pull = PullConsumer(client, stream, consumer.name, batches.append)
    await pull.open()
    try:
        facts = await consumer.make(client, subject, after, _IDLE_CONSUMER, headers_only)
        left = int(facts["num_pending"])
        while left:
            # A request for no more than there are ends at once, instead of when it expires.
            request = PullRequest(
                batch=min(left, _AT_A_TIME),
                max_bytes=_BYTES_AT_A_TIME,
                expires=int(_ANSWER_WITHIN / 2 * NANOS),
            )
            status = await pull.fetch(request, silence=_ANSWER_WITHIN)
            if status.state in (PullState.SILENCE, PullState.GAP):
                raise JetStreamUnavailable(pull.subject, _ANSWER_WITHIN, status.state.value)
            for batch in batches:
                yield batch
            # This includes messages stored meanwhile: a message that was moved to the end is read
            # there. Any other status means that the remaining messages no longer exist.
            left = batches[-1].pending if status.state is PullState.FULL else 0
            batches.clear()
    finally:
        await pull.close()
        await consumer.forget(client)
