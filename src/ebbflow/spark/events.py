"""What a task tells people while it runs: what user code prints, why messages were nacked, and what
publishing has met with.

Sent over plain NATS to whoever watches, normally the driver; nothing depends on it arriving.
"""

from __future__ import annotations

import io
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, replace

from ebbflow.jetstream.connection import Link
from ebbflow.jetstream.names import Names
from ebbflow.jetstream.publisher import Tally

_EVERY = 0.5


class Events:
    """The events of one task. ``tally`` goes on being counted by whoever publishes."""

    def __init__(self, link: Link, names: Names, vertex: str, partition: int, tally: Tally) -> None:
        self._link = link
        self._names = names
        self._vertex = vertex
        self._partition = partition
        self._reasons: Counter[str] = Counter()
        self._tally = tally
        self._told = Tally()
        self._task = secrets.token_hex(6)
        self._sent = 0.0

    def log(self, text: str) -> None:
        """Lines to print; on their way to the server when this returns."""
        self._send("log", text.encode())

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Have what user code prints appear where the pipeline was started."""
        lines = _Lines(self.log)
        with redirect_stdout(lines), redirect_stderr(lines):
            yield
        lines.finish()

    def nacked(self, reasons: dict[str, int]) -> None:
        """Count reasons; they are told now and then, not for each message."""
        self._reasons.update(reasons)

    def tell_now_and_then(self) -> None:
        """Tell what there is to tell, unless that was just done."""
        if time.monotonic() - self._sent > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Tell what has been counted."""
        if self._reasons:
            reasons = dict(self._reasons.most_common(20))
            self._send("nack", json.dumps({"vertex": self._vertex, "reasons": reasons}).encode())
            self._reasons.clear()
        if self._tally != self._told:
            # Of the whole task so far: an event that got lost is made up for by the next one.
            told = {
                "vertex": self._vertex,
                "partition": self._partition,
                "task": self._task,
                "tally": asdict(self._tally),
            }
            self._send("publish", json.dumps(told).encode())
            self._told = replace(self._tally)
        self._sent = time.monotonic()

    def _send(self, kind: str, payload: bytes) -> None:
        subject = self._names.event_subject(kind)
        self._link.run(self._link.client.publish(subject, payload))


class _Lines(io.TextIOBase):
    """Text is handed on in whole lines, as ``print`` writes a line in several pieces."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._open = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        whole, newline, self._open = (self._open + text).rpartition("\n")
        if newline:
            self._emit(whole)
        return len(text)

    def finish(self) -> None:
        """Hand on a last line without an end."""
        if self._open:
            self._emit(self._open)
