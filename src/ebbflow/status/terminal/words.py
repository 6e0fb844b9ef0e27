"""Words and numbers as people read them in a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ebbflow.domain.outcome import COUNTERS, Counts

COUNTER_TITLES = {"dead_lettered": "dead letters", "on_success": "on success"}
"""The titles of counters whose names are not those that people use."""
_COMPACT_FROM = 10_000_000


def one_line(text: str) -> str:
    """Returns the text without anything that could move the cursor or change the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def number(count: float) -> str:
    """Returns a count in at most nine characters."""
    if count < _COMPACT_FROM:
        return f"{count:,.0f}"
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:,.1f}{unit}"
    return f"{count:,.0f}"


def plural(count: int, noun: str) -> str:
    """Returns a number with its noun: 1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """Returns words as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def nonzero(counts: Counts) -> dict[str, int]:
    """Returns the counters that have counted something."""
    return {name: getattr(counts, name) for name in COUNTERS if getattr(counts, name)}


def time_of_day(moment: datetime) -> str:
    """Returns the date and time of this machine's clock, for the start of a line."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
