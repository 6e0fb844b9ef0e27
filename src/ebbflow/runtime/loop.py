"""The chunk loop: takes chunks of one partition of a vertex and settles them.

It follows its inlet and its redeliveries, passes rows to user code in chunks, and settles each
chunk in the order that loses nothing (``settling``). A chunk that an earlier task began comes
first, exactly as it was cut. A loop that finds its partition claimed by another task stops without
settling. While a dependency of user code is down, the loop waits and tries a single message from
time to time.

For one epoch, a task runs the loops of one or more vertices in turns on one thread
(``run_loops``). Each loop has its own position, gate and control: vertices that share a task share
only the thread, so a vertex that waits does not keep the others from working. A loop that waits for
room in a buffer lets other loops take turns meanwhile: one of them may have to make the room.

The loop knows neither NATS nor Spark. Its inlet, redeliveries, journal and clock are passed in:
``nats_task`` passes those of a worker, the crash tests pass their own. Everything that reports on
chunks, as data, to people or as traces, observes the account of each chunk (``engine.account``);
the loop names no observer.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.account import ChunkObserver, ChunkRecord, HeldRow
from ebbflow.engine.frames import Rows
from ebbflow.engine.inlet import Feeder, Intake, Taken, Watermark, held_row, source_acks
from ebbflow.engine.outage import OutageGate
from ebbflow.engine.position import Span, chunk_key
from ebbflow.engine.publications import Chunk, Place, Publication, build_parked
from ebbflow.engine.settlement import Settlement
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.deciding import ChunkDecider, ChunkFacts, ChunkSize, DecisionRules
from ebbflow.runtime.inline import InlineVertices
from ebbflow.runtime.ports import Clock, Report, TaskEvents, TaskJournal, VertexControl
from ebbflow.runtime.settling import ChunkEnd, RecordedState, Settling, Unsettled


class GatheringPace(NamedTuple):
    """How long rows gather after a small chunk: ``times`` as long as the chunk took.

    The next chunk begins at most ``longest`` seconds after the small one.
    """

    longest: float
    times: int


AT_SOURCE, AT_BUFFER = GatheringPace(0.012, 5), GatheringPace(0.002, 5)
"""A task that gathers works for at most a sixth of the time.

At a source, rows may gather longer: its chunks set the pace for all vertices downstream.
"""

AT_REQUESTS = GatheringPace(0.008, 1)
"""At most half of the time, where a caller waits for each message."""

SMALL = 100
"""A chunk with fewer rows is a small one."""

IN_VERTEX = "in vertex "
"""Precedes the name of a vertex in the note on an error that ended its task."""

T = TypeVar("T")

_LOOK_EVERY = 1.0
# Seconds that an epoch waits for messages before it ends without a chunk.
_LEAST = 1.0
# Seconds that a stopping task waits for room in buffers before it gives up its chunk in flight.
_GRACE = 5.0
_FEW_FRAMES = 4
# Seconds between looks when an epoch is over and waits for a first chunk.
_SOON = 0.05


@dataclass(frozen=True, slots=True)
class TaskParts:
    """The parts that a task is made of. ``open_intake`` opens both streams at a span.

    ``feeders`` are the vertices that write to the inlet. ``pace`` is for small chunks.
    ``observers`` report on its chunks. ``inline`` are the vertices that it may run, if any.
    ``control`` receives the commands of people, such as pause and resume.
    """

    journal: TaskJournal
    open_intake: Callable[[Span], Intake]
    gate: OutageGate
    size: ChunkSize
    rules: DecisionRules
    events: TaskEvents
    clock: Clock
    feeders: Iterable[Feeder] = ()
    pace: GatheringPace = AT_BUFFER
    observers: Sequence[ChunkObserver] = ()
    inline: InlineVertices | None = None
    control: VertexControl = field(default_factory=VertexControl)


class Epoch:
    """One epoch of one task: how long it works.

    It begins when everything is open, and has at least one chunk if there are messages. So every
    epoch makes progress, however short it is. ``wake`` ends a wait of the task, from any thread.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.wake = threading.Event()
        self._clock = clock
        self._seconds = seconds
        self._stopped_at: float | None = None
        self.rested = 0.0
        """The seconds that the task had nothing to do."""
        self.begin()

    def begin(self) -> None:
        """Starts the epoch's clock, or restarts it."""
        self._began = self._clock.monotonic()
        self._deadline = self._began + self._seconds

    def stop(self) -> None:
        """Asks the task to end soon, and for good."""
        if self._stopped_at is None:
            self._stopped_at = self._clock.monotonic()
        self.wake.set()

    def shorten(self, seconds: float) -> None:
        """Ends the epoch after that long, if that is sooner: other vertices wait for the task."""
        if seconds < self._seconds:
            self._deadline += seconds - self._seconds
            self._seconds = seconds
        self.wake.set()

    @property
    def stopped(self) -> bool:
        """Whether the driver has asked the task to stop."""
        return self._stopped_at is not None

    @property
    def grace_is_over(self) -> bool:
        """Whether the task has been stopping so long that it must give up its chunk in flight."""
        stopped_at = self._stopped_at
        return stopped_at is not None and self._clock.monotonic() - stopped_at > _GRACE

    def rest(self, seconds: float) -> None:
        """Waits until something wakes the task, at most that long."""
        before = self._clock.monotonic()
        self._clock.wait(self.wake, seconds)
        self.rested += self._clock.monotonic() - before

    def left(self) -> float:
        """Returns the seconds until the epoch ends; below zero when it should have ended."""
        return self._deadline - self._clock.monotonic()

    def is_over(self, may_end_idle: bool) -> bool:
        """Whether to end now; a task that must not end idle gets a little more time."""
        if self.stopped:
            return True
        waited = self._clock.monotonic() - self._began
        return self.left() <= 0 and (may_end_idle or waited >= _LEAST)


