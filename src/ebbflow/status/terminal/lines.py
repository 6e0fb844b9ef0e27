"""Lines for files, pipes and logs: news of a run, from one status to the next.

Nothing is redrawn or repeated while it stays the same, except problems, which are reported less and
less often.

What sinks and user code print goes to standard output, everything else to standard error, so that
``ebbflow run … | grep …`` sees only messages. ``PlainLines`` are for people: time, level, vertex,
text. ``JsonLines`` are for programs: an object per line, on both streams.
"""

from __future__ import annotations

import _thread
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from typing_extensions import override

from ebbflow.domain.durations import format_duration
from ebbflow.domain.outcome import Counts
from ebbflow.domain.records import to_plain
from ebbflow.engine.causes import normalise
from ebbflow.status.ending import list_leftovers
from ebbflow.status.model import Concern, ErrorGroup, PipelineStatus, VertexStatus
from ebbflow.status.terminal.table import describe_error_group
from ebbflow.status.terminal.terminal import (
    Display,
    console_for,
    discard,
    is_unread,
    nonzero,
    number,
    one_line,
    outlasting,
    time_of_day,
)
from ebbflow.streams.logs import LogEntry

_FIRST, _EVERY = 2.0, 10.0
# Seconds until a problem that persists is reported for the second time.
_AGAIN = 10.0
_MOST_PATIENT = 600.0
# Seconds without progress after which a drain says what it waits for.
_DRAIN_PATIENCE = 10.0
_BAD = ("restarting", "halted", "waiting", "stuck", "paused")


@dataclass(frozen=True, slots=True)
class NewsItem:
    """One line: how bad it is, what kind of news, about which vertex, and the facts behind it."""

    level: str
    event: str
    vertex: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def _now() -> datetime:
    return datetime.now(UTC)


class PlainLines(Display):
    """A display of lines for people. ``draining`` if the run ends when all is done."""

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

    @override
    def stage(self, text: str) -> None:
        """Prints a line at once."""
        self.report(NewsItem("info", "stage", "", one_line(text)))

    @override
    def line(self, text: str) -> None:
        """Writes to standard output; stops the run in good order if its reader has closed it."""
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

    @override
    def log(self, entry: LogEntry) -> None:
        """Writes prints to standard output, the rest to standard error, each with its vertex."""
        printed = entry.printed
        if printed.kind == "print":
            self.line(entry.with_vertex())
            return
        for line in printed.text.split("\n"):
            self._write(_plain(entry.at, printed.level, entry.vertex, line))

    @override
    def look(self, status: PipelineStatus) -> None:
        """Prints what is new: problems at once, and changed counts now and then."""
        for item in self._news.look(status, self._clock()):
            self.report(item)

    @override
    def close(self) -> None:
        """Does nothing: nothing is open."""

    def report(self, item: NewsItem) -> None:
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
    """A display of JSON objects, one per line, for log collectors."""

    @override
    def line(self, text: str) -> None:
        """Writes each message of a ``log`` sink as an object to standard output."""
        for line in text.split("\n"):
            super().line(_json(self._now(), "info", "message", "", line))

    @override
    def log(self, entry: LogEntry) -> None:
        """Writes prints to standard output, the rest to standard error."""
        text = json.dumps(entry.as_dict(), ensure_ascii=False)
        if entry.printed.kind == "print":
            super().line(text)
        else:
            self._write(text)

    @override
    def report(self, item: NewsItem) -> None:
        """Prints one object about the run."""
        facts = item.facts
        self._write(_json(self._now(), item.level, item.event, item.vertex, item.text, **facts))


def _json(at: datetime, level: str, event: str, vertex: str, text: str, **facts: object) -> str:
    time_ = at.astimezone(UTC).isoformat(timespec="milliseconds")
    named = {"time": time_, "level": level, "event": event}
    place = {"vertex": vertex} if vertex else {}
    return json.dumps(named | place | {"message": text} | facts, ensure_ascii=False, default=str)


