"""The events of a running task, for people: what user code prints, why messages were nacked, what
publishing has met with, how many messages wait at the source, and when a call takes long.

A task sends them over plain NATS to whoever watches, normally the driver. Nothing depends on their
arriving, so no text and no state of the connection makes sending fail; what could not be sent is
counted, and the number is sent later. The driver's ``TaskListener`` hears them on the NATS thread;
the run reads them from its own.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg

from ebbflow.buffers.logs import LogEntry
from ebbflow.buffers.names import Names
from ebbflow.core.outage import Waiting
from ebbflow.core.printing import Printed, redirected
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.spans import current_ids

_EVERY = 0.5
_LARGEST = 1_000_000
# Room for the headers of a text.
_HEADERS = 4_000
# How long to wait for a connection that takes nothing.
_PATIENCE = 5.0


class Events:
    """The events of one task. ``tally`` goes on being counted by whoever publishes."""

    def __init__(self, link: Link, names: Names, vertex: str, partition: int, tally: Tally) -> None:
        self._link = link
        self._names = names
        self._vertex = vertex
        self._partition = partition
        self._reasons: Counter[str] = Counter()
        self._tally = tally
        self._pending: int | None = None
        self._waiting: Waiting | None = None
        self._halted: str | None = None
        self._last_state: dict[str, Any] = {}
        self._task = secrets.token_hex(6)
        self._sent = 0.0
        self._unsent = 0

    def log(self, printed: Printed) -> None:
        """Sends lines to print; they are on their way when this returns, if the server is there."""
        if self._unsent:
            missing = Printed(f"… ({self._unsent:,} texts not shown)", printed.kind)
            self._unsent *= not self._send_log(missing, missing.text.encode())
        for part in _parts(printed.text, min(_LARGEST, self._link.client.max_payload - _HEADERS)):
            self._unsent += not self._send_log(printed, part)

    def _send_log(self, printed: Printed, part: bytes) -> bool:
        """Sends a part of a text; what user code prints is kept by the stream of the logs."""
        now, trace = datetime.now(UTC), current_ids()
        entry = LogEntry(now, self._vertex, self._partition, printed, trace)
        is_kept = printed.kind != "message"
        names = self._names
        subject = names.log_subject(self._vertex) if is_kept else names.event_subject("message")
        return self._publish(subject, part, entry.headers())

    def printing(self) -> AbstractContextManager[None]:
        """Makes what user code prints appear where the pipeline was started."""
        return redirected(self.log)

    def nacked(self, reasons: dict[str, int]) -> None:
        """Counts reasons; they are told now and then, not for each message."""
        self._reasons.update(reasons)

    def pending(self, messages: int | None) -> None:
        """Says how many messages wait at the source; from any thread."""
        self._pending = messages

    def waits(self, waiting: Waiting | None, halted: str | None) -> None:
        """Says that the vertex waits for a system, or that its breaker has stopped it."""
        self._waiting, self._halted = waiting, halted

    def in_call(self, seconds: float | None) -> None:
        """Says how long user code has been in one call; None when it is back. From any thread."""
        whose = {"vertex": self._vertex, "partition": self._partition}
        self._send("call", json.dumps(whose | {"seconds": seconds}).encode())

    def tell_now_and_then(self) -> None:
        """Tells what has been counted, unless that was just done."""
        if time.monotonic() - self._sent > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Tells what has been counted."""
        if self._reasons:
            reasons = dict(self._reasons.most_common(20))
            event = json.dumps({"vertex": self._vertex, "reasons": reasons}).encode()
            if self._send("nack", event):
                self._reasons.clear()
        # Of the whole task so far: an event that got lost is made up for by the next one.
        state = {
            "tally": asdict(self._tally),
            "pending": self._pending,
            "waiting": asdict(self._waiting) if self._waiting else None,
            "halted": self._halted,
        }
        if state != self._last_state:
            whose = {"vertex": self._vertex, "partition": self._partition, "task": self._task}
            if self._send("state", json.dumps(whose | state).encode()):
                self._last_state = state
        self._sent = time.monotonic()

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
    """Yields the text in pieces that can be sent, cut between lines where there are any."""
    rest = text.encode("utf-8", "backslashreplace")
    while len(rest) > largest:
        end = rest.rfind(b"\n", 0, largest)
        if end < 0:  # not within a character
            end = max(at for at in range(largest - 3, largest + 1) if rest[at] & 0xC0 != 0x80)
        yield rest[:end]
        rest = rest[end:].removeprefix(b"\n")
    yield rest


T = TypeVar("T")
# A task that has not spoken of its call for this long is gone.
_CALL_IS_OVER = 10.0


