"""A Python worker, and what it keeps of the vertices that it serves from one epoch to the next.

Spark reuses its Python workers, so the object that user code opened in one epoch is there in the
next, also when the worker has served other vertices meanwhile. It is closed and opened again after
an outage. It is closed when the run stops, when the worker is given another run, and when Spark
shuts the worker down in good order; not when the worker is killed. How long a vertex still waits
for a system that is unavailable, the dead letters that its breaker has counted, how many messages a
call gets and who taps it last as long.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbflow.domain.code import CONTAINER_TYPE, Code, Variables
from ebbflow.domain.durations import Backoff
from ebbflow.engine.blame import USER_ERRORS, Blame
from ebbflow.engine.outage import Breaker, BreakerLimit, Patience
from ebbflow.engine.system_errors import SystemErrors
from ebbflow.numaflow.pynumaflow.adapters import adapt
from ebbflow.numaflow.pynumaflow.recognition import Place
from ebbflow.runtime.chunk_size import Pace
from ebbflow.usercode.call_watch import RUNNING, WorkerLeaves
from ebbflow.usercode.calling import Handler, in_environment
from ebbflow.usercode.targets import forget_changed_modules, resolve

if TYPE_CHECKING:
    from ebbflow.accounts.taps import Tap

VertexOfRun = tuple[str, str, str]
"""A vertex in one run: the names of its pipeline and its own, and the run.

The next run may come with other code under the same names.
"""

LEAVE_WITHIN = 10.0
"""The seconds that a worker has to close user code and to end once Spark has asked it to."""

_PLACES: dict[str, Place] = {
    "map": "map",
    "transformer": "transformer",
    "sink": "sink",
    "fallback": "sink",
    "on_success": "sink",
    "store": "store",
}
"""The role of code in its vertex, and the place in a pipeline that it is written for."""

_CONTAINERS = {
    "map": "udf",
    "transformer": "transformer",
    "sink": "udsink",
    "fallback": "fb-udsink",
    "on_success": "ons-udsink",
    "store": "udstore",
}
"""The same roles in Numaflow's words: one function may be several sinks of a vertex."""


class ResidentVertex:
    """What a worker keeps of one vertex in one run, until the run ends or another one comes."""

    def __init__(self, leaves_with_spark: bool = False) -> None:
        self._leaves_with_spark = leaves_with_spark
        self._handlers: dict[str, Handler] = {}
        self._patience: dict[str, Patience] = {}
        self._breakers: dict[int | None, Breaker] = {}
        self._paces: dict[int, Pace] = {}
        self._taps: dict[int, dict[str, Tap]] = {}

    def handler(
        self,
        role: str,
        code: Code,
        search: str | None,
        systems: SystemErrors,
        variables: Variables = (),
    ) -> Handler:
        """Returns the handler of that role in this process; opens it on first use."""
        if role not in self._handlers:
            if self._leaves_with_spark:
                signal.signal(signal.SIGHUP, _leave)  # how Spark tells workers that it ends
            variables = ((CONTAINER_TYPE, _CONTAINERS[role]), *variables)
            with in_environment(variables):  # modules may look at it when they are imported
                target = adapt(resolve_code(code, search), _PLACES[role])
            self._handlers[role] = self._make(target, Blame(systems), variables)
        return self._handlers[role]

    def _make(self, target: Any, blame: Blame, variables: Variables) -> Handler:
        return Handler(target, blame, variables)

    @property
    def handlers(self) -> list[Handler]:
        """The handlers that are open."""
        return [*self._handlers.values()]

    def patience(self, part: str, backoff: Backoff) -> Patience:
        """Returns the patience of a part of the vertex with outages."""
        return self._patience.setdefault(part, Patience(backoff))

    def breaker(self, limit: BreakerLimit, partition: int | None = None) -> Breaker:
        """Returns the breaker, which counts dead letters: of all partitions here, or of one."""
        return self._breakers.setdefault(partition, Breaker(limit))

    def pace(self, partition: int, most: int) -> Pace:
        """Returns how many messages a call of the partition gets, ``most`` at most."""
        return self._paces.setdefault(partition, Pace(most))

    def taps(self, partition: int) -> dict[str, Tap]:
        """Returns the taps that the partition knows, by their names."""
        return self._taps.setdefault(partition, {})

    def close(self) -> None:
        """Closes the handlers; errors change nothing any more."""
        for role in [*self._handlers]:
            with contextlib.suppress(*USER_ERRORS):
                self._handlers.pop(role).close()

    def forget_handlers(self) -> None:
        """Leaves what is open to the process this one was forked from; closes nothing."""
        self._handlers.clear()


class Worker:
    """This process. Batch vertices keep what outlives an epoch in the driver's."""

    def __init__(self, make: Callable[[VertexOfRun], ResidentVertex] | None = None) -> None:
        self._make = make or (lambda _: ResidentVertex(leaves_with_spark=True))
        self._run = ""
        self._vertices: dict[VertexOfRun, ResidentVertex] = {}
        self._shared: dict[tuple[VertexOfRun, int], Sequence[VertexOfRun]] = {}

    def keep_in_task(self, vertices: Sequence[VertexOfRun], partition: int) -> None:
        """Closes what vertices have here that shared the task before, and do not any more.

        They have other tasks now, which open their user code there.
        """
        key = (vertices[0], partition)
        for whose in self._shared.get(key, ()):
            if whose not in vertices:
                self.close_vertex(whose)
        self._shared[key] = vertices

    def vertex(self, whose: VertexOfRun) -> ResidentVertex:
        """Returns what is kept of the vertex; nothing at first."""
        if whose not in self._vertices:
            self._vertices[whose] = self._make(whose)
        return self._vertices[whose]

    def close_vertex(self, whose: VertexOfRun) -> None:
        """Closes and forgets what the vertex has here."""
        self._close(lambda other: other == whose)

    def close_run(self, run: str) -> None:
        """Closes and forgets what the vertices of a run have here."""
        self._close(lambda whose: whose[2] == run)

    def close_other_runs(self, run: str) -> None:
        """Closes and forgets what all other runs have left here: the worker now serves this one.

        User code that has changed since is imported again.
        """
        self._close(lambda whose: whose[2] != run)
        if run != self._run:
            self._run = run
            forget_changed_modules()

    def close(self) -> None:
        """Closes and forgets everything."""
        self._close(lambda _: True)

    def _close(self, chosen: Callable[[VertexOfRun], bool]) -> None:
        for whose in [whose for whose in self._vertices if chosen(whose)]:
            self._vertices[whose].close()
            del self._vertices[whose]

    def forget_handlers(self) -> None:
        """Leaves what is open to the process this one was forked from; closes nothing."""
        for vertex in self._vertices.values():
            vertex.forget_handlers()


WORKER = Worker()
"""The worker that this process is."""

atexit.register(WORKER.close)


def resolve_code(code: Code, search: str | None) -> Any:
    """Returns the function or class itself."""
    return resolve(code, Path(search) if search else None) if isinstance(code, str) else code


def _leave(*_: object) -> None:
    # Asked once: the daemon says so before it ends, and its end says so again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_for_sure()
    if RUNNING.active:  # an exit within a call would count as a failure of its message
        raise WorkerLeaves
    sys.exit(0)


def end_for_sure() -> None:
    """Ends this process after a while, whatever swallows the exception that asks it to leave.

    Spark asks once. User code may catch everything, and its ``close`` may wait for ever.
    """
    end = threading.Timer(LEAVE_WITHIN, os._exit, (1,))
    end.daemon = True
    end.start()
