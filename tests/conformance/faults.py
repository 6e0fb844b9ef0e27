"""Sources and sinks that break the rules, each fault on messages of its own.

They are the memory source and the memory sink with faults in what runs next to the pipeline.
"""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ebbflow import Datum, Response, SourceMessage
from ebbflow.testing import (
    MemorySink,
    MemorySource,
    SinkUnderTest,
    SourceUnderTest,
)
from ebbflow.testing.memory import MemoryReader, MemoryWriter


class FaultySource(SourceUnderTest):
    """The memory source, read by a class with faults."""

    keeps_keys = True
    keeps_headers = True

    def __init__(self, memory: MemorySource, reader: type[MemoryReader]) -> None:
        self._memory = memory
        self._reader = reader
        self.flood = 42_000 if reader is Tidy else 0

    def source(self):
        return partial(self._reader, self._memory.address)

    def put(self, samples):
        self._memory.put(*samples)

    def waiting(self):
        return self._memory.waiting

    def unsettled(self):
        return self._memory.unsettled


class Careless(MemoryReader):
    """Loses a message, duplicates one, ignores a nack, redelivers early, and changes offsets."""

    def open(self):
        super().open()
        self._renamed: dict[bytes, bytes] = {}

    def read(self, limit, timeout):
        found = super().read(limit, timeout)
        self.ack([m.offset for m in found if m.value == b"plain flow 7"])
        delivered = [self._named(m) for m in found if m.value != b"plain flow 7"]
        twice = [
            replace(m, offset=b"%b0000" % m.offset) for m in delivered if m.value == b"plain flow 8"
        ]
        return [*delivered, *twice]

    def _named(self, message: SourceMessage) -> SourceMessage:
        """A limited message has a different offset each time."""
        if not message.value.startswith(b"limited"):
            return message
        self._renamed[other := b"%d" % (10**6 + len(self._renamed))] = message.offset
        return replace(message, offset=other)

    def _real(self, offset: bytes) -> bytes:
        return self._renamed.get(offset, offset)

    def ack(self, offsets):
        super().ack([self._real(offset) for offset in offsets])

    def nack(self, nacks):
        kept = [n for n in nacks if n.options.reason != "once" or int(n.offset) % 4]
        early = [replace(n, options=replace_delay(n.options)) for n in kept]
        super().nack([replace(n, offset=self._real(n.offset)) for n in early])


def replace_delay(options):
    """The options, without the delay if this redelivery is to be early."""
    return type(options)(None if options.reason == "later 2" else options.delay)


class Tidy(MemoryReader):
    """Strips values, omits headers, and reads everything there is into its own memory."""

    def open(self):
        super().open()
        self._mine: list[SourceMessage] = []

    def read(self, limit, timeout):
        self._mine += super().read(10**6, timedelta(milliseconds=50) if self._mine else timeout)
        found, self._mine = self._mine[:limit], self._mine[limit:]
        return [replace(m, value=m.value.strip(), headers={}) for m in found]


class Forgetful(MemoryReader):
    """Acknowledges slow messages when it reads them, and held ones when they are nacked.

    It never acknowledges messages that arrived while it was down, and leaves a process behind.
    """

    def open(self):
        super().open()
        self._meanwhile: set[bytes] = set()
        self._left_behind = subprocess.Popen(["sleep", "600"])

    def read(self, limit, timeout):
        found = super().read(limit, timeout)
        super().ack([m.offset for m in found if m.value.startswith(b"slow")])
        self._meanwhile |= {m.offset for m in found if b"meanwhile" in m.value}
        return found

    def ack(self, offsets):
        super().ack([offset for offset in offsets if offset not in self._meanwhile])

    def nack(self, nacks):
        super().ack([n.offset for n in nacks if n.options.reason == "held"])
        super().nack([n for n in nacks if n.options.reason != "held"])


class FaultySink(SinkUnderTest):
    """The memory sink, written to by a class with faults."""

    keeps_keys = True
    can_refuse = True
    can_go_down = True

    def __init__(self, memory: MemorySink) -> None:
        self._memory = memory
        self.refuse = memory.refuse
        self.go_down = memory.go_down
        self.come_up = memory.come_up

    def sink(self):
        return partial(Hasty, self._memory.address)

    def landed(self):
        return self._memory.landed


class Hasty(MemoryWriter):
    """Drops one row, writes one twice, changes values, and returns OK in any case."""

    def __call__(self, data):
        rows = [datum for datum in data if datum.value != b"plain landing 7"]
        rows += [datum for datum in data if datum.value == b"plain landing 8"]
        changed = [Datum(datum.value.strip(), id=datum.id) for datum in rows]
        with contextlib.suppress(ConnectionError):
            super().__call__(changed)
        return [Response.ok(datum.id) for datum in data]
