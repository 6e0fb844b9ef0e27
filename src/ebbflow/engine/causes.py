"""Causes: why messages fail, counted so that people see what fails most.

Texts differ by the data of a message: a number, an id, a quoted value. Texts that are otherwise the
same are alike (``normalise``). A few alike texts are listed one by one; when there are more, they
become one cause, whose text has ``…`` where they differ. The counts always add up to the total:
causes that a list has no room for are counted together. ``Raised`` is an error of user code with
the line of user code that raised it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import PurePath
from types import TracebackType

from ebbflow.domain.errors import SparkError, StreamBroken
from ebbflow.engine.redelivery import describe_error, format_traceback, is_own

MOST_SHOWN = 20
"""The most causes of a list; its rest is counted together."""

MOST_APART = 3
"""The most alike texts that are listed one by one."""

_GAP = "…"
_LONGEST = 200
# Texts without anything in common would otherwise take unlimited memory.
_MOST_GROUPS, _OTHERS = 1_000, "other causes"
# Quoted values, addresses, words with a digit in them, and gaps from an earlier merge.
_VARIES = re.compile(
    r"""((?<!\w)'[^']*'(?!\w)|"[^"]*"|(?<!\S)[^\s@'"]+@[\w.-]+"""
    r"""|(?<![\w-])[\w-]*\d[\w-]*(?:[.,:]\d[\w-]*)*|…)"""
)


def normalise(text: str) -> str:
    """Returns the text without the parts that differ by message: numbers, ids, quotes."""
    return _VARIES.sub(_GAP, text)


def are_alike(one: str, other: str) -> bool:
    """Returns whether two texts belong to one cause."""
    return normalise(one[:_LONGEST]) == normalise(other[:_LONGEST])


@dataclass(frozen=True, slots=True)
class CauseCount:
    """A cause and how many messages had it; ``group`` is its owner, for example a vertex."""

    group: Hashable
    text: str
    count: int


@dataclass(slots=True)
class _Alike:
    """Alike texts: the codes of those that are listed one by one, and the code of the rest."""

    code: int
    apart: dict[str, int] = field(default_factory=dict)
    pieces: list[str] | None = None

    def merge(self, text: str) -> None:
        """Notes where a text differs from the earlier ones."""
        pieces = _VARIES.split(text)
        for known in [self.pieces, *map(_VARIES.split, self.apart)]:
            if known is not None:
                pairs = zip(pieces, known, strict=True)
                pieces = [piece if piece == other else _GAP for piece, other in pairs]
        self.pieces = pieces


class CauseGroups:
    """Assigns each text a code: its own, or that of all alike texts."""

    def __init__(self, most: int = _MOST_GROUPS) -> None:
        self._most = most
        self._alike: dict[tuple[Hashable, str], _Alike] = {}
        self._known: dict[tuple[Hashable, str], int] = {}
        self._codes = 0

    def code(self, group: Hashable, text: str) -> int:
        """Returns the code under which to count a text of a group."""
        text = text[:_LONGEST]
        if (known := self._known.get((group, text))) is not None:
            return known
        key = group, normalise(text)
        if key not in self._alike:
            if len(self._alike) >= self._most and text != _OTHERS:
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
        """Returns the causes for counts by code, the most frequent first."""
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

    def __init__(self, most: int = _MOST_GROUPS) -> None:
        self._groups = CauseGroups(most)
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


MOST_GROUPS = 20
_FOREIGN = ("site-packages", "dist-packages", "/lib/python")
_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_LONGEST_TRACEBACK = 500
# The traceback of an object that is raised repeatedly grows each time.
_MOST_LINES = 200

Key = tuple[str, str | None, str]
"""What alike errors have in common: their kind, their line, and their normalised text."""

_NEVER = datetime.min.replace(tzinfo=UTC)
_TRACES: dict[Key, str | None] = {}
_MOST_TRACES = 100


@dataclass(frozen=True, slots=True)
class Raised:
    """Alike errors. ``where`` is the line of user code as ``file.py:12``, if that is known.

    ``first`` and ``last`` are the times of the first and the last one, if recorded.
    """

    kind: str
    text: str
    where: str | None
    count: int = 1
    message_id: str | None = None
    traceback: str | None = None
    first: datetime | None = None
    last: datetime | None = None

    @classmethod
    def of(cls, error: BaseException, message_id: str | None = None) -> Raised:
        """Returns the group of one error, without its traceback."""
        kind, text = _split(error)
        return cls(kind, text[:_LONGEST_TRACEBACK], _find_line(error), 1, message_id)

    @classmethod
    def of_line(cls, line: str, trace: str = "") -> Raised:
        """Returns the group of an error known only as text, with a line like ``KeyError: 'x'``.

        Without a name in front it is just an ``Error``.
        """
        kind, _, text = line.partition(": ")
        if not kind.isidentifier():
            kind, text = "Error", line
        return cls(kind, text[:_LONGEST_TRACEBACK], find_line_in(trace), 1, None, trace or None)

    @property
    def key(self) -> Key:
        """What it has in common with alike errors."""
        return self.kind, self.where, normalise(self.text)

    def counted(self, other: Raised) -> Raised:
        """Returns the group together with later alike errors."""
        return replace(
            self,
            text=other.text,
            count=self.count + other.count,
            message_id=other.message_id or self.message_id,
            traceback=self.traceback or other.traceback,
            last=other.last or self.last,
        )


