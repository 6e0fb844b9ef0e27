"""The events of a running task, for people: what user code prints, why messages were nacked, the
results of publishing, how many messages wait at the source, and when a call takes long.

A task sends them over core NATS to its watchers, normally the driver. Nothing depends on their
arrival, so no text and no state of the connection makes sending fail; texts that could not be sent
are counted, and the number is sent later. The driver's side is ``listener``.

``Measures`` are the numbers that a task reports. A ``ChunkRecord`` begins when a chunk is taken and
ends when all of it is confirmed; until then its rows are in flight. The task's thread begins
records, the thread of the link ends them, and the task's thread adds up those that have ended.
"""

from __future__ import annotations

import concurrent.futures
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import nats.errors

from ebbflow.accounts.numbers import MESSAGE, Histogram, Load, TaskNumbers, TaskState
from ebbflow.accounts.traces import current_ids
from ebbflow.engine.account import STAGES, Account, ChunkObserver, ChunkRecord
from ebbflow.engine.causes import CauseCounter, Raised, RaisedErrors
from ebbflow.engine.outage import Waiting
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally
from ebbflow.streams.logs import LogEntry
from ebbflow.streams.names import Names
from ebbflow.usercode.printing import Printed, redirected

_MOST_CHUNKS = 25
_EVERY = 0.5
# An idle task reports this often that it is alive.
_ALIVE_EVERY = 2.0
_LARGEST = 1_000_000
# Room for the headers of a text.
_HEADERS = 4_000
# How long to wait for a connection that accepts no data.
_PATIENCE = 5.0


class Measures:
    """The numbers of one task since it began. Used by the task's thread."""

    def __init__(self) -> None:
        self.spreads = {stage: Histogram() for stage in (*STAGES, MESSAGE)}
        self.sent: Counter[str] = Counter()
        self.raised = RaisedErrors()
        self._open: list[ChunkRecord] = []
        self._unreported: deque[ChunkRecord] = deque(maxlen=_MOST_CHUNKS)

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        """Returns the record of a chunk that was just taken."""
        record = ChunkRecord(at, rows)
        self._open.append(record)
        return record

    def note_errors(self, errors: RaisedErrors) -> None:
        """Counts the exceptions of user code."""
        if errors:
            self.raised.merge(errors)

    def note_sent(self, rows: dict[str, int]) -> None:
        """Counts rows that go to the next vertices, by vertex."""
        self.sent.update(rows)

    @property
    def in_flight(self) -> tuple[int, float] | None:
        """The number of rows taken and not confirmed, and since when; from any thread."""
        records = [record for record in self._open.copy() if not record.ended]
        if not records:
            return None
        return sum(record.rows for record in records), records[0].at.timestamp()

    def add_up(self) -> None:
        """Counts the chunks that have ended since the last call."""
        ended = [record for record in self._open if record.ended]
        if not ended:
            return
        self._open = [record for record in self._open if not record.ended]
        for record in ended:
            for stage in STAGES:
                self.spreads[stage].add(getattr(record, stage))
            if record.rows:
                self.spreads[MESSAGE].add(record.call / record.rows, record.rows)
        self._unreported.extend(ended)

    def take_chunks(self) -> list[list[float]]:
        """Returns the newest of the chunks that have ended since the last call."""
        chunks = [record.to_json() for record in self._unreported]
        self._unreported.clear()
        return chunks

    def take_errors(self) -> list[dict[str, Any]]:
        """Returns the exceptions of user code since the last call."""
        raised, self.raised = self.raised, RaisedErrors()
        return [dump_raised(group) for group in raised]

    @property
    def numbers(self) -> TaskNumbers:
        """The counts since the task began."""
        counted = {name: spread for name, spread in self.spreads.items() if spread.count}
        return TaskNumbers(counted, dict(self.sent))


def dump_raised(raised: Raised) -> dict[str, Any]:
    """Returns a group of errors for JSON."""
    return {name: getattr(raised, name) for name in Raised.__slots__}


