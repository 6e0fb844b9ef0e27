"""The status of a run in NATS: published by the run, read by any process that reaches the server.

The latest status replaces the previous one, and the last one stays when the run has ended. Samples
for charts are kept for an hour. The chunks of each vertex are published separately, because they
are rarely read. A run waits only for its last status to be stored.

``read_status`` returns one status, ``follow_status`` yields each as the run publishes it,
``read_history`` returns the samples of the last hour and ``read_chunks`` the last chunks of a
vertex. The last status of a pipeline that does not run is updated from its positions and streams:
dead letters may have been replayed since, and messages sent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import nats.errors

from ebbflow.domain.outcome import Counts
from ebbflow.domain.records import from_json, from_plain, to_json
from ebbflow.engine.position import Position, count_by_vertex
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.publish import PublishRetry, publish
from ebbflow.nats.stored import read_after, read_last
from ebbflow.status.backlog import Backlog, LetterCauses, age_of
from ebbflow.status.conditions import list_concerns
from ebbflow.status.model import (
    ChunkTimes,
    Concern,
    PipelineStatus,
    StatusSample,
    VertexSample,
    VertexStatus,
)
from ebbflow.streams.names import Names, VertexStreams
from ebbflow.streams.positions import read_positions
from ebbflow.streams.provision import find_unknown

NOW, SAMPLE, CHUNKS = "now", "sample", "chunks"
"""What is published; the ends of the subjects."""

KEPT_FOR = 3600
"""Seconds that samples are kept."""

SAMPLE_EVERY = 2.0
_ROLLUP = {"Nats-Rollup": "sub"}
_LAST_STATUS = PublishRetry(attempts=3, ack_wait=5.0)
# The share of the server's message limit for the status; headers need some of the rest.
_SHARE = 0.9
_MOST_BYTES = 512 * 1024

SILENCE = 5.0
"""Seconds without a report after which a run counts as lost."""

# Seconds for the causes of dead letters; ebbflow dlq list --count reads all of them.
_LETTERS_WITHIN = 1.0


# --- publishing --------------------------------------------------------------------------------


class StatusPublisher:
    """Publishes an observer's status. Everything here runs on the loop of the client."""

    def __init__(self, client: SecuredClient, names: Names) -> None:
        self._client = client
        self._names = names

    async def publish(self, status: PipelineStatus) -> None:
        """Publishes the status without waiting for it to be stored."""
        await self._send(NOW, self._pack(status), _ROLLUP)

    async def publish_sample(self, status: PipelineStatus) -> None:
        """Publishes a sample of the status."""
        await self._send(SAMPLE, to_json(make_sample(status)), {"Nats-TTL": f"{KEPT_FOR}s"})

    async def publish_chunks(self, vertex: str, chunks: Sequence[ChunkTimes]) -> None:
        """Publishes the last chunks of a vertex."""
        await self._send(f"{CHUNKS}.{vertex}", to_json([*chunks]), _ROLLUP)

    async def publish_last(self, status: PipelineStatus) -> None:
        """Publishes the final status of the run; returns when it is stored."""
        subject = self._names.status_subject(NOW)
        await publish(self._client, subject, self._pack(status), _ROLLUP, retry=_LAST_STATUS)

    async def _send(self, kind: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._client.publish(self._names.status_subject(kind), payload, headers=headers)

    def _pack(self, status: PipelineStatus) -> bytes:
        """Returns the status, without its least useful parts if it is too large for each second."""
        limit = int(min(_MOST_BYTES, self._client.max_payload * _SHARE))
        packed = status.to_bytes()
        for traces, errors in ((3, 20), (1, 20), (0, 20), (0, 1)):
            if len(packed) <= limit:
                break
            packed = _shorten(status, traces, errors).to_bytes()
        return packed


def _shorten(status: PipelineStatus, traces: int, errors: int) -> PipelineStatus:
    """Returns the status with so few errors of each vertex, and so few tracebacks."""

    def shorten(vertex: VertexStatus) -> VertexStatus:
        kept = [
            error if number < traces else replace(error, traceback=None)
            for number, error in enumerate(vertex.errors[:errors])
        ]
        return replace(vertex, errors=tuple(kept))

    return replace(status, vertices=tuple(map(shorten, status.vertices)))


def make_sample(status: PipelineStatus) -> StatusSample:
    """Returns the numbers of a status that charts need."""
    assert status.at is not None
    return StatusSample(
        status.at,
        {
            vertex.name: VertexSample(
                vertex.totals.read,
                vertex.totals.written,
                vertex.totals.redelivered,
                vertex.totals.dead_lettered,
                vertex.pending,
                vertex.parked.messages,
                vertex.dead_letters,
                vertex.oldest_waiting_seconds,
                exact=vertex.pending_exact and vertex.parked.exact,
            )
            for vertex in status.vertices
        },
    )


# --- reading -----------------------------------------------------------------------------------


def read_status(link: Link, names: Names) -> PipelineStatus:
    """Returns the status of a pipeline; ``SetupError`` if it has never run here."""
    return link.run(_load_status(link.client, names))


async def _load_status(client: SecuredClient, names: Names) -> PipelineStatus:
    last = await _load_last(client, names)
    if last is not None and last.phase != "ended" and not _is_old(last):
        return last
    positions = await read_positions(client, names)
    if last is None and not positions:
        raise await find_unknown(client, names.pipeline)
    known = last or PipelineStatus(names.pipeline, phase="ended")
    return await _bring_up_to_date(client, names, known, positions)


async def _load_last(client: SecuredClient, names: Names) -> PipelineStatus | None:
    messages = await read_last(client, names.status, names.status_subject(NOW))
    return PipelineStatus.from_bytes(messages[-1].payload) if messages else None


def _is_old(status: PipelineStatus) -> bool:
    return status.at is None or (datetime.now(UTC) - status.at).total_seconds() > SILENCE


async def _bring_up_to_date(
    client: SecuredClient,
    names: Names,
    known: PipelineStatus,
    positions: Mapping[tuple[str, int], Position],
) -> PipelineStatus:
    by_vertex: dict[str, dict[int, Position]] = defaultdict(dict)
    for (vertex, partition), position in positions.items():
        by_vertex[vertex][partition] = position
    letters = LetterCauses(client, names)
    await letters.look(_LETTERS_WITHIN)
    streams = set(await api.list_streams(client, names.prefix))
    vertices = known.vertices or tuple(VertexStatus(name) for name in sorted(by_vertex))
    counted = count_by_vertex(positions)
    now = [
        await _refresh(
            client,
            names,
            vertex,
            by_vertex[vertex.name],
            counted.get(vertex.name, Counts()),
            letters,
            streams,
        )
        for vertex in vertices
    ]
    lost = known.phase != "ended"
    read = datetime.now(UTC)
    status = replace(known, vertices=tuple(now), answers=not lost, ready=False, numbers_at=read)
    concerns = list_concerns(status)
    return replace(status, problems=(*_lost(status), *concerns) if lost else concerns)


def _lost(status: PipelineStatus) -> tuple[Concern, ...]:
    since = f" since {status.at:%H:%M:%S} UTC" if status.at else ""
    what = f"the run on {status.host} (process {status.pid}) has not reported{since}"
    step = "See whether it still runs; if it does not, start it again with ebbflow run."
    return (Concern("error", None, what, step),)


async def _refresh(
    client: SecuredClient,
    names: Names,
    vertex: VertexStatus,
    positions: Mapping[int, Position],
    totals: Counts,
    letters: LetterCauses,
    streams: set[str],
) -> VertexStatus:
    """Returns a vertex that does not run, with the numbers that are stored now."""
    partitions = max(vertex.partitions, len(positions))
    name, has_buffer = vertex.name, names.buffer(vertex.name, 0) in streams
    backlog = Backlog(client, names, VertexStreams(name, partitions, has_buffer))
    waits = await backlog.look([positions.get(number) for number in range(partitions)])
    return replace(
        vertex,
        condition="ended",
        words=vertex.failure or "does not run",
        totals=totals,
        rate_in=0.0,
        rate_out=0.0,
        pending=waits.pending,
        pending_exact=waits.exact,
        oldest_waiting_seconds=age_of(waits.oldest, datetime.now(UTC)),
        drain_seconds=None,
        backlog_growing_seconds=None,
        falling_behind=False,
        parked=waits.parked,
        in_flight=None,
        in_call=None,
        back_pressure=None,
        dead_letters=letters.count(name),
        dead_letter_causes=letters.causes(name),
        partitions_up=0,
    )


async def follow_status(
    client: SecuredClient, names: Names
) -> AsyncGenerator[PipelineStatus, None]:
    """Yields the status now and whenever the run publishes another; without end.

    While nothing is published, it yields the stored status every few seconds.
    """
    inbox = await client.subscribe(names.status_subject(NOW))
    try:
        yield await _load_status(client, names)
        while True:
            try:
                message = await inbox.next_msg(timeout=SILENCE)
                yield PipelineStatus.from_bytes(message.data)
            except (TimeoutError, nats.errors.TimeoutError):
                yield await _load_status(client, names)
    finally:
        await inbox.unsubscribe()


def read_history(link: Link, names: Names) -> list[StatusSample]:
    """Returns the samples of the last hour, oldest first."""

    async def load() -> list[StatusSample]:
        samples: list[StatusSample] = []
        async for deliveries in read_after(link.client, names.status, subject, 0):
            parcel = deliveries.parcel
            samples += [from_json(StatusSample, parcel.payload(row)) for row in range(len(parcel))]
        return samples

    subject = names.status_subject(SAMPLE)
    return link.run(load())


def read_chunks(link: Link, names: Names, vertex: str) -> tuple[ChunkTimes, ...]:
    """Returns the last chunks of a vertex, oldest first."""
    subject = names.status_subject(f"{CHUNKS}.{vertex}")
    messages = link.run(read_last(link.client, names.status, subject))
    raw = json.loads(messages[-1].payload) if messages else []
    return tuple(from_plain(ChunkTimes, chunk) for chunk in raw)
