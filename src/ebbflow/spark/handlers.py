"""User code on a worker: resolved, opened once, kept while the worker serves the vertex.

Spark reuses its Python workers, so the object that user code opened in one epoch is there in the
next. A worker that is given another vertex closes what it no longer needs.
"""

from __future__ import annotations

import atexit
import contextlib
from pathlib import Path

from ebbflow.functions import USER_ERRORS, Handler
from ebbflow.spark.plan import Code
from ebbflow.spec.targets import resolve

_open: dict[tuple[str, str], Handler] = {}


def handler_for(pipeline: str, vertex: str, code: Code, search: str | None) -> Handler:
    """The vertex's handler in this process; whatever else was open here is closed."""
    key = (pipeline, vertex)
    for other in [k for k in _open if k != key]:
        close_handler(*other)
    if key not in _open:
        target = resolve(code, Path(search) if search else None) if isinstance(code, str) else code
        _open[key] = Handler(target)
    return _open[key]


def close_handler(pipeline: str, vertex: str) -> None:
    """Close the vertex's handler if this process has one. Its errors change nothing any more."""
    handler = _open.pop((pipeline, vertex), None)
    if handler is not None:
        with contextlib.suppress(*USER_ERRORS):
            handler.close()


@atexit.register
def _close_all() -> None:
    for key in list(_open):
        close_handler(*key)
