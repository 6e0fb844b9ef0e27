"""The resident task: one partition of one vertex, for one epoch, on a Spark worker.

It follows its inlet and its redeliveries, hands rows to user code in chunks, and settles each
chunk in the order that loses nothing: intent, redeliveries, dead letters, outputs, done. User code
works on the next chunk while the last one is being published; the position is written once for
both. A task that finds its partition claimed by another one stops without settling.

While a system that user code needs is away, the task waits and now and then tries a single message.
An epoch begins when everything is open and has at least one chunk if there is anything to take, so
that however short the epochs are every one of them makes progress.
"""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random

import pyarrow as pa
from nats.aio.msg import Msg

from ebbflow.buffers.carry_out import publish_all
from ebbflow.buffers.names import Names
from ebbflow.buffers.positions import PositionStore
from ebbflow.buffers.reader import FrameReader
from ebbflow.buffers.replayed import without_stored
from ebbflow.core import frames
from ebbflow.core.frames import Rows
from ebbflow.core.outputs import Outputs, event_times
from ebbflow.core.position import Held, Position, Span, chunk_key
from ebbflow.core.publications import Chunk, Place
from ebbflow.core.settlement import Settlement, settle
from ebbflow.core.verdict import Verdict
from ebbflow.core.watermark import Watermark
from ebbflow.nats.link import worker_link
from ebbflow.nats.publish import Tally
from ebbflow.outcome import Counts
from ebbflow.runtime import control
from ebbflow.runtime import held as order
from ebbflow.runtime.chunk_size import pace_for
from ebbflow.runtime.events import Events, Report
from ebbflow.runtime.gate import Gate
from ebbflow.runtime.intake import Intake
from ebbflow.runtime.operators import UserCode
from ebbflow.runtime.plan import MonoPlan, VertexPlan
from ebbflow.runtime.source_process.inlet import HandedBack, PulledInlet, handed_back

# How long a stopping task waits for buffers to take what it has in hand before it lets go of it.
_GRACE = 5.0
_PURGE_EVERY = 0.25
_SOON = 0.01
_EMIT_EVERY = 0.1
# Seconds that an epoch waits for something to take before it ends without a chunk.
_LEAST = 1.0


@dataclass(frozen=True, slots=True)
class _Settled:
    """A chunk whose publications are confirmed, or will be, but which is not recorded yet."""

    end: Span
    counts: Counts
    watermark: datetime | None
    held: Held | None = None
    back: HandedBack | None = None


class Unsettled(BaseException):
    """A stopping task let go of a chunk that could not be published; it will be replayed.

    No ``Exception``: it ends a stream map in the middle, and is not what user code raised.
    """


