"""Incidents that a test adds to a simulation: outages, pauses and crashes.

    simulate(orders, incidents=[Outage("out", lasts="10m"), Crash("enrich", at="5s")])

Times are on the virtual clock. An incident ends a call or a task where it would end on a worker,
and the engine alone decides what follows: an outage penalises no message, a paused vertex settles
its messages in flight, and a chunk that a crash left unsettled is replayed.
"""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ebbflow.domain.code import Variables
from ebbflow.domain.durations import Duration, milliseconds
from ebbflow.domain.errors import Unavailable
from ebbflow.domain.spelling import named_fields
from ebbflow.engine.blame import Blame
from ebbflow.runtime.worker import ResidentVertex
from ebbflow.testing.world import Crashed
from ebbflow.usercode.calling import Handler

if TYPE_CHECKING:
    from ebbflow.testing.world import VirtualClock


@named_fields
@dataclass(frozen=True)
class _Lasting:
    vertex: str
    lasts: Duration
    at: Duration = "0s"

    def __post_init__(self) -> None:
        milliseconds(self.at), milliseconds(self.lasts)  # so that errors are raised in the test

    @property
    def begins(self) -> int:
        """The virtual time when it begins, in milliseconds."""
        return milliseconds(self.at)

    @property
    def ends(self) -> int:
        """The virtual time when it ends, in milliseconds."""
        return self.begins + milliseconds(self.lasts)

    def covers(self, ms: int) -> bool:
        """Returns whether it is active at a time."""
        return self.begins <= ms < self.ends


class Outage(_Lasting):
    """A system that a vertex needs is unavailable: its user code raises ``Unavailable``."""


class Pause(_Lasting):
    """A vertex is paused, as by ``ebbflow pause``."""


@named_fields
@dataclass(frozen=True)
class Crash:
    """Kills the worker of a vertex when it settles its next chunk at or after a time.

    ``step`` is the write of the task before which it dies: 1 is the first. Afterwards user code is
    opened again.
    """

    vertex: str
    at: Duration = "0s"
    step: int = 1

    def __post_init__(self) -> None:
        milliseconds(self.at)


Incident = Outage | Pause | Crash


class VertexIncidents:
    """The incidents of one partition of a vertex, on the clock of its simulation."""

    def __init__(self, vertex: str, incidents: Iterable[Incident], clock: VirtualClock) -> None:
        own = [incident for incident in incidents if incident.vertex == vertex]
        self._vertex, self._clock = vertex, clock
        self._outages = [each for each in own if isinstance(each, Outage)]
        self._pauses = [each for each in own if isinstance(each, Pause)]
        self._crashes = [each for each in own if isinstance(each, Crash)]
        self._next: Crash | None = None
        self._steps_left = 0

    @property
    def _now(self) -> int:
        return round(self._clock.elapsed / timedelta(milliseconds=1))

    def check_outage(self) -> None:
        """Raises ``Unavailable`` during an outage. Called before user code."""
        if any(outage.covers(self._now) for outage in self._outages):
            raise Unavailable(f"a system that {self._vertex} needs")

    def outage_ended(self, within: float) -> bool:
        """Returns whether an outage is active or to come, or ended at most this long ago."""
        return any(outage.ends + within * 1000 >= self._now for outage in self._outages)

    def paused_until(self) -> int | None:
        """Returns the clock time when the pause ends; ``None`` if the vertex is not paused."""
        ends = [pause.ends for pause in self._pauses if pause.covers(self._now)]
        return self._clock.now_ms + max(ends) - self._now if ends else None

    def begin_turn(self) -> None:
        """Chooses the crash that is due in this turn, if there is one."""
        due = (crash for crash in self._crashes if milliseconds(crash.at) <= self._now)
        self._next = next(due, None)
        self._steps_left = 0 if self._next is None else self._next.step

    def step(self) -> None:
        """Raises ``Crashed`` if the task is to crash here. Called before each of its writes."""
        if self._next is None:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self._crashes.remove(self._next)
            self._next = None
            raise Crashed


class InterruptedVertex(ResidentVertex):
    """The user code of a vertex, whose calls fail during the outages of a simulation."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check = check

    @override
    def _make(self, target: Any, blame: Blame, variables: Variables) -> Handler:
        return _InterruptedHandler(self._check, target, blame, variables)


class _InterruptedHandler(Handler):
    """A handler that checks for an outage before each call."""

    def __init__(self, check: Callable[[], None], *arguments: Any) -> None:
        self._check = check
        super().__init__(*arguments)

    @override
    def _make(self) -> None:
        super()._make()
        code, check = self.call, self._check

        def call(*arguments: Any) -> Any:
            check()
            try:
                return code(*arguments)
            except BdbQuit:  # quitting the debugger must end the run, not fail a message
                raise KeyboardInterrupt from None

        self._code, self.call = code, call

    @override
    def close(self) -> None:
        self.call = self._code
        super().close()
