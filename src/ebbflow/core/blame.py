"""Decides whose fault a failure is: the message's, or that of a system that user code needs.

A failure of a message is counted on it. A failure of a system is counted on nobody: the message
comes back as it was, and the vertex waits. An exception on the list of ``system_errors`` is a
system's, and so is any other when ``ENOUGH`` different messages have failed with it one after
another and none has passed. **Others decide**: a message that fails again although other messages
have passed since is to blame, whatever it raised, unless others fail at that time as well; and one
that was to blame before remains so as long as no other message fails as well.

A ``Blame`` lives on a worker, one for each handler, for as long as the handler does. Forgetting all
of it, as when a worker dies, costs a message a further try and never more. A ``Trial`` applies it
to the rows of one chunk: rows whose failure is a system's come back as they were (``Retry``, with
nothing counted), and so do rows that were not tried because it was clear that they would fail, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbflow.core.redelivery import describe
from ebbflow.core.system_errors import LISTED, SystemErrors, retry_after
from ebbflow.errors import MessageTooLarge, Unavailable
from ebbflow.nacks import Nack
from ebbflow.outcome import DeadLetter, Redeliver, Retry

if TYPE_CHECKING:  # limits and errors are part of specs, which are checked without Arrow
    from ebbflow.core.verdict import Verdict

ENOUGH = 10
"""So many different messages have to fail alike for an error that tells nothing by itself."""

POSTPONED = 500
"""Milliseconds after which a message comes back whose system was away."""

CALLS_IN_A_ROW = 3
"""So many calls have to fail before the rest of a chunk is not tried."""

_MOST_SUSPECTS = 50_000


@dataclass(frozen=True, slots=True)
class Outage:
    """A system is away, or user code fails on everything. ``retry_after`` is in milliseconds.

    ``what`` is the system's name if it is ``named``, or else the error. ``certain`` when an error
    said so; otherwise messages have only failed alike.
    """

    what: str
    certain: bool = True
    named: bool = False
    retry_after: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Outage:
        """Returns the outage that an error shows."""
        named = isinstance(error, Unavailable)
        what = error.what if isinstance(error, Unavailable) else describe(error)
        return cls(what, True, named, retry_after(error))


class Blame:
    """The record of one handler's calls. ``outage`` is set while its system is away.

    ``streak`` are the messages that have failed alike one after another, without a pass;
    ``enough`` of them show an outage.
    """

    def __init__(self, systems: SystemErrors = LISTED, enough: int = ENOUGH) -> None:
        self.outage: Outage | None = None
        self._systems = systems
        self._passes = 0
        self._suspects: dict[str, int] = {}
        self._failing: set[str] = set()
        self._calls = 0
        self.streak: set[str] = set()
        self._alike: type[BaseException] | None = None
        self._enough = enough
        self._mistaken_at = -1

    @property
    def stops(self) -> bool:
        """Whether it is clear enough that further calls would fail, too."""
        return self.outage is not None and (
            not self.outage.certain or self._calls >= CALLS_IN_A_ROW
        )

    def passed(self) -> None:
        """Notes that some message has passed."""
        self._passes += 1
        self.acquit()

    def acquit(self) -> None:
        """Notes that the system is there: messages passed beside those that failed."""
        self.outage = None
        self._calls = 0
        self._failing.clear()
        self.streak.clear()
        self._alike = None

    def is_the_systems(
        self, error: BaseException, ids: Sequence[str], blamed: bool, beside: bool = False
    ) -> bool:
        """Returns whether a system is to blame for a call that failed on these messages.

        ``blamed`` if one of them has failed on its own account before, ``beside`` if others passed
        at the same time.
        """
        if isinstance(error, MessageTooLarge):
            return False
        if isinstance(error, Unavailable) and not error.tried:
            # Nor does it make a suspect: the messages were not given to user code.
            self._calls += 1
            self.outage = Outage.of(error)
            return True
        away = self.means_away(error)
        # While others fail as well they decide nothing: this may be another outage.
        if not self._failing.difference(ids) and self._others_decided(ids):
            if not away:
                self._believe_less()
            return False
        if away:
            blames_system = self._is_away(ids, blamed)
        else:
            blames_system = self._fails_alike(error, ids, blamed, beside)
        if blames_system:
            self._suspect(ids)
            self._calls += 1
            self.outage = Outage.of(error) if away else Outage(describe(error), certain=False)
        return blames_system

    def means_away(self, error: BaseException) -> bool:
        """Returns whether the error itself says that a system is away."""
        return self._systems.means_away(error)

    def _others_decided(self, ids: Sequence[str]) -> bool:
        """Returns whether one of the messages failed before and others have passed since."""
        if not any(self._suspects.get(row_id, self._passes) < self._passes for row_id in ids):
            return False
        for row_id in ids:
            self._suspects.pop(row_id, None)
        return True

    def _believe_less(self) -> None:
        """Asks for twice as many the next time: what failed alike were bad messages."""
        if self._mistaken_at != self._passes:
            self._mistaken_at = self._passes
            self._enough *= 2

    def _is_away(self, ids: Sequence[str], blamed: bool) -> bool:
        others_fail = bool(self._failing.difference(ids))
        return others_fail or not blamed

    def _fails_alike(
        self, error: BaseException, ids: Sequence[str], blamed: bool, beside: bool
    ) -> bool:
        """Returns whether enough failed alike; a call with several says nothing about each."""
        if self.outage is not None and type(error) is self._alike:
            return True
        if beside or blamed or len(ids) > 1:
            return False
        if type(error) is not self._alike:
            self._alike = type(error)
            self.streak.clear()
        self.streak.update(ids)
        if len(self.streak) < self._enough:
            return False
        self._suspect(self.streak)
        return True

    def _suspect(self, ids: Collection[str]) -> None:
        self._failing.update(ids)
        self._suspects |= dict.fromkeys(ids, self._passes)
        while len(self._suspects) > _MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]


_NOT_PASSED = (Redeliver, Retry, DeadLetter)


class Trial:
    """The calls for one verdict, from its first row to its last."""

    def __init__(self, verdict: Verdict, blame: Blame) -> None:
        self._verdict = verdict
        self._blame = blame
        self._noted = 0
        self._streak: list[int] = []

    def failed(self, start: int, end: int, error: BaseException) -> None:
        """Decides about a call on the rows from ``start`` to ``end`` that has raised.

        The rows before it are decided already.
        """
        self._note_passes(start)
        self._noted = end
        self._decide(range(start, end), error)

    def failed_beside(self, failures: Sequence[tuple[int, BaseException]], end: int) -> None:
        """Decides about those of the rows up to ``end`` that failed while others were tried."""
        others = self._note_passes(end, without={index for index, _ in failures})
        for index, error in failures:
            self._decide(range(index, index + 1), error, others)
        if others:
            self._blame.acquit()

    @property
    def stops(self) -> bool:
        """Whether the rows that are left would fail, too."""
        return self._blame.stops

    def means_away(self, error: BaseException) -> bool:
        """Returns whether the error itself says that a system is away."""
        return self._blame.means_away(error)

    def leave(self, start: int, end: int | None = None) -> None:
        """Leaves the rows from ``start`` to ``end``, or to the last one, untried."""
        self._noted = len(self._verdict.rows) if end is None else end
        self.postpone(range(start, self._noted))

    def postpone(self, rows: Iterable[int]) -> None:
        """Leaves these rows untried; they come back as they are."""
        outage = self._blame.outage
        self._postpone(rows, outage.what if outage else "not tried: others failed before it")

    def finish(self) -> None:
        """Notes that all rows are decided."""
        self._note_passes(len(self._verdict.rows))

    def _decide(self, rows: range, error: BaseException, beside: bool = False) -> None:
        verdict = self._verdict
        if isinstance(error, Nack):
            verdict.record_errors(rows, error)
            return
        ids = verdict.rows.column("id")[rows.start : rows.stop]
        blamed = any(verdict.failures_of(index) for index in rows)
        if self._blame.is_the_systems(error, ids, blamed, beside):
            for index in rows:
                verdict.note_error(index, error)
            self._postpone(rows, describe(error))
            self._acquit_streak()
            return
        verdict.record_errors(rows, error)
        if len(rows) == 1 and ids[0] in self._blame.streak:
            self._streak.append(rows.start)

    def _acquit_streak(self) -> None:
        """Once enough have failed alike, those before were not to blame either."""
        outage = self._blame.outage
        if outage is not None and not outage.certain:
            self._postpone(self._streak, outage.what)
            self._streak = []

    def _postpone(self, rows: Iterable[int], why: str) -> None:
        for index in rows:
            self._verdict.postpone(index, POSTPONED, why)

    def _note_passes(self, end: int, without: Collection[int] = ()) -> bool:
        """Notes whether one of the rows up to ``end`` that were not noted yet has passed."""
        start, self._noted = self._noted, end
        outcomes, failed = self._verdict.outcomes, self._verdict.decisions.failed
        for index in range(start, end):
            ended_badly = isinstance(outcomes.get(index), _NOT_PASSED)
            if not (ended_badly or index in failed or index in without):
                self._blame.passed()
                self._streak = []
                return True
        return False
