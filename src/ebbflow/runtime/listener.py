"""What the driver hears from its tasks while they run: see ``events`` for what they tell.

Heard on the NATS thread, read by the run. Nothing depends on an event arriving.
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
# A task that has not told of its call for so long is gone.
_CALL_IS_OVER = 10.0


class Listener:
    """The latest of what each vertex has told; ``line`` is called with what it prints."""

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
    def listening(self, link: Link) -> Iterator[None]:
        """Hear what tasks have to tell, for as long as the context lasts."""
        subject = self._names.event_subject()
        subscription = link.run(link.client.subscribe(subject, cb=self._hear))
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                link.run(subscription.unsubscribe(), timeout=5)

    def reason(self, vertex: str) -> str | None:
        """Why the vertex last sent a message back, if it ever did."""
        return self._reasons.get(vertex)

    def tally(self, vertex: str) -> Tally:
        """What the vertex's publishing has met with since the run began."""
        present = [tally for _, tally in _told_by(vertex, self._present)]
        return sum(present, self._past.get(vertex, Tally()))

    def pending(self, vertex: str) -> int | None:
        """How many messages wait at the vertex's source, as far as that is known."""
        known = [count for count in _told_by(vertex, self._pending) if count is not None]
        return sum(known) if known else None

    def waiting(self, vertex: str) -> Waiting | None:
        """What the vertex waits for, if it does; of several tasks the one that waits longest."""
        found = [waiting for waiting in _told_by(vertex, self._waiting) if waiting]
        return max(found, key=lambda waiting: waiting.seconds, default=None)

    def halted(self, vertex: str) -> str | None:
        """Why the breaker of the vertex has stopped it, if it has."""
        return next((why for why in _told_by(vertex, self._halted) if why), None)

    def in_call(self, vertex: str) -> float | None:
        """For how many seconds user code of the vertex has been in one call, if that is long."""
        now = time.monotonic()
        heard = _told_by(vertex, self._calls)
        return max((now - began for began, at in heard if now - at < _CALL_IS_OVER), default=None)

    async def _hear(self, message: Msg) -> None:
        kind = message.subject.rpartition(".")[2]
        if kind == "log":
            self._line(message.data.decode("utf-8", "replace"))
        elif kind == "nack":
            told = json.loads(message.data)
            self._reasons[told["vertex"]] = next(iter(told["reasons"]))
        elif kind == "state":
            self._note(json.loads(message.data))
        elif kind == "call":
            self._note_call(json.loads(message.data))

    def _note_call(self, told: dict[str, Any]) -> None:
        key, now = (told["vertex"], told["partition"]), time.monotonic()
        if told["seconds"] is None:
            self._calls.pop(key, None)
        else:
            self._calls[key] = (now - told["seconds"], now)

    def _note(self, told: dict[str, Any]) -> None:
        vertex, key = told["vertex"], (told["vertex"], told["partition"])
        self._pending[key] = told["pending"]
        self._waiting[key] = Waiting(**told["waiting"]) if told["waiting"] else None
        self._halted[key] = told["halted"]
        task, tally = self._present.get(key, (told["task"], Tally()))
        if task != told["task"]:  # each task counts from nothing
            self._past[vertex] = self._past.get(vertex, Tally()) + tally
        self._present[key] = told["task"], Tally(**told["tally"])


def _told_by(vertex: str, tasks: dict[tuple[str, int], T]) -> list[T]:
    """What each task of the vertex has told; from a copy, for tasks are heard of meanwhile."""
    return [told for (name, _), told in tasks.copy().items() if name == vertex]
