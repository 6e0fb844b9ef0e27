"""Finds the rows that make a batch fail: tries the batch again in ever smaller pieces.

Some work is done for many rows in one call, which succeeds or fails as a whole: a query, a write to
a table. Pieces are tried from the first row to the last, so what is decided is always a run of rows
from the start on, and nothing that has succeeded is tried a second time.

Guarantees: a row is blamed only after it has failed alone, and only if the error itself says that
it is about the data, or if the same work on no rows at all succeeds right after. If that fails as
well, the rows are not to blame, and none of them is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Trouble:
    """The error of an attempt: what it is called, and what it says.

    ``of_data`` if it says so itself that a value is to blame. ``suspects`` are the rows that it
    speaks of, counted from the first of the attempt: where to look first, whether right or not.
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

    ``general`` is why nothing works at the moment, if that is so.
    """

    end: int
    blamed: dict[int, Trouble] = field(default_factory=dict)
    general: Trouble | None = None


Attempt = Callable[[int, int], Trouble | None]
"""Does the work for the rows from the first index up to the second; ``None`` if that succeeded."""


def isolate(start: int, end: int, attempt: Attempt, enough: Callable[[], bool]) -> Isolated:
    """Does the work for the rows from ``start`` up to ``end``; returns what is decided.

    Once ``enough`` says so, it returns as soon as anything is decided.
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
        """Returns what to try next: around the rows that the error names, or else halves."""
        named = {low + suspect for suspect in trouble.suspects if low <= low + suspect < high}
        if not named or self._misled:
            middle = (low + high) // 2
            return [(low, middle), (middle, high)]
        self._suspects |= named
        cuts = sorted({low, high, *named, *(row + 1 for row in named)})
        return list(pairwise(cuts))
