"""Calls user code on the rows of a chunk, and decides who is to blame for calls that fail.

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
