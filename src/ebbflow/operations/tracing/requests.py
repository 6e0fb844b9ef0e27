"""What is known of a request, in a pipeline that answers requests.

Of a request that has ended, its record is read; of one that is open, the trail behind the last
checkpoint, and the buffer of the source if no vertex has taken it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ebbflow.connectors.serving.requests import OpenRequest
from ebbflow.connectors.serving.store import RequestRecords, ServedRequest, read_life, read_waiting
from ebbflow.engine.completion import RequestStep
from ebbflow.engine.trail import TrailRow
from ebbflow.nats.link import Link
from ebbflow.operations.tracing.way import TraceStep
from ebbflow.streams.answers import TrailFrame, find_bucket, read_trail_after
from ebbflow.streams.names import Names


async def find_request(
    link: Link, names: Names, streams: Sequence[str], request: str
) -> ServedRequest | None:
    """Returns what is known of a request; ``None`` if it is none, or is forgotten."""
    if names.trail not in streams:
        return None
    bucket = await find_bucket(link, names.pipeline)
    records = RequestRecords(link.client, bucket, names.pipeline)
    if (ended := await records.read(request)) is not None:
        return ended
    life = await read_life(link.client, names.trail)
    for vertex, checkpoint in (await records.read_checkpoints(life)).items():
        # Before the trail: a row that leaves the buffer meanwhile is there by then.
        partitions = sum(names.buffer(vertex, number) in streams for number in range(len(streams)))
        waiting = await read_waiting(link, names, vertex, partitions)
        way = OpenWay(vertex, request, waiting.get(request))
        async for frames in read_trail_after(link.client, names, checkpoint.begin):
            way.take(frames)
        if (known := way.describe()) is not None:
            return known
    return None


def step_of_request(step: RequestStep) -> TraceStep:
    """Returns a step of a request as one of a message."""
    return TraceStep(
        step.at,
        step.vertex,
        step.message,
        step.deliveries,
        step.outcome,
        step.reason,
        step.error,
        step.due,
    )


class OpenWay:
    """The way of a request that has no record. ``accepted`` is when, if its row still waits."""

    def __init__(self, source: str, request: str, accepted: datetime | None) -> None:
        self._source = source
        self._request = request
        self._is_waiting = accepted is not None
        self._open = OpenRequest(source, request, accepted) if accepted else None

    def take(self, frames: Sequence[TrailFrame]) -> None:
        """Takes in what the trail tells of the request."""
        for frame in frames:
            for row in frame.rows:
                if row.request == self._request:
                    self._note(frame.vertex, row)

    def _note(self, vertex: str, row: TrailRow) -> None:
        if self._open is None:
            self._open = OpenRequest(self._source, self._request, row.at)
        self._open.completion.add(vertex, row)
        if self._open.end is None and self._open.completion.has_ended:
            self._open.finish(row.at)

    def describe(self) -> ServedRequest | None:
        """Returns what is known; nothing if the request is not of this source."""
        if self._open is None or not (self._is_waiting or self._open.completion.knows_root):
            return None
        return self._open.end or self._open.describe()
