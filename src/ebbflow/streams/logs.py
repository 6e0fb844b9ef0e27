"""The logs of a pipeline: what user code has printed and logged, with its vertex and the time.

Tasks publish entries without waiting for a confirmation: losing a log does not lose a message. The
stream keeps the newest entries of each vertex, to be read later or from elsewhere. The messages of
``log`` sinks are published in the same form, but not kept here: they are in the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from ebbflow.domain.errors import EbbflowError
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import Deliveries, Follower, follow
from ebbflow.nats.stored import read_page, take_snapshot
from ebbflow.streams.names import Names
from ebbflow.usercode.printing import Kind, Printed

_FACTS = "Ebb-Log"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A text of one or more lines, and where and when it was printed or logged.

    ``trace`` has the ids of the trace and the span of the message that user code processed, if the
    message is traced.
    """

    at: datetime
    vertex: str
    partition: int
    printed: Printed
    trace: tuple[str, str] | None = None

    def headers(self) -> dict[str, str]:
        """Returns everything but the text, for the headers of a message."""
        printed = self.printed
        facts = [self.at.isoformat(), self.vertex, self.partition]
        facts += [printed.kind, printed.level, printed.logger, *(self.trace or ())]
        return {_FACTS: json.dumps(facts)}

    @classmethod
    def read(cls, headers: Mapping[str, str], payload: bytes) -> LogEntry:
        """Returns the entry of a message."""
        at, vertex, partition, kind, level, logger, *trace = json.loads(headers[_FACTS])
        text = payload.decode("utf-8", "replace")
        printed = Printed(text, cast("Kind", kind), level, logger)
        ids = (trace[0], trace[1]) if trace else None
        return cls(datetime.fromisoformat(at), vertex, partition, printed, ids)

    def with_vertex(self) -> str:
        """Returns the text with the vertex before each line, as a ``log`` sink writes it."""
        return "\n".join(f"({self.vertex}) {line}" for line in self.printed.text.split("\n"))

    def as_dict(self) -> dict[str, Any]:
        """Returns the entry for JSON."""
        printed = self.printed
        return {
            "time": self.at.astimezone(UTC).isoformat(timespec="milliseconds"),
            "level": printed.level,
            "vertex": self.vertex,
            "partition": self.partition,
            "event": printed.kind,
            **({"logger": printed.logger} if printed.logger else {}),
            **dict(zip(("trace_id", "span_id"), self.trace or (), strict=False)),
            "message": printed.text,
        }


@dataclass(frozen=True, slots=True)
class LogPage:
    """Entries, oldest first, and the sequence in the stream after which newer ones follow."""

    entries: tuple[LogEntry, ...]
    last: int


async def read_logs(client: SecuredClient, names: Names, vertex: str, most: int) -> LogPage:
    """Returns the newest entries of a vertex, at most ``most``; none if it has printed nothing."""
    subject = names.log_subject(vertex)
    try:
        snapshot = await take_snapshot(client, names.logs)
    except api.ApiError as error:
        if error.code == api.NOT_FOUND:
            return LogPage((), 0)
        raise
    entries: list[LogEntry] = []
    start = snapshot.first
    while page := await read_page(client, names.logs, subject, start, snapshot):
        entries += [LogEntry.read(message.headers, message.payload) for message in page]
        start = page[-1].seq + 1
    return LogPage(tuple(entries[-most:]), snapshot.last)


async def follow_logs(
    client: SecuredClient,
    names: Names,
    vertex: str,
    after: int,
    take: Callable[[Sequence[LogEntry]], None],
    fail: Callable[[EbbflowError], None],
) -> Follower:
    """Delivers the entries of a vertex after a sequence, as they arrive; see ``follow``."""
    subject = names.log_subject(vertex)
    return await follow(
        client, names.logs, subject, after, decode=_read_entries, take=take, fail=fail
    )


def _read_entries(deliveries: Deliveries) -> list[LogEntry]:
    parcel = deliveries.parcel
    return [LogEntry.read(parcel.headers(n) or {}, parcel.payload(n)) for n in range(len(parcel))]
