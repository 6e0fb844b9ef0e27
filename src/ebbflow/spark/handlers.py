"""User code on a worker: resolved, opened once, kept while the worker serves the vertex.

Spark reuses its Python workers, so the object that user code opened in one epoch is there in the
next. It is closed when the vertex is told to stop, when the worker is given another vertex, and
when Spark shuts the worker down in good order; not when the worker is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
from pathlib import Path

from ebbflow.functions import USER_ERRORS, Handler
from ebbflow.spark.plan import Code
from ebbflow.spec.targets import resolve

_open: dict[tuple[str, str], Handler] = {}


def handler_for(pipeline: str, vertex: str, code: Code, search: str | None) -> Handler:
    """The vertex's handler in this process, opened on first use."""
    key = (pipeline, vertex)
    if key not in _open:
        signal.signal(signal.SIGHUP, _leave)  # how Spark tells idle workers that it ends
        target = resolve(code, Path(search) if search else None) if isinstance(code, str) else code
        _open[key] = Handler(target)
    return _open[key]


def close_handler(pipeline: str, vertex: str) -> None:
    """Close the vertex's handler if this process has one. Its errors change nothing any more."""
    handler = _open.pop((pipeline, vertex), None)
    if handler is not None:
        with contextlib.suppress(*USER_ERRORS):
            handler.close()


def close_others(pipeline: str, vertex: str) -> None:
    """Close the handlers of all vertices but this one, which the worker now serves."""
    for key in [key for key in _open if key != (pipeline, vertex)]:
        close_handler(*key)


def forget_handlers() -> None:
    """Leave what is open to the process this one was forked from; nothing is closed."""
    _open.clear()


def _leave(*_: object) -> None:
    sys.exit(0)


@atexit.register
def _close_all() -> None:
    for key in list(_open):
        close_handler(*key)
