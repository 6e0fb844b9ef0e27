"""Causes: why messages fail, counted so that people see what fails most.

Texts differ by what a message has in it: a number, an id, a quoted value. Texts that are otherwise
the same are alike (``normalise``). A few texts alike are told one by one; when there are more, they
are one cause, whose text has ``…`` where they differ. All counts together are the total, always:
what a list has no room for is counted as its rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

MOST_SHOWN = 20
"""The most causes of a list; its rest is counted together."""

MOST_APART = 3
"""The most texts alike that are told one by one."""

_GAP = "…"
_LONGEST = 200
# Texts without anything in common would otherwise take memory without end.
_MOST_GROUPS, _OTHERS = 1_000, "other causes"
# Quoted values, addresses, and words with a digit in them. A gap is what differed before.
_VARIES = re.compile(
    r"""((?<!\w)'[^']*'(?!\w)|"[^"]*"|(?<!\S)[^\s@'"]+@[\w.-]+"""
    r"""|(?<![\w-])[\w-]*\d[\w-]*(?:[.,:]\d[\w-]*)*|…)"""
)


def normalise(text: str) -> str:
    """Returns the text without what differs from message to message: numbers, ids, quotes."""
    return _VARIES.sub(_GAP, text)


def are_alike(one: str, other: str) -> bool:
    """Returns whether two texts are those of one cause."""
    return normalise(one[:_LONGEST]) == normalise(other[:_LONGEST])


@dataclass(frozen=True, slots=True)
class CauseCount:
    """A cause and how many messages had it; ``group`` is whose it is, a vertex for example."""

    group: Hashable
    text: str
    count: int


@dataclass(slots=True)
class _Alike:
    """Texts alike: the codes of those that are told one by one, and the code of all others."""

    code: int
    apart: dict[str, int] = field(default_factory=dict)
    pieces: list[str] | None = None

    def merge(self, text: str) -> None:
        """Notes where a text differs from those before it."""
        pieces = _VARIES.split(text)
        for known in [self.pieces, *map(_VARIES.split, self.apart)]:
            if known is not None:
                pairs = zip(pieces, known, strict=True)
                pieces = [piece if piece == other else _GAP for piece, other in pairs]
        self.pieces = pieces


class CauseGroups:
    """Gives each text a code: its own, or that of all texts alike."""

    def __init__(self) -> None:
        self._alike: dict[tuple[Hashable, str], _Alike] = {}
        self._known: dict[tuple[Hashable, str], int] = {}
        self._codes = 0

    def code(self, group: Hashable, text: str) -> int:
        """Returns the code to count a text of a group by."""
        text = text[:_LONGEST]
        if (known := self._known.get((group, text))) is not None:
            return known
        key = group, normalise(text)
        if key not in self._alike:
            if len(self._alike) >= _MOST_GROUPS and text != _OTHERS:
                return self.code(group, _OTHERS)
            self._alike[key] = _Alike(self._next())
        return self._code_among(self._alike[key], group, text)

    def _code_among(self, alike: _Alike, group: Hashable, text: str) -> int:
        if alike.pieces is not None or len(alike.apart) == MOST_APART:
            alike.merge(text)
            return alike.code
        code = self._known[group, text] = alike.apart[text] = self._next()
        return code

    def _next(self) -> int:
        self._codes += 1
        return self._codes

    def describe(self, counts: Counter[int]) -> list[CauseCount]:
        """Returns the causes of what was counted by code, the most frequent first."""
        causes = [
            cause
            for (group, _), alike in self._alike.items()
            for cause in _describe(group, alike, counts)
            if cause.count
        ]
        return sorted(causes, key=lambda cause: (-cause.count, cause.text))


def _describe(group: Hashable, alike: _Alike, counts: Counter[int]) -> Iterator[CauseCount]:
    if alike.pieces is not None and counts[alike.code]:
        together = counts[alike.code] + sum(counts[code] for code in alike.apart.values())
        yield CauseCount(group, "".join(alike.pieces), together)
        return
    for text, code in alike.apart.items():
        yield CauseCount(group, text, counts[code])


class CauseCounter:
    """Counts texts by their causes."""

    def __init__(self) -> None:
        self._groups = CauseGroups()
        self._counts: Counter[int] = Counter()

    def add(self, text: str, count: int = 1, group: Hashable = None) -> None:
        """Counts messages that had a text."""
        self._counts[self._groups.code(group, text)] += count

    def update(self, texts: Iterable[tuple[str, int]]) -> None:
        """Counts texts, each with its number of messages."""
        for text, count in texts:
            self.add(text, count)

    @property
    def total(self) -> int:
        """How many messages were counted."""
        return self._counts.total()

    def causes(self) -> list[CauseCount]:
        """Returns the causes, the most frequent first."""
        return self._groups.describe(self._counts)
