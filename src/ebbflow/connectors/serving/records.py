"""What is written down of requests, in the bucket of the answers: how they ended, and how far.

``<request>.<pipeline>`` is the record of a request that has ended. Records are written behind the
callers' backs, many at a time, and never given up. ``checkpoint.<pipeline>.<vertex>`` says from
where on the trail has to be read after a crash. Answers have keys of four parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import nats.errors

from ebbflow.connectors.serving.served_request import ServedRequest
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.answers import answer_key
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_last, read_one
from ebbflow.nats.wire import Publishes
from ebbflow.streams.names import bucket_stream

_AT_ONCE = 500
_GATHER, _PAUSE = 0.05, 1.0
_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a source's requests are, as sequences of the trail.

    Nothing up to ``begin`` is about a request that was open. The record of every
    request that ended up to ``written`` is stored. ``life`` is when the trail was made: another one
    begins anew.
    """

    begin: int = 0
    written: int = 0
    life: str = ""


class RequestRecords:
    """The records of one pipeline. Everything happens on the client's loop."""

    def __init__(self, client: SecuredClient, bucket: str, pipeline: str) -> None:
        self._client = client
        self._stream = bucket_stream(bucket)
        self._prefix = f"$KV.{bucket}."
        self._pipeline = pipeline
        self._unwritten: list[tuple[ServedRequest, Callable[[], None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def read(self, request: str) -> ServedRequest | None:
        """Returns the record of a request that has ended."""
        # From the leader: a replica may not have yet what was written last.
        subject = self._subject_of(request)
        message = await read_one(self._client, self._stream, last_by_subj=subject)
        # A tool may have deleted it, which leaves a mark without content.
        return ServedRequest.from_json(message.payload) if message and message.payload else None

    def write(self, request: ServedRequest, on_stored: Callable[[], None]) -> None:
        """Has a record written soon; ``on_stored`` is called when that is confirmed."""
        self._unwritten.append((request, on_stored))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def flush(self) -> None:
        """Returns when every record is stored."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                # What ends meanwhile goes with it. Nobody waits for a record: until it is stored,
                # the request is known in memory, and after a crash from the trail.
                await asyncio.sleep(_GATHER)
                some, self._unwritten = self._unwritten[:_AT_ONCE], self._unwritten[_AT_ONCE:]
                await self._write(some)
        finally:
            self._writing = None

    async def _write(self, some: list[tuple[ServedRequest, Callable[[], None]]]) -> None:
        rows = Publishes.plain(
            [self._subject_of(request.id).encode() for request, _ in some],
            [request.to_json() for request, _ in some],
        )
        left = set(range(len(some)))
        with contextlib.suppress(EbbflowError, nats.errors.Error):
            left = set(await publish_all(self._client, rows, BUFFER))
        for row, (_, on_stored) in enumerate(some):
            if row not in left:
                on_stored()
        if left:
            # A bucket that is full or was deleted: an ended request must not be forgotten for it.
            self._unwritten += [some[row] for row in sorted(left)]
            await asyncio.sleep(_PAUSE)

    async def read_checkpoint(self, vertex: str, life: str) -> Checkpoint:
        """Returns the last checkpoint of a trail; one at its beginning if there is none."""
        return (await self.read_checkpoints(life, vertex)).get(vertex, Checkpoint(life=life))

    async def read_checkpoints(self, life: str, vertex: str = "*") -> dict[str, Checkpoint]:
        """Returns the last checkpoint of a trail for each source that serves."""
        messages = await read_last(self._client, self._stream, self._checkpoint_subject(vertex))
        return {
            message.subject.rpartition(".")[2]: _read_checkpoint(message.payload, life)
            for message in messages
        }

    async def write_checkpoint(self, vertex: str, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint; returns when that is confirmed."""
        subject, payload = self._checkpoint_subject(vertex), json.dumps(asdict(checkpoint)).encode()
        await publish(self._client, subject, payload, retry=BUFFER)

    def _checkpoint_subject(self, vertex: str) -> str:
        return f"{self._prefix}{_CHECKPOINT}.{self._pipeline}.{vertex}"

    def _subject_of(self, request: str) -> str:
        return f"{self._prefix}{answer_key(request)}.{self._pipeline}"


def _read_checkpoint(raw: bytes, life: str) -> Checkpoint:
    written = Checkpoint(**json.loads(raw))
    # The bucket may outlive the trail. Sequences of another one would have this one unread.
    return written if written.life == life else Checkpoint(life=life)
