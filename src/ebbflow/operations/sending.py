"""Sending messages to a vertex from any process, durably, whether its pipeline runs or not.

A message that is reported as stored is in the buffer of the vertex, as if another vertex had sent
it, and outlasts every crash. A source that pulls its messages, and a MonoVertex, have no buffer:
they receive it as a redelivery, and treat it like a message of their source. A message that is sent
again with the same id within two minutes is stored once.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pyarrow as pa

from ebbflow.domain.errors import EbbflowError, MessageTooLarge
from ebbflow.engine import frames
from ebbflow.engine.publications import ROWS, partition_of
from ebbflow.nats.bulk import publish_lanes
from ebbflow.nats.link import Link
from ebbflow.nats.publish import PublishRetry, WaitForRoom, publish
from ebbflow.runtime.run_setup import read_spec
from ebbflow.spec.graph import ShapeVertex
from ebbflow.streams.names import Names

_PAGE = frames.MAX_ROWS
_LANES = 32
_IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message to send. Without an id it gets a unique one."""

    value: bytes
    id: str | None = None
    keys: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    event_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class SendReport:
    """The ids of stored messages, and how many of them were stored already."""

    ids: tuple[str, ...]
    copies: int = 0


class Sender:
    """Sends to one vertex. Blocks; used by one thread. Raises if the vertex cannot be sent to.

    A message waits ``patience`` seconds at most for room in a full buffer or for a server that is
    down; then ``BufferFull`` or another ``PublishError`` is raised.
    """

    def __init__(self, link: Link, names: Names, vertex: str, patience: float = 60.0) -> None:
        self._link = link
        self._names = names
        self._vertex = link.run(read_spec(link.client, names)).vertex(vertex)
        self._retry = PublishRetry(attempts=-1, ack_wait=patience)
        _check(self._vertex, names.pipeline)

    def send(self, messages: Iterable[SentMessage]) -> Iterator[SendReport]:
        """Sends messages in order, many at a time; yields a report for each confirmed part."""
        rest = iter(messages)
        while page := list(islice(rest, _PAGE)):
            yield self.send_page(page)

    def send_page(self, page: Sequence[SentMessage]) -> SendReport:
        """Sends some messages; returns when all of them are stored."""
        batch = _to_batch(page)
        # A message with a chosen id may be sent again together with other messages. It is
        # recognised as a copy only if it has its own frame.
        alone = any(message.id is not None for message in page)
        copies = self._link.run(self._store_all(batch, alone))
        return SendReport(tuple(batch.column("id").to_pylist()), copies)

    async def _store_all(self, batch: pa.RecordBatch, alone: bool) -> int:
        """Stores rows, in order within each partition; returns how many were copies."""
        copies = 0

        async def store(frame: tuple[int, pa.RecordBatch]) -> None:
            nonlocal copies
            is_copy = await self._store(*frame)
            copies += frame[1].num_rows * is_copy

        def cut(partition: int, indexes: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
            rows = frames.take_rows(batch, indexes)
            each = (rows.slice(n, 1) for n in range(rows.num_rows))
            return ((partition, frame) for frame in (each if alone else frames.split(rows)))

        lanes = self._split_lanes(self._split(batch), alone)
        await publish_lanes((cut(*lane) for lane in lanes), store, _IN_FLIGHT)
        return copies

    def _split_lanes(
        self, partitions: dict[int, list[int]], alone: bool
    ) -> list[tuple[int, list[int]]]:
        """Returns the rows that may be stored in parallel: many frames without an order."""
        lanes = list(partitions.items())
        if self._vertex.ordered or not alone:
            return lanes
        return [(p, rows[n::_LANES]) for p, rows in lanes for n in range(_LANES) if rows[n::_LANES]]

    def _split(self, batch: pa.RecordBatch) -> dict[int, list[int]]:
        """Returns the rows for each partition: by keys if it is ordered, else by their ids."""
        ordered, count = self._vertex.ordered, self._vertex.partitions
        column = batch.column("keys" if ordered else "id").to_pylist()
        rows: dict[int, list[int]] = defaultdict(list)
        for index, what in enumerate(column):
            # By the id, so that the same message goes to the same stream, which detects copies.
            rows[partition_of(what or () if ordered else [what], count)].append(index)
        return rows

    async def _store(self, partition: int, frame: pa.RecordBatch) -> bool:
        """Stores a frame; returns whether it was stored already."""
        names, name = self._names, self._vertex.name
        into = names.buffer_subject if self._vertex.has_buffer else names.due_subject
        payload, client = frames.encode(frame), self._link.client
        if len(payload) + 1024 > client.max_payload:
            raise MessageTooLarge(len(payload), client.max_payload - 1024)
        mark = f"send:{frames.fingerprint(frame.column('id'))}"
        subject, counted = into(name, partition), {ROWS: str(frame.num_rows)}
        ack = await publish(
            client,
            subject,
            payload,
            counted,
            msg_id=mark,
            retry=self._retry,
            room=WaitForRoom.DEADLINE,
        )
        return ack.duplicate


def _check(vertex: ShapeVertex, pipeline: str) -> None:
    if vertex.serves:
        raise EbbflowError(
            f"{vertex.name} answers requests, and no caller would wait for this answer. Post "
            f"to its address, or send to the vertex after it: see ebbflow graph {pipeline}"
        )


def _to_batch(page: Sequence[SentMessage]) -> pa.RecordBatch:
    now = datetime.now(UTC)
    columns: dict[str, Any] = {
        "id": [message.id or f"sent-{secrets.token_hex(8)}" for message in page],
        "keys": [list(message.keys) for message in page],
        "value": [message.value for message in page],
        "event_time": [message.event_time or now for message in page],
        "headers": [list(message.headers.items()) for message in page],
        "first_seen": [now] * len(page),
    }
    return frames.batch_of(columns, len(page))