class ChunkLoop:
    """One partition of a vertex, for one epoch. Made and run by one thread."""

    def __init__(self, parts: TaskParts, epoch: Epoch) -> None:
        self._epoch = epoch
        self._control = parts.control
        self._control.wake.task = epoch.wake
        self._gate, self._size = parts.gate, parts.size
        self._events, self._clock = parts.events, parts.clock
        self._observers = parts.observers
        self._inline = parts.inline
        self._replayed: tuple[str, ...] | None = None
        self._place: Place = parts.rules.place
        self._writer = f"{self._place.vertex}.{self._place.partition}"
        self._decider = ChunkDecider(
            parts.rules, parts.gate, parts.size, parts.clock, parts.observers
        )
        self._gathering = Gathering(parts.clock, parts.pace)
        self._due = -math.inf
        self._chunks = self._rows = 0
        self.others: Callable[[], bool] = lambda: False
        """Lets the loops downstream take turns; returns whether one did."""
        self._taken = parts.clock.monotonic()
        # Claimed before anything is read: until then the previous task may still settle its chunk.
        position = parts.journal.submit(parts.journal.claim()).result()
        self._gate.restore(position.halted, position.paused)
        self._watermark = Watermark(parts.feeders, position.watermark)
        self._intake = parts.open_intake(position.done)
        self._inlet = self._intake.inlet
        self._settling = Settling(
            parts.journal, self._intake, position, epoch, parts.clock, self._wait, parts.observers
        )

    def run(self) -> Report:
        """Runs this loop alone until the epoch ends or the driver stops the task."""
        return run_loops([self], self._epoch)[0]

    @property
    def vertex(self) -> str:
        """The vertex whose partition it is."""
        return self._place.vertex

    @property
    def targets(self) -> set[str]:
        """The vertices that it writes to."""
        return {edge.to for edge in self._place.edges}

    @property
    def may_end_idle(self) -> bool:
        """Whether an epoch may end without another chunk of this vertex."""
        return self._chunks > 0 or self._gate.probing

    @property
    def few_wait(self) -> bool:
        """Whether the vertex's own buffer is nearly empty."""
        return self._inlet.frames_waiting <= _FEW_FRAMES

    def rest(self) -> float:
        """Returns the seconds until its next turn; 0 if that is now."""
        now = self._clock.monotonic()
        due = now if self._control.wake.is_set() else self._due
        return max(0.0, max(due, self._gathering.until) - now)

    def take_turn(self) -> None:
        """Takes and settles one chunk, if there is one and user code may get it."""
        # Cleared before looking: a message that arrives later sets it again and ends the wait.
        self._control.wake.clear()
        self._control.wake.quiet = False
        if not (self._open_code() and (self._replay() or self._step())):
            self._due = self._rest_until()
            return
        self._gathering.end_chunk()
        if self._chunks == 1:
            # If the next chunk always kills the worker, this one would be replayed forever.
            self.record()
        self._due = self._gathering.until
        self._control.wake.quiet = True  # arrivals must not end the wait while rows gather

    def close(self) -> Report:
        """Stops reading and returns the report; call ``record`` before, unless something failed."""
        self._events.flush()
        stopped = self._epoch.stopped
        self._intake.close(for_good=stopped)
        ended, replays = "stop" if stopped else "epoch", self._settling.position.replays
        return Report(ended, self._chunks, self._rows, replays)

    def _open_code(self) -> bool:
        """Whether user code may get messages; the epoch begins when it is first open."""
        self._control.follow(self._gate)
        changed = self._inline is not None and self._inline.follow_pauses()
        if changed or self._gate.paused != self._control.paused:
            self._gate.paused = self._control.paused
            # A caller that waits for the pause reads in the record that nothing is in flight.
            self.record()
        before, ready = self._gate.opened, self._gate.open()
        if ready and not before:
            self._epoch.begin()
            self._events.opened()
        elif not ready:
            self._events.raised(self._gate.take_raised())
        return ready

    # --- taking ---------------------------------------------------------------------------------

    def _replay(self) -> bool:
        """Settles the chunk that an earlier task began, exactly as it was cut, if there is one."""
        # Before anything else is taken: a chunk cut differently has other ids, and everything that
        # the earlier task has published for this one would be stored twice.
        position = self._settling.position
        if self._chunks or not position.replays:
            return False
        self._taken = self._clock.monotonic()
        taken = self._intake.take_again(position.intent)
        if taken is None:
            self._settling.skip_replay(self._intake.end)
            return False
        self._replayed = position.inline
        self._process(taken)
        self._replayed = None
        return True

    def _step(self) -> bool:
        """Takes and processes one chunk; ``False`` when there is nothing to take."""
        held = self._settling.held_for() > 0
        self._taken = self._clock.monotonic()
        if self._gate.probing:
            taken = self._intake.take_probe(held)
        else:
            taken = self._intake.take(self._size.limit, held)
        if taken is None:
            return False
        self._process(taken)
        return True

    # --- deciding and settling ------------------------------------------------------------------

    def _process(self, taken: Taken) -> None:
        """Lets user code decide a chunk, and starts to settle it."""
        start, waiting = self._settling.start, self._settling.held
        batch = taken.restore(waiting)
        self._gathering.begin_chunk(batch.num_rows, taken.leaves_rows)
        self._watermark.follow(self._inlet.origins)
        offsets = self._inlet.take_offsets()
        record = self._begin_record(batch.num_rows)
        verdict = self._decide(Rows(batch, self._watermark.current), taken, start)
        record.call = self._clock.monotonic() - self._taken - record.read
        now, whole = self._clock.now(), verdict
        # From here on ``verdict`` and ``intake.end`` cover only the rows that can be settled.
        settleable = taken.cut(verdict, self._inlet, batch, waiting, now)
        verdict, more = settleable.verdict, settleable.counts
        self._count(verdict)
        held_next = held_row(whole, batch, len(verdict.rows)) if more else None
        first = batch.num_rows - len(offsets)
        settlement = self._settle(verdict, start, first, more, held_next)
        if taken.parked:
            settlement = settlement.with_parked(self._redeliver(taken.parked, start))
        back = source_acks(offsets, verdict.rows, settlement.returned) if len(offsets) else None
        end, watermark = self._intake.end, self._watermark.current
        chunk = ChunkEnd(end, settlement.all_counts(), watermark, settleable.held, back)
        self._settling.begin(settlement, chunk, record)

    def _redeliver(self, parked: Sequence[pa.RecordBatch], start: Span) -> Iterator[Publication]:
        chunk = Chunk(self._key(start), Rows(frames.empty()), self._settling.number)
        return build_parked(chunk, parked, self._place, self._clock.now())

    def _begin_record(self, rows: int) -> ChunkRecord:
        record = self._events.begin_chunk(self._clock.now(), rows)
        record.read = self._clock.monotonic() - self._taken
        return record

    def _decide(self, rows: Rows, taken: Taken, start: Span) -> Verdict:
        if not taken.batches:  # all of it was decided before
            return self._decider.undecided(rows)
        return self._decider.decide(rows, taken.in_order, partial(self._publish_part, start))

    def _settle(
        self,
        verdict: Verdict,
        start: Span,
        first: int,
        more: Counts | None,
        held: HeldRow | None,
    ) -> Settlement:
        """Returns the settlement of the chunk; rows from ``first`` on are those of the inlet."""
        # Redeliveries come before them in a chunk: they were acknowledged to the source long ago,
        # so it cannot redeliver them.
        returned_from = first if self._inlet.redelivers_itself else None
        facts = ChunkFacts(
            self._key(start),
            self._settling.number,
            self._watermark.current,
            self._writer,
            returned_from=returned_from,
            held=held,
            more=more,
        )
        if self._inline is None:
            settlement = self._decider.settle(verdict, facts)
        else:
            settlement = self._inline.settle(self._decider, verdict, facts, self._replayed)
        if len(verdict.rows) or held is not None:
            self._show(settlement)
        self._report()
        return settlement

    def _show(self, settlement: Settlement) -> None:
        assert settlement.account is not None
        for observer in self._observers:
            if not observer.idle:
                observer.see(settlement.account)

    def _publish_part(self, start: Span, part: Verdict) -> int | None:
        """Forwards what a stream map has yielded so far, before its chunk is settled."""
        settlement = self._decider.settle_part(part, self._key(start), self._watermark.current)
        if settlement is None:
            return None
        self._show(settlement)
        published = self._settling.emit(settlement, self._intake.end)
        for index, letter in published.refused.items():
            part.decisions.finish(index, letter)
        return published.counts.own.written

    def _count(self, verdict: Verdict) -> None:
        self._chunks += 1
        self._rows += len(verdict.rows)
        self._watermark.follow_times(self._decider.times(verdict))

    def _key(self, start: Span) -> str:
        """The key of the chunk from ``start`` to the last rows taken, the same in every replay."""
        lineage, place = self._settling.position.lineage, self._place
        return chunk_key(lineage, place.vertex, place.partition, start, self._intake.end)

    def _report(self) -> None:
        self._events.waits(self._gate.waiting or self._inlet.waiting, self._gate.halted)
        self._events.report_if_due()

    def _wait(self) -> bool:
        """Reports and lets other loops work while this one waits for the server."""
        self._report()
        return self.others()

    # --- resting --------------------------------------------------------------------------------

    def _rest_until(self) -> float:
        """Returns when to look again, and records settled chunks if no message arrives soon.

        If one does, one write records both, and no message has waited for the write.
        """
        if (soon := self._settling.record_soon()) > 0:
            return self._clock.monotonic() + min(soon, self._ready_in())
        if not self._settling.is_recorded(self._state):
            self.record()
            return -math.inf
        self._report()
        left = self._epoch.left()
        return self._clock.monotonic() + min(
            self._ready_in(), left if left > 0 else _SOON, _LOOK_EVERY
        )

    def _ready_in(self) -> float:
        """Returns the seconds until there may be rows to take even if nothing arrives."""
        if (closed_for := self._gate.ready_in()) > 0:
            return closed_for
        held = self._settling.held_for()
        return held if held > 0 else self._intake.ready_in()

    def record(self) -> None:
        """Waits until the chunk in flight is confirmed, and records it."""
        self._settling.record(self._state)

    @property
    def _state(self) -> RecordedState:
        """The state to record: of the inlet, the gate, and the vertices that may run inline."""
        gate, unpaused = self._gate, self._inline.unpaused if self._inline is not None else ()
        return RecordedState(self._inlet.exhausted, gate.halted, gate.paused, unpaused)


