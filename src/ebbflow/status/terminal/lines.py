"""Lines for files, pipes and logs: nothing is repeated, nothing is redrawn.

What sinks and user code print goes to standard output, everything else to standard error, so that
``ebbflow run … | grep …`` sees messages and nothing else. ``PlainLines`` are for people: time,
level, vertex, text. ``JsonLines`` are for programs: an object a line, on both streams.
"""

from __future__ import annotations

import _thread
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from ebbflow.status.model import PipelineStatus
from ebbflow.status.terminal.news import NewsItem, RunNews
from ebbflow.status.terminal.terminal import console_for, discard, is_unread, outlasting
from ebbflow.status.terminal.words import one_line, time_of_day
from ebbflow.streams.logs import LogEntry


def _now() -> datetime:
    return datetime.now(UTC)


class PlainLines:
    """A display of lines that people read. ``draining`` if the run ends when all is done."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        draining: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._out = out or sys.stdout
        self._err = outlasting(err or sys.stderr)
        self.console = console_for(self._err)
        self._clock = clock
        self._now = now
        self._news = RunNews(clock(), draining)
        self._reader_gone = False
        self._lock = threading.Lock()

    def stage(self, text: str) -> None:
        """Prints a line at once."""
        self.tell(NewsItem("info", "stage", "", one_line(text)))

    def line(self, text: str) -> None:
        """Writes to standard output; stops the run in good order when nobody reads any more."""
        with self._lock:
            if self._reader_gone:
                return
            try:
                self._out.write(f"{text}\n")
                self._out.flush()
            except OSError as error:
                if not is_unread(error):
                    raise
                self._reader_gone = True
                discard(self._out)
                _thread.interrupt_main()

    def log(self, entry: LogEntry) -> None:
        """Writes prints to standard output, the rest to standard error, each with its vertex."""
        printed = entry.printed
        if printed.kind == "print":
            self.line(entry.with_vertex())
            return
        for line in printed.text.split("\n"):
            self._write(_plain(entry.at, printed.level, entry.vertex, line))

    def look(self, status: PipelineStatus) -> None:
        """Prints what is new: troubles at once, and changed counts now and then."""
        for item in self._news.look(status, self._clock()):
            self.tell(item)

    def close(self) -> None:
        """Does nothing: nothing is open."""

    def tell(self, item: NewsItem) -> None:
        """Prints one line about the run."""
        self._write(_plain(self._now(), item.level, item.vertex, item.text))

    def _write(self, line: str) -> None:
        with self._lock:
            self._err.write(f"{line}\n")
            self._err.flush()


def _plain(at: datetime, level: str, vertex: str, text: str) -> str:
    who = f"{vertex}: " if vertex else ""
    return f"{time_of_day(at)} {level.upper():<7} {who}{text}"


class JsonLines(PlainLines):
    """A display of JSON objects, one a line, for those who collect logs."""

    def line(self, text: str) -> None:
        """Writes each message of a ``log`` sink as an object to standard output."""
        for line in text.split("\n"):
            super().line(_json(self._now(), "info", "message", "", line))

    def log(self, entry: LogEntry) -> None:
        """Writes prints to standard output, the rest to standard error."""
        text = json.dumps(entry.as_dict(), ensure_ascii=False)
        if entry.printed.kind == "print":
            super().line(text)
        else:
            self._write(text)

    def tell(self, item: NewsItem) -> None:
        """Prints one object about the run."""
        facts = item.facts
        self._write(_json(self._now(), item.level, item.event, item.vertex, item.text, **facts))


def _json(at: datetime, level: str, event: str, vertex: str, text: str, **facts: object) -> str:
    time_ = at.astimezone(UTC).isoformat(timespec="milliseconds")
    named = {"time": time_, "level": level, "event": event}
    whose = {"vertex": vertex} if vertex else {}
    return json.dumps(named | whose | {"message": text} | facts, ensure_ascii=False, default=str)
