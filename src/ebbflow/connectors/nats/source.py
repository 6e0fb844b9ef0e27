"""A NATS subject as a source, without JetStream.

Core NATS stores nothing: only subscribers have a message. It is safe once the vertex's buffer has
stored it; until then only the driver's memory holds it. That memory is bounded: if it is full
because the buffer takes nothing, new messages are dropped, counted and reported. Messages that are
requests get no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import nats.errors
import pyarrow as pa

from ebbflow.connectors.nats.messages import leave, outside_client, to_source_columns
from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.engine import frames
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import WaitForRoom
from ebbflow.nats.wire import Parcel
from ebbflow.streams.feed import FeedContext

MOST_WAITING = 64 * 1024 * 1024
"""The bytes that may wait in memory for room in the buffer."""

# The memory that a message takes in addition to its value and headers.
_OVERHEAD = 512
_ROWS, _BYTES = 1_000, 256 * 1024
_STORE_WITHIN = 5.0
_PAUSE = 0.05
_STOP_WITHIN = 20.0
_REPORT_EVERY = 10.0


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """A server and a subject to subscribe to; members of a ``queue`` share the messages."""

    server: Addresses
    subject: str
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class _Received:
    """Messages in memory that arrived together and fit into one frame.

    ``first`` is the number of the first one.
    """

    first: int
    at: datetime
    parcel: Parcel
    size: int


class NatsFeed:
    """Subscribes while the pipeline runs, on the loop of the pipeline's own link."""

    on_spark = False

    exhausted = False

    def __init__(self, settings: NatsSettings, context: FeedContext) -> None:
        self._settings = settings
        self._context = context
        self._run = secrets.token_hex(6)
        self._number = 0
        self._waiting: deque[_Received] = deque()
        self._bytes = 0
        self._dropped = self._too_large = 0
        self._reported_at = -_REPORT_EVERY
        self._connections = 0
        self._trouble: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why messages cannot arrive, or are dropped; ``None`` if neither is so."""
        if (why := self._client.ended) is not None:
            return f"NATS at {self._settings.server} ended the connection: {why}; start again"
        if not self._client.is_connected:
            return f"there is no connection to NATS at {self._settings.server}"
        if self._trouble is None:
            return None
        return f"{self._trouble}; {self._dropped:,} messages were dropped"

    def start(self) -> None:
        """Subscribes; ``SetupError`` if there is no connection or it is not allowed."""
        self._context.link.run(self._begin())

    def stop(self) -> None:
        """Stops receiving, and stores the messages received so far."""
        self._context.link.run(self._end())

    async def _begin(self) -> None:
        settings = self._settings
        self._arrival, self._stopping = asyncio.Event(), False
        self._client = await outside_client(settings.server, f"source {self._context.vertex}")
        try:
            self._subscription = await self._client.listen(
                settings.subject, self._receive, queue=settings.queue or ""
            )
            await self._client.flush()
            if self._client.denied is not None:
                raise SetupError(
                    f"NATS at {settings.server} does not let this login subscribe to "
                    f"{settings.subject}.",
                    "Allow it there, or correct the subject.",
                )
        except BaseException:
            await leave(self._client)
            raise
        self._storing = asyncio.get_running_loop().create_task(self._store())

    async def _end(self) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._subscription.drain()  # type: ignore[no-untyped-call]
        self._stopping = True
        self._arrival.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._storing, _STOP_WITHIN)
        if left := sum(len(part.parcel) for part in self._waiting):
            self._context.log(
                f"{self._context.vertex}: {left:,} messages could not be stored, and are lost"
            )
        await leave(self._client)

    # --- taking in ------------------------------------------------------------------------------

    def _receive(self, parcel: Parcel) -> None:
        if (connections := self._client.stats["reconnects"]) != self._connections:
            self._connections = connections
            self._report(
                "the connection was lost for a while; messages published meanwhile are lost"
            )
        sizes = _sizes(parcel)
        if max(sizes) > self._context.largest or self._bytes + sum(sizes) > MOST_WAITING:
            parcel, sizes = self._drop(parcel, sizes)
        for part, size in _cut_frames(parcel, sizes):
            self._waiting.append(_Received(self._number + 1, datetime.now(UTC), part, size))
            self._number += len(part)
            self._bytes += size
        self._arrival.set()

    def _drop(self, parcel: Parcel, sizes: list[int]) -> tuple[Parcel, list[int]]:
        """Returns the messages that can be stored and for which there is room."""
        rows: list[int] = []
        room = MOST_WAITING - self._bytes
        for row, size in enumerate(sizes):
            if size > self._context.largest:
                self._too_large += 1
                self._report(
                    f"{self._too_large:,} messages were too large to store and are dropped"
                )
            elif size > room:
                self._dropped += 1
                dropped = f"{self._dropped:,} were dropped"
                self._report(f"messages cannot be stored at the moment; {dropped}")
            else:
                rows.append(row)
                room -= size
        return parcel.pick(rows), [sizes[row] for row in rows]

    def _report(self, text: str) -> None:
        """Logs a text, unless another one was logged a moment ago."""
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY:
            self._reported_at = now
            self._context.log(f"{self._context.vertex}: {text}")

    # --- storing --------------------------------------------------------------------------------

    async def _store(self) -> None:
        """Stores waiting messages, frame after frame, until stopped and all are stored."""
        while not (self._stopping and not self._waiting):
            if not self._waiting:
                self._arrival.clear()
                await self._arrival.wait()
            else:
                chunk = self._chunk()
                await self._put(chunk)
                for part in chunk:
                    self._waiting.popleft()
                    self._bytes -= part.size

    def _chunk(self) -> list[_Received]:
        """Returns the messages of the next frame: all that have arrived, up to a frame's size."""
        chunk = [self._waiting[0]]
        rows, size = len(chunk[0].parcel), chunk[0].size
        for part in islice(self._waiting, 1, _ROWS):
            rows, size = rows + len(part.parcel), size + part.size
            if rows > _ROWS or size > _BYTES:
                break
            chunk.append(part)
        return chunk

    async def _put(self, chunk: list[_Received]) -> None:
        rows, buffers = self._rows(chunk), self._context.buffers
        while True:
            try:
                await buffers.put(
                    rows,
                    self._name(chunk[0].first),
                    within=_STORE_WITHIN,
                    room=WaitForRoom.FOREVER,
                    on_full=self._meet_full,
                )
            except EbbflowError as error:
                self._trouble = str(error)
            else:
                self._trouble = None
                return
            # The frame keeps its id when it is sent again, so it is stored once.
            await asyncio.sleep(_PAUSE)

    def _name(self, number: int) -> str:
        return f"{self._context.vertex}-{self._run}-{number}"

    def _rows(self, chunk: list[_Received]) -> pa.RecordBatch:
        ids = [self._name(c.first + row) for c in chunk for row in range(len(c.parcel))]
        times = [part.at for part in chunk for _ in range(len(part.parcel))]
        columns = to_source_columns(Parcel.join([part.parcel for part in chunk]))
        facts = {"id": ids, "event_time": times, "first_seen": times}
        return frames.batch_of({**columns, **facts}, len(ids))

    def _meet_full(self) -> None:
        # A full buffer is a failure only if messages are lost; otherwise it is back-pressure.
        self._trouble = "the buffer is full" if self._dropped else None


def _sizes(parcel: Parcel) -> list[int]:
    """Returns the memory that each message takes."""
    return [size + _OVERHEAD for size in parcel.whole_sizes()]


def _cut_frames(parcel: Parcel, sizes: list[int]) -> Iterator[tuple[Parcel, int]]:
    """Yields the messages in pieces that fit into a frame; a larger message is alone."""
    first, size = 0, 0
    for row, own in enumerate(sizes):
        if row > first and (row - first == _ROWS or size + own > _BYTES):
            yield parcel.cut(first, row), size
            first, size = row, 0
        size += own
    if first < len(sizes):
        yield parcel.cut(first, len(sizes)), size