class Gathering:
    """The waits of one loop between small chunks.

    A chunk costs two confirmed writes and half a dozen wake-ups, whether it has one row or a
    hundred. At a thousand messages a second, a loop that took each message as it arrived would do
    little else. So after a small chunk a loop waits a moment before it begins the next, and rows
    gather meanwhile: the more the chunk cost, the longer the wait. The first row after a pause is
    taken at once, and so is everything under load, where chunks are large. Used by the task's
    thread.
    """

    def __init__(self, clock: Clock, pace: GatheringPace) -> None:
        self._clock = clock
        self._pace = pace
        self._began = self.until = clock.monotonic()
        """``until`` is when the next chunk may begin."""
        self._gathers = False

    def begin_chunk(self, rows: int, leaves_rows: bool) -> None:
        """Notes the size of the chunk that begins; if it leaves rows, these need not wait."""
        self._began = self.until = self._clock.monotonic()
        self._gathers = rows < SMALL and not leaves_rows

    def end_chunk(self) -> None:
        """Notes that the chunk is being settled."""
        if self._gathers:
            took = self._clock.monotonic() - self._began
            self.until = self._began + min(self._pace.longest, (1 + self._pace.times) * took)


def run_loops(loops: Sequence[ChunkLoop], epoch: Epoch) -> list[Report]:
    """Runs loops in turns until the epoch ends or the driver stops the task, and settles the rest.

    Returns their reports. An error of one loop ends all of them: the next task replays what they
    have in flight.
    """
    turns = Turns(loops, epoch)
    try:
        turns.take()
        turns.record()
    except Unsettled:
        pass
    finally:
        reports = _close(loops)
    return reports


