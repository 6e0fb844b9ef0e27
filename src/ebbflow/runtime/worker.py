"""A Python worker, and the state of its vertices that it keeps from one epoch to the next.

Spark reuses its Python workers, so the object that user code opened in one epoch is still there in
the next, even if the worker has served other vertices meanwhile. It is closed and opened again
after an outage. It is closed when the run stops, when the worker starts to serve another run, and
when Spark shuts the worker down gracefully; not when the worker is killed. The worker keeps other
state just as long: how long a vertex still waits for an unavailable system, the dead letters that
its breaker has counted, how many messages a call gets, and its taps.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
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
"""A vertex in one run: the names of its pipeline and of the vertex, and the run.

The next run may bring different code under the same names.
"""

LEAVE_WITHIN = 10.0
"""The seconds that a worker has to close user code and exit once Spark has asked it to."""

_PLACES: dict[str, Place] = {
    "map": "map",
    "transformer": "transformer",
    "sink": "sink",
    "fallback": "sink",
    "on_success": "sink",
    "store": "store",
}
"""For each role of code in its vertex, the place in a pipeline that the code is written for."""

_CONTAINERS = {
    "map": "udf",
    "transformer": "transformer",
    "sink": "udsink",
    "fallback": "fb-udsink",
    "on_success": "ons-udsink",
    "store": "udstore",
}
"""Numaflow's container types of the same roles: one function may be several sinks of a vertex."""


class ResidentVertex:
    """The state that a worker keeps of one vertex in one run, until another run begins."""

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
        """Returns the handler of a role in this process; opens it on first use."""
        if role not in self._handlers:
            if self._leaves_with_spark:
                signal.signal(signal.SIGHUP, _leave)  # how Spark tells workers that it ends
            variables = ((CONTAINER_TYPE, _CONTAINERS[role]), *variables)
            with in_environment(variables):  # modules may read it when they are imported
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
        """Returns the patience with outages of a part of the vertex."""
        return self._patience.setdefault(part, Patience(backoff, clock=time.monotonic))

    def breaker(self, limit: BreakerLimit, partition: int | None = None) -> Breaker:
        """Returns the breaker, which counts dead letters of all partitions here, or of one."""
        return self._breakers.setdefault(partition, Breaker(limit))

    def pace(self, partition: int, most: int) -> Pace:
        """Returns the pace of the partition, whose calls get at most ``most`` messages."""
        return self._paces.setdefault(partition, Pace(most))

    def taps(self, partition: int) -> dict[str, Tap]:
        """Returns the taps that the partition knows, by their names."""
        return self._taps.setdefault(partition, {})

    def close(self) -> None:
        """Closes the handlers; errors no longer matter."""
        for role in [*self._handlers]:
            with contextlib.suppress(*USER_ERRORS):
                self._handlers.pop(role).close()

    def forget_handlers(self) -> None:
        """Leaves open handlers to the process this one was forked from; closes nothing."""
        self._handlers.clear()


class Worker:
    """This process. Batch vertices keep their state in a ``Worker`` of the driver."""

    def __init__(self, make: Callable[[VertexOfRun], ResidentVertex] | None = None) -> None:
        self._make = make or (lambda _: ResidentVertex(leaves_with_spark=True))
        self._run = ""
        self._vertices: dict[VertexOfRun, ResidentVertex] = {}
        self._shared: dict[tuple[VertexOfRun, int], Sequence[VertexOfRun]] = {}

    def keep_in_task(self, vertices: Sequence[VertexOfRun], partition: int) -> None:
        """Closes the vertices that have shared the task until now and no longer do.

        They have other tasks now, which open their user code there.
        """
        key = (vertices[0], partition)
        for vertex in self._shared.get(key, ()):
            if vertex not in vertices:
                self.close_vertex(vertex)
        self._shared[key] = vertices

    def vertex(self, vertex: VertexOfRun) -> ResidentVertex:
        """Returns the state of the vertex, which is empty at first."""
        if vertex not in self._vertices:
            self._vertices[vertex] = self._make(vertex)
        return self._vertices[vertex]

    def close_vertex(self, vertex: VertexOfRun) -> None:
        """Closes and forgets the vertex."""
        self._close(lambda other: other == vertex)

    def close_run(self, run: str) -> None:
        """Closes and forgets the vertices of a run."""
        self._close_runs(lambda other: other == run)

    def close_other_runs(self, run: str) -> None:
        """Closes and forgets the vertices of all other runs: the worker now serves this one.

        User code that has changed since is imported again.
        """
        self._close_runs(lambda other: other != run)
        if run != self._run:
            self._run = run
            forget_changed_modules()

    def close(self) -> None:
        """Closes and forgets everything."""
        self._close_runs(lambda _: True)

    def _close_runs(self, chosen: Callable[[str], bool]) -> None:
        self._close(lambda vertex: chosen(vertex[2]))
        for key in [key for key in self._shared if chosen(key[0][2])]:
            del self._shared[key]

    def _close(self, chosen: Callable[[VertexOfRun], bool]) -> None:
        for vertex in [vertex for vertex in self._vertices if chosen(vertex)]:
            self._vertices[vertex].close()
            del self._vertices[vertex]

    def forget_handlers(self) -> None:
        """Leaves open handlers to the process this one was forked from; closes nothing."""
        for vertex in self._vertices.values():
            vertex.forget_handlers()


WORKER = Worker()
"""The worker of this process."""

atexit.register(WORKER.close)


def resolve_code(code: Code, search: str | None) -> Any:
    """Returns the function or class itself."""
    return resolve(code, Path(search) if search else None) if isinstance(code, str) else code


def _leave(*_: object) -> None:
    # Handled once: the daemon sends the signal before it exits, and its exit sends it again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_for_sure()
    if RUNNING.active:  # exiting within a call would count as a failure of its message
        raise WorkerLeaves
    sys.exit(0)


def end_for_sure() -> None:
    """Ends this process after a while, even if user code swallows the exception that ends it.

    Spark asks once. User code may catch everything, and its ``close`` may wait forever.
    """
    end = threading.Timer(LEAVE_WITHIN, os._exit, (1,))
    end.daemon = True
    end.start()
