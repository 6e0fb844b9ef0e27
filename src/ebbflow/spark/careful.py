"""Finding the message that kills its worker: a segfault, out of memory, ``os._exit``.

After a worker has died, user code first runs in a child process, on the rows that the dead worker
had in hand. If the child dies too, its rows are tried again in halves until one row is left: that
one goes to the dead letters, alone, and its neighbours are processed. Rows before it in the same
piece may be given to user code again, as after any crash.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Callable

from ebbflow.core.verdict import Outputs, Verdict
from ebbflow.frames import Rows
from ebbflow.outcome import DeadLetter, Outcome

Operator = Callable[[Verdict], None]
Decided = tuple[dict[int, Outcome], Outputs | None]

# Two chunks of the largest size: all that a worker can have had in hand when it died.
SUSPECTS = 20_000


class Careful:
    """An operator that tries rows in child processes until the suspects are through.

    ``fresh`` makes the operator inside a child, so that user code opens things of its own there
    and shares no connection with its parent.
    """

    def __init__(self, operator: Operator, fresh: Callable[[], Operator]) -> None:
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
        piece = verdict.part(Rows(verdict.rows.batch.slice(start, end - start)))
        decided = self._in_child(piece)
        if not isinstance(decided, str):
            verdict.merge(start, *decided)
        elif end - start > 1:
            middle = (start + end) // 2
            self._decide(verdict, start, middle)
            self._decide(verdict, middle, end)
        else:
            verdict.outcomes[start] = DeadLetter("killed its worker", error=decided)
            self._suspects = 0

    def _in_child(self, piece: Verdict) -> Decided | str:
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
        return pickle.loads(answer) if answer else _cause(status)  # noqa: S301 - from our own child


def _work(fresh: Callable[[], Operator], piece: Verdict, writing: int) -> None:
    """The child: decide, answer, and leave without a trace in the parent's affairs."""
    with contextlib.suppress(BaseException):
        fresh()(piece)
        answer = pickle.dumps((piece.outcomes, piece.outputs))
        with open(writing, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os._exit(1)


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the Python worker ended with {how} while it worked on this message"
