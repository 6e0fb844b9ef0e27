"""The writer of the audit table: a thread of the driver that writes batches while the run lasts.

It writes at the end of each epoch if batches are merged later, else after each ``interval``;
earlier when many rows wait, and a last time when the tasks have ended. Rows that it cannot write
stay in the stream and are written later, by this run or the next; the run reports that. When the
stream is full, tasks wait before they settle more: no row is lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import InheritableThread

from ebbflow.connectors.spark.vertex_session import silence_pyspark_loggers
from ebbflow.domain.durations import Backoff
from ebbflow.spark.audit.files import BatchRows, BatchSpan
from ebbflow.spark.audit.tables import AuditTable, open_audit_table
from ebbflow.status.model import Concern
from ebbflow.streams.audit import AuditStream
from ebbflow.streams.catalogue import DEFAULT_BUFFER_BYTES
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbflow.nats.link import Link
    from ebbflow.runtime.plan import VertexPlan
    from ebbflow.spark.slots import Slots
    from ebbflow.spec.sections import AuditSpec
    from ebbflow.status.observer import Observer

T = TypeVar("T")

_LOOK_EVERY = 1.0
_MANY_BYTES = 64 * 1024 * 1024
_MANY_FRAMES = 50_000
_RETRY = Backoff("2s", steps=0, factor=2.0, cap="60s")
_LAST_ATTEMPTS = 3
_LEAST_PATIENCE = 0.1
_NEXT_STEP = "Make room or correct the table; waiting rows are written as soon as possible."


@contextmanager
def writing_audit(
    audit: AuditSpec | None,
    spark: SparkSession,
    link: Link,
    plan: VertexPlan,
    slots: Slots,
    observer: Observer,
    show: Callable[[str], None],
) -> Iterator[None]:
    """Writes the audit table, if there is one, while the context lasts; completes it at its end.

    ``SetupError`` if the table can never be written. If the context ends with an exception, Spark
    has died, and the next context writes the rest.
    """
    if audit is None or plan.run.audit is None:
        yield
        return
    options = tuple(json.loads(plan.run.audit)["options"].items())
    table = open_audit_table(spark, replace(audit.read_format("the audit table"), options=options))
    table.check()
    stream = AuditStream(link, Names(plan.pipeline), plan.run.lineage)
    times = AuditTimes(lambda: slots.epoch_seconds, audit.interval / 1000, audit.lasts)
    writer = AuditWriter(spark, table, stream, link, plan, times, show)
    observer.more_concerns = writer.list_concerns
    writer.start()
    try:
        yield
    except BaseException:
        writer.stop()
        raise
    show("writing the audit table")
    writer.finish()


@dataclass(frozen=True, slots=True)
class AuditTimes:
    """The seconds of an epoch, the seconds until rows are in the table, and their retention.

    ``answer`` is how many seconds NATS may take for one step. At the end of a run, all steps
    together may take that long, so that a silent server does not delay the end any further.
    """

    epoch: Callable[[], float]
    interval: float
    retention: timedelta | None = None
    answer: float = 20.0


class AuditWriter:
    """Writes the audit table of one run. ``problem`` says why it cannot be written, if so."""

    def __init__(
        self,
        spark: SparkSession,
        table: AuditTable,
        stream: AuditStream,
        link: Link,
        plan: VertexPlan,
        times: AuditTimes,
        show: Callable[[str], None],
    ) -> None:
        self.problem: str | None = None
        self.waiting = 0
        self._spark = spark
        self._table = table
        self._stream = stream
        self._link = link
        self._rows_of = (plan.run.server, plan.pipeline)
        self._times = times
        self._show = show
        self._stopping = threading.Event()
        self._failures = 0
        self._patience = times.answer
        self._thread = InheritableThread(target=self._run, name="audit")
        self._thread.daemon = True

    def start(self) -> None:
        """Starts the thread that writes while the run lasts."""
        self._thread.start()

    def finish(self) -> None:
        """Writes the remaining rows once all tasks have ended; gives up soon if NATS is silent."""
        self._stopping.set()
        self._thread.join()
        for _ in range(_LAST_ATTEMPTS):
            if self._attempt(last=True):
                return
            if self._patience <= 0:
                break
            time.sleep(_LOOK_EVERY)
        self._show(f"{self.problem} The next run writes the waiting rows.")

    def stop(self) -> None:
        """Ends without writing, because Spark is gone; the next writer continues."""
        self._stopping.set()

    def list_concerns(self) -> tuple[Concern, ...]:
        """Returns the concern that the table cannot be written, if so. Safe from any thread."""
        problem = self.problem
        return () if problem is None else (Concern("warning", None, problem, _NEXT_STEP),)

    def _run(self) -> None:
        due = time.monotonic() + self._every
        while not self._stopping.wait(_LOOK_EVERY):
            if time.monotonic() < due and not self._has_many_rows():
                continue
            done = self._attempt()
            wait = self._every if done else _RETRY.wait(self._failures) / 1000
            due = time.monotonic() + wait

    @property
    def _every(self) -> float:
        epoch, interval = self._times.epoch(), self._times.interval
        return epoch if self._table.merges else max(epoch, interval)

    def _has_many_rows(self) -> bool:
        try:
            self.waiting, frames = self._ask(self._stream.read_size())
        except Exception:  # a server that is restarting answers the next time
            return False
        return (self.waiting > _MANY_BYTES or frames > _MANY_FRAMES) and not self._failures

    def _attempt(self, last: bool = False) -> bool:
        """Writes all waiting batches; ``False`` if one could not be written."""
        try:
            while self._write_batch():
                pass
            if last or self._table.is_merge_due(self._times.interval):
                self._merge()
        except Exception as error:  # whatever failed, the rows stay in the stream
            self._failures += 1
            self._note(error)
            return False
        self._failures, self.problem = 0, None
        return True

    def _write_batch(self) -> bool:
        batch = self._ask(self._stream.begin_batch())
        if batch is None:
            return False
        silence_pyspark_loggers()
        group = f"ebbflow/{self._rows_of[1]}/audit"
        self._spark.sparkContext.setJobGroup(group, f"audit table, {batch.name}")
        self._table.write(BatchRows(*self._rows_of, batch))
        self._ask(self._stream.finish_batch())
        return True

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Returns the answer of NATS; ``TimeoutError`` if there is none in time."""
        began = time.monotonic()
        try:
            return self._link.run(question, max(self._patience, _LEAST_PATIENCE))
        finally:
            if self._stopping.is_set():
                self._patience -= time.monotonic() - began

    def _merge(self) -> None:
        """Merges written batches into the table, and deletes rows that are too old."""
        if (numbers := self._ask(self._stream.begin_merge())) is not None:
            self._table.merge(BatchSpan(self._stream.life, *numbers))
            self._ask(self._stream.finish_merge())
        if self._times.retention is not None:
            self._table.expire(self._rows_of[1], datetime.now(UTC) - self._times.retention)

    def _note(self, error: Exception) -> None:
        why = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        share = self.waiting / DEFAULT_BUFFER_BYTES
        full = "; its stream is full, and vertices wait" if share > 0.99 else ""
        self.problem = (
            f"The audit table cannot be written: {why[:300]}. "
            f"{self.waiting / 2**20:,.0f} MB of audit rows wait in NATS, of 1,024 at most{full}."
        )
        if self._failures == 1:
            self._show(self.problem)