# --- news ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reminder:
    """When a problem that persists is to be reported again."""

    what: str = ""
    due: float = 0.0
    wait: float = _AGAIN

    def is_due(self, what: str, now: float) -> bool:
        """Returns whether to report it now: it is new, or its waiting time is over."""
        if what != self.what:
            self.what, self.wait = what, _AGAIN
        elif now < self.due:
            return False
        self.due, self.wait = now + self.wait, min(2 * self.wait, _MOST_PATIENT)
        return True

    def is_over(self) -> bool:
        """Forgets the problem; returns whether there was one."""
        was, self.what = bool(self.what), ""
        return was


@dataclass(slots=True)
class _VertexMemory:
    restarts: int = 0
    bad: _Reminder = field(default_factory=_Reminder)
    call: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    is_pressed: bool = False
    shown: tuple[object, ...] = ()


class RunNews:
    """Remembers what was reported. ``now`` is in seconds, always of the same clock."""

    def __init__(self, began: float, draining: bool = False) -> None:
        self._memories: dict[str, _VertexMemory] = {}
        self._next_numbers = began + _FIRST
        self._draining = draining
        self._drain = _Reminder()
        self._moved: tuple[object, float] = (None, began)

    def look(self, status: PipelineStatus, now: float) -> Iterator[NewsItem]:
        """Yields what is new since the last status; once the run stops, its end has the rest."""
        if status.phase in ("stopping", "ended"):
            return
        for vertex in status.vertices:
            memory = self._memories.setdefault(vertex.name, _VertexMemory())
            yield from _report_condition(vertex, memory, status, now)
            yield from _report_errors(vertex, memory)
            yield from _report_call(vertex, memory)
            yield from _report_pressure(vertex, memory)
        if now >= self._next_numbers:
            self._next_numbers = now + _EVERY
            for vertex in status.vertices:
                yield from _report_numbers(vertex, self._memories[vertex.name])
        if self._draining:
            yield from self._report_drain(status, now)

    def _report_drain(self, status: PipelineStatus, now: float) -> Iterator[NewsItem]:
        """Reports what a drain waits for, if no count has changed for a while."""
        counted = tuple(vertex.counts for vertex in status.vertices)
        if counted != self._moved[0]:
            self._moved = (counted, now)
            self._drain.is_over()
            return
        if now - self._moved[1] < _DRAIN_PATIENCE:
            return
        left = list_leftovers(status, draining=True)
        if left and self._drain.is_due("drain", now):
            words = " | ".join(one_line(str(each)) for each in left)
            facts = {"left": [*map(to_plain, left)]}
            yield NewsItem("info", "drain", "", f"--drain waits for {words}", facts)


def _report_condition(
    vertex: VertexStatus, memory: _VertexMemory, status: PipelineStatus, now: float
) -> Iterator[NewsItem]:
    again = vertex.restarts > memory.restarts
    memory.restarts = vertex.restarts
    if vertex.condition not in _BAD:
        if memory.bad.is_over():
            yield NewsItem("info", "condition", vertex.name, "running again", _facts_of(vertex))
        return
    # Not the words, which may count seconds: only the reason makes it new.
    why = f"{vertex.condition} {vertex.failure or vertex.halted or ''}"
    if memory.bad.is_due(why, now) or again:
        concern = next((c for c in status.problems if c.vertex == vertex.name), None)
        level = concern.level if concern else "warning"
        words = one_line(vertex.words or vertex.condition)
        text = f"{words}{_next_step(concern)}"
        yield NewsItem(level, "condition", vertex.name, text, _facts_of(vertex))


def _next_step(concern: Concern | None) -> str:
    return f" → {one_line(concern.next_step)}" if concern and concern.next_step else ""


def _facts_of(vertex: VertexStatus) -> dict[str, Any]:
    facts = {"condition": vertex.condition, "restarts": vertex.restarts}
    return facts | ({"failure": vertex.failure} if vertex.failure else {})


