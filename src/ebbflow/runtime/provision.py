"""Makes the streams of a pipeline before it runs, and counts what they hold to see it drained.

``permissions_of`` says what the login of a pipeline must be allowed for that, from its spec alone.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ebbflow.domain.errors import AccessError, SetupError
from ebbflow.engine.position import Position
from ebbflow.engine.publications import ROWS
from ebbflow.nats import api
from ebbflow.nats.api import StreamState
from ebbflow.nats.behind import read_behind
from ebbflow.nats.link import Link
from ebbflow.nats.pull import Deliveries
from ebbflow.runtime.plan import VertexPlan
from ebbflow.streams import streams
from ebbflow.streams.answers import bucket_config
from ebbflow.streams.names import REDELIVERY, Names
from ebbflow.streams.permissions import Permissions, derive_permissions
from ebbflow.streams.positions import read_all

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec

Snapshot = dict[str, StreamState | None]
_SCHEDULE = "Nats-Schedule"
# A replay of dead letters that was killed leaves a mark, which is no message on its way.
_ANY_MARK = Names("*").replayed_subject("*", "*")


def message_streams(plans: Sequence[VertexPlan]) -> list[str]:
    """Returns the streams that hold messages on their way, from the sources downstream."""
    names = Names(plans[0].pipeline)
    return [stream for plan in plans for stream in plan.streams.for_messages(names)]


async def provision(link: Link, plans: Sequence[VertexPlan], replicas: int = 1) -> None:
    """Makes every stream exist as the plans want it."""
    names = Names(plans[0].pipeline)
    await _refuse_leftovers(link, plans, names)
    bucket, own_store = plans[0].run.bucket, any(plan.has_own_store for plan in plans)
    configs = [
        streams.positions_config(names, replicas, bucket, own_store),
        streams.dead_letter_config(names, replicas),
        streams.logs_config(names, replicas),
        streams.status_config(names, replicas),
    ]
    if bucket is not None:
        configs.append(bucket_config(bucket, plans[0].run.bucket_ttl, replicas))
    if any(plan.streams.returns for plan in plans):
        configs.append(streams.ledger_config(names, replicas))
    if any(plan.streams.remembers for plan in plans):
        configs.append(streams.seen_config(names, replicas))
    if plans[0].run.trail:
        ttl = plans[0].run.bucket_ttl or streams.TRAIL_TTL
        configs.append(streams.trail_config(names, ttl, replicas))
    if (table := plans[0].run.audit) is not None:
        configs.append(streams.audit_config(names, table, replicas))
    for plan in plans:
        for partition in range(plan.partitions):
            vertex, frames = plan.vertex, plan.buffer_frames
            configs.append(streams.redelivery_config(names, vertex, partition, replicas))
            if plan.streams.has_buffer:
                configs.append(streams.buffer_config(names, vertex, partition, frames, replicas))
    for config in configs:
        await streams.ensure(link.client, config)


async def lineage(link: Link, pipeline: str) -> str:
    """Returns a short text that is the same for all runs of a pipeline until it is started over."""
    bucket = f"KV_{Names(pipeline).positions}"
    made = (await api.call(link.client, f"STREAM.INFO.{bucket}"))["created"]
    return hashlib.blake2b(made.encode(), digest_size=6).hexdigest()


async def _refuse_leftovers(link: Link, plans: Sequence[VertexPlan], names: Names) -> None:
    """Raises ``SetupError`` if an earlier form of the pipeline left messages that no task reads."""
    beside = {names.dead_letters, names.ledger, names.seen, names.trail}
    beside |= {names.audit, names.logs, names.status}
    known = {*message_streams(plans), *beside}
    stored = await api.list_streams(link.client, f"ebb_{names.pipeline}_")
    gone = [stream for stream in stored if stream not in known]
    positions = await read_all(link, names) if gone else {}
    left: Counter[tuple[str, int]] = Counter()
    for stream in gone:
        if (place := names.place_of(stream)) is not None:
            left[place] += await _count_left(link, stream, positions.get(place, Position("")))
    if left.total():
        partitions = {plan.vertex: plan.partitions for plan in plans}
        raise SetupError(
            f"{' '.join(_describe_left(left, partitions))} Pipeline {names.pipeline} would never "
            "process them.",
            "Run the earlier spec once more with lifecycle: {desiredPhase: Paused} in it and with "
            "--drain: sources rest, and what waits is processed. Or delete all that the "
            "pipeline has stored, its dead letters too, with --fresh.",
        )


def _describe_left(
    left: Mapping[tuple[str, int], int], partitions: Mapping[str, int]
) -> Iterator[str]:
    """Yields a sentence for each vertex and partition that is gone and has messages."""
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


async def _count_left(link: Link, stream: str, position: Position) -> int:
    """Returns how many messages a stream holds that are not settled yet."""
    again = stream.endswith(REDELIVERY)
    done = position.done.redelivery if again else position.done.inlet
    count = 0
    try:
        frames = read_behind(link.client, stream, "", 0 if again else done.seq, headers_only=True)
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
    """Counts messages in frames: not marks of a replay, nor what is settled and not deleted yet."""
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
    stored = await api.list_streams(client, f"ebb_{pipeline}_")
    # A bucket that the spec names may hold answers of other pipelines, too, and stays.
    stored += await api.list_streams(client, f"KV_ebb_{pipeline}_")
    await api.delete(client, stored)


async def snapshot(link: Link, plans: Sequence[VertexPlan]) -> Snapshot:
    """Returns the state of every message stream, read from the sources downstream."""
    return {
        name: await api.read_state(link.client, name, aside=_ANY_MARK)
        for name in message_streams(plans)
    }


async def drained(link: Link, plans: Sequence[VertexPlan]) -> bool:
    """Returns whether sources are exhausted, feeds aside, and no message is on its way.

    Two equal looks are needed: between two reads a message could move from a stream not yet
    looked at to one already seen empty, but not without raising a sequence.
    """
    positions = await read_all(link, Names(plans[0].pipeline))
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
    """Returns whether the source has ended in this run: since an earlier one more may have come."""
    return position.exhausted and position.owner.startswith(run)


def permissions_of(spec: Spec) -> Permissions:
    """Returns the least that a run needs; no secret of a connector is read for it."""
    vertices = [step.streams for step in spec.steps]
    return derive_permissions(Names(spec.name), vertices, spec.bucket, spec.audit is not None)
