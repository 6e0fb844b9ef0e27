"""Makes the streams of a pipeline before it runs, and finds out whether they are drained.

``permissions_of`` returns the permissions that its login needs for that, from its spec alone.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ebbflow.domain.errors import AccessError, SetupError
from ebbflow.engine.position import Position, Span
from ebbflow.engine.publications import ROWS
from ebbflow.nats import api
from ebbflow.nats.api import StreamState
from ebbflow.nats.link import Link
from ebbflow.nats.pull import Deliveries
from ebbflow.nats.stored import read_after
from ebbflow.runtime.plan import VertexPlan
from ebbflow.streams.catalogue import PipelineStreams, list_configs
from ebbflow.streams.names import REDELIVERY, Names, bucket_stream, parse_stream
from ebbflow.streams.positions import read_positions
from ebbflow.streams.provision import Permissions, derive_permissions, ensure

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec

Snapshot = dict[str, StreamState | None]
_SCHEDULE = "Nats-Schedule"
# A replay of dead letters that was killed leaves a mark, which is not a message in flight.
_ANY_MARK = Names("*").replayed_subject("*", "*")


def message_streams(plans: Sequence[VertexPlan]) -> list[str]:
    """Returns the streams that hold messages in flight, from the sources downstream."""
    names = Names(plans[0].pipeline)
    return [stream for plan in plans for stream in plan.streams.for_messages(names)]


async def provision(link: Link, plans: Sequence[VertexPlan], replicas: int = 1) -> None:
    """Creates or updates every stream that the plans need."""
    names = Names(plans[0].pipeline)
    await _refuse_leftovers(link, plans, names)
    pipeline = PipelineStreams(
        names,
        [plan.streams for plan in plans],
        bucket=plans[0].run.bucket,
        bucket_ttl=plans[0].run.bucket_ttl,
        own_store=any(plan.has_own_store for plan in plans),
        audit_table=plans[0].run.audit,
        replicas=replicas,
    )
    for config in list_configs(pipeline):
        await ensure(link.client, config)


async def lineage(link: Link, pipeline: str) -> str:
    """Returns a short id that is the same for all runs of a pipeline until it is started over."""
    positions = Names(pipeline).positions_stream
    made = (await api.call(link.client, f"STREAM.INFO.{positions}"))["created"]
    return hashlib.blake2b(made.encode(), digest_size=6).hexdigest()


async def _refuse_leftovers(link: Link, plans: Sequence[VertexPlan], names: Names) -> None:
    """Raises ``SetupError`` if an earlier spec of the pipeline left messages that no task reads."""
    known = {*message_streams(plans)}
    stored = await api.list_streams(link.client, names.prefix)
    parsed = {stream: parse_stream(stream) for stream in stored if stream not in known}
    gone = {stream: place for stream, place in parsed.items() if place and place.vertex}
    positions = await read_positions(link.client, names) if gone else {}
    left: Counter[tuple[str, int]] = Counter()
    for stream, place in gone.items():
        task = place.vertex, place.partition
        done = positions.get(task, Position("")).done
        left[task] += await _count_left(link, stream, place.kind == REDELIVERY, done)
    if left.total():
        partitions = {plan.vertex: plan.partitions for plan in plans}
        raise SetupError(
            f"{' '.join(_describe_left(left, partitions))} Pipeline {names.pipeline} would never "
            "process them.",
            "Run the earlier spec once more with lifecycle: {desiredPhase: Paused} in it and with "
            "--drain: sources stay paused, and waiting messages are processed. Or delete all that "
            "the pipeline has stored, its dead letters too, with --fresh.",
        )


def _describe_left(
    left: Mapping[tuple[str, int], int], partitions: Mapping[str, int]
) -> Iterator[str]:
    """Yields a sentence for each vertex or partition that is gone and has messages."""
    vertices: Counter[str] = Counter()
    for (vertex, partition), messages in sorted(left.items()):
        if vertex not in partitions:
            vertices[vertex] += messages
        elif messages:
            yield (
                f"{_number(messages)} for partition {partition} of vertex {vertex}, which now has "
                f"{_number(partitions[vertex], 'partition')}."
            )
    for vertex, messages in vertices.items():
        if messages:
            yield f"{_number(messages)} for vertex {vertex}, which the spec no longer has."


def _number(count: int, noun: str = "message") -> str:
    if noun == "message":
        return "1 message still waits" if count == 1 else f"{count:,} messages still wait"
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


async def _count_left(link: Link, stream: str, again: bool, span: Span) -> int:
    """Returns how many unsettled messages a buffer, or a stream of redeliveries, holds."""
    done = span.redelivery if again else span.inlet
    count = 0
    try:
        frames = read_after(link.client, stream, "", 0 if again else done.seq, headers_only=True)
        async with contextlib.aclosing(frames):
            async for deliveries in frames:
                count += _count_rows(deliveries, done.seq)
    except AccessError as error:
        raise SetupError(
            f"Stream {stream} is of a vertex or partition that the pipeline no longer has, and "
            "this login may not look into it.",
            "Give it the permissions of the earlier form, too, or delete the stream.",
        ) from error
    return max(0, count - done.row)


def _count_rows(deliveries: Deliveries, done: int) -> int:
    """Counts messages in frames, without marks of a replay and settled messages not yet deleted."""
    parcel, count = deliveries.parcel, 0
    for row, seq in enumerate(deliveries.seqs):
        headers = parcel.headers(row) or {}
        settled = seq <= done and _SCHEDULE not in headers
        if not settled and not parcel.subjects[row].endswith(b".replayed"):
            count += int(headers.get(ROWS, "1"))
    return count


async def remove(link: Link, pipeline: str) -> None:
    """Deletes everything the pipeline has stored, dead letters too."""
    client = link.client
    prefix = Names(pipeline).prefix
    stored = await api.list_streams(client, prefix)
    # A bucket that the spec names may hold answers of other pipelines, too, and stays.
    stored += await api.list_streams(client, bucket_stream(prefix))
    await api.delete(client, stored)


async def snapshot(link: Link, plans: Sequence[VertexPlan]) -> Snapshot:
    """Returns the state of every message stream, read from the sources downstream."""
    return {
        name: await api.read_state(link.client, name, aside=_ANY_MARK)
        for name in message_streams(plans)
    }


async def drained(link: Link, plans: Sequence[VertexPlan]) -> bool:
    """Returns whether sources other than feeds are exhausted, and no message is in flight.

    Two equal snapshots are needed: between two reads a message could move from a stream that is not
    yet read to one already found empty, but not without raising a sequence.
    """
    positions = await read_positions(link.client, Names(plans[0].pipeline))
    for plan in plans:
        if plan.is_source and not plan.streams.has_buffer and not plan.paused:
            ends = [positions.get((plan.vertex, p)) for p in range(plan.partitions)]
            if not all(end is not None and _exhausted(end, plan.run.id) for end in ends):
                return False
    first = await snapshot(link, plans)
    if any(state is None or state.messages for state in first.values()):
        return False
    return first == await snapshot(link, plans)


def _exhausted(position: Position, run: str) -> bool:
    """Returns whether the source has ended in this run: after an earlier run there may be more."""
    return position.exhausted and position.owner.startswith(run)


def permissions_of(spec: Spec) -> Permissions:
    """Returns the fewest permissions that a run needs, without reading secrets of connectors."""
    vertices = [step.streams for step in spec.steps]
    return derive_permissions(Names(spec.name), vertices, spec.bucket, spec.audit is not None)
