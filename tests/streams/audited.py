"""A pipeline with an audit table on a real NATS server; the test acts as its tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ebbflow.accounts.audit import AuditObserver
from ebbflow.domain.outcome import Counts, Outcome
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import Held, Mark, Position, Span
from ebbflow.engine.publications import Chunk, ChunkNumber, Place
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import settle
from ebbflow.nats.link import Link
from ebbflow.nats.publish import publish
from ebbflow.runtime.provision import lineage
from ebbflow.streams import catalogue, provision
from ebbflow.streams.audit import AuditStream
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from ebbflow.streams.publish_settlement import publish_settlement
from tests.engine.sample_rows import decide, some, verdict_on

EDGES = {"in": [Edge("work")], "work": [Edge("out")], "out": []}


class Audited:
    """The vertices in, work and out, one partition each."""

    def __init__(self, link: Link, names: Names, path: str, *, audit: bool = True) -> None:
        self.link = link
        self.names = names
        table = json.dumps({"format": "parquet", "options": {"path": path}, "secretOptions": {}})
        configs = [catalogue.positions_config(names), catalogue.dead_letter_config(names)]
        configs += [catalogue.audit_config(names, table)] if audit else []
        for vertex in EDGES:
            configs.append(catalogue.redelivery_config(names, vertex, 0))
            configs.append(catalogue.buffer_config(names, vertex, 0, 100))
        for config in configs:
            link.run(provision.ensure(link.client, config))
        self.life = link.run(lineage(link, names.pipeline))
        self._observers = [AuditObserver()] if audit else []
        self._stores: dict[str, PositionStore] = {}
        self._positions: dict[str, Position] = {}

    def stream(self) -> AuditStream:
        """What a writer of the table reads."""
        return AuditStream(self.link, self.names, self.life)

    def claim(self, vertex: str) -> Position:
        """Lets another task take over the vertex."""
        store = PositionStore(self.link.client, self.names, vertex, 0)
        self._stores[vertex] = store
        self._positions[vertex] = self.link.run(store.claim())
        return self._positions[vertex]

    def settle(
        self,
        vertex: str,
        *ids: str,
        outcomes: Mapping[int, Outcome] | None = None,
        record: bool = True,
        deliveries: Sequence[int] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Lets a task settle a chunk of these messages, and record it as done or crash before."""
        position = self._positions.get(vertex) or self.claim(vertex)
        rows = some(*ids, deliveries=list(deliveries or [1] * len(ids)))
        verdict = decide(verdict_on(rows), dict(outcomes or {}))
        if EDGES[vertex]:
            verdict.decisions.forward_inputs()
        number = ChunkNumber(position.chunks + 1, position.epoch)
        place = Place(vertex, 0, EDGES[vertex], 10**6)
        chunk = Chunk(f"l:{vertex}:0:{number.number}:0", Rows(rows.batch), number)
        settlement = settle(
            chunk, verdict, place, at or datetime.now(UTC), observers=self._observers
        )
        self.link.run(publish_settlement(self.link.client, self.names, settlement))
        if record:
            done = position.done
            more = Span(Mark(done.inlet.seq, done.inlet.row), done.redelivery)
            self.write(vertex, position.settled(more, settlement.counts, chunks=1))

    def write(self, vertex: str, position: Position) -> None:
        """Replaces the record of the vertex."""
        self.link.run(self._stores[vertex].write(position))
        self._positions[vertex] = position

    def put(self, vertex: str, *ids: str) -> None:
        """Puts messages into the buffer of a vertex, in one frame."""
        batch = frames.batch_of({"id": list(ids), "value": [b""] * len(ids)}, len(ids))
        subject = self.names.buffer_subject(vertex, 0)
        self.link.run(publish(self.link.client, subject, frames.encode(batch)))

    def take(self, vertex: str, done: Mark, intent: Mark | None = None) -> None:
        """Records a vertex as done up to a mark, possibly with a chunk in flight behind it."""
        position = self._positions.get(vertex) or self.claim(vertex)
        position = position.settled(Span(done), Counts())
        self.write(vertex, position.intending(Span(intent)) if intent else position)

    def hold(self, vertex: str, due: int, reason: str) -> None:
        """Lets an ordered vertex hold the row behind its position."""
        position = self._positions.get(vertex) or self.claim(vertex)
        self.write(vertex, replace(position, held=Held(due, 2, 0, 0, reason)))

    def waiting(self) -> int:
        """The number of frames that are not in the table."""
        info: dict[str, Any] = self.link.run(_info(self.link, self.names.audit))
        return int(info["messages"])


async def _info(link: Link, stream: str) -> dict[str, Any]:
    from ebbflow.nats import api

    return await api.read_info(link.client, stream)
