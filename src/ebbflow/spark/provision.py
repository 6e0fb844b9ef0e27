"""The streams of a pipeline: made before it runs, counted to see whether it has drained."""

from __future__ import annotations

from collections.abc import Sequence

from ebbflow.errors import SetupError
from ebbflow.jetstream import streams
from ebbflow.jetstream.connection import Link
from ebbflow.jetstream.names import Names
from ebbflow.jetstream.positions import read_all
from ebbflow.jetstream.streams import StreamState
from ebbflow.serving.store import bucket_config
from ebbflow.spark.plan import VertexPlan

Snapshot = dict[str, StreamState | None]


def message_streams(plans: Sequence[VertexPlan]) -> list[str]:
    """The streams that hold messages on their way, from the sources downstream."""
    found = []
    for plan in plans:
        names = Names(plan.pipeline)
        for partition in range(plan.partitions):
            if plan.generator is None:
                found.append(names.buffer(plan.vertex, partition))
            found.append(names.redelivery(plan.vertex, partition))
    return found


async def provision(link: Link, plans: Sequence[VertexPlan], replicas: int = 1) -> None:
    """Make sure that every stream exists as the plans want it."""
    names = Names(plans[0].pipeline)
    await _refuse_leftovers(link, plans, names)
    configs = [
        streams.positions_config(names, replicas),
        streams.dead_letter_config(names, replicas),
    ]
    for plan in plans:
        for partition in range(plan.partitions):
            vertex, frames = plan.vertex, plan.buffer_frames
            configs.append(streams.redelivery_config(names, vertex, partition, replicas))
            if plan.generator is None:
                configs.append(streams.buffer_config(names, vertex, partition, frames, replicas))
        if plan.bucket is not None:
            configs.append(bucket_config(plan.bucket, plan.bucket_ttl, replicas))
    for config in configs:
        await streams.ensure(link.client, config)


async def _refuse_leftovers(link: Link, plans: Sequence[VertexPlan], names: Names) -> None:
    """Messages that an earlier form of the pipeline left would never be read: say so."""
    known = {*message_streams(plans), names.dead_letters}
    for stream in await streams.names_of(link.client, f"ebb_{names.pipeline}_"):
        state = await streams.state(link.client, stream) if stream not in known else None
        if state is not None and state.messages:
            raise SetupError(
                f"Stream {stream} still holds messages of a vertex or partition that the "
                "pipeline no longer has.",
                "Run the earlier form with --drain first, or start over with --fresh.",
            )


async def remove(link: Link, pipeline: str) -> None:
    """Delete everything the pipeline has stored, dead letters too."""
    client = link.client
    found = await streams.names_of(client, f"ebb_{pipeline}_")
    found += await streams.names_of(client, f"KV_{Names(pipeline).positions}")
    await streams.delete(client, found)


async def snapshot(link: Link, plans: Sequence[VertexPlan]) -> Snapshot:
    """The state of every message stream, read from the sources downstream."""
    return {name: await streams.state(link.client, name) for name in message_streams(plans)}


async def drained(link: Link, plans: Sequence[VertexPlan]) -> bool:
    """Whether sources are exhausted and no message is stored anywhere on its way.

    Two equal looks are needed: between two reads a message could move from a stream not yet
    looked at to one already seen empty, but not without raising a sequence.
    """
    positions = await read_all(link, Names(plans[0].pipeline))
    for plan in plans:
        if plan.generator is not None and not plan.paused:
            ends = [positions.get((plan.vertex, p)) for p in range(plan.partitions)]
            if not all(end is not None and end.exhausted for end in ends):
                return False
    first = await snapshot(link, plans)
    if any(state is None or state.messages for state in first.values()):
        return False
    return first == await snapshot(link, plans)
