"""Poison messages: isolating the one that kills its worker by a segfault, ``os._exit`` and so on.

After a worker has died, user code first runs in a child process, on the rows that the dead worker
had in flight. If the child dies too, its rows are tried again in pieces, in new children, until one
row is left: only that row is dead-lettered, and its neighbours are processed. User code may get
rows before it in the same piece again, as after any crash. If the child ended because a call was
over its time limit, the row is handled by the error policy instead. A child may also be killed from
outside, for example with ``SIGKILL``, so its row is blamed only if a second child dies, too.

The child is forked from the worker and opens its own user code. Its answer for each piece has the
decisions about it and what user code has printed. It ends when the worker closes its pipe or ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from ebbflow.domain import host
from ebbflow.domain.errors import CallTimeout
from ebbflow.domain.host import keep_private
from ebbflow.domain.outcome import DeadLetter
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.frames import Rows
from ebbflow.engine.verdict import Decisions, Operator, Verdict
from ebbflow.usercode.call_watch import WorkerLeaves, watch_calls
from ebbflow.usercode.printing import Collected, Emit, Printed, redirected


def pickle_by_value(thing: object) -> bytes:
    """Pickles anything; functions and classes of the user's program include their code."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


_MOST_PRINTED = 8 * 1024 * 1024
_END_WITHIN = 5.0
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The answer of a child about a piece: its decisions, or what user code raised when it opened.

    ``printed`` is what user code has printed meanwhile, ``outage`` says which system is down.
    """

    decided: Decisions | None
    raised: Exception | None
    printed: list[Printed]
    outage: SystemOutage | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a child: how its process ended, or that a call was over its time limit.

    ``by_signal`` is the signal that ended it, if one did.
    """

    cause: str
    over_time: CallTimeout | None = None
    by_signal: int | None = None

    @property
    def may_come_from_outside(self) -> bool:
        """Whether an operator or the out-of-memory killer may have ended the child."""
        return self.over_time is None and self.by_signal in _FROM_OUTSIDE


class Child:
    """A child process; created and used by the worker's main thread."""

    def __init__(
        self,
        fresh: Callable[[Emit], Operator],
        close: Callable[[], None],
        down: Callable[[], SystemOutage | None],
        call_timeout: float | None = None,
    ) -> None:
        mine, its = Pipe()
        self._limit = call_timeout
        self._last_words = host.open_memory_file("last words")
        worker = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            host.end_with_parent(worker)
            mine.close()
            watch = watch_calls(call_timeout, lambda _: None, self._last_words)
            _serve(its, fresh, close, down, watch)
        its.close()
        self._line: Connection[Any, Any] = mine
        self._ended = host.watch_end(self._pid)

    def decide(self, piece: Verdict) -> ChildAnswer | Death:
        """Returns the answer about a piece, or how the child died of it."""
        try:
            self._line.send_bytes(pickle.dumps(piece))
            # Waits for the process, too: other processes may hold its end of the pipe open.
            wait([self._line, self._ended])
            if self._line.poll():
                answer: ChildAnswer = pickle.loads(self._line.recv_bytes())  # noqa: S301 - our own child
                return answer
        except (EOFError, OSError):
            pass  # it died meanwhile
        return self._end()

    def close(self) -> None:
        """Lets it close user code and end; kills it if that takes too long."""
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
        timeout = CallTimeout(self._limit) if over_time and self._limit else None
        return Death(cause, timeout, -code if code < 0 else None)


def _serve(
    line: Connection[Any, Any],
    fresh: Callable[[Emit], Operator],
    close: Callable[[], None],
    down: Callable[[], SystemOutage | None],
    watch: AbstractContextManager[None],
) -> NoReturn:
    """Runs the child: decides, answers, and ends without touching the worker's open resources."""
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
            line.send_bytes(_pack(piece, raised, printed.take(), down()))
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


