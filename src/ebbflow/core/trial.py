"""The calls of user code on the rows of a chunk, and who is to blame for those that fail.

Rows whose failure is a system's come back as they were (``Retry``, with nothing counted), and so do
the rows that were not tried because it was clear that they would fail, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ebbflow.core.blame import POSTPONED, Blame
from ebbflow.core.redelivery import describe
from ebbflow.core.verdict import Verdict
from ebbflow.nacks import Nack
from ebbflow.outcome import DeadLetter, Redeliver, Retry

_NOT_PASSED = (Redeliver, Retry, DeadLetter)


class Trial:
    """The calls for one verdict, from its first row to its last."""

    def __init__(self, verdict: Verdict, blame: Blame) -> None:
        self._verdict = verdict
        self._blame = blame
        self._told = 0
        self._streak: list[int] = []

    def failed(self, start: int, end: int, error: BaseException) -> None:
        """A call on the rows from ``start`` to ``end`` has raised; those before are decided."""
        self._note_passes(start)
        self._told = end
        self._decide(range(start, end), error)

    def failed_beside(self, failures: Sequence[tuple[int, BaseException]], end: int) -> None:
        """Some of the rows up to ``end``, which were worked on at the same time, have failed."""
        others = self._note_passes(end, without={index for index, _ in failures})
        for index, error in failures:
            self._decide(range(index, index + 1), error, others)
        if others:
            self._blame.acquit()

    @property
    def stops(self) -> bool:
        """Whether it is no use to call user code with the rows that are left."""
        return self._blame.stops

    def means_away(self, error: BaseException) -> bool:
        """Whether the error itself says that a system is away."""
        return self._blame.means_away(error)

    def leave(self, start: int, end: int | None = None) -> None:
        """The rows from ``start`` to ``end``, or to the last one, are not tried."""
        self._told = len(self._verdict.rows) if end is None else end
        self.postpone(range(start, self._told))

    def postpone(self, rows: Iterable[int]) -> None:
        """These rows are not tried now; they come back as they are."""
        outage = self._blame.outage
        self._postpone(rows, outage.what if outage else "not tried: others failed before it")

    def finish(self) -> None:
        """All rows are decided."""
        self._note_passes(len(self._verdict.rows))

    def _decide(self, rows: range, error: BaseException, beside: bool = False) -> None:
        verdict = self._verdict
        if isinstance(error, Nack):
            verdict.raised_for(rows, error)
            return
        ids = verdict.rows.column("id")[rows.start : rows.stop]
        blamed = any(verdict.failures_of(index) for index in rows)
        if self._blame.is_the_systems(error, ids, blamed, beside):
            self._postpone(rows, describe(error))
            self._acquit_streak()
            return
        verdict.raised_for(rows, error)
        if len(rows) == 1 and ids[0] in self._blame.streak:
            self._streak.append(rows.start)

    def _acquit_streak(self) -> None:
        """Once enough have failed alike, those before were not to blame either."""
        outage = self._blame.outage
        if outage is not None and not outage.certain:
            self._postpone(self._streak, outage.what)
            self._streak = []

    def _postpone(self, rows: Iterable[int], why: str) -> None:
        retries = self._verdict.rows.column("retries")
        for index in rows:
            failures = self._verdict.failures_of(index)
            self._verdict.outcomes[index] = Retry(POSTPONED, why, int(retries[index]), failures)

    def _note_passes(self, end: int, without: Collection[int] = ()) -> bool:
        """See whether one of the rows up to ``end`` that nothing was said about has passed."""
        verdict, start, self._told = self._verdict, self._told, end
        for index in range(start, end):
            ended_badly = isinstance(verdict.outcomes.get(index), _NOT_PASSED)
            if not (ended_badly or index in verdict.failed or index in without):
                self._blame.passed()
                self._streak = []
                return True
        return False
