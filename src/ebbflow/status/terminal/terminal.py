"""Standard output and error as a run uses them, and words and numbers as they are shown there.

A reader that closes them does no harm, and no text can move the cursor or change the terminal.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import datetime
from typing import Any, TextIO, cast

from rich.console import Console

from ebbflow.domain.outcome import COUNTERS, Counts
from ebbflow.status.run_report import Watcher

COUNTER_TITLES = {"dead_lettered": "dead letters", "on_success": "on success"}
"""The titles of counters whose names are not plain words."""
_COMPACT_FROM = 10_000_000
_UNKNOWN_WIDTH = 160
# A pipe without a reader, and a terminal that was closed.
_NO_READER = (errno.EPIPE, errno.EIO)


class Display(Watcher):
    """A ``Watcher`` that can be closed. Results are printed to its ``console`` afterwards."""

    console: Console

    def close(self) -> None:
        """Leaves the terminal as it was."""


def console_for(file: TextIO) -> Console:
    """Returns a console; without a terminal, it is wide enough that nothing is cut."""
    return Console(file=file, width=None if file.isatty() else _UNKNOWN_WIDTH, highlight=False)


def is_unread(error: OSError) -> bool:
    """Returns whether a write failed because the reader is gone."""
    return error.errno in _NO_READER


def outlasting(file: TextIO) -> TextIO:
    """Returns the stream in a form that may lose its reader."""
    return cast("TextIO", Outlasting(file))


class Outlasting:
    """A stream that may lose its reader: later writes are then discarded."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Writes, unless the reader has gone."""
        self._try(lambda: self._file.write(text))
        return len(text)

    def flush(self) -> None:
        """Flushes, unless the reader has gone."""
        self._try(self._file.flush)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if not is_unread(error):
                raise
            discard(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def discard(file: TextIO) -> None:
    """Discards later writes, or Python would report the broken pipe once more when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


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


def nonzero(counts: Counts) -> dict[str, int]:
    """Returns the counters that are not zero."""
    return {name: getattr(counts, name) for name in COUNTERS if getattr(counts, name)}


def time_of_day(moment: datetime) -> str:
    """Returns the date and time of this machine's clock, for the start of a line."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
