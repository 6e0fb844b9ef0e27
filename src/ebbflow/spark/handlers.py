"""User code on a worker: resolved, opened once, kept while the worker serves the vertex.

Spark reuses its Python workers, so the object that user code opened in one epoch is there in the
next. It is closed when the vertex is told to stop, when the worker is given another vertex or
another run, and when Spark shuts the worker down in good order; not when the worker is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from ebbflow.functions import USER_ERRORS, Handler
from ebbflow.spark.plan import Code
from ebbflow.spec.targets import resolve

Vertex = tuple[str, str, str]
"""A vertex in one run: the names of its pipeline and its own, and the run.

The next run may come with other code under the same names.
"""

_open: dict[tuple[Vertex, str], Handler] = {}


def handler_for(vertex: Vertex, role: str, code: Code, search: str | None) -> Handler:
    """The vertex's handler of that role in this process, opened on first use."""
    key = (vertex, role)
    if key not in _open:
        signal.signal(signal.SIGHUP, _leave)  # how Spark tells idle workers that it ends
        _open[key] = Handler(resolved(code, search))
    return _open[key]


def resolved(code: Code, search: str | None) -> Any:
    """The function or class itself."""
    return resolve(code, Path(search) if search else None) if isinstance(code, str) else code


def close_handlers(vertex: Vertex) -> None:
    """Close what the vertex has open in this process. Errors change nothing any more."""
    for key in [key for key in _open if key[0] == vertex]:
        with contextlib.suppress(*USER_ERRORS):
            _open.pop(key).close()


def close_others(vertex: Vertex) -> None:
    """Close what all vertices but this one have open: the worker now serves this one."""
    for other in {key[0] for key in _open} - {vertex}:
        close_handlers(other)


def forget_handlers() -> None:
    """Leave what is open to the process this one was forked from; nothing is closed."""
    _open.clear()


def _leave(*_: object) -> None:
    sys.exit(0)


@atexit.register
def _close_all() -> None:
    close_others(("", "", ""))
