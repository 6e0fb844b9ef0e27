"""Batch vertices: SQL, DataFrame functions and Spark sinks, planned by the driver batch by batch.

They are the counterpart of resident tasks, for work that only Spark's planner can do. A partition
is claimed here, on the driver; its frames are read, processed and settled by Spark's workers. All
outcomes of a batch are decided before any of them is published. Then its intent is recorded, then
everything is published in the order that loses no message, then the batch is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from ebbflow.accounts.events import Events
from ebbflow.connectors.plans import BlackholeSink
from ebbflow.connectors.spark.vertex_session import (
    clone_session,
    leaving_active,
    silence_pyspark_loggers,
)
from ebbflow.domain import records
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import SparkError, Unavailable
from ebbflow.domain.outcome import Counts
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.causes import RaisedErrors
from ebbflow.engine.inlet import Watermark
from ebbflow.engine.isolation import Isolated, Trouble, isolate
from ebbflow.engine.position import Position, Span, chunk_key
from ebbflow.engine.publications import ChunkNumber
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.control import Handlers, PauseWatch, listening
from ebbflow.runtime.nats_task import clear_overdue_redeliveries, open_journal
from ebbflow.runtime.plan import SinksPlan, SqlMap, VertexPlan
from ebbflow.runtime.worker import WORKER
from ebbflow.spark.batch.query import BatchWork, Query, Write, watch_call
from ebbflow.spark.batch.settling import SCHEMA, Decided, Settled, settle_on_worker
from ebbflow.spark.batch.window import Pending, Window, frame_ranges
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How long a job may continue after a stop before it is cancelled; its batch is then replayed.
_GRACE = 15.0
# How long to look for the rows that make a batch fail before the decided rows are settled.
_SEARCH = 5.0
_IDLE = Backoff("50ms", steps=0, factor=2.0, cap="250ms")
# Batches are small for Spark: adaptive plans and many tasks would take twice as long as the work.
_SETTINGS = {
    "spark.sql.adaptive.enabled": ("true", "false"),
    "spark.sql.shuffle.partitions": ("200", "4"),
}


def check_batch_plans(spark: SparkSession, plans: Sequence[VertexPlan]) -> None:
    """Raises ``SetupError`` if the SQL, function or columns of a vertex cannot work."""
    silence_pyspark_loggers()
    with leaving_active(spark):
        for plan in plans:
            if plan.streams.batched:
                _work(clone_session(spark, _SETTINGS), plan).check()


def _work(spark: SparkSession, plan: VertexPlan) -> BatchWork:
    return Write(spark, plan) if isinstance(plan.role, SinksPlan) else Query(spark, plan)


def run_batches(
    spark: SparkSession, plan: VertexPlan, epoch: int, seconds: float, stopping: threading.Event
) -> None:
    """Works through the batches of a vertex for an epoch; its own driver thread calls this."""
    silence_pyspark_loggers()
    deadline = time.monotonic() + seconds
    failures: list[BaseException] = []

    def over() -> bool:
        return stopping.is_set() or bool(failures) or time.monotonic() >= deadline

    def work(partition: int) -> None:
        context = spark.sparkContext
        part = f".{partition}" if plan.partitions > 1 else ""
        title = f"{plan.vertex}, epoch {epoch}{part}"
        context.setJobGroup(_group(plan), title, interruptOnCancel=True)
        try:
            with closing(Link(plan.run.server)) as link:
                session = clone_session(spark, _SETTINGS)
                BatchPartition(session, plan, partition, link, over, stopping).run()
        except BaseException as error:
            failures.append(error)

    with leaving_active(spark), _cancelling(spark, plan, stopping):
        others = [_thread(partial(work, n)) for n in range(1, plan.partitions)]
        work(0)
        for thread in others:
            thread.join()
    if failures:
        raise failures[0]


def _group(plan: VertexPlan) -> str:
    return f"ebbflow/{plan.pipeline}/{plan.vertex}"


@contextmanager
def _cancelling(spark: SparkSession, plan: VertexPlan, stopping: threading.Event) -> Iterator[None]:
    """Cancels jobs that still run a while after a stop, so that they do not delay it further."""
    ended = threading.Event()

    def watch() -> None:
        while not stopping.wait(0.5):
            if ended.is_set():
                return
        if not ended.wait(_GRACE):
            spark.sparkContext.cancelJobGroup(_group(plan))

    _thread(watch)
    try:
        yield
    finally:
        ended.set()


def _thread(target: Callable[[], None]) -> InheritableThread:
    thread = InheritableThread(target=target)
    thread.daemon = True
    thread.start()
    return thread


class BatchPartition:
    """One partition of a batch vertex, for one epoch. Used by one thread, on the driver.

    ``over`` returns whether no further batch may begin; ``stopping`` is set when the run ends.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: VertexPlan,
        partition: int,
        link: Link,
        over: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._partition = partition
        self._link = link
        self._over = over
        self._stopping = stopping
        names = Names(plan.pipeline)
        self._tally = Tally()
        self._journal = open_journal(plan, partition, link, self._tally)
        self._pending = Pending(link, names, plan.vertex, partition)
        self._events = Events(link, names, plan.vertex, partition, self._tally)
        self._work = _work(spark, plan)
        name = f"{_group(plan)}/{partition}/{id(self)}"
        limit, report = plan.calls.timeout, self._events.in_call
        self._call = partial(watch_call, spark.sparkContext, name, limit, report)
        resident = WORKER.vertex(plan.vertex_of_run)
        self._breaker = resident.breaker(plan.policy.breaker, partition)
        self._resumed = False
        self._patience = resident.patience("batch", plan.policy.on_unavailable)
        self._paused = False
        self._pauses = PauseWatch(names, plan.vertex, self._pause)

    def run(self) -> None:
        """Works until the epoch is over; a batch in flight is settled first."""
        handlers: Handlers = {"resume": self._resume, "pauses": self._pauses.receive}
        # Subscribes before it reads the record of pauses, so that no control message is missed.
        with listening(self._link, Names(self._plan.pipeline), handlers):
            self._pauses.read(self._link)
            self._run()

    def _resume(self, vertex: str | None) -> None:
        if vertex in (None, self._plan.vertex):
            self._resumed = True

    def _pause(self, paused: bool) -> None:
        self._paused = paused

    def _run(self) -> None:
        self._position: Position = self._link.run(self._journal.claim())
        clear_overdue_redeliveries(self._plan, self._partition, self._link, self._position)
        self._watermark = Watermark(self._plan.feeders, self._position.watermark)
        self._breaker.tripped = self._position.halted
        try:
            idle = 0
            while not self._over():
                worked = self._work_on()
                self._events.waits(self._patience.waiting, self._breaker.tripped)
                self._events.report_if_due()
                idle = 0 if worked else idle + 1
                if idle:
                    self._stopping.wait(self._patience.ready_in() or _IDLE.wait(idle + 1) / 1000)
        finally:
            self._work.forget()
            self._events.flush()

    # --- taking ---------------------------------------------------------------------------------

    def _work_on(self) -> bool:
        """Works on waiting frames; ``False`` if there are none, or the vertex has to wait."""
        if self._resumed:
            self._resumed = False
            self._breaker.reset()
        self._record_state()
        if self._paused or self._breaker.tripped or self._patience.ready_in() > 0:
            return False
        try:
            worked = self._replay() if self._position.replays else self._next_window()
        except Unavailable as error:
            self._patience.meet(SystemOutage.of(error))
            self._note_error(error)
            return False
        self._patience.end()
        return worked

    def _record_state(self) -> None:
        """Records why the partition is paused or halted, if that has changed."""
        position = replace(self._position, paused=self._paused, halted=self._breaker.tripped)
        if position != self._position:
            self._record(position)

    def _replay(self) -> bool:
        """Settles the batch that an earlier task began, with exactly the same rows."""
        with self._window(self._position.intent, 0) as window:
            self._batch(window, 0, len(window), whole=True)
        return True

    def _next_window(self) -> bool:
        """Works on new frames; ``False`` if there are none."""
        pending = self._pending.look(self._position.done)
        if pending is None:
            return False
        most = self._plan.calls.batch_size
        with self._window(pending.end, pending.size) as window:
            done = 0
            while done < len(window) and not self._is_closed():
                done = self._batch(window, done, min(done + most, len(window)))
            if not len(window):  # all frames are scheduled for later, or were read before
                self._record(self._position.settled(window.span(0), Counts()))
        return True

    def _is_closed(self) -> bool:
        return self._over() or self._paused or self._breaker.tripped is not None

    @contextmanager
    def _window(self, end: Span, size: int) -> Iterator[Window]:
        window = Window(
            self._spark, _plan_for_workers(self._plan), self._partition, self._position.done
        )
        try:
            window.open(end, size)
            yield window
        finally:
            window.close()

    # --- deciding -------------------------------------------------------------------------------

    def _batch(self, window: Window, low: int, high: int, whole: bool = False) -> int:
        """Decides about rows and settles them; returns the end of the settled rows."""
        began, record = time.monotonic(), self._events.begin_chunk(datetime.now(UTC), high - low)
        # Now, because no events are sent while Spark works on the batch.
        self._events.flush()
        try:
            isolated = self._decide(window, low, high, whole)
            decided = time.monotonic()
            record.call, record.rows = decided - began, isolated.end - low
            if isolated.end > low or whole:
                self._watermark.follow(window.origins(low, isolated.end))
                self._settle(window, low, isolated)
            record.publish = time.monotonic() - decided
            return isolated.end
        finally:
            record.end()
            self._work.forget()

    def _decide(self, window: Window, low: int, high: int, whole: bool) -> Isolated:
        began = time.monotonic()

        def should_stop() -> bool:
            late = not whole and time.monotonic() - began > _SEARCH
            return late or self._stopping.is_set()

        isolated = isolate(low, high, partial(self._attempt, window), should_stop)
        if isolated.general is not None and isolated.end == low:
            self._give_up(isolated, high)
        if whole and isolated.end < high:
            raise _stopped()
        return isolated

    def _give_up(self, isolated: Isolated, high: int) -> None:
        """Leaves rows to the retry strategy if all attempts fail; without one the vertex waits."""
        why = isolated.general
        assert why is not None
        role = self._plan.role
        if not isinstance(role, SinksPlan) or role.strategy is None:
            raise Unavailable(f"{why.kind}: {why.text}")
        isolated.blamed |= dict.fromkeys(range(isolated.end, high), why)
        isolated.end = high

    def _attempt(self, window: Window, low: int, high: int) -> Trouble | None:
        if self._stopping.is_set():
            raise _stopped()
        rows = window.rows(low, high)
        try:
            with self._call() as call:
                self._work.attempt(rows, call)
            return None
        except Exception as error:
            if self._stopping.is_set():  # it may have been cancelled
                raise _stopped() from error
            failure = self._work.explain_failure(error)
            if failure.suspects or high - low < 2:
                return failure
            suspects = (window.index(place) - low for place in self._work.suspects(rows))
            return replace(failure, suspects=tuple(suspects))

    # --- settling -------------------------------------------------------------------------------

    def _settle(self, window: Window, low: int, isolated: Isolated) -> None:
        plan, start, end = self._plan, self._position.done, window.span(isolated.end)
        count = isolated.end - low
        publishes_nothing = isinstance(plan.role, SinksPlan) and plan.run.audit is None
        if publishes_nothing and not isolated.blamed:
            counts = Counts(read=count, written=count, done=count)
            self._breaker.note_answered(count)
        else:
            self._intend(end)
            key = chunk_key(self._position.lineage, plan.vertex, self._partition, start, end)
            number = ChunkNumber(self._position.chunks + 1, self._position.epoch)
            settled = self._publish(
                Decided(
                    key,
                    number,
                    tuple(frame_ranges(plan, self._partition, start, end, window.copies)),
                    self._watermark.current,
                    {index - low: why for index, why in isolated.blamed.items()},
                    self._work.traced,
                    self._work.result is not None,
                    self._position.repeated,
                    start.redelivery,
                    self._breaker,
                )
            )
            counts = settled.counts
            window.await_redeliveries(self._position.lineage, number.number, settled.awaited)
            end = window.span(isolated.end)
        watermark = self._watermark.current
        self._record(self._position.settled(end, counts, watermark, chunks=1))

    def _intend(self, end: Span) -> None:
        # The intent is stored before anything is published. So after a crash the next task replays
        # the same batch, and its publications have the same ids.
        if self._position.intent != end or not self._position.replays:
            self._position = self._position.intending(end)
            self._link.run(self._journal.write(self._position))

    def _publish(self, decided: Decided) -> Settled:
        """Lets a worker publish the results of the batch; returns when all are confirmed."""
        result = self._work.result
        alone = self._spark.range(0, 1, 1, 1)
        rows: DataFrame = alone if result is None else result.repartition(1)
        settling = partial(
            settle_on_worker,
            plan=_plan_for_workers(self._plan),
            partition=self._partition,
            decided=decided,
        )
        (row,) = rows.mapInArrow(settling, SCHEMA).collect()
        settled = records.from_json(Settled, row[0])
        self._tally.add(settled.tally)
        self._breaker.restore(settled.breaker)
        self._events.nacked(settled.reasons)
        self._events.raised(settled.raised)
        if len(self._plan.edges) > 1:
            self._events.sent(settled.sent)
        return settled

    def _note_error(self, error: BaseException) -> None:
        errors = RaisedErrors()
        errors.note(error, None)
        self._events.raised(errors)

    def _record(self, position: Position) -> None:
        # The position is stored before the server may delete frames. The other way round, a crash
        # in between would lose them.
        self._link.run(self._journal.write(position))
        self._position = position
        self._pending.forget(position.done)


def _stopped() -> SparkError:
    return SparkError("Stopped", "the next run processes the batch")


def _plan_for_workers(plan: VertexPlan) -> VertexPlan:
    """Returns the plan without data for the driver only: user functions, database logins."""
    role = plan.role
    if isinstance(role, SinksPlan):
        return replace(plan, role=replace(role, primary=BlackholeSink()))
    return replace(plan, role=SqlMap(""))