def _report_errors(vertex: VertexStatus, memory: _VertexMemory) -> Iterator[NewsItem]:
    """Reports new errors and nack reasons at once, and again when there are ten times as many."""
    for key, groups in _by_place(vertex.errors).items():
        group, count = groups[0], sum(group.count for group in groups)
        if count >= 10 * memory.errors.get(key, 0.1):
            memory.errors[key] = count
            group = replace(group, count=count)
            if group.text not in (vertex.failure or ""):  # which the condition has reported
                facts = _error_facts(group)
                yield NewsItem("warning", "error", vertex.name, describe_error_group(group), facts)
    yield from _report_reasons(vertex, memory)


def _report_reasons(vertex: VertexStatus, memory: _VertexMemory) -> Iterator[NewsItem]:
    """Reports why messages are redelivered: similar reasons once, then at ten times as many."""
    counts: Counter[str] = Counter()
    for cause in vertex.nack_reasons:
        if not cause.rest:
            counts[normalise(cause.text)] += cause.count
    for cause in vertex.nack_reasons:
        alike = normalise(cause.text)
        if counts[alike] >= 10 * memory.reasons.get(alike, 0.1):
            memory.reasons[alike] = count = counts[alike]
            times = f" ({count:,} times)" if count > 1 else ""
            text = f"redelivered: {one_line(cause.text)}{times}"
            facts = {"reason": cause.text, "count": count}
            yield NewsItem("info", "redelivered", vertex.name, text, facts)


def _by_place(errors: Sequence[ErrorGroup]) -> dict[tuple[str, str], list[ErrorGroup]]:
    """Returns errors of one kind at one line together, whatever their texts, oldest place first."""
    places: dict[tuple[str, str], list[ErrorGroup]] = {}
    for group in errors:
        places.setdefault((group.kind, group.where or group.text), []).append(group)
    return dict(reversed(places.items()))


def _error_facts(group: ErrorGroup) -> dict[str, Any]:
    return {
        "error": group.kind,
        "where": group.where,
        "count": group.count,
        "message_id": group.message_id,
        "traceback": group.traceback,
    }


def _report_call(vertex: VertexStatus, memory: _VertexMemory) -> Iterator[NewsItem]:
    """Reports a long call when it is first seen, and each time that it is twice as long."""
    if vertex.in_call is None:
        memory.call = 0.0
    elif vertex.in_call >= 2 * memory.call:
        memory.call = vertex.in_call
        text = f"in one call for {format_duration(vertex.in_call)}"
        yield NewsItem("warning", "call", vertex.name, text, {"seconds": vertex.in_call})


def _report_pressure(vertex: VertexStatus, memory: _VertexMemory) -> Iterator[NewsItem]:
    pressure = vertex.back_pressure
    if pressure is not None and not memory.is_pressed:
        text = f"the buffer of {pressure.to} is full; waits for room"
        yield NewsItem("warning", "back-pressure", vertex.name, text, {"to": pressure.to})
    memory.is_pressed = pressure is not None


def _report_numbers(vertex: VertexStatus, memory: _VertexMemory) -> Iterator[NewsItem]:
    """Reports the numbers of a vertex if they have changed since the last report."""
    waiting = max(vertex.pending, vertex.in_flight.messages if vertex.in_flight else 0)
    numbers = {"waiting": waiting, "parked": vertex.parked.messages}
    now: tuple[object, ...] = (vertex.counts, *numbers.values())
    if now == memory.shown or (not memory.shown and now == (Counts(), 0, 0)):
        return
    memory.shown = now
    counted = nonzero(vertex.counts) | {name: n for name, n in numbers.items() if n}
    words = " ".join(f"{name}={count}" for name, count in counted.items())
    facts = vertex.counts.as_dict() | numbers
    rates = {"rate_in": round(vertex.rate_in, 1), "rate_out": round(vertex.rate_out, 1)}
    text = f"{number(vertex.rate_in)}/s {words}"
    yield NewsItem("info", "progress", vertex.name, text, facts | rates)