class Turns:
    """The turns of the loops of one task, from the sinks to the sources.

    A loop that waits for room lets downstream loops take turns: one of them may have to make it.
    It does not let upstream loops: one of these could wait for room that only it can make.
    """

    def __init__(self, loops: Sequence[ChunkLoop], epoch: Epoch) -> None:
        self._loops = loops
        self._epoch = epoch
        self._busy: set[str] = set()
        self._unrecorded: deque[ChunkLoop] = deque()
        behind = {loop.vertex: loop.targets for loop in loops}
        for loop in loops:
            loop.others = partial(self._help, _all_behind(loop.vertex, behind))

    def take(self) -> None:
        """Lets the loops take turns until the epoch is over."""
        epoch, loops = self._epoch, self._loops
        epoch.begin()
        while not epoch.is_over(may_end_idle=all(loop.may_end_idle for loop in loops)):
            epoch.wake.clear()
            for loop in loops:
                if not loop.rest():
                    self._in_turn(loop, loop.take_turn)
            if (rest := min(loop.rest() for loop in loops)) > 0:
                epoch.rest(rest)

    def record(self) -> None:
        """Makes every loop confirm and record its chunk in flight."""
        # From the sources on: a loop may wait until downstream loops have made room.
        self._unrecorded = deque(reversed(self._loops))
        while self._unrecorded:
            loop = self._unrecorded.popleft()
            with suppress(Unsettled):  # the next task replays it
                self._in_turn(loop, loop.record)

    def _help(self, behind: set[str]) -> bool:
        """Gives turns to the loops downstream of a waiting one; returns whether one took a turn."""
        if self._epoch.stopped:  # the next task replays what cannot be stored soon
            return False
        free = [loop for loop in self._loops if loop.vertex in behind - self._busy]
        ready = [loop for loop in free if not loop.rest()]
        for loop in ready:
            self._in_turn(loop, loop.take_turn)
            if loop not in self._unrecorded:
                self._unrecorded.append(loop)  # again, if the epoch is over
        return bool(ready)

    def _in_turn(self, loop: ChunkLoop, step: Callable[[], None]) -> None:
        self._busy.add(loop.vertex)
        try:
            with_vertex(loop.vertex, step)
        finally:
            self._busy.discard(loop.vertex)


def _all_behind(vertex: str, targets: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the vertices that messages of this one may reach."""
    found: set[str] = set()
    left = [vertex]
    while left:
        new = set(targets.get(left.pop(), ())) - found
        found |= new
        left += new
    return found


def with_vertex(vertex: str, step: Callable[[], T]) -> T:
    """Returns the result of the step; its error gets a note that names the vertex.

    Vertices that share a task fail together, and the driver sees one error for all of them.
    """
    try:
        return step()
    except Exception as error:
        error.add_note(f"{IN_VERTEX}{vertex}")
        raise


def _close(loops: Sequence[ChunkLoop]) -> list[Report]:
    reports: list[Report] = []
    with ExitStack() as stack:  # all of them, also if closing one fails
        for loop in reversed(loops):
            stack.callback(_close_one, loop, reports)
    return reports


def _close_one(loop: ChunkLoop, reports: list[Report]) -> None:
    reports.append(loop.close())
