"""The call of user code that runs in this process, for the watch over its time.

User code runs on one thread, one call at a time. Whoever calls it says so here, in a way that
costs next to nothing: a watch looks now and then whether it is still the same call. ``async`` code
is held to its time on its own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ebbflow.domain.errors import CallTimeout

# How long code that was cancelled may take to clean up before it is left to itself.
_CLEAN_UP = 1.0
_BEATS = 8


class WorkerLeaves(BaseException):
    """Ends the call that runs because its worker has to leave: the run stops.

    It is no error of user code, so the message is not blamed; it is delivered again as it was.
    """


class Running:
    """The call that runs now. ``with RUNNING:`` is one call, or many when ``row`` is set for each.

    ``limit`` is how many seconds a call may take, if that is limited. ``beat`` changes while an
    event loop goes round: what waits there is not stuck. ``guard`` sets the clock that ends calls
    over their time; it is called for the first of many calls, and the watch sets it anew after it.
    """

    __slots__ = ("active", "beat", "guard", "guarded", "limit", "number", "row")

    def __init__(self) -> None:
        self.active = False
        self.limit: float | None = None
        self.guard: Callable[[], None] | None = None
        self.guarded = False
        self.number = self.row = self.beat = 0

    def __enter__(self) -> Running:
        self.number += 1
        self.row = 0
        self.active = True  # before looking whether it is guarded: see the watch
        if not self.guarded and self.guard is not None:
            self.guard()
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False

    @property
    def state(self) -> tuple[int, int, int] | None:
        """A value that stays the same for as long as a call makes no step."""
        return (self.number, self.row, self.beat) if self.active else None

    @property
    def call(self) -> tuple[int, int] | None:
        """The number and row of the call that is running, if one is."""
        return (self.number, self.row) if self.active else None


RUNNING = Running()


async def in_time(awaitable: Awaitable[Any], limit: float | None) -> Any:
    """Returns the awaitable's result; cancels it and raises ``CallTimeout`` when time is over."""
    if limit is None:
        return await awaitable
    task = asyncio.ensure_future(_keep_exit(awaitable))
    if not (await asyncio.wait({task}, timeout=limit))[0]:
        task.cancel()
        await asyncio.wait({task}, timeout=_CLEAN_UP)
        raise CallTimeout(limit)
    result = task.result()
    if isinstance(result, _Exit):
        raise result.error
    return result


@dataclass(frozen=True, slots=True)
class _Exit:
    error: SystemExit


async def _keep_exit(awaitable: Awaitable[Any]) -> Any:
    """Returns the result, and ``SystemExit`` as one: raised in a task it would end the loop."""
    try:
        return await awaitable
    except SystemExit as error:
        return _Exit(error)


@contextmanager
def beating() -> Iterator[None]:
    """Shows that the event loop goes round, for as long as the context lasts."""
    if RUNNING.limit is None:
        yield
        return
    beat = asyncio.ensure_future(_beat(RUNNING.limit / _BEATS))
    try:
        yield
    finally:
        beat.cancel()


async def _beat(every: float) -> None:
    while True:
        RUNNING.beat += 1
        await asyncio.sleep(every)
