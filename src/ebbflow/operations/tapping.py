"""Seeing the messages that pass a vertex, from any process, without disturbing the pipeline.

Tasks publish what they decide only while a tap is open; nothing of it is stored, and tasks never
wait for the viewer. SQL, DataFrames and Spark sinks work on whole batches: for these vertices a tap
shows the messages that arrive in their buffers. ``read_waiting`` shows the messages that wait at a
vertex now, also while the pipeline does not run.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from random import Random

import pyarrow as pa
from nats.aio.msg import Msg

from ebbflow.accounts.taps import (
    OUTCOMES,
    PassingRows,
    TapFilter,
    TappedRow,
    TapRequest,
)
from ebbflow.engine import frames
from ebbflow.engine.position import Position, Span
from ebbflow.engine.publications import Place
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.pull import Deliveries, Follower, follow
from ebbflow.nats.stored import read_after
from ebbflow.runtime.control import end_tap, tap_command
from ebbflow.runtime.run_setup import read_spec
from ebbflow.spec.graph import ShapeVertex
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions

__all__ = ["OUTCOMES", "TapFilter", "TapRequest", "Tapped", "read_waiting", "tap_vertex"]

_REPEAT_EVERY = 1.0
_IDLE = 0.25
_QUEUED = 10_000


@dataclass(frozen=True, slots=True)
class Tapped:
    """Messages that have passed, in order; ``skipped`` counts those that were not shown."""

    rows: list[TappedRow]
    skipped: int = 0


def tap_vertex(link: Link, names: Names, request: TapRequest) -> Iterator[Tapped]:
    """Yields the messages that pass a vertex, forever; without rows while none pass.

    Waits for a pipeline that does not run. ``EbbflowError`` if there is no such vertex.
    """
    vertex = link.run(read_spec(link.client, names)).vertex(request.vertex)
    request = replace(request, token=request.token or secrets.token_hex(6))
    arriving: queue.Queue[Tapped] = queue.Queue(_QUEUED)
    follows = _follow_buffers if vertex.batched else _listen
    with follows(link, names, vertex, request, arriving):
        requested = -_REPEAT_EVERY
        while True:
            if not vertex.batched and time.monotonic() - requested >= _REPEAT_EVERY:
                requested = time.monotonic()
                link.run(link.client.publish(names.control_subject, tap_command(request)))
            try:
                yield arriving.get(timeout=_IDLE)
            except queue.Empty:
                yield Tapped([])


def _put(arriving: queue.Queue[Tapped], tapped: Tapped) -> None:
    """Queues messages; drops them if the viewer is too slow, so that nothing waits for it."""
    with contextlib.suppress(queue.Full):
        arriving.put_nowait(tapped)


@contextlib.contextmanager
def _listen(
    link: Link,
    names: Names,
    vertex: ShapeVertex,
    request: TapRequest,
    arriving: queue.Queue[Tapped],
) -> Iterator[None]:
    """Receives what tasks publish, and finally ends the tap."""

    async def receive(message: Msg) -> None:
        shown = json.loads(message.data)
        _put(arriving, Tapped(shown["rows"], shown["skipped"]))

    subscription = link.run(link.client.subscribe(names.tap_subject(request.token), cb=receive))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # tasks end it by themselves after a while
            link.run(link.client.publish(names.control_subject, end_tap(request.token)), timeout=2)
            link.run(subscription.unsubscribe(), timeout=2)


@contextlib.contextmanager
def _follow_buffers(
    link: Link,
    names: Names,
    vertex: ShapeVertex,
    request: TapRequest,
    arriving: queue.Queue[Tapped],
) -> Iterator[None]:
    """Follows the messages that arrive in the buffers of a vertex from now on."""
    with contextlib.ExitStack() as stack:
        for partition in range(vertex.partitions):
            stream = names.buffer(vertex.name, partition)
            state = link.run(api.read_state(link.client, stream))
            place = Place(vertex.name, partition, (), link.client.max_payload)
            following = follow(
                link.client,
                stream,
                names.buffer_subject(vertex.name, partition),
                0 if state is None else state.last_seq,
                decode=partial(_choose_arrivals, place, request),
                take=partial(_put_all, arriving),
                fail=lambda error: None,
                waiting=arriving.qsize,
            )
            stack.callback(_close, link, link.run(following, timeout=30))
        yield


def _close(link: Link, follower: Follower) -> None:
    with contextlib.suppress(Exception):  # the server forgets its consumer after a while
        link.run(follower.close(), timeout=10)


def _choose_arrivals(place: Place, request: TapRequest, deliveries: Deliveries) -> list[Tapped]:
    """Returns the rows to show of one buffer's frames."""
    views = map(deliveries.parcel.view, range(len(deliveries)))
    return [Tapped(*_choose(frames.decode(view), place, request, "arrived")) for view in views]


