"""Finding the message that kills its worker: a segfault, out of memory, ``os._exit``.

After a worker has died, user code first runs in a child process, on the rows that the dead worker
had in hand. If the child dies too, its rows are tried again in halves until one row is left: that
one goes to the dead letters, alone, and its neighbours are processed. Rows before it in the same
piece may be given to user code again, as after any crash.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
from collections.abc import Callable
from typing import cast

from ebbflow.core.verdict import Decisions, Verdict
from ebbflow.frames import Rows
from ebbflow.outcome import DeadLetter

Operator = Callable[[Verdict], None]
Emit = Callable[[str], None]

# Two chunks of the largest size: all that a worker can have had in hand when it died.
SUSPECTS = 20_000


class Careful:
    """An operator that tries rows in child processes until the suspects are through.

    ``fresh`` makes the operator inside a child, so that user code opens things of its own there
    and shares no connection with its parent. What it prints is handed to the parent with the
    decisions, because a child cannot use its parent's connection to print.
    """

    def __init__(self, operator: Operator, fresh: Callable[[Emit], Operator]) -> None:
        self._operator = operator
        self._fresh = fresh
        self._suspects = SUSPECTS

    def __call__(self, verdict: Verdict) -> None:
        """Decide about a chunk; the rows that kill a child are dead letters."""
        if self._suspects <= 0:
            self._operator(verdict)
            return
        self._suspects -= len(verdict.rows)
        self._decide(verdict, 0, len(verdict.rows))

    def _decide(self, verdict: Verdict, start: int, end: int) -> None:
        rows = Rows(verdict.rows.batch.slice(start, end - start), verdict.rows.watermark)
        decided = self._in_child(verdict.part(rows))
        if not isinstance(decided, str):
            verdict.merge(range(start, end), decided)
        elif end - start > 1:
            self._decide_halves(verdict, start, (start + end) // 2, end)
        else:
            verdict.outcomes[start] = DeadLetter("killed its worker", error=decided)
            self._suspects = 0

    def _decide_halves(self, verdict: Verdict, start: int, middle: int, end: int) -> None:
        self._decide(verdict, start, middle)
        if verdict.first_held() is None:
            self._decide(verdict, middle, end)
        else:
            verdict.stop_at(middle)

    def _in_child(self, piece: Verdict) -> Decisions | str:
        """What a child decided, or what it died of."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _work(self._fresh, piece, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        if not answer:
            return _cause(status)
        decided, printed = pickle.loads(answer)  # noqa: S301 - from our own child
        if printed:
            print(printed, end="")
        return cast("Decisions", decided)


def _work(fresh: Callable[[Emit], Operator], piece: Verdict, writing: int) -> None:
    """The child: decide, answer, and leave without a trace in the parent's affairs."""
    with contextlib.suppress(BaseException):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            fresh(print)(piece)
        answer = pickle.dumps((piece.decisions(), printed.getvalue()))
        with open(writing, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os._exit(1)


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the Python worker ended with {how} while it worked on this message"
