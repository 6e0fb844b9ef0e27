"""The streams and the bucket of a pipeline: made before it runs, inspected while it does.

Buffers use limits retention and refuse new messages when full, so back-pressure is felt and
nothing is ever pushed out. A stream with schedules cannot refuse new messages, which is why
redeliveries have streams of their own.

On a cluster only the leader of a stream counts. While there is none, others may answer with what
they have, and calls are tried again until there is one.
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

from ebbflow.errors import JetStreamUnavailable, SetupError
from ebbflow.jetstream.names import Names

NOT_FOUND = 10059
_IN_USE_DIFFERENTLY = 10058
_NO_LEADER = 10008
# Leaderless, not the leader, or all that hold it are away: over by itself after a while.
_TEMPORARY = frozenset({_NO_LEADER, 10009, 10118, 10119})
_NO_PEERS = 10005
_NO_CLUSTER = 10074
_NO_ROOM = 10047
PATIENCE = 30.0
# For an answer. Short at first, because one that got lost in an election never comes.
_FIRST_WAIT, _LONGER = 1.0, 0.25
_PAUSE = 0.1
_JOINING = 10.0
# No other leader is elected before its followers have missed one for four seconds.
_LEASE = 3 * 1_000_000_000
_NANOS = 1_000_000_000
DUPLICATE_WINDOW = 120
DEFAULT_BUFFER_BYTES = 1024**3


@dataclass(frozen=True, slots=True)
class StreamState:
    """How much a stream holds and how far it has got."""

    messages: int
    last_seq: int


class ApiError(Exception):
    """JetStream's management interface said no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.text} ({self.code})"


async def api(
    client: Client, call: str, body: dict[str, Any] | None = None, patience: float = PATIENCE
) -> dict[str, Any]:
    """One call of JetStream's management interface, tried again while nobody leads or answers.

    A call whose answer got lost is carried out again. ``JetStreamUnavailable`` when patience is
    at its end.
    """
    payload = json.dumps(body).encode() if body else b""
    deadline = time.monotonic() + patience
    wait = min(_FIRST_WAIT, patience)
    while True:
        try:
            answer = await client.request(f"$JS.API.{call}", payload, wait)
            result: dict[str, Any] = json.loads(answer.data)
            if (refusal := _refusal(result)) is None:
                return result
            if refusal.code not in _TEMPORARY:
                raise refusal
            problem = refusal.text
        except nats.errors.NoRespondersError:
            problem = "nobody listens"
        except (nats.errors.TimeoutError, nats.errors.OutboundBufferLimitError):
            problem = "no answer"
        await asyncio.sleep(_PAUSE)
        wait = min(wait + _LONGER, deadline - time.monotonic())
        if wait <= 0:
            raise JetStreamUnavailable(call, patience, problem)


def _refusal(result: dict[str, Any]) -> ApiError | None:
    if error := result.get("error"):
        return ApiError(error.get("err_code", 0), error.get("description", "refused"))
    if "cluster" in result and not _leads(result["cluster"]):
        return ApiError(_NO_LEADER, "it has no leader")
    return None


def _leads(cluster: dict[str, Any]) -> bool:
    """Whether who answered leads and is in touch with a majority, so that nobody else can lead."""
    others = cluster.get("replicas") or ()
    if not cluster.get("leader") or cluster["leader"] in (other["name"] for other in others):
        return False
    in_touch = [other for other in others if 0 < other.get("active", 0) < _LEASE]
    return len(in_touch) >= (len(others) + 1) // 2


def _stream(name: str, subjects: list[str], replicas: int, **options: Any) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW * _NANOS,
        "allow_direct": True,
        **options,
    }


def buffer_config(
    names: Names, vertex: str, partition: int, max_frames: int, replicas: int = 1
) -> dict[str, Any]:
    """The stream a partition reads: full means full."""
    return _stream(
        names.buffer(vertex, partition),
        [names.buffer_subject(vertex, partition)],
        replicas,
        discard="new",
        max_msgs=max_frames,
        max_bytes=DEFAULT_BUFFER_BYTES,
    )


def redelivery_config(
    names: Names, vertex: str, partition: int, replicas: int = 1
) -> dict[str, Any]:
    """The stream of what a partition gets again, with schedules for what is not due yet."""
    return _stream(
        names.redelivery(vertex, partition),
        [names.due_subject(vertex, partition), names.later_subject(vertex, partition)],
        replicas,
        allow_msg_schedules=True,
    )