class Events(ChunkObserver):
    """The events of one vertex in one task. Its publishers count in ``tally``.

    ``load`` returns the load of the task.
    """

    def __init__(
        self,
        link: Link,
        names: Names,
        vertex: str,
        partition: int,
        tally: Tally,
        load: Callable[[], Load] = Load,
    ) -> None:
        self._load = load
        self._inline_from: set[str] = set()
        self._link = link
        self._names = names
        self._vertex = vertex
        self._partition = partition
        self._reasons = CauseCounter()
        self._tally = tally
        self._pending: int | None = None
        self._waiting: Waiting | None = None
        self._halted: str | None = None
        self._opened = False
        self._measures = Measures()
        self._last_state: dict[str, Any] = {}
        self._task = secrets.token_hex(6)
        self._sent = self._state_sent = 0.0
        self._unsent = 0

    def log(self, printed: Printed) -> None:
        """Sends lines to print; they are in flight when this returns, if the server is up."""
        if self._unsent:
            missing = Printed(f"… ({self._unsent:,} texts not shown)", printed.kind)
            self._unsent *= not self._send_log(missing, missing.text.encode())
        for part in _parts(printed.text, min(_LARGEST, self._link.client.max_payload - _HEADERS)):
            self._unsent += not self._send_log(printed, part)

    def _send_log(self, printed: Printed, part: bytes) -> bool:
        """Sends a part of a text; the logs stream keeps all but messages of ``log`` sinks."""
        now, trace = datetime.now(UTC), current_ids()
        entry = LogEntry(now, self._vertex, self._partition, printed, trace)
        is_kept = printed.kind != "message"
        names = self._names
        subject = names.log_subject(self._vertex) if is_kept else names.event_subject("message")
        return self._publish(subject, part, entry.headers())

    def printing(self) -> AbstractContextManager[None]:
        """Makes what user code prints appear where the pipeline was started."""
        return redirected(self.log)

    def see(self, account: Account) -> None:
        """Counts the reasons of redeliveries, the exceptions of user code and the outputs sent."""
        if account.is_early:
            return
        if account.reasons and not account.is_probe:  # ``waits`` reports the outage of a probe
            self.nacked(account.reasons)
        for part in account.parts:
            if (raised := part.verdict.decisions.raised) is not None:
                self.raised(raised)
            if len(part.place.edges) > 1:
                self.sent(part.count_by_edge())

    def nacked(self, reasons: Mapping[str, int]) -> None:
        """Counts reasons; they are reported now and then, not for each message."""
        self._reasons.update(reasons.items())

    def pending(self, messages: int | None) -> None:
        """Sets how many messages wait at the source; from any thread."""
        self._pending = messages

    def opened(self) -> None:
        """Notes that user code is open."""
        self._opened = True

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        """Returns the record of a chunk that was just taken; the task fills it in."""
        return self._measures.begin_chunk(at, rows)

    def takes_inline(self, vertex: str, inline: bool) -> None:
        """Sets whether chunks come from a vertex inline at the moment."""
        (self._inline_from.add if inline else self._inline_from.discard)(vertex)

    def raised(self, errors: RaisedErrors) -> None:
        """Counts the errors of user code; they are reported now and then."""
        self._measures.note_errors(errors)

    def sent(self, rows: dict[str, int]) -> None:
        """Counts rows that go to the next vertices, by vertex."""
        self._measures.note_sent(rows)

    def waits(self, waiting: Waiting | None, halted: str | None) -> None:
        """Sets the system that the vertex waits for, or why its breaker has stopped it."""
        self._waiting, self._halted = waiting, halted

    def in_call(self, seconds: float | None) -> None:
        """Reports how long the current call has run; None when it has ended. From any thread."""
        task = {"vertex": self._vertex, "partition": self._partition}
        # A first call may take forever, and no other event is sent meanwhile.
        facts = {"seconds": seconds, "opened": self._opened, "in_flight": self._measures.in_flight}
        self._send("call", json.dumps(task | facts).encode())

    def report_if_due(self) -> None:
        """Sends the counts, unless they were just sent."""
        if time.monotonic() - self._sent > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Sends the counts."""
        if self._reasons.total:
            reasons = {cause.text: cause.count for cause in self._reasons.causes()}
            event = json.dumps({"vertex": self._vertex, "reasons": reasons}).encode()
            if self._send("nack", event):
                self._reasons = CauseCounter()
        self._send_errors()
        self._send_state()
        self._sent = time.monotonic()

    def _send_errors(self) -> None:
        if self._measures.raised:
            errors = self._measures.take_errors()
            event = {"vertex": self._vertex, "errors": errors}
            self._send("error", json.dumps(event).encode())

    def _send_state(self) -> None:
        """Sends the task's numbers if they have changed, or at times to show that it is alive."""
        self._measures.add_up()
        state = TaskState(
            self._vertex,
            self._partition,
            self._task,
            self._tally,
            self._measures.numbers,
            self._pending,
            self._waiting,
            self._halted,
            self._opened,
            self._measures.in_flight,
            tuple(sorted(self._inline_from)),
        ).to_json()
        now = time.monotonic()
        if state == self._last_state and now - self._state_sent < _ALIVE_EVERY:
            return
        event = {"state": state, "load": self._load(), "chunks": self._measures.take_chunks()}
        if self._send("state", json.dumps(event).encode()):
            self._last_state, self._state_sent = state, now

    def _send(self, kind: str, payload: bytes) -> bool:
        """Sends an event; ``False`` when the connection did not take it."""
        return self._publish(self._names.event_subject(kind), payload)

    def _publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> bool:
        publishing = self._link.client.publish(subject, payload, headers=headers)
        try:
            self._link.run(publishing, _PATIENCE)
        except (nats.errors.Error, OSError, concurrent.futures.TimeoutError):
            return False
        return True


def _parts(text: str, largest: int) -> Iterator[bytes]:
    """Yields the text in pieces that can be sent, cut between lines where possible."""
    rest = text.encode("utf-8", "backslashreplace")
    while len(rest) > largest:
        end = rest.rfind(b"\n", 0, largest)
        if end < 0:  # not within a character
            end = max(at for at in range(largest - 3, largest + 1) if rest[at] & 0xC0 != 0x80)
        yield rest[:end]
        rest = rest[end:].removeprefix(b"\n")
    yield rest
