"""An inlet for sources that are read from and told what became of each message.

The source itself lives in a process of its own (``server``). A thread of the task's reads ahead
from it, within a window of messages that are not settled yet, and tells it what is settled; the
task takes what has come. A source's messages cannot be read again by position: after a crash those
that were not acknowledged are given again by the source, which is why nothing is acknowledged
before it is settled. While the system behind a source is away, the thread waits and asks again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from ebbflow.buffers.ledger import Ledger
from ebbflow.core import frames
from ebbflow.core.inlet import HandedBack, Inlet
from ebbflow.core.outage import Patience, Waiting
from ebbflow.core.position import Mark
from ebbflow.runtime.source_process.client import Companion, SourceAway, SourcePlan
from ebbflow.runtime.source_process.protocol import Given, Hello

WINDOW = 20_000
_MOST_BYTES = 64 * 1024 * 1024
_MIN_READ = 0.02
_SETTLE_SOON = 0.25
_PENDING_EVERY = 2.0


class Telling(Protocol):
    """People who watch the source. Nothing depends on them."""

    def log(self, text: str) -> None:
        """Prints what the source has printed."""

    def pending(self, messages: int | None) -> None:
        """Says how many messages wait to be read, as far as the source knows."""


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
        events: Telling,
        patience: Patience,
    ) -> None:
        self.mark = start
        self._plan = plan
        self._vertex = vertex
        self._ledger = ledger
        self._wake = wake
        self._events = events
        self._patience = patience
        self._exhausted = self._greeted = False
        self._queue: deque[tuple[pa.RecordBatch, list[bytes]]] = deque()
        self._taken: list[bytes] = []
        self._settled: deque[HandedBack] = deque()
        self._change = threading.Condition()
        self._unsettled = 0
        self._closing = False
        self._asked_pending = 0.0
        self._failure: BaseException | None = None
        self._source = Companion(plan, vertex, partition)
        self._thread = threading.Thread(target=self._converse, name=f"source-{vertex}", daemon=True)
        self._thread.start()

    # --- the task's side ------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether the source has nothing more for good and all it gave is settled."""
        return self._exhausted and self._unsettled == 0

    @property
    def waiting(self) -> Waiting | None:
        """The system behind the source, if that is away."""
        return self._patience.waiting

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that have come; ``SourceError`` if the source has failed."""
        taken: list[pa.RecordBatch] = []
        with self._change:
            if self._failure is not None:
                raise self._failure
            while limit > 0 and self._queue:
                batch, offsets = self._queue.popleft()
                if batch.num_rows > limit:
                    self._queue.appendleft((batch.slice(limit), offsets[limit:]))
                    batch, offsets = batch.slice(0, limit), offsets[:limit]
                taken.append(batch)
                self._taken += offsets
                limit -= batch.num_rows
            self._change.notify()  # there is room again
        self.mark = Mark(self.mark.seq + sum(batch.num_rows for batch in taken))
        return taken

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Returns nothing: the source gives again what was in hand."""
        self.mark = max(self.mark, end)
        return []

    def pick_up(self) -> list[bytes]:
        """Returns the offsets of the rows that were taken since the last call, in their order."""
        offsets, self._taken = self._taken, []
        return offsets

    def hand_back(self, ends: HandedBack) -> None:
        """Has the source told, soon; from any thread."""
        with self._change:
            self._settled.append(ends)
            self._change.notify()

    def close(self, for_good: bool = False) -> None:
        """Tells the source what is settled; its process stays for the next task unless for good."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(30)
        self._source.close(for_good)

    # --- the source's side ----------------------------------------------------------------------

    def _converse(self) -> None:
        try:
            while not self._closing or self._settled:
                self._ask_source()
                if self._closing and self._patience.away:
                    break  # what could not be told is given again
        except BaseException as error:
            with self._change:
                self._failure = error
        self._wake.set()

    def _ask_source(self) -> None:
        """Has one turn: says what is settled, then asks for what is new. It waits out an outage."""
        try:
            if not self._greeted:
                self._greet()
            self._tell_settled()
            if not self._closing:
                self._read()
            self._patience.end()
        except SourceAway as away:
            self._patience.meet(away.outage)
            self._wake.set()
            with self._change:
                if not self._closing:
                    self._change.wait_for(lambda: self._closing, self._patience.ready_in())

    def _greet(self) -> None:
        hello: Hello = self._source.ask("hello")
        self.takes_back, self._exhausted = hello.redelivers, hello.exhausted
        self._greeted = True

    def _tell_settled(self) -> None:
        while self._settled:
            ends = self._settled[0]
            self._source.ask("settle", ends.acks, ends.nacks)
            self._settled.popleft()  # only now: after an outage it is told again
            with self._change:
                self._unsettled -= len(ends.acks) + len(ends.nacks)
            self._wake.set()  # it may be exhausted now

    def _read(self) -> None:
        room = WINDOW - self._unsettled
        if room <= 0 or self._waiting_bytes() > _MOST_BYTES:
            self._wait(1.0)
            return
        began = time.monotonic()
        timeout = (
            self._plan.timeout if not self._unsettled else min(_SETTLE_SOON, self._plan.timeout)
        )
        given: Given = self._source.ask("read", min(self._plan.limit, room), timeout)
        for line in given.printed:
            self._events.log(line)
        if given.frame is not None:
            self._arrived(given)
        elif time.monotonic() - began < _MIN_READ:
            self._wait(_MIN_READ)  # a source that does not wait must not keep us spinning
        if given.exhausted != self._exhausted:
            self._exhausted = given.exhausted
            self._wake.set()
        self._ask_pending()

    def _ask_pending(self) -> None:
        if time.monotonic() - self._asked_pending > _PENDING_EVERY:
            self._asked_pending = time.monotonic()
            self._events.pending(self._source.ask("pending"))

    def _waiting_bytes(self) -> int:
        """Returns the size of what has been read and not taken yet."""
        with self._change:
            return sum(batch.nbytes for batch, _ in self._queue)

    def _arrived(self, given: Given) -> None:
        assert given.frame is not None
        batch = self._with_history(frames.decode(given.frame), given.deliveries)
        with self._change:
            self._queue.append((batch, given.offsets))
            self._unsettled += batch.num_rows
        self._wake.set()

    def _with_history(
        self, batch: pa.RecordBatch, deliveries: Sequence[int | None]
    ) -> pa.RecordBatch:
        """Returns the rows with what they have been through; most are here for the first time."""
        if self.takes_back:
            self._ledger.catch_up()
        histories = [self._ledger.history(row_id) for row_id in batch.column("id").to_pylist()]
        if not any(histories) and not any(deliveries):
            return batch
        rows: dict[str, list[Any]] = {
            name: batch.column(name).to_pylist()
            for name in ("deliveries", "failures", "retries", "first_seen", "nack_reason")
        }
        for index, (history, counted) in enumerate(zip(histories, deliveries, strict=True)):
            for name, column in rows.items() if history else ():
                column[index] = getattr(history, name)
            if counted is not None:
                rows["deliveries"][index] = counted
        return frames.with_columns(batch, **rows)

    def _wait(self, seconds: float) -> None:
        with self._change:
            if not self._settled and not self._closing:
                self._change.wait(seconds)