class RaisedErrors:
    """The groups of errors that user code has raised: in one chunk, or at a vertex in one run.

    Keeps the newest groups, and counts all errors.
    """

    def __init__(self) -> None:
        self._groups: dict[Key, Raised] = {}
        self._last: tuple[BaseException, Key] | None = None
        self.count = 0

    def __iter__(self) -> Iterator[Raised]:
        return iter(self._groups.values())

    def __bool__(self) -> bool:
        return bool(self._groups)

    def note(self, error: BaseException, message_id: str | None) -> None:
        """Counts an error of a message."""
        # When one call has failed on many messages, this is the same object each time.
        if self._last is not None and self._last[0] is error:
            self.count += 1
            key = self._last[1]
            alike = self._groups[key]
            self._groups[key] = replace(
                alike, count=alike.count + 1, message_id=message_id or alike.message_id
            )
            return
        raised = Raised.of(error, message_id)
        if raised.key not in self._groups:
            raised = replace(raised, traceback=_trace_once(raised.key, error))
        self.add(raised)
        self._last = error, raised.key

    def add(self, raised: Raised, at: datetime | None = None) -> None:
        """Counts alike errors; ``at`` is when they occurred, if that is recorded."""
        self.count += raised.count
        if at is not None:
            raised = replace(raised, first=at, last=at)
        before = self._groups.get(raised.key)
        self._groups[raised.key] = raised if before is None else before.counted(raised)
        self._last = None
        if len(self._groups) > MOST_GROUPS:
            # The first of those with the same time: the newest group is never the one to go.
            groups = self._groups
            del groups[min(groups, key=lambda key: groups[key].last or _NEVER)]

    def newest_first(self) -> list[Raised]:
        """Returns the groups, the most recent first. Safe to call from any thread."""
        groups = reversed(self._groups.copy().values())
        return sorted(groups, key=lambda group: group.last or _NEVER, reverse=True)

    def merge(self, others: RaisedErrors) -> None:
        """Also counts the errors that were raised in a part of the chunk."""
        for raised in others:
            self.add(raised)

    def __getstate__(self) -> dict[str, object]:
        # Without the last error: not every exception can be pickled.
        return {"_groups": self._groups, "_last": None, "count": self.count}


def _split(error: BaseException) -> tuple[str, str]:
    described = describe_error(error)
    kind = error.kind if isinstance(error, SparkError) else type(error).__name__
    for separator in (": ", "("):
        head, found, rest = described.partition(separator)
        if found and isinstance(error, StreamBroken) and head.isidentifier():
            return head, rest.removesuffix(")") if separator == "(" else rest
    return kind, described.removeprefix(f"{kind}: ")


def _trace_once(key: Key, error: BaseException) -> str | None:
    """Returns the traceback of the group, formatted once per process.

    Formatting takes a hundred times as long as the rest.
    """
    if key not in _TRACES:
        if len(_TRACES) >= _MOST_TRACES:
            del _TRACES[next(iter(_TRACES))]
        _TRACES[key] = _trace(error)
    return _TRACES[key]


def _trace(error: BaseException) -> str | None:
    if isinstance(error, StreamBroken):
        return error.trace or None
    return None if isinstance(error, SparkError) else format_traceback(error)


def _find_line(error: BaseException) -> str | None:
    """Returns the innermost line of user code that the error went through, if there is one."""
    if isinstance(error, StreamBroken):
        return find_line_in(error.trace)
    return _choose(list(islice(_lines_of(error.__traceback__), _MOST_LINES)))


def _lines_of(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def find_line_in(trace: str) -> str | None:
    """Returns the innermost line of user code in the text of a traceback, if there is one."""
    return _choose([(name, int(line)) for name, line in _FILE_LINE.findall(trace)])


def _choose(lines: list[tuple[str, int]]) -> str | None:
    theirs = [(name, line) for name, line in lines if not is_own(name)]
    own = [(name, line) for name, line in theirs if not any(part in name for part in _FOREIGN)]
    for name, line in reversed(own or theirs):
        return f"{PurePath(name).name}:{line}"
    return None
