"""What is read of requests after a crash, and what is done so that it is little.

A request is stored when its row is in the buffer of the source. The row leaves it only when the
source's task is done with it, and by then the trail tells of it. So the rows behind the position
and the trail together know every request that was accepted. What a trail told long ago is told
again at its end, with the same words: rows are taken as a set.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from ebbflow.connectors.serving.register import Retelling
from ebbflow.engine import frames
from ebbflow.engine.position import Mark
from ebbflow.engine.trail import TrailRow, publish_trail
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_after
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions


async def read_life(client: SecuredClient, stream: str) -> str:
    """Returns when a stream was made: another one under its name has other sequences."""
    facts = await api.call(client, f"STREAM.INFO.{stream}")
    return str(facts["created"])


async def read_waiting(
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
            # Of the first frame behind the mark some rows may be done.
            batch = frames.decode(deliveries.parcel.view(number)).slice(row)
            row = 0
            ids, times = (batch.column(name).to_pylist() for name in ("id", "first_seen"))
            waiting |= dict(zip(ids, times, strict=True))
    return waiting


async def tell_again(client: SecuredClient, names: Names, behind: Sequence[Retelling]) -> int:
    """Writes the rows of requests to the end of the trail; returns the sequence of the first."""
    by_vertex: dict[str, list[TrailRow]] = defaultdict(list)
    for retelling in behind:
        for vertex, row in retelling.rows:
            by_vertex[vertex].append(row)
    seqs = []
    for vertex, rows in by_vertex.items():
        for publication in publish_trail(rows, secrets.token_hex(8), vertex):
            subject = names.trail_subject(vertex)
            msg_id = publication.msg_id
            ack = await publish(client, subject, publication.payload, msg_id=msg_id, retry=BUFFER)
            seqs.append(ack.seq)
    return min(seqs)