def _pack(
    piece: Verdict, raised: Exception | None, printed: list[Printed], outage: SystemOutage | None
) -> bytes:
    """Pickles an answer, with cloudpickle because of objects that user code may have made."""
    decided = None if raised else piece.decisions
    try:
        answer = ChildAnswer(decided, raised, printed, outage)
        return pickle_by_value(answer)
    except Exception as error:
        cause = raised or error
        text = RuntimeError(f"{type(cause).__name__}: {cause}")
        return pickle.dumps(ChildAnswer(None, text, printed))


# Two chunks of the largest size: all that a worker can have had in flight when it died.
SUSPECTS = 20_000
# Many, because only pieces that die are costly: each takes a new child, and maybe a full timeout.
_PIECES = 16


@contextmanager
def end_worker_on_base_exception() -> Iterator[None]:
    """Ends the worker when user code raises a non-``Exception`` such as ``KeyboardInterrupt``.

    So the message that caused it is isolated as one that kills its worker. If only the task failed,
    the message would be tried again forever.
    """
    try:
        yield
    except (Exception, SystemExit):
        raise
    except WorkerLeaves:
        sys.exit(0)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


class PoisonIsolation:
    """An operator that tries rows in child processes until all suspects are processed.

    ``make`` starts a child, which opens its own user code, so that it shares no connection with its
    parent. ``emit`` gets what user code prints, because a child cannot use its parent's connection
    for that. ``outage`` is the outage that the last chunk met, if any.
    """

    def __init__(self, operator: Operator, make: Callable[[], Child], emit: Emit) -> None:
        self._operator = operator
        self._make = make
        self._emit = emit
        self._child: Child | None = None
        self.outage: SystemOutage | None = None
        self._suspects = SUSPECTS

    def __call__(self, verdict: Verdict) -> None:
        """Decides about a chunk; the rows that kill a child become dead letters."""
        self.outage = None
        if self._suspects <= 0:
            self.close()
            self._operator(verdict)
            return
        self._suspects -= len(verdict.rows)
        if self._child is None:
            verdict.disregard_time()  # it includes opening user code in a child
        self._decide(verdict, 0, len(verdict.rows))

    def close(self) -> None:
        """Ends the child, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _decide(self, verdict: Verdict, start: int, end: int) -> None:
        decided = self._try(verdict, start, end)
        if isinstance(decided, Death) and end - start == 1 and decided.may_come_from_outside:
            decided = self._try(verdict, start, end)
        if not isinstance(decided, Death):
            verdict.decisions.merge(range(start, end), decided)
            return
        verdict.disregard_time()
        if end - start > 1:
            self._decide_pieces(verdict, start, end)
            return
        self._suspects = SUSPECTS  # there may be more poison messages
        if decided.over_time is not None:
            verdict.record_error(start, decided.over_time)
        else:
            letter = DeadLetter("killed its worker", error=decided.cause)
            verdict.decisions.finish(start, letter)

    def _try(self, verdict: Verdict, start: int, end: int) -> Decisions | Death:
        rows = Rows(verdict.rows.batch.slice(start, end - start), verdict.rows.watermark)
        return self._in_child(verdict.part(rows))

    def _decide_pieces(self, verdict: Verdict, start: int, end: int) -> None:
        size = -(-(end - start) // _PIECES)
        for first in range(start, end, size):
            if verdict.first_held() is not None:
                verdict.decisions.stop_at(first)
                return
            self._decide(verdict, first, min(first + size, end))

    def _in_child(self, piece: Verdict) -> Decisions | Death:
        """Returns what a child decided, or how it died."""
        self._child = self._child or self._make()
        answer = self._child.decide(piece)
        if isinstance(answer, Death):
            self._child = None
            return answer
        for printed in answer.printed:
            self._emit(printed)
        if answer.raised is not None:
            self.close()  # the next child opens user code again
            raise answer.raised
        self.outage = answer.outage
        assert answer.decided is not None
        return answer.decided
