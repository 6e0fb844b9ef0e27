"""An inlet for sources that Ebbflow reads from and sends an ack or a nack for each message.

The source itself lives in its own process (``program``), which reads ahead within a window of
unsettled messages. One thread of the task receives from the process, another sends acks and nacks;
the task takes the messages that have arrived. A source's messages cannot be read again by position:
after a crash the source redelivers messages that were not acknowledged, which is why no message is
acknowledged before it is settled. While the system behind a source is down, the task waits before
it asks the source again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Protocol, assert_never

import pyarrow as pa

from ebbflow.domain.errors import SourceError
from ebbflow.engine import frames
from ebbflow.engine.inlet import Inlet, SourceAcks
from ebbflow.engine.outage import Patience, Waiting
from ebbflow.engine.position import Mark
from ebbflow.engine.source_columns import NO_OFFSETS, frame_of
from ebbflow.runtime.source_process.companion import Companion, SourcePlan
from ebbflow.runtime.source_process.protocol import (
    End,
    Failed,
    FromSource,
    Greet,
    Hello,
    ReadRows,
    Resume,
    Settle,
    SettleDone,
    SourceReport,
    ToSource,
)
from ebbflow.streams.ledger import FACTS, Ledger
from ebbflow.usercode.printing import Printed

_CLOSE_WITHIN = 30.0


class SourceEvents(Protocol):
    """Reports on the source for people. No outcome depends on them."""

    def log(self, printed: Printed) -> None:
        """Reports what the source has printed."""

    def pending(self, messages: int | None) -> None:
        """Reports how many messages wait to be read, as far as the source knows."""


class PulledInlet(Inlet):
    """One partition of a source. ``take`` is called by the task's thread."""

    def __init__(
        self,
        plan: SourcePlan,
        vertex: str,
        partition: int,
        start: Mark,
        ledger: Ledger,
        wake: threading.Event,
        events: SourceEvents,
        patience: Patience,
    ) -> None:
        self.mark = start
        self._vertex = vertex
        self._ledger = ledger
        self._wake = wake
        self._events = events
        self._patience = patience
        self._exhausted = self._greeted = self._closing = False
        self._queue: deque[tuple[pa.RecordBatch, pa.BinaryArray]] = deque()
        self._taken: list[pa.BinaryArray] = []
        self._change = threading.Condition()
        """Guards the fields below, and is notified when there may be a request to send."""
        self._settled: list[SourceAcks] = []
        self._unanswered: ToSource | None = None
        """The request that the source has not answered yet."""
        self._settling: SourceAcks | None = None
        self._unsettled = 0
        self._failure: BaseException | None = None
        self._source = Companion(plan, vertex, partition)
        self._threads = [
            threading.Thread(target=work, name=f"source-{vertex}", daemon=True)
            for work in (self._send_requests, self._receive_answers)
        ]
        for thread in self._threads:
            thread.start()

    # --- the task's side ------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether the source will have no more messages, and all it delivered are settled."""
        return self._exhausted and self._unsettled == 0

    @property
    def waiting(self) -> Waiting | None:
        """The wait for the system behind the source, if that is unavailable."""
        return self._patience.waiting

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that have arrived; ``SourceError`` if the source failed."""
        taken: list[pa.RecordBatch] = []
        with self._change:
            if self._failure is not None:
                raise self._failure
            while limit > 0 and self._queue:
                batch, offsets = self._queue.popleft()
                if batch.num_rows > limit:
                    self._queue.appendleft((batch.slice(limit), offsets.slice(limit)))
                    batch, offsets = batch.slice(0, limit), offsets.slice(0, limit)
                taken.append(batch)
                self._taken.append(offsets)
                limit -= batch.num_rows
        self.mark = Mark(self.mark.seq + sum(batch.num_rows for batch in taken))
        return taken

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Returns no rows: the source redelivers messages that were in flight."""
        self.mark = max(self.mark, end)
        return []

    def take_offsets(self) -> pa.BinaryArray:
        """Returns the offsets of the rows that were taken since the last call, in their order."""
        taken, self._taken = self._taken, []
        return pa.concat_arrays(taken) if taken else NO_OFFSETS

    def acknowledge(self, ends: SourceAcks) -> None:
        """Schedules acks and nacks to the source. Safe to call from any thread."""
        with self._change:
            self._settled.append(ends)
            self._change.notify()

    def close(self, for_good: bool = False) -> None:
        """Sends the last acks and nacks; ``for_good`` ends the process, which else stays."""
        with self._change:
            self._closing = True
            self._change.notify()
        sending, receiving = self._threads
        sending.join(_CLOSE_WITHIN)
        if for_good:
            with contextlib.suppress(SourceError):
                self._source.send(End())
                receiving.join(_CLOSE_WITHIN)  # the process closes the connection
                self._source.wait()
        self._source.hang_up()
        receiving.join(_CLOSE_WITHIN)

    # --- sending --------------------------------------------------------------------------------

    def _send_requests(self) -> None:
        """Sends requests, each after the previous one is answered."""
        try:
            while (request := self._next_request()) is not None:
                self._source.send(request)
        except BaseException as error:
            self._fail(error)

    def _next_request(self) -> ToSource | None:
        """Waits for the next request; returns ``None`` when there will be no more."""
        with self._change:
            while self._failure is None:
                down = self._patience.down
                if self._closing and (down or not self._has_settled):
                    return None  # the source redelivers messages whose outcome it did not receive
                wait = self._patience.ready_in()
                if wait == 0 and self._unanswered is None:
                    self._unanswered = self._choose_request(down)
                    if self._unanswered is not None:
                        return self._unanswered
                self._change.wait(wait or None)
        return None

    @property
    def _has_settled(self) -> bool:
        return bool(self._settled or self._settling)

    def _choose_request(self, down: bool) -> ToSource | None:
        if not self._greeted:
            return Greet()
        if self._settled:
            # All that have accumulated, in one request: the source's system is called less often.
            self._settling, self._settled = SourceAcks.join(self._settled), []
            return Settle.of(self._settling)
        return Resume() if down else None

    # --- receiving ------------------------------------------------------------------------------

    def _receive_answers(self) -> None:
        try:
            while self._failure is None:
                self._handle(self._source.receive())
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._failure = self._failure or error
            self._change.notify()
        self._wake.set()

    def _handle(self, answer: FromSource) -> None:
        match answer:
            case Hello():
                self.redelivers_itself, self._greeted = answer.redelivers, True
                self._note_answered(answer.exhausted, settled=0)
            case SettleDone():
                assert self._settling is not None
                self._note_answered(answer.exhausted, settled=len(self._settling))
            case ReadRows():
                self._note_read()
                self._note_exhausted(False)
                self._take_in(answer.read_rows())
            case SourceReport():
                self._note_read()
                self._note_report(answer)
            case Failed():
                self._note_failed(answer)
            case never:
                assert_never(never)

    def _note_answered(self, exhausted: bool, settled: int) -> None:
        with self._change:
            # Both together: when a nacked message is settled, the source is no longer exhausted.
            self._exhausted = exhausted
            self._unsettled -= settled
            self._unanswered = self._settling = None
            self._change.notify()
        if exhausted:
            self._wake.set()

    def _note_exhausted(self, exhausted: bool) -> None:
        if exhausted != self._exhausted:
            self._exhausted = exhausted
            self._wake.set()

    def _note_read(self) -> None:
        """Notes that a read succeeded: the source's system is up."""
        if self._patience.down:
            with self._change:
                self._patience.end()
                if isinstance(self._unanswered, Resume):
                    self._unanswered = None
                self._change.notify()

    def _note_report(self, report: SourceReport) -> None:
        for printed in report.printed:
            self._events.log(printed)
        self._events.pending(report.pending)
        self._note_exhausted(report.exhausted)

    def _note_failed(self, failed: Failed) -> None:
        if failed.outage is None:
            raise SourceError(self._vertex, failed.what, failed.trace)
        with self._change:
            self._patience.meet(failed.outage)
            if self._settling is not None and failed.during == "settle":
                # A request that failed is sent again, so only acknowledged requests settle.
                self._settled, self._settling = [self._settling, *self._settled], None
            if failed.during != "read" or isinstance(self._unanswered, Resume):
                self._unanswered = None
            self._change.notify()
        self._wake.set()

    def _take_in(self, rows: pa.RecordBatch) -> None:
        batch = self._with_history(rows)
        with self._change:
            self._queue.append((batch, rows.column("offset")))
            self._unsettled += batch.num_rows
        self._wake.set()

    def _with_history(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with their histories; most have none, as they are first deliveries."""
        batch = frame_of(rows)
        if self.redelivers_itself:
            self._ledger.catch_up()
        histories = self._ledger.histories(batch.column("id"))
        if not histories:
            return batch
        facts = {name: batch.column(name).to_pylist() for name in FACTS}
        counted = rows.column("deliveries").to_pylist()
        for row, history in histories.items():
            for name, column in facts.items():
                column[row] = getattr(history, name)
            if counted[row] is not None:
                facts["deliveries"][row] = counted[row]
        return frames.with_columns(batch, **facts)
