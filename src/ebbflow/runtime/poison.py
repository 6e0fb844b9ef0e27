"""Poison messages: isolating the one that kills its worker by a segfault, ``os._exit`` and so on.

After a worker has died, user code first runs in a child process, on the rows that the dead worker
had in hand. If the child dies too, its rows are tried again in pieces, in other children, until one
row is left: that one goes to the dead letters, alone, and its neighbours are processed. Rows before
it in the same piece may be given to user code again, as after any crash. A row whose call was over
its time when the child ended is the error policy's instead.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ebbflow.core.blame import Outage
from ebbflow.core.decisions import Decisions
from ebbflow.core.frames import Rows
from ebbflow.core.verdict import Operator, Verdict
from ebbflow.outcome import DeadLetter
from ebbflow.runtime.child import Child, Death, Emit

# Two chunks of the largest size: all that a worker can have had in hand when it died.
SUSPECTS = 20_000
# Many, because only those that die are dear: each takes a new child, and maybe all of a timeout.
_PIECES = 16


@contextmanager
def end_worker_on_base_exception() -> Iterator[None]:
    """Ends the worker when user code raises no ``Exception`` but, say, ``KeyboardInterrupt``.

    Then the message that it was raised for is found as one that kills its worker. As a failed task
    it would be tried again for ever.
    """
    try:
        yield
    except (Exception, SystemExit):
        raise
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


class PoisonIsolation:
    """An operator that tries rows in child processes until all suspects are through.

    ``make`` starts a child, in which user code opens things of its own, so that it shares no
    connection with its parent. ``emit`` gets what user code prints, because a child cannot use its
    parent's connection to print. ``outage`` is the one that the last chunk met with, if any.
    """

    def __init__(self, operator: Operator, make: Callable[[], Child], emit: Emit) -> None:
        self._operator = operator
        self._make = make
        self._emit = emit
        self._child: Child | None = None
        self.outage: Outage | None = None
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
        rows = Rows(verdict.rows.batch.slice(start, end - start), verdict.rows.watermark)
        decided = self._in_child(verdict.part(rows))
        if not isinstance(decided, Death):
            verdict.decisions.merge(range(start, end), decided)
            return
        verdict.disregard_time()
        if end - start > 1:
            self._decide_pieces(verdict, start, end)
            return
        self._suspects = SUSPECTS  # there may be more of them
        if decided.over_time is not None:
            verdict.record_error(start, decided.over_time)
        else:
            letter = DeadLetter("killed its worker", error=decided.cause)
            verdict.decisions.dead_letter(start, letter)

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
        if answer.printed:
            self._emit(answer.printed)
        if answer.raised is not None:
            self.close()  # the next one opens user code anew
            raise answer.raised
        self.outage = answer.outage
        assert answer.decided is not None
        return answer.decided
