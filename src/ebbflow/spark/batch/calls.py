"""Calls of a batch vertex: one attempt at a query or a write, watched on the driver.

``limits.callTimeout`` holds for each attempt. When its time is over, Spark's jobs of the attempt
are cancelled, which ends it wherever Spark works: in a shuffle, a user's function on a worker, a
database that does not answer. Python code of a DataFrame function runs on the driver itself and
cannot be ended safely from outside; when it returns too late, the attempt fails then. A write that
has succeeded stays so, however late: it would be written twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from ebbflow.domain.errors import CallTimeout

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_EVERY = 1.0
# Seldom enough to cost nothing, often enough to end a call soon after its time.
_LOOKS = 4
_LONG, _TELL_EVERY = 1.0, 2.0

Tell = Callable[[float | None], None]
"""Told for how many seconds an attempt has been running once that is long; None when it ends."""


class BatchCall:
    """One attempt. ``tag`` is what its jobs are known by, and those of no other."""

    def __init__(self, context: SparkContext, tag: str, limit: float | None, tell: Tell) -> None:
        self._context = context
        self._tag = tag
        self._limit = limit
        self._tell = tell
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._told_at: float | None = None
        self._is_late = False

    def check_time(self) -> None:
        """Raises ``CallTimeout`` if its time is over."""
        if self._limit is not None and time.monotonic() - self._began >= self._limit:
            self._is_late = True
            raise CallTimeout(self._limit)

    def watch(self) -> None:
        """Tells how long it lasts, and cancels its jobs when it is late, until it has ended."""
        every = _LOOK_EVERY if self._limit is None else min(_LOOK_EVERY, self._limit / _LOOKS)
        while not self._ended.wait(every):
            self._tell_length(time.monotonic())
            try:
                self.check_time()
            except CallTimeout:  # again and again: a function may begin another job
                self._context.cancelJobsWithTag(self._tag)

    def _tell_length(self, now: float) -> None:
        last = self._began + _LONG - _TELL_EVERY if self._told_at is None else self._told_at
        if now - last >= _TELL_EVERY:
            self._told_at = now
            self._tell(now - self._began)

    def end(self) -> None:
        """Ends the watch."""
        self._ended.set()

    def explain(self, error: Exception) -> Exception:
        """Returns why it failed: because it was cancelled as too late, or the error itself."""
        if self._limit is None or not self._is_late or isinstance(error, CallTimeout):
            return error
        return CallTimeout(self._limit)

    @property
    def was_told(self) -> bool:
        """Whether people have heard that it takes long."""
        return self._told_at is not None


class BatchCalls:
    """The attempts of one partition, one after another."""

    def __init__(self, context: SparkContext, name: str, limit: float | None, tell: Tell) -> None:
        self._context = context
        self._name = name
        self._limit = limit
        self._tell = tell
        self._numbers = count()

    @contextmanager
    def call(self) -> Iterator[BatchCall]:
        """Watches an attempt; ``CallTimeout`` in place of what it raises when it is late."""
        # A tag of its own: Spark cancels a little later, which must not hit the next attempt.
        tag = f"{self._name}-{next(self._numbers)}"
        call = BatchCall(self._context, tag, self._limit, self._tell)
        thread = threading.Thread(target=call.watch, name="batch-call", daemon=True)
        self._context.addJobTag(tag)
        thread.start()
        try:
            yield call
        except Exception as error:
            explained = call.explain(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            call.end()
            thread.join()
            self._context.removeJobTag(tag)
            if call.was_told:
                self._tell(None)
