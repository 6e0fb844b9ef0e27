"""The streams and the bucket of a pipeline: made before it runs, inspected while it does.

Buffers use limits retention and refuse new messages when full, so back-pressure is felt and
nothing is ever pushed out. A stream with schedules cannot refuse new messages, which is why
redeliveries have streams of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from ebbflow.errors import SetupError
from ebbflow.jetstream.names import Names

_NOT_FOUND = 10059
_IN_USE_DIFFERENTLY = 10058
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


async def api(client: Client, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call of JetStream's management interface, tried again while nobody answers."""
    payload = json.dumps(body).encode() if body else b""
    for attempt in range(40):
        try:
            answer = await client.request(f"$JS.API.{call}", payload, 5)
            break
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            if attempt == 39:
                raise
            await asyncio.sleep(0.25)
    result: dict[str, Any] = json.loads(answer.data)
    if error := result.get("error"):
        raise ApiError(error.get("err_code", 0), error.get("description", "refused"))
    return result


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
        await api(client, f"STREAM.CREATE.{name}", config)
    except ApiError as error:
        if error.code != _IN_USE_DIFFERENTLY:
            raise SetupError(f"NATS refused stream {name}: {error}.") from error
        try:
            await api(client, f"STREAM.UPDATE.{name}", config)
        except ApiError as refused:
            raise SetupError(
                f"Stream {name} exists with another configuration: {refused}.",
                "Run with --fresh to start the pipeline over, or rename the pipeline.",
            ) from refused


async def state(client: Client, stream: str) -> StreamState | None:
    """How much the stream holds; ``None`` when there is no such stream."""
    try:
        found = (await api(client, f"STREAM.INFO.{stream}"))["state"]
    except ApiError as error:
        if error.code == _NOT_FOUND:
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
        await api(client, f"STREAM.DELETE.{stream}")
