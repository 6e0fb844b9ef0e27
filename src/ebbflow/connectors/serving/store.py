"""Stored facts about requests: records of ended ones and checkpoints, for callers and recovery.

Both are in the bucket of the answers. ``<request>.<pipeline>`` is the record of an ended request.
Records are written in the background, many at a time, and retried until they are stored.
``checkpoint.<pipeline>.<vertex>`` says from where the trail has to be read after a crash. Keys of
answers have four parts.

A request is stored when its row is in the buffer of the source. The row leaves the buffer only when
the source's task is done with it, and by then the trail has rows of the request. So the buffer
after the position and the trail together have every accepted request. Old rows of the trail are
written to its end again unchanged: rows are taken as a set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import nats.errors

from ebbflow.accounts.completion import PublishedRow, RequestFailure, RequestStep
from ebbflow.domain import records
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine import frames
from ebbflow.engine.answers import Answer, answer_key
from ebbflow.engine.position import Mark
from ebbflow.nats import api
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_after, read_last, read_one
from ebbflow.nats.wire import Publishes
from ebbflow.streams.names import Names, bucket_stream
from ebbflow.streams.positions import read_positions
from ebbflow.streams.trail_rows import TrailRow, publish_trail

Status = Literal["in-progress", "completed", "failed"]

_AT_ONCE = 500
_GATHER, _PAUSE = 0.05, 1.0
_CHECKPOINT = "checkpoint"


# --- one request ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request. ``answers`` is set when it is completed, in the order of its results.

    ``steps`` are the known steps of its path, oldest first, and ``steps_left_out`` counts the
    others. ``failure`` says why it failed. ``answer_count`` is the number of answers in the trail;
    replays may have stored more.
    """

    id: str
    status: Status
    accepted: datetime
    ended: datetime | None = None
    failure: RequestFailure | None = None
    answer_count: int = 0
    answers: tuple[Answer, ...] = field(default=(), metadata=records.stored_as(None))
    steps: tuple[RequestStep, ...] = ()
    steps_left_out: int = 0

    def to_json(self) -> bytes:
        """Returns the record as it is stored."""
        return json.dumps(self.describe()).encode()

    def describe(self) -> dict[str, Any]:
        """Returns everything but the answers as JSON, without unknown fields of steps."""
        plain = records.to_plain(self)
        plain["steps"] = [
            {name: fact for name, fact in step.items() if fact is not None}
            for step in plain["steps"]
        ]
        return plain

    @classmethod
    def from_json(cls, raw: bytes) -> ServedRequest:
        """Returns the request from its stored record."""
        return records.from_json(cls, raw)


# --- records and checkpoints ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a source's requests, as sequences of the trail.

    No row up to ``begin`` is about a request that was open. The record of every request that ended
    up to ``written`` is stored. ``life`` is when the trail was created: a new trail has new
    sequences.
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
        # From the leader: a replica may not have the latest writes yet.
        subject = self._subject_of(request)
        message = await read_one(self._client, self._stream, last_by_subj=subject)
        # A tool may have deleted it, which leaves an empty message.
        return ServedRequest.from_json(message.payload) if message and message.payload else None

    def write(self, request: ServedRequest, on_stored: Callable[[], None]) -> None:
        """Schedules writing a record; ``on_stored`` is called when it is confirmed."""
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
                # Requests that end meanwhile are written together. Nothing waits for a record:
                # until it is stored, memory has the request, and after a crash the trail.
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
            # The bucket is full or deleted. Ended requests must not be forgotten because of that.
            self._unwritten += [some[row] for row in sorted(left)]
            await asyncio.sleep(_PAUSE)

    async def read_checkpoint(self, vertex: str, life: str) -> Checkpoint:
        """Returns the last checkpoint for a trail, or one at its beginning if there is none."""
        return (await self.read_checkpoints(life, vertex)).get(vertex, Checkpoint(life=life))

    async def read_checkpoints(self, life: str, vertex: str = "*") -> dict[str, Checkpoint]:
        """Returns the last checkpoint for a trail of each serving source."""
        messages = await read_last(self._client, self._stream, self._checkpoint_subject(vertex))
        return {
            message.subject.rpartition(".")[2]: _read_checkpoint(message.payload, life)
            for message in messages
        }

    async def write_checkpoint(self, vertex: str, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint; returns when that is confirmed."""
        subject = self._checkpoint_subject(vertex)
        await publish(self._client, subject, records.to_json(checkpoint), retry=BUFFER)

    def _checkpoint_subject(self, vertex: str) -> str:
        return f"{self._prefix}{_CHECKPOINT}.{self._pipeline}.{vertex}"

    def _subject_of(self, request: str) -> str:
        return f"{self._prefix}{answer_key(request)}.{self._pipeline}"


def _read_checkpoint(raw: bytes, life: str) -> Checkpoint:
    written = records.from_json(Checkpoint, raw)
    # The bucket may outlive the trail. With an old trail's sequences this one would not be read.
    return written if written.life == life else Checkpoint(life=life)


# --- after a crash --------------------------------------------------------------------------------


async def read_life(client: SecuredClient, stream: str) -> str:
    """Returns when a stream was created: a later one of the same name has other sequences."""
    facts = await api.call(client, f"STREAM.INFO.{stream}")
    return str(facts["created"])


async def read_unsettled_requests(
    link: Link, names: Names, vertex: str, partitions: int
) -> dict[str, datetime]:
    """Returns the requests whose rows the source has not settled, and when they were accepted."""
    positions = await read_positions(link.client, names)
    waiting: dict[str, datetime] = {}
    for partition in range(partitions):
        position = positions.get((vertex, partition))
        done = position.done.inlet if position else Mark()
        waiting |= await _read_buffer(link, names, vertex, partition, done)
    return waiting


async def _read_buffer(
    link: Link, names: Names, vertex: str, partition: int, done: Mark
) -> dict[str, datetime]:
    stream, subject = names.buffer(vertex, partition), names.buffer_subject(vertex, partition)
    waiting: dict[str, datetime] = {}
    row = done.row
    async for deliveries in read_after(link.client, stream, subject, done.seq):
        for number in range(len(deliveries)):
            # Some rows of the first frame after the mark may be done.
            batch = frames.decode(deliveries.parcel.view(number)).slice(row)
            row = 0
            ids, times = (batch.column(name).to_pylist() for name in ("id", "first_seen"))
            waiting |= dict(zip(ids, times, strict=True))
    return waiting


async def rewrite_rows(client: SecuredClient, names: Names, rows: Iterable[PublishedRow]) -> int:
    """Writes the rows of requests to the end of the trail; returns the sequence of the first."""
    by_vertex: dict[str, list[TrailRow]] = defaultdict(list)
    for vertex, row in rows:
        by_vertex[vertex].append(row)
    seqs = []
    for vertex, own_rows in by_vertex.items():
        for publication in publish_trail(own_rows, secrets.token_hex(8), vertex):
            subject = names.trail_subject(vertex)
            msg_id = publication.msg_id
            ack = await publish(client, subject, publication.payload, msg_id=msg_id, retry=BUFFER)
            seqs.append(ack.seq)
    return min(seqs)
