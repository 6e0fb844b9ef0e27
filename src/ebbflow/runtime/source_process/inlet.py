"""An inlet for sources that are read from and told the outcome of each message.

The source itself lives in its own process (``program``), which reads ahead within a window of
messages that are not settled yet. One thread of the task's listens to it, another tells it what is
settled; the task takes what has come. A source's messages cannot be read again by position: after
a crash those that were not acknowledged are given again by the source, which is why nothing is
acknowledged before it is settled. While the system behind a source is down, the source is left
alone for a while and then asked again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Protocol, assert_never

import pyarrow as pa

from ebbflow.domain.errors import SourceError
from ebbflow.engine import frames
from ebbflow.engine.inlet import HandedBack, Inlet
from ebbflow.engine.outage import Patience, Waiting
from ebbflow.engine.position import Mark
from ebbflow.engine.source_columns import NO_OFFSETS, frame_of
from ebbflow.runtime.source_process.companion import Companion, SourcePlan
from ebbflow.runtime.source_process.protocol import (
    End,
    Failed,
    FromSource,
    Given,
    Greet,
    Heard,
    Hello,
    Resume,
    Settle,
    Told,
    ToSource,
)
from ebbflow.streams.ledger import FACTS, Ledger
from ebbflow.usercode.printing import Printed

_CLOSE_WITHIN = 30.0


class Telling(Protocol):
    """People who watch the source. Nothing depends on them."""

    def log(self, printed: Printed) -> None:
        """Tells what the source has printed."""

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
        self._vertex = vertex
        self._ledger = ledger
        self._wake = wake
        self._events = events
        self._patience = patience
        self._exhausted = self._greeted = self._closing = False
        self._queue: deque[tuple[pa.RecordBatch, pa.BinaryArray]] = deque()
        self._taken: list[pa.BinaryArray] = []
        self._change = threading.Condition()
        """Guards what follows, and is notified when there may be a word to say."""
        self._settled: list[HandedBack] = []
        self._in_question: ToSource | None = None
        """The word that the source has not answered yet."""
        self._telling: HandedBack | None = None
        self._unsettled = 0
        self._failure: BaseException | None = None
        self._source = Companion(plan, vertex, partition)
        self._threads = [
            threading.Thread(target=work, name=f"source-{vertex}", daemon=True)
            for work in (self._speak, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    # --- the task's side ------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether the source has nothing more for good and all it gave is settled."""
        return self._exhausted and self._unsettled == 0

    @property
    def waiting(self) -> Waiting | None:
        """The system behind the source, if that is unavailable."""
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
                    self._queue.appendleft((batch.slice(limit), offsets.slice(limit)))
                    batch, offsets = batch.slice(0, limit), offsets.slice(0, limit)
                taken.append(batch)
                self._taken.append(offsets)
                limit -= batch.num_rows
        self.mark = Mark(self.mark.seq + sum(batch.num_rows for batch in taken))
        return taken

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Returns nothing: the source redelivers what was in flight."""
        self.mark = max(self.mark, end)
        return []

    def pick_up(self) -> pa.BinaryArray:
        """Returns the offsets of the rows that were taken since the last call, in their order."""
        taken, self._taken = self._taken, []
        return pa.concat_arrays(taken) if taken else NO_OFFSETS

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
        speaking, listening = self._threads
        speaking.join(_CLOSE_WITHIN)
        if for_good:
            with contextlib.suppress(SourceError):
                self._source.tell(End())
                listening.join(_CLOSE_WITHIN)  # the process hangs up
                self._source.wait()
        self._source.hang_up()
        listening.join(_CLOSE_WITHIN)

    # --- speaking -------------------------------------------------------------------------------

    def _speak(self) -> None:
        """Says one word after another, each when the one before it is answered."""
        try:
            while (request := self._next_request()) is not None:
                self._source.tell(request)
        except BaseException as error:
            self._fail(error)

    def _next_request(self) -> ToSource | None:
        """Waits until there is something to say; ``None`` when there is nothing more for good."""
        with self._change:
            while self._failure is None:
                down = self._patience.down
                if self._closing and (down or not self._is_telling):
                    return None  # what could not be told is given again
                wait = self._patience.ready_in()
                if wait == 0 and self._in_question is None:
                    self._in_question = self._choose_request(down)
                    if self._in_question is not None:
                        return self._in_question
                self._change.wait(wait or None)
        return None

    @property
    def _is_telling(self) -> bool:
        return bool(self._settled or self._telling)

    def _choose_request(self, down: bool) -> ToSource | None:
        if not self._greeted:
            return Greet()
        if self._settled:
            # At once, whatever has come together: the source's system is asked less often.
            self._telling, self._settled = HandedBack.join(self._settled), []
            return Settle.of(self._telling)
        return Resume() if down else None

    # --- listening ------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while self._failure is None:
                self._hear(self._source.hear())
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._failure = self._failure or error
            self._change.notify()
        self._wake.set()

    def _hear(self, answer: FromSource) -> None:
        match answer:
            case Hello():
                self.takes_back, self._greeted = answer.redelivers, True
                self._note_answered(answer.exhausted, settled=0)
            case Heard():
                assert self._telling is not None
                self._note_answered(answer.exhausted, settled=len(self._telling))
            case Given():
                self._note_read()
                self._note_exhausted(False)
                self._take_in(answer.read_rows())
            case Told():
                self._note_read()
                self._note_told(answer)
            case Failed():
                self._note_failed(answer)
            case never:
                assert_never(never)

    def _note_answered(self, exhausted: bool, settled: int) -> None:
        with self._change:
            # Both at once: a nacked message is settled, and the source is not exhausted any more.
            self._exhausted = exhausted
            self._unsettled -= settled
            self._in_question = self._telling = None
            self._change.notify()
        if exhausted:
            self._wake.set()

    def _note_exhausted(self, exhausted: bool) -> None:
        if exhausted != self._exhausted:
            self._exhausted = exhausted
            self._wake.set()

    def _note_read(self) -> None:
        """Notes that the source could be read: its system is there."""
        if self._patience.down:
            with self._change:
                self._patience.end()
                if isinstance(self._in_question, Resume):
                    self._in_question = None
                self._change.notify()

    def _note_told(self, told: Told) -> None:
        for printed in told.printed:
            self._events.log(printed)
        self._events.pending(told.pending)
        self._note_exhausted(told.exhausted)

    def _note_failed(self, failed: Failed) -> None:
        if failed.outage is None:
            raise SourceError(self._vertex, failed.what, failed.trace)
        with self._change:
            self._patience.meet(failed.outage)
            if self._telling is not None and failed.during == "settle":
                # Only what the source has heard without an error is settled: it is told again.
                self._settled, self._telling = [self._telling, *self._settled], None
            if failed.during != "read" or isinstance(self._in_question, Resume):
                self._in_question = None
            self._change.notify()
        self._wake.set()

    def _take_in(self, rows: pa.RecordBatch) -> None:
        batch = self._with_history(rows)
        with self._change:
            self._queue.append((batch, rows.column("offset")))
            self._unsettled += batch.num_rows
        self._wake.set()

    def _with_history(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with what they have been through; most are here for the first time."""
        batch = frame_of(rows)
        if self.takes_back:
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
