"""The resident task: one partition of one vertex, for one epoch, on a Spark worker.

It follows its inlet and its redeliveries, hands rows to user code in chunks, and settles each
chunk in the order that loses nothing: intent, redeliveries, dead letters, outputs, done. User code
works on the next chunk while the last one is being published; the position is written once for
both. A task that finds its partition claimed by another one stops without settling.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from ebbflow import frames
from ebbflow.core.position import Position, Span, chunk_key
from ebbflow.core.settlement import Chunk, Place, Settlement, settle
from ebbflow.core.verdict import Verdict
from ebbflow.frames import Rows
from ebbflow.jetstream.connection import worker_link
from ebbflow.jetstream.names import Names
from ebbflow.jetstream.positions import PositionStore
from ebbflow.jetstream.reader import FrameReader
from ebbflow.jetstream.settle import publish_all
from ebbflow.outcome import Counts
from ebbflow.sources.generator import GeneratorInlet
from ebbflow.sources.inlet import Inlet
from ebbflow.spark.events import Events
from ebbflow.spark.pace import Pace
from ebbflow.spark.plan import VertexPlan

Operator = Callable[[Verdict], None]

# How long a stopping task waits for buffers to take what it has in hand before it lets go of it.
_GRACE = 5.0
_PURGE_EVERY = 0.25


@dataclass(frozen=True, slots=True)
class Report:
    """What a task tells the driver when its epoch is over."""

    ended: str
    chunks: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Settled:
    """A chunk whose publications are confirmed, or will be, but which is not recorded yet."""

    end: Span
    counts: Counts


class Unsettled(Exception):
    """A stopping task let go of a chunk that could not be published; it will be replayed."""


class VertexTask:
    """One partition of a vertex. Made and run on a worker, by one thread."""

    def __init__(self, plan: VertexPlan, partition: int, seconds: float) -> None:
        self._plan = plan
        self._partition = partition
        self._deadline = time.monotonic() + seconds
        self._names = Names(plan.pipeline)
        self._link = worker_link(plan.server)
        self._place = Place(plan.vertex, partition, plan.edges, plan.max_payload)
        self._store = PositionStore(self._link.client, self._names, plan.vertex, partition)
        self._wake = threading.Event()
        self._stopped_at: float | None = None
        self._pace = Pace()
        self.events = Events(self._link, self._names, plan.vertex)
        self._inflight: concurrent.futures.Future[None] | None = None
        self._unrecorded: _Settled | None = None
        self._purged = time.monotonic()
        self._chunks = self._rows = 0

    def run(self, operator: Operator) -> Report:
        """Work until the epoch ends or the driver says stop, and settle what is in hand."""
        self._operator = operator
        control = self._link.run(
            self._link.client.subscribe(self._names.control_subject, cb=self._on_control)
        )
        self._position: Position = self._link.run(self._store.claim())
        self._inlet, self._redeliveries = self._open_inlets()
        try:
            self._work()
        except Unsettled:
            pass
        finally:
            self._link.run(control.unsubscribe())
            self.events.flush()
            self._inlet.close()
            self._redeliveries.close()
        return Report("stop" if self._stopped_at else "epoch", self._chunks, self._rows)

    def _work(self) -> None:
        self._replay()
        while not self._over():
            self._wake.clear()
            if not self._step():
                self._rest()
        self._record()

    async def _on_control(self, _message: object) -> None:
        self._stopped_at = self._stopped_at or time.monotonic()
        self._wake.set()

    def _over(self) -> bool:
        return self._stopped_at is not None or time.monotonic() >= self._deadline

    def _open_inlets(self) -> tuple[Inlet, FrameReader]:
        plan, partition, done = self._plan, self._partition, self._position.done
        redeliveries = FrameReader(
            self._link,
            self._names.redelivery(plan.vertex, partition),
            self._names.due_subject(plan.vertex, partition),
            done.redelivery,
            self._wake,
        )
        if plan.generator is not None:
            return (
                GeneratorInlet(plan.generator, plan.vertex, partition, plan.partitions, done.inlet),
                redeliveries,
            )
        buffer = self._names.buffer(plan.vertex, partition)
        subject = self._names.buffer_subject(plan.vertex, partition)
        return FrameReader(self._link, buffer, subject, done.inlet, self._wake), redeliveries

    def _replay(self) -> None:
        """Settle the chunk that an earlier task began, exactly as it was cut."""
        if self._position.replays:
            intent = self._position.intent
            redelivered = self._redeliveries.take_until(intent.redelivery)
            self._process([*redelivered, *self._inlet.take_until(intent.inlet)])

    def _step(self) -> bool:
        """Take and process one chunk; ``False`` when there is nothing to take."""
        limit = self._pace.limit
        redelivered = self._redeliveries.take(max(1, limit // 2))
        room = limit - sum(batch.num_rows for batch in redelivered)
        fresh = self._inlet.take(max(1, room))
        if not (redelivered or fresh):
            return False
        self._process([*redelivered, *fresh])
        return True

    def _process(self, batches: list[pa.RecordBatch]) -> None:
        rows = Rows(frames.concat(batches))
        start = self._unrecorded.end if self._unrecorded else self._position.done
        end = Span(self._inlet.mark, self._redeliveries.mark)
        verdict = self._decide(rows)
        key = chunk_key(self._position.lineage, self._plan.vertex, self._partition, start, end)
        settlement = settle(Chunk(key, rows), verdict, self._place, datetime.now(UTC))
        self._chunks += 1
        self._rows += len(rows)
        self.events.nacked(settlement.reasons)
        self._begin(settlement, end)

    def _decide(self, rows: Rows) -> Verdict:
        plan = self._plan
        verdict = Verdict(plan.vertex, rows, plan.on_error, plan.largest)
        with self._pace.measured(len(rows)):
            self._operator(verdict)
        return verdict

    def _begin(self, settlement: Settlement, end: Span) -> None:
        """Start to settle a chunk; the last one must be confirmed, and is recorded with it."""
        self._confirm()
        self._position = self._with_unrecorded(self._position).intending(end)
        self._inflight = self._link.submit(self._settle(self._position, settlement))
        self._unrecorded = _Settled(end, settlement.counts)

    def _with_unrecorded(self, position: Position) -> Position:
        settled = self._unrecorded
        return position.settled(settled.end, settled.counts) if settled else position

    async def _settle(self, position: Position, settlement: Settlement) -> None:
        await self._store.write(position)
        await publish_all(self._link.client, self._names, settlement)

    def _confirm(self) -> None:
        """Wait until the chunk in flight is confirmed; let go of it if a stop takes too long."""
        if self._inflight is None:
            return
        while True:
            try:
                self._inflight.result(0.25)
            except concurrent.futures.TimeoutError:
                if self._inflight.done():
                    raise
                if self._stopped_at and time.monotonic() - self._stopped_at > _GRACE:
                    self._inflight.cancel()
                    raise Unsettled from None
            else:
                self._inflight = None
                self._forget(self._position)
                return

    def _rest(self) -> None:
        """Nothing to do: record what is settled, then wait for an arrival."""
        if self._unrecorded is not None:
            self._record()
            return
        until_end = self._deadline - time.monotonic()
        self._wake.wait(max(0.0, min(self._inlet.ready_in(), until_end, 1.0)))

    def _record(self) -> None:
        """Write down that everything in hand is done."""
        self._confirm()
        position = self._with_unrecorded(self._position)
        if self._inlet.exhausted != position.exhausted:
            position = replace(position, exhausted=self._inlet.exhausted)
        if position != self._position:
            self._link.run(self._store.write(position))
            self._position, self._unrecorded = position, None
        self._forget(position, at_once=True)

    def _forget(self, position: Position, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._purged > _PURGE_EVERY:
            self._purged = now
            self._inlet.forget(position.done.inlet)
            self._redeliveries.forget(position.done.redelivery)
