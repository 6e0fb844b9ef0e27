"""The streams and the bucket of a pipeline, made before it runs.

Buffers use limits retention and refuse new messages when full, so back-pressure is felt and
nothing is ever pushed out. A stream with schedules cannot refuse new messages, which is why
redeliveries have streams of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.api import ApiError
from ebbflow.streams.names import Names

_IN_USE_DIFFERENTLY = 10058
_NO_PEERS = 10005
_NO_CLUSTER = 10074
_NO_ROOM = 10047
_PAUSE = 0.1
_JOINING = 10.0
_NANOS = 1_000_000_000
# So much is kept of what user code has printed and logged.
_LOG_ENTRIES, _LOG_BYTES, _LOG_DAYS = 10_000, 64 * 1024**2, 7
DUPLICATE_WINDOW = 120
DEFAULT_BUFFER_BYTES = 1024**3
_STATUS_BYTES = 32 * 1024**2
TRAIL_TTL = 2 * 60 * 60 * 1000
"""The milliseconds that a trail is kept, unless the store of the answers has a time to live."""
ANSWERS = "ebbflow.answers"
"""The metadata of the positions' bucket that names the bucket of the answers."""
AUDIT_TABLE = "ebbflow.audit-table"
"""The metadata of the stream of audit rows that say, in JSON, which table they go to."""
OWN_STORE = "ebbflow.own-store"
"""The metadata that says that the answers are in a store of the user's own."""


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
    """Describes the stream a partition reads: full means full."""
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
    """Describes the stream of what a partition gets again, with schedules for what is not due."""
    return _stream(
        names.redelivery(vertex, partition),
        [
            names.due_subject(vertex, partition),
            names.later_subject(vertex, partition),
            names.replayed_subject(vertex, partition),
        ],
        replicas,
        allow_msg_schedules=True,
        # A replay stores what it sends and the mark that says so together, or neither.
        allow_atomic=True,
    )


def dead_letter_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of dead letters: nothing leaves it but by purge or replay."""
    return _stream(names.dead_letters, [names.dead_letter_subject()], replicas)


def ledger_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of what is known about messages that went back to their source."""
    return _stream(names.ledger, [names.ledger_subject()], replicas)


def seen_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of ids that sources were given, kept for as long as copies are known."""
    return _stream(names.seen, [names.seen_subject()], replicas, max_age=DUPLICATE_WINDOW * _NANOS)


def trail_config(names: Names, ttl_ms: int, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of what became of every message: as old as the answers may become."""
    return _stream(
        names.trail,
        [names.trail_subject()],
        replicas,
        max_age=ttl_ms * _NANOS // 1000,
        # No message id may be remembered for longer than the message itself is kept.
        duplicate_window=min(DUPLICATE_WINDOW * 1000, ttl_ms) * _NANOS // 1000,
    )


def audit_config(names: Names, table: str, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of audit rows that are not in the table yet: full means full.

    Its metadata say what ``table`` they go to, for those who read it.
    """
    return _stream(
        names.audit,
        [names.audit_subject()],
        replicas,
        discard="new",
        max_bytes=DEFAULT_BUFFER_BYTES,
        metadata={AUDIT_TABLE: table},
    )


def logs_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of logs: the newest of each vertex, within bounds."""
    return _stream(
        names.logs,
        [names.log_subject()],
        replicas,
        discard="old",
        max_msgs_per_subject=_LOG_ENTRIES,
        max_bytes=_LOG_BYTES,
        max_age=_LOG_DAYS * 24 * 60 * 60 * _NANOS,
    )


def status_config(names: Names, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream of the pipeline's state: old samples go, the latest state stays."""
    return _stream(
        names.status,
        [names.status_subject()],
        replicas,
        max_bytes=_STATUS_BYTES,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
    )


def positions_config(
    names: Names, replicas: int = 1, answers: str | None = None, own_store: bool = False
) -> dict[str, Any]:
    """Describes the key-value bucket of positions, as any NATS tool knows buckets.

    Its metadata say in which bucket the pipeline keeps its ``answers``, if in any, and whether it
    keeps them in a store of the user's.
    """
    metadata = {} if answers is None else {ANSWERS: answers}
    return _stream(
        f"KV_{names.positions}",
        [f"$KV.{names.positions}.>"],
        replicas,
        max_msgs_per_subject=1,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
        metadata=metadata | ({OWN_STORE: "true"} if own_store else {}),
    )


async def ensure(client: Client, config: dict[str, Any]) -> None:
    """Creates the stream, or brings an existing one to this configuration."""
    name = config["name"]
    try:
        await _place(client, f"STREAM.CREATE.{name}", config)
    except ApiError as error:
        if error.code != _IN_USE_DIFFERENTLY:
            raise _explain(config, error) from error
        try:
            await _place(client, f"STREAM.UPDATE.{name}", config)
        except ApiError as refusal:
            if refusal.code in (_NO_CLUSTER, _NO_PEERS):
                raise _explain(config, refusal) from refusal
            raise SetupError(
                f"Stream {name} exists with another configuration: {refusal}.",
                "Run with --fresh to start the pipeline over, or rename the pipeline.",
            ) from refusal


async def _place(client: Client, call: str, config: dict[str, Any]) -> None:
    """Makes a call that needs servers to put a stream on; new ones are known a bit later."""
    deadline = time.monotonic() + _JOINING
    while True:
        try:
            await api.call(client, call, config)
            return
        except ApiError as error:
            if error.code != _NO_PEERS or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE)


def _explain(config: dict[str, Any], error: ApiError) -> SetupError:
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


@asynccontextmanager
async def explain_missing(client: Client, pipeline: str) -> AsyncIterator[None]:
    """Raises ``SetupError`` where JetStream has no such stream, as no such pipeline has run."""
    try:
        yield
    except ApiError as error:
        if error.code != api.NOT_FOUND:
            raise
        raise await find_unknown(client, pipeline) from None


async def find_unknown(client: Client, pipeline: str) -> SetupError:
    """Returns the error about a pipeline that has not run here, with those that have."""
    return explain_unknown(pipeline, await api.list_streams(client, "ebb_"))


def explain_unknown(pipeline: str, existing: Iterable[str]) -> SetupError:
    """Returns the error about a pipeline that has none of the streams that exist."""
    first, last = Names("|").dead_letters.split("|")
    known = sorted(
        name.removeprefix(first).removesuffix(last) for name in existing if name.endswith(last)
    )
    place = "Name another place with --state DIR or --nats URL."
    step = f"Known here: {', '.join(known)}. {place}" if known else place
    return SetupError(f"No pipeline {pipeline!r} has run here.", step)
