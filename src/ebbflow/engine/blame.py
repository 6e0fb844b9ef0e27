"""Decides whether a message or a system that user code needs caused a failure.

A failure of a message is counted on it. A failure of a system is counted on no message: each is
redelivered unchanged, and the vertex waits. An exception on the list of ``system_errors`` means a
system's failure. So does any other exception when ``ENOUGH`` different messages have failed one
after another without a response. While a system is unavailable, no exception is counted.

**Any response shows that user code and its systems work**: a result, a drop, a nack, each response
of a sink, even FAILURE. Only an exception, an unusable result and ``Unavailable`` are not
responses. **Other messages decide**: a message that fails again after other messages got responses
is to blame, whatever it raised, unless others are failing at that time as well. A message that was
to blame before remains so as long as no other message fails as well.

**A false alarm raises the bar.** If a vertex was stopped and a probe got a response soon after, its
messages fail in runs without an outage. ``doubt`` then doubles, and with it the number of calls
that must fail in a row the next time. After many responses in a row it falls again.

A ``Blame`` lives on a worker, one for each handler, as long as the handler does. Losing its state,
as when a worker dies, costs a message one further try and never more. A ``Trial`` applies it to the
rows of one chunk. Rows that failed because of a system are redelivered unchanged (``Retry``, with
nothing counted), and so are rows that were not tried because they would have failed, too.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbflow.domain.errors import MessageTooLarge, Unavailable
from ebbflow.domain.message import Nack
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine.redelivery import describe_error
from ebbflow.engine.system_errors import LISTED, SystemErrors, retry_after

if TYPE_CHECKING:  # limits and errors are part of specs, which are checked without Arrow
    from ebbflow.engine.verdict import Verdict

# SystemExit too: a handler that calls sys.exit() has failed on its message, nothing more. So has a
# handler that waits for its own cancelled task; nothing else is cancelled here.
USER_ERRORS = (Exception, SystemExit, CancelledError)
"""The exceptions that user code may raise about a message or a system; others end its worker."""

ENOUGH = 10
"""How many different messages must fail in a row with errors that do not name a system."""

POSTPONED = 500
"""Milliseconds until a message is redelivered whose system was unavailable."""

CALLS_IN_A_ROW = 3
"""How many calls must fail before the rest of a chunk is not tried."""

SOON = 10
"""If a stopped vertex gets a response within this many probes, it was stopped by mistake."""

HEALTHY = 1_000
"""How many messages in a row, times the doubt, must get a response for the doubt to fall."""

_MOST_DOUBT = 64
_MOST_DOUBT_OF_MESSAGES = 8
_MOST_SUSPECTS = 50_000


@dataclass(frozen=True, slots=True)
class SystemOutage:
    """A system is down, or user code fails on everything. ``retry_after`` is in milliseconds.

    ``what`` is the system's name if it is ``named``, or else the error. ``certain`` if the error
    itself shows an outage; otherwise messages have only failed alike.
    """

    what: str
    certain: bool = True
    named: bool = False
    retry_after: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> SystemOutage:
        """Returns the outage that an error shows."""
        named = isinstance(error, Unavailable)
        what = error.what if isinstance(error, Unavailable) else describe_error(error)
        return cls(what, True, named, retry_after(error))


class Blame:
    """The record of one handler's calls. ``outage`` is set while its system is unavailable.

    ``streak`` are the messages that have failed one after another, without a response in between;
    ``enough`` of them show an outage.
    """

    def __init__(self, systems: SystemErrors = LISTED, enough: int = ENOUGH) -> None:
        self._systems = systems
        self._outage: SystemOutage | None = None
        self._passes = 0
        self._suspects: dict[str, int] = {}
        self._failing: set[str] = set()
        self._calls = 0
        self.streak: set[str] = set()
        self._streak_calls = 0
        self._enough = enough
        self._doubt = 1
        self._probes = 0
        self._healthy = 0

    @property
    def outage(self) -> SystemOutage | None:
        """The outage, once enough calls in a row have met it."""
        outage = self._outage
        shown = outage is not None and (not outage.certain or self._calls >= self._doubt)
        return outage if shown else None

    @property
    def stops(self) -> bool:
        """Whether further calls would almost certainly fail, too."""
        outage = self.outage
        return outage is not None and (not outage.certain or self._calls >= self.calls_in_a_row)

    @property
    def calls_in_a_row(self) -> int:
        """How many calls must fail before the rest of a chunk is not tried."""
        return max(CALLS_IN_A_ROW, self._doubt)

    @property
    def enough(self) -> int:
        """How many different messages must fail in a row to show an outage by themselves."""
        return self._enough * min(self._doubt, _MOST_DOUBT_OF_MESSAGES)

    def begin_trial(self) -> None:
        """Notes that a chunk begins: during an outage it is a probe."""
        if self.outage is not None:
            self._probes += 1

    def passed(self, messages: int = 1) -> None:
        """Notes that messages got a response."""
        self._passes += 1
        self._healthy += messages
        if 0 < self._probes <= SOON:
            self.mistake()
        elif self._healthy >= HEALTHY * self._doubt:
            self._doubt, self._healthy = max(1, self._doubt // 2), 0
        self.clear()

    def mistake(self) -> None:
        """Notes that messages were not tried although the system works."""
        self._doubt = min(2 * self._doubt, _MOST_DOUBT)

    def clear(self) -> None:
        """Notes that the system works: other messages got a response."""
        self._outage = None
        self._calls = self._probes = self._streak_calls = 0
        self._failing.clear()
        self.streak.clear()

    def is_outage(
        self, error: BaseException, ids: Sequence[str], blamed: bool, others_passed: bool = False
    ) -> bool:
        """Returns whether a system is to blame for a call that failed on these messages.

        ``blamed`` if one of them was to blame for a failure before, ``others_passed`` if others
        passed at the same time.
        """
        if isinstance(error, MessageTooLarge):
            return False
        self._healthy = 0
        if isinstance(error, Unavailable) and not error.tried:
            # The messages do not become suspects: user code has not seen them.
            self._calls = max(self._calls + 1, self._doubt)
            self._outage = SystemOutage.of(error)
            return True
        down = self.means_down(error)
        # While other messages fail as well, they decide nothing: this may be another outage.
        if not self._failing.difference(ids) and self._others_decided(ids):
            return False
        if down:
            blames_system = self._is_down(ids, blamed)
        else:
            blames_system = self._fails_in_a_row(ids, blamed, others_passed)
        if blames_system:
            self._suspect(ids)
            self._calls += 1
            self._note_outage(error, down)
        return blames_system

    def _note_outage(self, error: BaseException, down: bool) -> None:
        """Keeps the details of the outage; an error that shows no outage does not replace them."""
        if down:
            self._outage = SystemOutage.of(error)
        elif self._outage is None:
            self._outage = SystemOutage(describe_error(error), certain=False)

    def means_down(self, error: BaseException) -> bool:
        """Returns whether the error itself shows that a system is down."""
        return self._systems.means_down(error)

    def _others_decided(self, ids: Sequence[str]) -> bool:
        """Returns whether one of the messages failed before and others got a response since."""
        passes = self._passes
        if not any(self._suspects.get(row_id, passes) < passes for row_id in ids):
            return False
        for row_id in ids:
            self._suspects.pop(row_id, None)
        return True

    def _is_down(self, ids: Sequence[str], blamed: bool) -> bool:
        others_fail = bool(self._failing.difference(ids))
        return others_fail or not blamed

    def _fails_in_a_row(self, ids: Sequence[str], blamed: bool, others_passed: bool) -> bool:
        """Returns whether enough messages failed in enough calls: one bad message fails a call."""
        if self._outage is not None:
            return True
        if others_passed or blamed:
            return False
        self.streak.update(ids)
        self._streak_calls += 1
        if len(self.streak) < self.enough or self._streak_calls < CALLS_IN_A_ROW:
            return False
        self._suspect(self.streak)
        return True

    def _suspect(self, ids: Collection[str]) -> None:
        self._failing.update(ids)
        self._suspects |= dict.fromkeys(ids, self._passes)
        while len(self._suspects) > _MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]


def ends_outage(outcome: Outcome | None) -> bool:
    """Returns whether a message got a response of user code, and not an exception."""
    match outcome:
        case Redeliver(options=options):
            return options is not None
        case DeadLetter(nacked=nacked):
            return nacked
        case Retry():
            return False
        case _:  # done, or user code has asked for a further sink, or reported a failure
            return True


class Trial:
    """The calls for one verdict, from its first row to its last."""

    def __init__(self, verdict: Verdict, blame: Blame) -> None:
        self._verdict = verdict
        self._blame = blame
        self._noted = 0
        self._streak: list[int] = []
        blame.begin_trial()

    def failed(
        self, start: int, end: int, error: BaseException, others_passed: bool = False
    ) -> None:
        """Decides about a call that has raised on the rows from ``start`` up to ``end``.

        The rows before it are already decided; ``others_passed`` if others of the same call passed.
        """
        if isinstance(error, Nack):
            self._verdict.record_errors(range(start, end), error)
            return
        self._note_passes(start)
        self._noted = end
        self._decide(range(start, end), error, others_passed)

    def failed_among_others(
        self, failures: Sequence[tuple[int, BaseException]], end: int, cut_short: bool = False
    ) -> None:
        """Decides about the rows before ``end`` that failed while others were tried.

        ``cut_short`` if some were not tried because of the failures.
        """
        raised = {index: error for index, error in failures if not isinstance(error, Nack)}
        for index, error in failures:
            if index not in raised:
                self._verdict.record_error(index, error)
        others = self._note_passes(end, without=raised)
        for index, error in raised.items():
            self._decide(range(index, index + 1), error, others)
        if others:
            self._blame.clear()
        if others and cut_short:
            self._blame.mistake()

    @property
    def calls_in_a_row(self) -> int:
        """How many calls must fail before the rest is not tried."""
        return self._blame.calls_in_a_row

    @property
    def enough(self) -> int:
        """How many single messages must fail in a row to show that any would."""
        return self._blame.enough

    @property
    def stops(self) -> bool:
        """Whether the remaining rows would almost certainly fail, too."""
        return self._blame.stops

    def means_down(self, error: BaseException) -> bool:
        """Returns whether the error itself shows that a system is down."""
        return self._blame.means_down(error)

    def leave(self, start: int, end: int | None = None) -> None:
        """Leaves the rows from ``start`` to ``end``, or to the last one, untried."""
        self._noted = len(self._verdict.rows) if end is None else end
        self.postpone(range(start, self._noted))

    def postpone(self, rows: Iterable[int]) -> None:
        """Leaves these rows untried and redelivers them unchanged."""
        outage = self._blame.outage
        self._postpone(rows, outage.what if outage else "not tried: others failed before it")

    def finish(self) -> None:
        """Notes that all rows are decided."""
        self._note_passes(len(self._verdict.rows))

    def _decide(self, rows: range, error: BaseException, others_passed: bool = False) -> None:
        verdict = self._verdict
        ids = verdict.rows.column("id")[rows.start : rows.stop]
        blamed = any(verdict.failures_of(index) for index in rows)
        if self._blame.is_outage(error, ids, blamed, others_passed):
            for index in rows:
                verdict.note_error(index, error)
            self._postpone(rows, describe_error(error))
            self._acquit_streak()
            return
        verdict.record_errors(rows, error)
        if ids[0] in self._blame.streak:
            self._streak += rows

    def _acquit_streak(self) -> None:
        """Once enough messages have failed alike, the earlier ones were not to blame either."""
        outage = self._blame.outage
        if outage is not None and not outage.certain:
            self._postpone(self._streak, outage.what)
            self._streak = []

    def _postpone(self, rows: Iterable[int], why: str) -> None:
        for index in rows:
            self._verdict.postpone(index, POSTPONED, why)

    def _note_passes(self, end: int, without: Collection[int] = ()) -> bool:
        """Notes the responses to further rows up to ``end``; returns whether there were any."""
        start, self._noted = self._noted, end
        unanswered = {i for i, o in self._verdict.outcomes.items() if not ends_outage(o)}
        answered = end - start - sum(start <= i < end for i in unanswered.union(without))
        if answered > 0:
            self._blame.passed(answered)
            self._streak = []
        return answered > 0