def _put_all(arriving: queue.Queue[Tapped], some: Sequence[Tapped]) -> None:
    for tapped in some:
        _put(arriving, tapped)


def _choose(
    batch: pa.RecordBatch, place: Place, request: TapRequest, state: str
) -> tuple[list[TappedRow], int]:
    rows = PassingRows(batch, place, datetime.now(UTC), state=state)
    return rows.choose(request, batch.num_rows, Random())  # noqa: S311 - a sample


# --- waiting messages ---------------------------------------------------------------------------


def read_waiting(link: Link, names: Names, request: TapRequest) -> Iterator[TappedRow]:
    """Yields the messages that wait at a vertex now: in its buffer, to be redelivered, parked.

    ``outcome`` says which; for parked messages, ``due`` says until when.
    """
    vertex = link.run(read_spec(link.client, names)).vertex(request.vertex)
    positions = link.run(read_positions(link.client, names))
    for partition in range(vertex.partitions):
        done = positions.get((vertex.name, partition), Position("")).done
        place = Place(vertex.name, partition, (), link.client.max_payload)
        for state, batch, due in _list_waiting(link, names, vertex, partition, done):
            shown, _ = _choose(batch, place, request, state)
            yield from (row | ({"due": due} if due else {}) for row in shown)


def _list_waiting(
    link: Link, names: Names, vertex: ShapeVertex, partition: int, done: Span
) -> Iterator[tuple[str, pa.RecordBatch, str | None]]:
    """Yields the frames of one partition that are not done, each with the state of its rows."""
    name = vertex.name
    if vertex.has_buffer:
        subject = names.buffer_subject(name, partition)
        begun = done.inlet.row  # the number of rows of the next frame that are done
        for page in _read(link, names.buffer(name, partition), subject, done.inlet.seq):
            yield "waiting", frames.concat([batch for batch, _ in page]).slice(begun), None
            begun = 0
    again, subject = names.redelivery(name, partition), names.due_subject(name, partition)
    for page in _read(link, again, subject, done.redelivery.seq):
        yield "waiting again", frames.concat([batch for batch, _ in page]), None
    for page in _read(link, again, names.later_subject(name, partition), 0):
        for batch, headers in page:
            yield "parked", batch, headers.get("Nats-Schedule", "").removeprefix("@at ")


def _read(
    link: Link, stream: str, subject: str, after: int
) -> Iterator[list[tuple[pa.RecordBatch, Mapping[str, str]]]]:
    """Yields the frames on a subject after a sequence with their headers, many at a time."""
    batches = read_after(link.client, stream, subject, after)

    async def fetch() -> Deliveries | None:
        return await anext(batches, None)

    try:
        while (deliveries := link.run(fetch())) is not None:
            parcel = deliveries.parcel
            yield [
                (frames.decode(bytes(parcel.view(row))), parcel.headers(row) or {})
                for row in range(len(deliveries.seqs))
            ]
    finally:
        link.run(batches.aclose())
