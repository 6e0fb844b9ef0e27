"""JetStream's management interface: making a call, and calls that read and change streams.

On a cluster only the leader of a stream counts. While there is none, other servers may answer with
what they have, and ``call`` tries again until there is a leader.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from ebbflow.domain.errors import JetStreamUnavailable

NOT_FOUND = 10059
_NO_LEADER = 10008
# No leader, not the leader, or all servers that hold it are down: these pass by themselves.
_TEMPORARY = frozenset({_NO_LEADER, 10009, 10118, 10119})
PATIENCE = 30.0
# How long to wait for an answer. Short while an election may last, as an answer lost in it never
# comes and the leader is asked again only after this wait. Then longer: the server may be slow.
_FIRST_WAIT, _LONGER, _ELECTION = 1.0, 0.5, 10.0
_PAUSE = 0.1
# Followers elect another leader only after four seconds without one.
_LEASE = 3 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamState:
    """The number of messages in a stream, and its last sequence."""

    messages: int
    last_seq: int


class ApiError(Exception):
    """JetStream's management interface refused a call."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.text} ({self.code})"


async def call(
    client: Client, name: str, body: dict[str, Any] | None = None, patience: float = PATIENCE
) -> dict[str, Any]:
    """Makes one call of JetStream's management interface, again while there is no leader or answer.

    A call whose answer got lost is carried out again. ``JetStreamUnavailable`` after ``patience``
    seconds.
    """
    payload = json.dumps(body).encode() if body else b""
    deadline = time.monotonic() + patience
    wait = min(_FIRST_WAIT, patience)
    while True:
        try:
            answer = await client.request(f"$JS.API.{name}", payload, wait)
            result: dict[str, Any] = json.loads(answer.data)
            if (refusal := _find_refusal(result)) is None:
                return result
            if refusal.code not in _TEMPORARY:
                raise refusal
            problem = refusal.text
        except nats.errors.NoRespondersError:
            problem = "no server responds"
        except (nats.errors.TimeoutError, nats.errors.OutboundBufferLimitError):
            problem = "no answer"
        await asyncio.sleep(_PAUSE)
        left = deadline - time.monotonic()
        wait = min(wait + _LONGER * (patience - left > _ELECTION), left)
        if wait <= _PAUSE:  # too short for an answer, and a time-out would hide the last problem
            raise JetStreamUnavailable(name, patience, problem)


def _find_refusal(result: dict[str, Any]) -> ApiError | None:
    if error := result.get("error"):
        return ApiError(error.get("err_code", 0), error.get("description", "refused"))
    if "cluster" in result and not _leads(result["cluster"]):
        return ApiError(_NO_LEADER, "it has no leader")
    return None


def _leads(cluster: dict[str, Any]) -> bool:
    """``True`` if the sender leads and reaches a majority, so no other server can be the leader."""
    others = cluster.get("replicas") or ()
    if not cluster.get("leader") or cluster["leader"] in (other["name"] for other in others):
        return False
    in_touch = [other for other in others if 0 < other.get("active", 0) < _LEASE]
    return len(in_touch) >= (len(others) + 1) // 2


async def read_info(client: Client, stream: str, **details: Any) -> dict[str, Any]:
    """Returns the state of the stream as its leader knows it, with the details asked for."""
    answer = await call(client, f"STREAM.INFO.{stream}", details)
    state: dict[str, Any] = answer["state"]
    return state


async def read_state(client: Client, stream: str, aside: str = "") -> StreamState | None:
    """Returns how much the stream holds; ``None`` when there is no such stream.

    Messages on the subject ``aside`` are not counted.
    """
    try:
        facts = await read_info(client, stream, **({"subjects_filter": aside} if aside else {}))
    except ApiError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    left_out = sum((facts.get("subjects") or {}).values()) if aside else 0
    return StreamState(facts["messages"] - left_out, facts["last_seq"])


async def purge_subject(client: Client, stream: str, subject: str, up_to: int) -> int:
    """Deletes the messages on the subject up to and including the sequence; returns how many.

    The number is 0 if the server's reply got lost and the call was repeated.
    """
    request = {"filter": subject, "seq": up_to + 1}
    return int((await call(client, f"STREAM.PURGE.{stream}", request)).get("purged", 0))


async def list_streams(client: Client, prefix: str) -> list[str]:
    """Returns the names of the streams that begin with the prefix."""
    names: list[str] = []
    while True:
        page = await call(client, "STREAM.NAMES", {"offset": len(names)})
        names += page["streams"] or []
        if len(names) >= page["total"]:
            return [name for name in names if name.startswith(prefix)]


async def delete(client: Client, streams: Iterable[str]) -> None:
    """Deletes the streams and all their messages."""
    for stream in streams:
        try:
            await call(client, f"STREAM.DELETE.{stream}")
        except ApiError as error:
            if error.code != NOT_FOUND:  # an earlier call whose answer got lost has deleted it
                raise
