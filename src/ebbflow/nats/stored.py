"""Reading what a stream holds, without a consumer: never older than the moment of the call.

Any replica answers a direct read, and one that lags behind answers with what it has. So the leader
says first how far the stream is; an answer that falls short of that is asked for again, and in the
end the leader is asked for the messages themselves. While there is no leader, reads wait for one.
A server that is of no cluster is simply asked.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from ebbflow.durations import Backoff
from ebbflow.errors import JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.wire import read_headers

_NO_MESSAGE = 10037
# A server that hangs may be the one that is asked; the next time it is another one, as a rule.
_SILENCE = Backoff(interval=500, factor=2.0, cap=4_000)
_PAUSE = 0.05
_LOOKS = 10
_IN_FLIGHT = 16
_PAGE = 256
_PAGE_BYTES = 4 * 1024 * 1024
# The server refuses to collect the last messages of more than 1024 subjects at once.
_MOST_SUBJECTS = 1000


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a stream; ``stored`` is when, as the server writes it."""

    seq: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    stored: str = ""


async def read_last(client: SecuredClient, stream: str, subject: str) -> list[StoredMessage]:
    """Returns the last message on each subject that matches, oldest first."""
    if client.is_on_a_single_server:
        # No other server can be ahead of it, so there is nothing to hold its answer against.
        messages, end = await _ask(client, stream, {"multi_last": [subject]}, _SILENCE.seconds(1))
        if end.get("Status") in ("204", "404") and not int(end.get("Nats-Num-Pending", 0)):
            return messages
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
            return messages
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
    """The messages that a stream holds at one moment, as its leader knows.

    A replica may lack some of them still, and still have others that were deleted.
    """

    first: int
    last: int
    deleted: frozenset[int]

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last and seq not in self.deleted


async def take_snapshot(client: SecuredClient, stream: str) -> StreamSnapshot:
    """Asks the leader which messages are there now."""
    facts = await api.read_info(client, stream, deleted_details=True)
    deleted = frozenset(facts.get("deleted") or ())
    return StreamSnapshot(max(1, facts["first_seq"]), facts["last_seq"], deleted)


async def read_page(
    client: SecuredClient, stream: str, subject: str, start: int, there: StreamSnapshot
) -> list[StoredMessage]:
    """Returns the next messages on a subject, from a sequence on; none when there are no more."""
    while start <= there.last:
        page = await _read_next(client, stream, subject, start, there.last)
        if not page:
            break
        if messages := [message for message in page if message.seq in there]:
            return messages
        start = page[-1].seq + 1
    return []


async def _read_next(
    client: SecuredClient, stream: str, subject: str, start: int, last: int
) -> list[StoredMessage]:
    """Returns what some replica has next, or else the one message that the leader has next."""
    most = min(_PAGE, last - start + 1)
    request = {"seq": start, "next_by_subj": subject, "batch": most, "max_bytes": _PAGE_BYTES}
    messages, _ = await _direct_read(client, stream, request)
    if messages:
        return messages
    message = await read_one(client, stream, seq=start, next_by_subj=subject)
    return [message] if message else []


async def read_subject(client: SecuredClient, stream: str, subject: str) -> list[StoredMessage]:
    """Returns every message on a subject, oldest first."""
    messages: list[StoredMessage] = []
    there = await take_snapshot(client, stream)
    start = there.first
    while page := await read_page(client, stream, subject, start, there):
        messages += page
        start = page[-1].seq + 1
    return messages


async def read_one(client: SecuredClient, stream: str, **which: Any) -> StoredMessage | None:
    """Returns one message from the leader, by ``seq``, by ``last_by_subj`` or the next one."""
    try:
        answer = await api.call(client, f"STREAM.MSG.GET.{stream}", which)
    except api.ApiError as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    headers = read_headers(b64decode(message.get("hdrs", "")))
    payload = b64decode(message.get("data", ""))
    seq, subject = message["seq"], message["subject"]
    return StoredMessage(seq, subject, headers, payload, message["time"])


async def _direct_read(
    client: SecuredClient, stream: str, request: dict[str, Any]
) -> tuple[list[StoredMessage], dict[str, str]]:
    """Returns what a replica has and its closing words; asks again while nobody answers."""
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
) -> tuple[list[StoredMessage], dict[str, str]]:
    subject, payload = f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode()
    inbox = await client.subscribe(
        client.new_inbox(), pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    messages: list[StoredMessage] = []
    try:
        async with client.unless_denied(subject):
            await client.publish(subject, payload, reply=inbox.subject)
            while True:
                message = await inbox.next_msg(timeout=silence)
                headers = dict(message.headers or {})
                if "Status" in headers:
                    return messages, headers
                messages.append(_to_stored(message, headers))
    except nats.errors.TimeoutError:
        return [], {}
    finally:
        await inbox.unsubscribe()


def _to_stored(message: Msg, headers: dict[str, str]) -> StoredMessage:
    subject, seq = headers.pop("Nats-Subject", ""), int(headers.pop("Nats-Sequence", 0))
    stored = headers.pop("Nats-Time-Stamp", "")
    return StoredMessage(seq, subject, headers, message.data, stored)
