"""Finds the rows that make a batch fail: tries the batch again in ever smaller pieces.

Some work is done for many rows in one call, which succeeds or fails as a whole: a query, a write to
a table. Pieces are tried from the first row to the last, so the decided rows are always consecutive
from the start, and no piece that has succeeded is tried a second time.

Guarantees: a row is blamed only after it has failed alone, and only if the error itself says that
it is about the data, or if the same work without any rows succeeds right after. If that fails as
well, no row is blamed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Trouble:
    """The error of an attempt: its name and its text.

    ``of_data`` if the error itself says that a value is to blame. ``suspects`` are the rows that it
    names, counted from the first row of the attempt. The search tries them first; they may be
    wrong.
    """

    kind: str
    text: str
    of_data: bool = False
    suspects: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """The text with a full stop."""
        return f"{self.text.rstrip('.')}."


@dataclass(slots=True)
class Isolated:
    """The rows before ``end`` are decided: those in ``blamed`` failed, all others are done.

    ``general`` is the error if the work fails even without rows.
    """

    end: int
    blamed: dict[int, Trouble] = field(default_factory=dict)
    general: Trouble | None = None


Attempt = Callable[[int, int], Trouble | None]
"""Does the work for the rows from the first index up to the second; ``None`` if it succeeded."""


def isolate(start: int, end: int, attempt: Attempt, enough: Callable[[], bool]) -> Isolated:
    """Does the work for the rows from ``start`` up to ``end``; returns the decisions.

    Once ``enough`` returns true, it returns as soon as any row is decided.
    """
    return _Search(start, attempt).run(start, end, enough)


class _Search:
    def __init__(self, start: int, attempt: Attempt) -> None:
        self._attempt = attempt
        self._isolated = Isolated(start)
        self._suspects: set[int] = set()
        self._misled = False

    def run(self, start: int, end: int, enough: Callable[[], bool]) -> Isolated:
        isolated, pieces = self._isolated, [(start, end)]
        tried = False
        while pieces and not (isolated.end > start and enough()):
            low, high = pieces.pop()
            trouble = self._attempt(low, high)
            if trouble is None:
                self._note_success(low, high)
                continue
            if (not tried or high - low == 1) and not trouble.of_data:
                isolated.general = self._attempt(low, low)
                if isolated.general is not None:
                    break
            tried = True
            if high - low == 1:
                isolated.blamed[low], isolated.end = trouble, high
            else:
                pieces += reversed(self._cut(low, high, trouble))
        return isolated

    def _note_success(self, low: int, high: int) -> None:
        self._isolated.end = high
        if low in self._suspects and high - low == 1:
            self._misled = True

    def _cut(self, low: int, high: int, trouble: Trouble) -> list[tuple[int, int]]:
        """Returns the next pieces: cut around the rows that the error names, or else halves."""
        named = {low + suspect for suspect in trouble.suspects if low <= low + suspect < high}
        if not named or self._misled:
            middle = (low + high) // 2
            return [(low, middle), (middle, high)]
        self._suspects |= named
        cuts = sorted({low, high, *named, *(row + 1 for row in named)})
        return list(pairwise(cuts))
