"""Watches the calls of user code on a worker: reports long ones, and ends those over time.

The watch is a thread that looks a few times within the time that a call may take whether it is
still the same one, so a call costs nothing. A call that is over its time is ended in two ways.

- A timer of the kernel's goes off, and its handler raises ``CallTimeout`` in the call: that ends
  whatever Python does or waits for. The message is the error policy's from there on.
- C code that does not come back is not reached by that. Some time later the process ends itself, by
  a thread that needs nothing of Python's. The message is then found as one that kills its worker is
  (see ``poison``), and is the error policy's as well.

Both are set when a call begins and is the first for a while. The thread that watches sets them
again when it sees another call. If it cannot run, because C code does not let go of the
interpreter, they go off as they were set.

User code runs on one thread, one call at a time. Whoever calls it says so in ``RUNNING``, at next
to no cost. ``async`` code is held to its time on its own event loop (``in_time``).
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from ebbflow.domain.errors import CallTimeout

# How long code that was cancelled may take to clean up before it is left to itself.
_CLEAN_UP = 1.0
_BEATS = 8


class WorkerLeaves(BaseException):
    """Ends the call that runs because its worker has to leave: the run stops.

    It is not an error of user code, so the message is not blamed; it is delivered again as it was.
    """


class Running:
    """The call that runs now. ``with RUNNING:`` is one call, or many when ``row`` is set for each.

    ``limit`` is how many seconds a call may take, if that is limited. ``beat`` changes while an
    event loop goes round: what waits there is not stuck. ``guard`` sets the clock that ends calls
    over their time; it is called for the first of many calls, and the watch sets it again after it.
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


Tell = Callable[[float | None], None]
"""Told for how many seconds a call has been running once that is long, and None when it ends."""

_LOOKS = 4
_LOOK_EVERY = 1.0
_LONG, _TELL_EVERY = 1.0, 2.0
# A call that continues after CallTimeout was raised in it is told so again.
_AGAIN = 1.0
_SOON = 0.02
_MISSES = 3
# The module whose frames are around every call of user code.
_CALLER = "ebbflow.usercode.calling"


@contextmanager
def watch_calls(
    limit: float | None, tell: Tell, last_words: IO[Any] | None = None
) -> Iterator[None]:
    """Watches the calls of this process, on its main thread; ``limit`` is in seconds.

    ``last_words`` is where the process writes what it was doing when it has to end itself.
    """
    watch = _Watch(limit, tell, last_words or sys.__stderr__ or sys.stderr)
    before = signal.signal(signal.SIGALRM, watch.over) if limit is not None else None
    RUNNING.limit, RUNNING.guard = limit, watch.arm if limit is not None else None
    watch.start()
    try:
        yield
    finally:
        RUNNING.limit = RUNNING.guard = None
        watch.stop()
        if limit is not None:
            signal.signal(signal.SIGALRM, before)


def grace(limit: float) -> float:
    """Returns how many seconds after its time a call is ended with the whole process."""
    return min(10.0, max(1.0, limit / 2))


class _Watch:
    def __init__(self, limit: float | None, tell: Tell, last_words: IO[Any]) -> None:
        self._limit = limit
        self._tell = tell
        self._last_words = last_words
        self._every = _LOOK_EVERY if limit is None else min(_LOOK_EVERY, limit / _LOOKS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="call-watch", daemon=True)
        self._call: tuple[int, int] | None = None
        self._since = self._told_at = 0.0
        self._told = False
        self._armed: tuple[int, int, int] | None = None
        self._misses = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._disarm()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        call = RUNNING.call
        if call != self._call or call is None:
            self._call, self._since = call, now
        if self._limit is not None:
            self._renew()
        long = call is not None and now - self._since >= _LONG
        if long and now - self._told_at >= _TELL_EVERY:
            self._told, self._told_at = True, now
            self._tell(now - self._since)
        elif self._told and not long:
            self._told = False
            self._tell(None)

    # --- ending calls ---------------------------------------------------------------------------

    def _renew(self) -> None:
        state = RUNNING.state
        if state is not None and state != self._armed:
            self.arm()
        elif state is None:
            RUNNING.guarded = False
            # A call that begins just now has either seen that, or is seen here.
            if RUNNING.active:
                self.arm()
            else:
                self._disarm()

    def arm(self) -> None:
        """Sets the clock for the call that is running; on either thread."""
        limit = self._limit
        assert limit is not None
        RUNNING.guarded = True
        self._armed, self._misses = RUNNING.state, 0
        signal.setitimer(signal.ITIMER_REAL, limit, min(_AGAIN, limit))
        faulthandler.dump_traceback_later(limit + grace(limit), file=self._last_words, exit=True)

    def _disarm(self) -> None:
        if self._limit is not None:
            self._armed, RUNNING.guarded = None, False
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()

    def over(self, _signal: int, frame: FrameType | None) -> None:
        """Ends the call when the timer has gone off, if it is still the same one, in user code."""
        state = RUNNING.state
        if state is None or self._limit is None:
            return
        if state != self._armed:  # another call, which the watch could not see
            self.arm()
        elif self._in_our_own_code(frame):
            self._misses += 1
            signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)
        else:
            raise CallTimeout(self._limit)

    def _in_our_own_code(self, frame: FrameType | None) -> bool:
        """Whether raising here would leave something of ours half done.

        Around the call of a function that is written in C there are only our own frames; so that
        one is ended if it is found there again and again.
        """
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is None:
            return True
        name = frame.f_globals.get("__name__", "") if frame is not None else ""
        if name == _CALLER:
            return self._misses < _MISSES
        return name.startswith(("ebbflow.engine.", "ebbflow.usercode."))
