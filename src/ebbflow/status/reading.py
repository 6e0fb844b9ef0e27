"""Reading the status of a pipeline from another process or machine, whether it runs or not.

``load_status`` gives one state, ``follow_status`` one after another as the run publishes them,
``load_history`` the samples of the last hour and ``load_chunks`` the last chunks of a vertex; they
run on the loop of a client. ``read_status``, ``read_history`` and ``read_chunks`` are the same for
threads. Of a pipeline that does not run, what its last run has left is brought up to date from its
positions and streams: dead letters may have been replayed since, and messages sent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import nats.errors

from ebbflow.domain.outcome import Counts
from ebbflow.domain.records import from_json, from_plain
from ebbflow.engine.position import Position, count_by_vertex
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_after, read_last
from ebbflow.status.backlog import Backlog, LetterCauses, age_of
from ebbflow.status.conditions import list_concerns
from ebbflow.status.model import ChunkTimes, Concern, PipelineStatus, Sample, VertexStatus
from ebbflow.status.publishing import CHUNKS, NOW, SAMPLE
from ebbflow.streams.names import Names, VertexStreams
from ebbflow.streams.positions import read_positions
from ebbflow.streams.provision import find_unknown

SILENCE = 5.0
"""Seconds after which a run that has told nothing counts as lost."""

# Seconds for the causes of dead letters; ebbflow dlq list --count reads all of them.
_LETTERS_WITHIN = 1.0


def read_status(link: Link, names: Names) -> PipelineStatus:
    """Returns the state of a pipeline; ``SetupError`` if it has never run here."""
    return link.run(load_status(link.client, names))


def read_history(link: Link, names: Names) -> list[Sample]:
    """Returns the samples of the last hour, oldest first."""
    return link.run(load_history(link.client, names))


def read_chunks(link: Link, names: Names, vertex: str) -> tuple[ChunkTimes, ...]:
    """Returns the last chunks of a vertex, oldest first."""
    return link.run(load_chunks(link.client, names, vertex))


async def load_status(client: SecuredClient, names: Names) -> PipelineStatus:
    """Returns the state of a pipeline; ``SetupError`` if it has never run here."""
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
    what = f"nothing has been heard of the run on {status.host} (process {status.pid}){since}"
    step = "See whether it is still there; if it is not, start it again with ebbflow run."
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
    """Returns a vertex that nobody runs, with what is stored of it now."""
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
        in_hand=None,
        in_call=None,
        back_pressure=None,
        dead_letters=letters.count(name),
        dead_letter_causes=letters.causes(name),
        partitions_up=0,
    )


async def follow_status(
    client: SecuredClient, names: Names
) -> AsyncGenerator[PipelineStatus, None]:
    """Yields the state now and whenever the run tells another; without end.

    While nobody tells anything, it yields every few seconds what is stored.
    """
    inbox = await client.subscribe(names.status_subject(NOW))
    try:
        yield await load_status(client, names)
        while True:
            try:
                message = await inbox.next_msg(timeout=SILENCE)
                yield PipelineStatus.from_bytes(message.data)
            except (TimeoutError, nats.errors.TimeoutError):
                yield await load_status(client, names)
    finally:
        await inbox.unsubscribe()


async def load_history(client: SecuredClient, names: Names) -> list[Sample]:
    """Returns the samples of the last hour, oldest first."""
    subject, samples = names.status_subject(SAMPLE), []
    async for deliveries in read_after(client, names.status, subject, 0):
        parcel = deliveries.parcel
        samples += [from_json(Sample, parcel.payload(row)) for row in range(len(parcel))]
    return samples


async def load_chunks(client: SecuredClient, names: Names, vertex: str) -> tuple[ChunkTimes, ...]:
    """Returns the last chunks of a vertex, oldest first."""
    messages = await read_last(client, names.status, names.status_subject(f"{CHUNKS}.{vertex}"))
    raw = json.loads(messages[-1].payload) if messages else []
    return tuple(from_plain(ChunkTimes, chunk) for chunk in raw)
