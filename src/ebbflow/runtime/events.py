"""The events of a running task, for people: what user code prints, why messages were nacked, what
publishing has met with, how many messages wait at the source, and when a call takes long.

A task sends them over plain NATS to whoever watches, normally the driver. Nothing depends on their
arriving, so no text and no state of the connection makes sending fail; what could not be sent is
counted, and the number is sent later.
"""

from __future__ import annotations

import concurrent.futures
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import nats.errors

from ebbflow.buffers.names import Names
from ebbflow.core.outage import Waiting
from ebbflow.core.printing import redirected
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally

_EVERY = 0.5
_LARGEST = 1_000_000
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

    def log(self, text: str) -> None:
        """Sends lines to print; they are on their way when this returns, if the server is there."""
        if self._unsent and self._send("log", f"… ({self._unsent:,} texts not shown)".encode()):
            self._unsent = 0
        for part in _parts(text, min(_LARGEST, self._link.client.max_payload)):
            self._unsent += not self._send("log", part)

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
        publishing = self._link.client.publish(self._names.event_subject(kind), payload)
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