class TaskListener:
    """Keeps the latest event of each task; ``take_log`` gets what vertices print."""

    def __init__(self, names: Names, take_log: Callable[[LogEntry], None]) -> None:
        self._names = names
        self._take_log = take_log
        self._reasons: dict[str, str] = {}
        self._present: dict[tuple[str, int], tuple[str, Tally]] = {}
        self._past: dict[str, Tally] = {}
        self._pending: dict[tuple[str, int], int | None] = {}
        self._waiting: dict[tuple[str, int], Waiting | None] = {}
        self._halted: dict[tuple[str, int], str | None] = {}
        self._heard: dict[tuple[str, int], float] = {}
        self._calls: dict[tuple[str, int], tuple[float, float]] = {}

    @contextlib.contextmanager
    def listen(self, link: Link) -> Iterator[None]:
        """Receives the events of all tasks for as long as the context lasts."""
        subscribe, names = link.client.subscribe, self._names
        subscriptions = [
            link.run(subscribe(names.event_subject(), cb=self._hear)),
            link.run(subscribe(names.log_subject(), cb=self._hear_log)),
        ]
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                for subscription in subscriptions:
                    link.run(subscription.unsubscribe(), timeout=5)

    def reason(self, vertex: str) -> str | None:
        """Returns the reason of the vertex's latest nack, if it had one."""
        return self._reasons.get(vertex)

    def tally(self, vertex: str) -> Tally:
        """Returns the counts of the vertex's publishing since the run began."""
        present = [tally for _, tally in _latest(vertex, self._present)]
        return sum(present, self._past.get(vertex, Tally()))

    def pending(self, vertex: str) -> int | None:
        """Returns how many messages wait at the vertex's source, as far as that is known."""
        known = [count for count in _latest(vertex, self._pending) if count is not None]
        return sum(known) if known else None

    def waiting(self, vertex: str) -> Waiting | None:
        """Returns the outage that the vertex waits for, if any; of several, the longest."""
        outages = [waiting for waiting in _latest(vertex, self._waiting) if waiting]
        return max(outages, key=lambda waiting: waiting.seconds, default=None)

    def halted(self, vertex: str) -> str | None:
        """Returns why the breaker of the vertex has stopped it, if it has."""
        return next((why for why in _latest(vertex, self._halted) if why), None)

    def has_heard(self, vertex: str, partitions: int, since: float) -> bool:
        """Returns whether every task of the vertex has spoken since a moment.

        Each task does when its user code is open, be there messages or not.
        """
        heard = self._heard.copy()
        return all(heard.get((vertex, p), -math.inf) >= since for p in range(partitions))

    def in_call(self, vertex: str) -> float | None:
        """Returns the seconds that user code has been in one call, if that is long."""
        now = time.monotonic()
        calls = _latest(vertex, self._calls)
        return max((now - began for began, at in calls if now - at < _CALL_IS_OVER), default=None)

    async def _hear(self, message: Msg) -> None:
        kind = message.subject.rpartition(".")[2]
        if kind == "message":
            await self._hear_log(message)
        elif kind == "nack":
            event = json.loads(message.data)
            self._reasons[event["vertex"]] = next(iter(event["reasons"]))
        elif kind == "state":
            self._note(json.loads(message.data))
        elif kind == "call":
            self._note_call(json.loads(message.data))

    async def _hear_log(self, message: Msg) -> None:
        self._take_log(LogEntry.read(message.headers or {}, message.data))

    def _note_call(self, event: dict[str, Any]) -> None:
        key, now = (event["vertex"], event["partition"]), time.monotonic()
        if event["seconds"] is None:
            self._calls.pop(key, None)
        else:
            self._calls[key] = (now - event["seconds"], now)

    def _note(self, event: dict[str, Any]) -> None:
        vertex, key = event["vertex"], (event["vertex"], event["partition"])
        self._heard[key] = time.monotonic()
        self._pending[key] = event["pending"]
        self._waiting[key] = Waiting(**event["waiting"]) if event["waiting"] else None
        self._halted[key] = event["halted"]
        task, tally = self._present.get(key, (event["task"], Tally()))
        if task != event["task"]:  # each task counts from nothing
            self._past[vertex] = self._past.get(vertex, Tally()) + tally
        self._present[key] = event["task"], Tally(**event["tally"])


def _latest(vertex: str, tasks: dict[tuple[str, int], T]) -> list[T]:
    """Returns what each task of the vertex said last; from a copy, as events arrive meanwhile."""
    return [said for (name, _), said in tasks.copy().items() if name == vertex]
