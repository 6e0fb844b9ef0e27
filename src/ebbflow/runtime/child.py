"""A child process that calls user code in place of the worker, and may die of it.

It is forked from the worker and opens user code for itself. Then it gets pieces of chunks, one
after another, and answers with what was decided about each and with what user code has printed. It
ends when the worker lets go of it, and with the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from ebbflow.connectors.spark.pickling import pickle_by_value
from ebbflow.core.blame import Outage
from ebbflow.core.decisions import Decisions
from ebbflow.core.printing import Collected, redirected
from ebbflow.core.verdict import Operator, Verdict
from ebbflow.errors import CallTimeout
from ebbflow.runtime.call_watch import watch_calls
from ebbflow.runtime.descriptors import keep_private

Emit = Callable[[str], None]

_MOST_PRINTED = 8 * 1024 * 1024
_END_WITHIN = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The answer of a child about a piece: its decisions, or what user code raised when it opened.

    ``printed`` are the lines that user code has printed meanwhile, ``outage`` is what is away.
    """

    decided: Decisions | None
    raised: Exception | None
    printed: str
    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a child: how its process ended, or that a call was over its time."""

    cause: str
    over_time: CallTimeout | None = None


class Child:
    """A child process; the worker's main thread makes and uses it."""

    def __init__(
        self,
        fresh: Callable[[Emit], Operator],
        close: Callable[[], None],
        away: Callable[[], Outage | None],
        call_timeout: float | None = None,
    ) -> None:
        mine, its = Pipe()
        self._limit = call_timeout
        self._last_words = open(os.memfd_create("last words"), "w+b")  # noqa: SIM115 - see _end
        self._pid = os.fork()
        if self._pid == 0:
            mine.close()
            watch = watch_calls(call_timeout, lambda _: None, self._last_words)
            _serve(its, fresh, close, away, watch)
        its.close()
        self._line: Connection[Any, Any] = mine
        self._ended = os.pidfd_open(self._pid)

    def decide(self, piece: Verdict) -> ChildAnswer | Death:
        """Returns the answer about a piece, or how the child died of it."""
        try:
            self._line.send_bytes(pickle.dumps(piece))
            # By its process and not by its line, which somebody else may hold open.
            wait([self._line, self._ended])
            if self._line.poll():
                answer: ChildAnswer = pickle.loads(self._line.recv_bytes())  # noqa: S301 - our own child
                return answer
        except (EOFError, OSError):
            pass  # it died meanwhile
        return self._end()

    def close(self) -> None:
        """Lets it close user code and end; kills it if that takes long."""
        self._line.close()
        if not wait([self._ended], _END_WITHIN):
            os.kill(self._pid, signal.SIGKILL)
        self._end()

    def _end(self) -> Death:
        wait([self._ended])
        _, status = os.waitpid(self._pid, 0)
        os.close(self._ended)
        self._line.close()
        with self._last_words as file:
            over_time = file.seek(0, os.SEEK_END) > 0
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        cause = f"the Python worker ended with {how} while it worked on this message"
        return Death(cause, CallTimeout(self._limit) if over_time and self._limit else None)


def _serve(
    line: Connection[Any, Any],
    fresh: Callable[[Emit], Operator],
    close: Callable[[], None],
    away: Callable[[], Outage | None],
    watch: AbstractContextManager[None],
) -> NoReturn:
    """Runs the child: decides, answers, and ends without touching what the worker has open."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keep_private(line.fileno())
    with contextlib.suppress(BaseException), watch:
        operator: Operator | None = None
        printed = Collected(_MOST_PRINTED)
        while (piece := _receive(line)) is not None:
            raised = None
            with redirected(printed.add):
                try:
                    operator = operator or fresh(printed.add)
                    operator(piece)
                except Exception as error:
                    raised = error
            line.send_bytes(_pack(piece, raised, printed.take(), away()))
        with redirected(lambda _: None):
            close()
        os._exit(0)
    os._exit(1)


def _receive(line: Connection[Any, Any]) -> Verdict | None:
    try:
        piece: Verdict = pickle.loads(line.recv_bytes())  # noqa: S301 - from our own worker
    except (EOFError, OSError):
        return None
    return piece


def _pack(piece: Verdict, raised: Exception | None, printed: str, outage: Outage | None) -> bytes:
    """Pickles an answer; user code may have made objects that only cloudpickle can pickle."""
    decided = None if raised else piece.decisions
    try:
        answer = ChildAnswer(decided, raised, printed, outage)
        return pickle_by_value(answer)
    except Exception as error:
        cause = raised or error
        text = RuntimeError(f"{type(cause).__name__}: {cause}")
        return pickle.dumps(ChildAnswer(None, text, printed))
