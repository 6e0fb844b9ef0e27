"""User code on a worker: it is resolved and opened once, and kept while the worker serves the run.

Spark reuses its Python workers, so the object that user code opened in one epoch is there in the
next, also when the worker has served other vertices meanwhile. It is closed and opened anew after
an outage. It is closed when the run stops, when the worker is given another run, and when Spark
shuts the worker down in good order; not when the worker is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ebbflow.domain.code import Code
from ebbflow.domain.durations import Backoff
from ebbflow.engine.blame import Blame
from ebbflow.engine.outage import Breaker, BreakerLimit, Patience
from ebbflow.engine.system_errors import SystemErrors
from ebbflow.numaflow.pynumaflow.adapters import adapt
from ebbflow.numaflow.pynumaflow.recognition import Place
from ebbflow.usercode.call_watch import RUNNING, WorkerLeaves
from ebbflow.usercode.calling import USER_ERRORS, Handler
from ebbflow.usercode.targets import resolve
from ebbflow.usercode.variables import CONTAINER_TYPE, Variables, in_environment

Vertex = tuple[str, str, str]
"""A vertex in one run: the names of its pipeline and its own, and the run.

The next run may come with other code under the same names.
"""

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

LEAVE_WITHIN = 10.0
"""The seconds that a worker has to close user code and to end once Spark has asked it to."""

_open: dict[tuple[Vertex, str], Handler] = {}
_lasting: dict[tuple[Vertex, object], Any] = {}

_Kept = TypeVar("_Kept")


def handler_for(
    vertex: Vertex,
    role: str,
    code: Code,
    search: str | None,
    systems: SystemErrors,
    variables: Variables = (),
) -> Handler:
    """Returns the vertex's handler of that role in this process; opens it on first use."""
    key = (vertex, role)
    if key not in _open:
        signal.signal(signal.SIGHUP, _leave)  # how Spark tells workers that it ends
        variables = ((CONTAINER_TYPE, _CONTAINERS[role]), *variables)
        with in_environment(variables):  # modules may look at it when they are imported
            target = adapt(resolve_code(code, search), _PLACES[role])
        _open[key] = Handler(target, Blame(systems), variables)
    return _open[key]


def handlers_of(vertex: Vertex) -> list[Handler]:
    """Returns the handlers that the vertex has open in this process."""
    return [handler for key, handler in _open.items() if key[0] == vertex]


def lasting(vertex: Vertex, part: object, make: Callable[[], _Kept]) -> _Kept:
    """Returns what a part of the vertex keeps across epochs; it is forgotten with the run."""
    if (vertex, part) not in _lasting:
        _lasting[vertex, part] = make()
    kept: _Kept = _lasting[vertex, part]
    return kept


def patience_of(vertex: Vertex, role: str, backoff: Backoff) -> Patience:
    """Returns the patience of a part of the vertex with outages; it lasts across epochs."""
    return lasting(vertex, ("patience", role), lambda: Patience(backoff))


def breaker_of(vertex: Vertex, limit: BreakerLimit) -> Breaker:
    """Returns the vertex's breaker, which counts dead letters across epochs."""
    return lasting(vertex, "breaker", lambda: Breaker(limit))


def resolve_code(code: Code, search: str | None) -> Any:
    """Returns the function or class itself."""
    return resolve(code, Path(search) if search else None) if isinstance(code, str) else code


def close_handlers(vertex: Vertex) -> None:
    """Closes what the vertex has open in this process."""
    _close(lambda other: other == vertex)


def close_run(run: str) -> None:
    """Closes what the vertices of a run have open in this process."""
    _close(lambda vertex: vertex[2] == run)


def close_other_runs(run: str) -> None:
    """Closes what all other runs have left open: the worker now serves this one."""
    _close(lambda vertex: vertex[2] != run)


def _close(chosen: Callable[[Vertex], bool]) -> None:
    """Closes and forgets what belongs to the chosen vertices; errors change nothing any more."""
    for key in [key for key in _open if chosen(key[0])]:
        with contextlib.suppress(*USER_ERRORS):
            _open.pop(key).close()
    for part in [part for part in _lasting if chosen(part[0])]:
        del _lasting[part]


def forget_handlers() -> None:
    """Leaves what is open to the process this one was forked from; closes nothing."""
    _open.clear()


def _leave(*_: object) -> None:
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


@atexit.register
def _close_all() -> None:
    _close(lambda _: True)
