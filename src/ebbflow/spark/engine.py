"""The engine: Spark's JVM, watched and replaced within a second when it dies.

A JVM can be killed, run out of memory, or stop Spark when its cluster is gone. The whole state of a
pipeline is in NATS, so a new JVM continues where the old one was: no message is lost, and only
messages in flight are processed again. A JVM that keeps dying is not restarted forever, and a
session that the user's program has started must be restarted by the user.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext

from ebbflow.domain.errors import EbbflowError, EngineLost
from ebbflow.runtime.feeds import EngineDied
from ebbflow.spark.session import is_users_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

MOST_DEATHS, WITHIN = 3, 600.0
# A dying JVM stops answering a moment before its process ends.
_DYING = 2.0
_OUT_OF_MEMORY = (3, 52)
_MORE_MEMORY = "give it more, for example with --conf spark.driver.memory=4g"


class Engine:
    """The Spark that vertices currently run on. ``own`` if this run has started it."""

    def __init__(self, spark: SparkSession, own: bool) -> None:
        self.spark = spark
        self.own = own
        self._gateway: Any = SparkContext._gateway
        self._process: subprocess.Popen[bytes] | None = getattr(self._gateway, "proc", None)

    def check(self, suspected: bool) -> None:
        """Raises ``EngineDied`` if it is gone; ``suspected`` if a task has failed."""
        if how := self.death(suspected):
            raise EngineDied(how)

    def death(self, suspected: bool = True) -> str | None:
        """Returns how it ended, or ``None`` if it runs; asks the JVM only if ``suspected``."""
        code = self._process.poll() if self._process else None
        if code is None and suspected and not self._answers():
            code = self._exit_code()
            if code is None:
                return "it no longer answers"
        if code is not None:
            return describe_exit(code)
        return "Spark has stopped by itself" if suspected and self._has_stopped() else None

    def death_behind(self, error: BaseException) -> str | None:
        """Returns how it ended, if that caused the error."""
        if isinstance(error, EngineDied):
            return str(error)
        return None if isinstance(error, EbbflowError) else self.death()

    def _exit_code(self) -> int | None:
        try:
            return self._process.wait(_DYING) if self._process else None
        except subprocess.TimeoutExpired:
            return None

    def _answers(self) -> bool:
        """Returns whether the JVM still listens. Does not call Spark, whose calls may hang."""
        where = getattr(self._gateway, "java_parameters", None) or self._gateway.gateway_parameters
        try:
            socket.create_connection((where.address, where.port), _DYING).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True

    def _has_stopped(self) -> bool:
        context: Any = self.spark.sparkContext._jsc
        try:
            return context is None or bool(context.sc().isStopped())
        except (Py4JError, OSError):
            return False  # it is dying; the next check finds the process ended


def describe_exit(code: int) -> str:
    """Returns how a JVM ended, from the exit code of its process."""
    if code in _OUT_OF_MEMORY:
        return "out of memory"
    number = -code if code < 0 else code - 128
    return f"killed by signal {number}" if number > 0 else f"exit code {code}"


def _do(work: Callable[[Engine], T], engine: Engine) -> T:
    try:
        return work(engine)
    except Exception as error:
        if how := engine.death_behind(error):
            raise EngineDied(how) from error
        raise


class Engines:
    """Spark for a whole run: one session after another, as long as they do not die too often.

    ``open_session`` starts a session, ``show`` shows a line to the user.
    """

    def __init__(
        self,
        open_session: Callable[[], AbstractContextManager[SparkSession]],
        show: Callable[[str], None],
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_session = open_session
        self._show = show
        self._stopping = stopping
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)

    def run(self, work: Callable[[Engine], T]) -> T | None:
        """Runs ``work``, again whenever Spark dies; ``None`` if Spark dies during a stop."""
        while True:
            self._show("starting Spark")
            own = not is_users_session()
            try:
                with ExitStack() as stack:
                    return _do(work, Engine(self._start(stack), own))
            except EngineDied as death:
                if self._stopping.is_set():
                    return None
                self.note_death(str(death), own)

    def _start(self, stack: ExitStack) -> SparkSession:
        """Starts a session; after a first death, an error counts as another death."""
        try:
            return stack.enter_context(self._open_session())
        except Exception as error:
            if not self._deaths:
                raise
            raise EngineDied("while it was starting") from error

    def note_death(self, how: str, own: bool) -> None:
        """Reports a death; ``EngineLost`` after too many, or if the session is the user's."""
        self._deaths.append(self._clock())
        if not own:
            raise EngineLost(how, 1, "Start a new session and run the pipeline again")
        since = self._clock() - self._deaths[0]
        if len(self._deaths) == MOST_DEATHS and since <= WITHIN:
            logs = "See jvm.log and spark.log in the folder logs of the state folder"
            raise EngineLost(how, MOST_DEATHS, f"{logs}; if memory is short, {_MORE_MEMORY}")
        hint = f" ({_MORE_MEMORY})" if how == "out of memory" else ""
        self._show(f"Spark's JVM died ({how}); starting a new one{hint}")