def dead_letter_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """The stream of dead letters: nothing leaves it but by purge or replay."""
    return _stream(names.dead_letters, [names.dead_letter_subject()], replicas)


def ledger_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """The stream of what is known about messages that went back to their source."""
    return _stream(names.ledger, [names.ledger_subject()], replicas)


def seen_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """The stream of ids that sources were given, kept for as long as copies are known."""
    return _stream(names.seen, [names.seen_subject()], replicas, max_age=DUPLICATE_WINDOW * _NANOS)


def positions_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """The key-value bucket of positions, as any NATS tool knows buckets."""
    return _stream(
        f"KV_{names.positions}",
        [f"$KV.{names.positions}.>"],
        replicas,
        max_msgs_per_subject=1,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


async def ensure(client: Client, config: dict[str, Any]) -> None:
    """Create the stream, or bring an existing one to this configuration."""
    name = config["name"]
    try:
        await _placed(client, f"STREAM.CREATE.{name}", config)
    except ApiError as error:
        if error.code != _IN_USE_DIFFERENTLY:
            raise _refused(config, error) from error
        try:
            await _placed(client, f"STREAM.UPDATE.{name}", config)
        except ApiError as refused:
            if refused.code in (_NO_CLUSTER, _NO_PEERS):
                raise _refused(config, refused) from refused
            raise SetupError(
                f"Stream {name} exists with another configuration: {refused}.",
                "Run with --fresh to start the pipeline over, or rename the pipeline.",
            ) from refused


async def _placed(client: Client, call: str, config: dict[str, Any]) -> None:
    """A call that needs servers to put a stream on; those just started are known a bit later."""
    deadline = time.monotonic() + _JOINING
    while True:
        try:
            await api(client, call, config)
            return
        except ApiError as error:
            if error.code != _NO_PEERS or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE)


def _refused(config: dict[str, Any], error: ApiError) -> SetupError:
    name, replicas = config["name"], config.get("num_replicas", 1)
    lower = "or set interStepBuffer.replicas to 1"
    if error.code == _NO_CLUSTER:
        return SetupError(
            f"Stream {name} is to be kept by {replicas} servers, but NATS is a single one.",
            f"Use a cluster of at least {replicas}, {lower}.",
        )
    if error.code == _NO_PEERS:
        return SetupError(
            f"The NATS cluster has no {replicas} servers that can keep stream {name}: {error}.",
            f"Start those that are missing, see whether they have room, {lower}.",
        )
    if error.code == _NO_ROOM:
        return SetupError(
            f"NATS has no room to set aside for stream {name}: {error}.",
            "Make room on its disk, or raise max_file_store in its configuration.",
        )
    return SetupError(f"NATS refused stream {name}: {error}.")


async def info(client: Client, stream: str, **details: Any) -> dict[str, Any]:
    """The state of the stream as its leader knows it, with the details that are asked for."""
    found = await api(client, f"STREAM.INFO.{stream}", details)
    state: dict[str, Any] = found["state"]
    return state


async def state(client: Client, stream: str) -> StreamState | None:
    """How much the stream holds; ``None`` when there is no such stream."""
    try:
        found = await info(client, stream)
    except ApiError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    return StreamState(found["messages"], found["last_seq"])


async def purge(client: Client, stream: str, subject: str, up_to: int) -> None:
    """Forget the messages on the subject up to and including the sequence."""
    await api(client, f"STREAM.PURGE.{stream}", {"filter": subject, "seq": up_to + 1})


async def names_of(client: Client, prefix: str) -> list[str]:
    """The streams whose names begin with the prefix."""
    found: list[str] = []
    while True:
        page = await api(client, "STREAM.NAMES", {"offset": len(found)})
        found += page["streams"] or []
        if len(found) >= page["total"]:
            return [name for name in found if name.startswith(prefix)]


async def delete(client: Client, streams: Iterable[str]) -> None:
    """Delete the streams and all they hold."""
    for stream in streams:
        try:
            await api(client, f"STREAM.DELETE.{stream}")
        except ApiError as error:
            if error.code != NOT_FOUND:  # a call whose answer got lost has deleted it
                raise