class VertexTask:
    """One partition of a vertex. Made and run on a worker, by one thread."""

    def __init__(self, plan: VertexPlan, partition: int, seconds: float) -> None:
        self._plan = plan
        self._partition = partition
        self._seconds = seconds
        self._begin_epoch()
        self._names = Names(plan.pipeline)
        self._link = worker_link(plan.server)
        self._place = Place(plan.vertex, partition, plan.edges, plan.max_payload, plan.bucket)
        self._tally = Tally()
        self._store = PositionStore(
            self._link.client, self._names, plan.vertex, partition, plan.publish, self._tally
        )
        self._wake = threading.Event()
        self._stopped_at: float | None = None
        self._pace = pace_for((plan.whose, partition), plan.call_rows)
        self._resumed = False
        self.events = Events(self._link, self._names, plan.vertex, partition, self._tally)
        self._inflight: concurrent.futures.Future[Counts] | None = None
        self._unrecorded: _Settled | None = None
        self._purged = self._emitted_at = self._begun = time.monotonic()
        self._chance = Random()  # noqa: S311 - spreads retries, protects nothing
        self._chunks = self._rows = 0

    def run(self, code: UserCode) -> Report:
        """Work until the epoch ends or the driver says stop, and settle what is in hand."""
        subject = self._names.control_subject
        words = self._link.run(self._link.client.subscribe(subject, cb=self._on_control))
        self._position: Position = self._link.run(self._store.claim(self._plan.run))
        self._watermark = Watermark(self._plan.feeders, self._position.watermark)
        self._gate = Gate(self._plan, code, self._position.halted)
        done, wake = self._position.done, self._wake
        self._intake = Intake(self._plan, self._partition, self._link, done, wake, self.events)
        self._inlet = self._intake.inlet
        try:
            self._work()
        except Unsettled:
            pass
        finally:
            self._link.run(words.unsubscribe())
            self.events.flush()
            stopped = self._stopped_at is not None
            self._intake.close(for_good=stopped)
        return Report("stop" if stopped else "epoch", self._chunks, self._rows)

    def _work(self) -> None:
        self._begin_epoch()
        while not self._over():
            self._wake.clear()
            if not (self._open_code() and (self._replay() or self._step())):
                self._rest()
            elif self._chunks == 1:
                # A next chunk that kills the worker would make this one come again for ever.
                self._record()
        self._record()

    def _begin_epoch(self) -> None:
        self._epoch_began = time.monotonic()
        self._deadline = self._epoch_began + self._seconds

    async def _on_control(self, message: Msg) -> None:
        word, turn = message.data, control.turn_of(message.data)
        if word == control.STOP:
            self._stopped_at = self._stopped_at or time.monotonic()
        elif control.resumes(word, self._plan.vertex):
            self._resumed = True
        elif turn is not None and turn < self._seconds:
            self._deadline += turn - self._seconds
            self._seconds = turn
        self._wake.set()

    def _over(self) -> bool:
        """A task that has done nothing yet goes on for a moment, however short its epoch is."""
        if self._stopped_at is not None:
            return True
        now = time.monotonic()
        return now >= self._deadline and (
            self._chunks > 0 or now >= self._epoch_began + _LEAST or self._gate.probing
        )

    def _open_code(self) -> bool:
        """Whether user code may be given something; its epoch begins when it is first open."""
        if self._resumed:
            self._resumed = False
            self._gate.resume()
        before, ready = self._gate.opened, self._gate.open()
        if ready and not before:
            self._begin_epoch()
        return ready

    # --- taking ---------------------------------------------------------------------------------

    def _replay(self) -> bool:
        """Settle the chunk that an earlier task began, exactly as it was cut, if there is one."""
        if self._chunks or not self._position.replays:
            return False
        taken = self._intake.take_again(self._position.intent)
        if taken is None:
            self._position = self._position.settled(self._intake.end, Counts())
            return False
        self._process(taken.batches, taken.ordered)
        return True

    def _step(self) -> bool:
        """Take and process one chunk; ``False`` when there is nothing to take."""
        probing, held = self._gate.probing, self._held_for() > 0
        taken = self._intake.take(self._pace.limit, probing, held)
        if taken is None:
            return False
        self._process(taken.batches, taken.ordered)
        return True

    def _held(self) -> Held | None:
        return self._unrecorded.held if self._unrecorded else self._position.held

    def _held_for(self) -> float:
        """Seconds until the row that an ordered vertex holds may be tried again."""
        held = self._held()
        return 0.0 if held is None else held.due / 1000 - time.time()

    # --- deciding -------------------------------------------------------------------------------

    def _process(self, batches: list[pa.RecordBatch], ordered: bool = False) -> None:
        batch = frames.concat(batches)
        if ordered:
            batch = order.with_held(batch, self._held())
        start = self._unrecorded.end if self._unrecorded else self._position.done
        if isinstance(self._inlet, FrameReader):
            self._watermark.hear(self._inlet.origins)
        offsets = self._inlet.pick_up() if isinstance(self._inlet, PulledInlet) else []
        verdict = self._decide(Rows(batch, self._watermark.current), ordered, start)
        held, waiting = None, self._held()
        if ordered:
            verdict, held = order.settled_part(verdict, self._inlet, batch)
        self._count(verdict)
        chunk = self._chunk(verdict.rows, start)
        now = datetime.now(UTC)
        first = batch.num_rows - len(offsets)
        settlement = settle(
            chunk, verdict, self._place, now, self._watermark.current, self._returning(first)
        )
        more = Counts(written=verdict.emitted_rows) + (order.HELD_ROW if held else Counts())
        settlement = replace(settlement, counts=settlement.counts + more)
        if not self._gate.probing:  # what is waited for is told by itself
            self.events.nacked(settlement.reasons)
        self._tell()
        # A replayed letter does not change what the inlet's next row is held for.
        back = handed_back(offsets, verdict.rows, settlement.returned) if offsets else None
        self._begin(settlement, self._intake.end, held if ordered else waiting, back)

    def _returning(self, first: int) -> range:
        """The rows that go back to their source when they are to come again."""
        inlet = self._inlet
        goes_back = isinstance(inlet, PulledInlet) and inlet.redelivers
        return range(first, sys.maxsize) if goes_back else range(0)

    def _count(self, verdict: Verdict) -> None:
        self._chunks += 1
        self._rows += len(verdict.rows)
        if self._plan.is_source:
            # A MonoVertex has told the times itself: its outputs have gone into the sinks.
            mono = isinstance(self._plan.role, MonoPlan)
            times = [] if mono else event_times(verdict.outputs, verdict.rows)
            self._watermark.made([*times, *verdict.event_times])

    def _chunk(self, rows: Rows, start: Span) -> Chunk:
        lineage, vertex = self._position.lineage, self._plan.vertex
        return Chunk(chunk_key(lineage, vertex, self._partition, start, self._intake.end), rows)

    def _decide(self, rows: Rows, ordered: bool, start: Span) -> Verdict:
        plan = self._plan
        verdict = Verdict(plan.vertex, rows, plan.on_error, plan.largest, self._chance)
        verdict.ordered = ordered
        verdict.emit = lambda given: self._emit(given, start)
        with self._pace.measured(verdict):
            self._gate.decide(verdict)
        return verdict

    def _tell(self) -> None:
        self.events.waits(self._gate.waiting or self._inlet.waiting, self._gate.halted)
        self.events.tell_now_and_then()

    def _emit(self, verdict: Verdict, start: Span) -> None:
        """Forward what a stream map has yielded so far, before its chunk is settled."""
        now = time.monotonic()
        if now - self._emitted_at < _EMIT_EVERY or self._plan.ordered or not self._plan.edges:
            return
        self._emitted_at = now
        settlement = self._partial(verdict, start)
        self._confirm()
        before = self._unrecorded
        self._position = self._with_unrecorded(self._position).intending(self._intake.end)
        self._unrecorded = None
        self._inflight = self._link.submit(self._settle(self._position, settlement, before))
        verdict.emitted_rows += self._wait_for_room().written

    def _partial(self, verdict: Verdict, start: Span) -> Settlement:
        part = verdict.part(verdict.rows)
        part.outputs, verdict.outputs = verdict.outputs, Outputs()
        assert part.outputs is not None
        verdict.emitted.update(part.outputs.parents)
        chunk = self._chunk(verdict.rows, start)
        now = datetime.now(UTC)
        return settle(chunk, part, self._place, now, self._watermark.current)

    # --- settling -------------------------------------------------------------------------------

    def _begin(
        self, settlement: Settlement, end: Span, held: Held | None, back: HandedBack | None
    ) -> None:
        """Start to settle a chunk; the last one must be confirmed, and is recorded with it."""
        self._confirm()
        before = self._unrecorded
        self._position = self._with_unrecorded(self._position).intending(end)
        self._inflight = self._link.submit(self._settle(self._position, settlement, before))
        self._begun = time.monotonic()
        self._unrecorded = _Settled(end, settlement.counts, self._watermark.current, held, back)

    def _with_unrecorded(self, position: Position) -> Position:
        one = self._unrecorded
        return position.settled(one.end, one.counts, one.watermark, one.held) if one else position

    async def _settle(
        self, position: Position, settlement: Settlement, before: _Settled | None
    ) -> Counts:
        await self._store.write(position)
        await self._tell_source(before)
        if settlement.histories is not None:
            assert self._intake.ledger is not None
            await self._intake.ledger.write(settlement.histories, self._tally)
        client, names = self._link.client, self._names
        settlement = await without_stored(client, names, settlement, position.repeated)
        discarded = await publish_all(client, names, settlement, self._plan.publish, self._tally)
        return settlement.counts_without(discarded)

    async def _tell_source(self, done: _Settled | None) -> None:
        """Acknowledge and nack rows of a chunk that is recorded as done."""
        if done is not None and done.back is not None:
            assert isinstance(self._inlet, PulledInlet)
            assert self._intake.ledger is not None
            self._inlet.hand_back(done.back)
            await self._intake.ledger.end(done.back.ids, self._tally)

    def _confirm(self) -> None:
        """Wait until the chunk in flight is confirmed."""
        if self._inflight is None:
            return
        counts = self._wait_for_room()
        assert self._unrecorded is not None
        self._unrecorded = replace(self._unrecorded, counts=counts)
        self._forget(self._position)

    def _wait_for_room(self) -> Counts:
        """Confirm what is in flight and count it; a stop that takes too long lets go of it."""
        assert self._inflight is not None
        while True:
            try:
                counts = self._inflight.result(0.25)
            except concurrent.futures.TimeoutError:
                if self._inflight.done():
                    raise
                self._tell()
                if self._stopped_at and time.monotonic() - self._stopped_at > _GRACE:
                    self._inflight.cancel()
                    raise Unsettled from None
            else:
                self._inflight = None
                return counts

    def _rest(self) -> None:
        """Nothing to do: wait for an arrival, and record what is settled if none comes soon.

        If one does, both are recorded at once, and nobody has waited for the writing.
        """
        soon = self._begun + _SOON - time.monotonic()
        if self._unrecorded is not None and soon > 0:
            self._wake.wait(min(soon, self._ready_in()))
            return
        only_copies = self._inlet.passed == self._position.done.inlet
        changed = self._with_state(self._position) != self._position
        if self._unrecorded is not None or only_copies or changed:
            self._record()
            return
        self._tell()
        until_end = self._deadline - time.monotonic()
        self._wake.wait(max(0.0, min(self._ready_in(), until_end, 1.0)))

    def _ready_in(self) -> float:
        """Seconds until there may be something to take without anything arriving."""
        if self._plan.paused:
            return 1.0
        if (closed_for := self._gate.ready_in()) > 0:
            return closed_for
        held = self._held_for()
        return held if held > 0 else self._inlet.ready_in()

    def _record(self) -> None:
        """Write down that everything in hand is done."""
        self._confirm()
        position = self._with_state(self._with_unrecorded(self._position))
        if self._inlet.passed == position.done.inlet:  # only copies were behind it
            end = replace(self._intake.end, redelivery=position.done.redelivery)
            position = position.settled(end, Counts(), held=position.held)
        if position != self._position:
            self._link.run(self._store.write(position))
            self._link.run(self._tell_source(self._unrecorded))
            self._position, self._unrecorded = position, None
        self._forget(position, at_once=True)

    def _with_state(self, position: Position) -> Position:
        return replace(position, exhausted=self._inlet.exhausted, halted=self._gate.halted)

    def _forget(self, position: Position, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._purged > _PURGE_EVERY:
            self._purged = now
            self._intake.forget(position.done)
