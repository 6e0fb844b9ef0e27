"""Watches the calls of user code on a worker: reports long calls, and ends those over the limit.

A thread checks a few times within the time limit whether the same call is still running, so the
watch costs a call nothing. A call that is over the limit is ended in one of two ways.

- A kernel timer fires, and its handler raises ``CallTimeout`` in the call: that ends any Python
  code or wait. The message is then handled by the error policy.
- C code that does not return cannot be ended like that. Some time later the process ends itself,
  with a thread that does not need the interpreter. The message is then isolated like one that kills
  its worker (see ``poison``), and is handled by the error policy, too.

Both timers are set by the first call after a pause. The watching thread sets them again when it
sees another call. If it cannot run, because C code does not release the interpreter, they fire as
they were set.

User code runs on one thread, one call at a time. The caller marks each call in ``RUNNING``, at
almost no cost. ``async`` code is limited by its own event loop (``in_time``).
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

# How long cancelled code may take to clean up before it is abandoned.
_CLEAN_UP = 1.0
_BEATS = 8


class WorkerLeaves(BaseException):
    """Ends the running call because its worker has to end: the run stops.

    It is not an error of user code, so the message is not blamed; it is redelivered as it was.
    """


class Running:
    """The running call. ``with RUNNING:`` is one call, or many when ``row`` is set for each.

    ``limit`` is how many seconds a call may take, if that is limited. ``beat`` changes while an
    event loop runs, so calls that wait on it are not stuck. ``guard`` sets the timers that end
    calls over the limit; it is called for the first of many calls, and the watch resets them later.
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
        self.active = True  # set before ``guarded`` is checked: see ``_Watch._renew``
        if not self.guarded and self.guard is not None:
            self.guard()
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False

    @property
    def state(self) -> tuple[int, int, int] | None:
        """A value that stays the same as long as the call makes no progress."""
        return (self.number, self.row, self.beat) if self.active else None

    @property
    def call(self) -> tuple[int, int] | None:
        """The number and row of the running call; ``None`` if there is none."""
        return (self.number, self.row) if self.active else None


RUNNING = Running()


async def in_time(awaitable: Awaitable[Any], limit: float | None) -> Any:
    """Returns the awaitable's result; cancels it and raises ``CallTimeout`` after the limit."""
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
    """Returns the result, or a caught ``SystemExit``: raised in a task it would end the loop."""
    try:
        return await awaitable
    except SystemExit as error:
        return _Exit(error)


@contextmanager
def beating() -> Iterator[None]:
    """Marks that the event loop is running, while the context lasts."""
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


Report = Callable[[float | None], None]
"""Called with the seconds that a long call has been running, and with ``None`` when it ends."""

_LOOKS = 4
_LOOK_EVERY = 1.0
_LONG, _REPORT_EVERY = 1.0, 2.0
# A call that continues after CallTimeout gets it again after this long.
_AGAIN = 1.0
_SOON = 0.02
_MISSES = 3
# The module that makes every call of user code.
_CALLER = "ebbflow.usercode.calling"


@contextmanager
def watch_calls(
    limit: float | None, report: Report, last_words: IO[Any] | None = None
) -> Iterator[None]:
    """Watches the calls of this process, on its main thread; ``limit`` is in seconds.

    ``last_words`` is where the process writes its traceback when it has to end itself.
    """
    watch = _Watch(limit, report, last_words or sys.__stderr__ or sys.stderr)
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
    """Returns how many seconds after the limit the whole process is ended with the call."""
    return min(10.0, max(1.0, limit / 2))


class _Watch:
    def __init__(self, limit: float | None, report: Report, last_words: IO[Any]) -> None:
        self._limit = limit
        self._report = report
        self._last_words = last_words
        self._every = _LOOK_EVERY if limit is None else min(_LOOK_EVERY, limit / _LOOKS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="call-watch", daemon=True)
        self._call: tuple[int, int] | None = None
        self._since = self._reported_at = 0.0
        self._has_reported = False
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
            self._check(time.monotonic())

    def _check(self, now: float) -> None:
        call = RUNNING.call
        if call != self._call or call is None:
            self._call, self._since = call, now
        if self._limit is not None:
            self._renew()
        long = call is not None and now - self._since >= _LONG
        if long and now - self._reported_at >= _REPORT_EVERY:
            self._has_reported, self._reported_at = True, now
            self._report(now - self._since)
        elif self._has_reported and not long:
            self._has_reported = False
            self._report(None)

    # --- ending calls ---------------------------------------------------------------------------

    def _renew(self) -> None:
        state = RUNNING.state
        if state is not None and state != self._armed:
            self.arm()
        elif state is None:
            RUNNING.guarded = False
            # A call that begins just now either sees ``guarded`` unset, or is seen here.
            if RUNNING.active:
                self.arm()
            else:
                self._disarm()

    def arm(self) -> None:
        """Sets the timers for the running call; from either thread."""
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
        """Handles the timer: ends the call if it is still the same one and in user code."""
        state = RUNNING.state
        if state is None or self._limit is None:
            return
        if state != self._armed:  # another call, which the watch has not seen
            self.arm()
        elif self._in_own_code(frame):
            self._misses += 1
            signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)
        else:
            raise CallTimeout(self._limit)

    def _in_own_code(self, frame: FrameType | None) -> bool:
        """Returns whether raising here would interrupt Ebbflow's own code halfway.

        A user function written in C has no frame, so the top frame is that of its caller. A call
        that is found in that caller again and again is therefore ended.
        """
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is None:
            return True
        name = frame.f_globals.get("__name__", "") if frame is not None else ""
        if name == _CALLER:
            return self._misses < _MISSES
        return name.startswith(("ebbflow.engine.", "ebbflow.usercode."))
