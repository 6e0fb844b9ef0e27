"""The driver's ear: it hears the events that tasks send while they run (see ``events``).

Events arrive on the NATS thread; the run reads them from its own. Nothing depends on an event.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from nats.aio.msg import Msg

from ebbflow.buffers.names import Names
from ebbflow.core.outage import Waiting
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally

T = TypeVar("T")
# A task that has not spoken of its call for this long is gone.
_CALL_IS_OVER = 10.0


class TaskListener:
    """Keeps the latest event of each task; ``line`` gets what vertices print."""

    def __init__(self, names: Names, line: Callable[[str], None]) -> None:
        self._names = names
        self._line = line
        self._reasons: dict[str, str] = {}
        self._present: dict[tuple[str, int], tuple[str, Tally]] = {}
        self._past: dict[str, Tally] = {}
        self._pending: dict[tuple[str, int], int | None] = {}
        self._waiting: dict[tuple[str, int], Waiting | None] = {}
        self._halted: dict[tuple[str, int], str | None] = {}
        self._calls: dict[tuple[str, int], tuple[float, float]] = {}

    @contextlib.contextmanager
    def listen(self, link: Link) -> Iterator[None]:
        """Receives the events of all tasks for as long as the context lasts."""
        subject = self._names.event_subject()
        subscription = link.run(link.client.subscribe(subject, cb=self._hear))
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
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

    def in_call(self, vertex: str) -> float | None:
        """Returns the seconds that user code has been in one call, if that is long."""
        now = time.monotonic()
        calls = _latest(vertex, self._calls)
        return max((now - began for began, at in calls if now - at < _CALL_IS_OVER), default=None)

    async def _hear(self, message: Msg) -> None:
        kind = message.subject.rpartition(".")[2]
        if kind == "log":
            self._line(message.data.decode("utf-8", "replace"))
        elif kind == "nack":
            event = json.loads(message.data)
            self._reasons[event["vertex"]] = next(iter(event["reasons"]))
        elif kind == "state":
            self._note(json.loads(message.data))
        elif kind == "call":
            self._note_call(json.loads(message.data))

    def _note_call(self, event: dict[str, Any]) -> None:
        key, now = (event["vertex"], event["partition"]), time.monotonic()
        if event["seconds"] is None:
            self._calls.pop(key, None)
        else:
            self._calls[key] = (now - event["seconds"], now)

    def _note(self, event: dict[str, Any]) -> None:
        vertex, key = event["vertex"], (event["vertex"], event["partition"])
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
