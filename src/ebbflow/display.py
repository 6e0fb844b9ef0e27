"""The display of a run while it goes on: a live table on a terminal, plain lines elsewhere.

On a terminal what vertices print appears above the table. Elsewhere only that goes to standard
output and everything about the run goes to standard error, so ``ebbflow run … | grep …`` sees
messages and nothing else. Vertices print through the NATS thread and the run speaks from the main
thread; both may call at any time. A terminal that is closed meanwhile does not keep a run from
ending in good order.
"""

from __future__ import annotations

import _thread
import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ebbflow.outcome import COUNTERS, Counts

if TYPE_CHECKING:
    from ebbflow.buffers.logs import LogEntry
    from ebbflow.core.outage import Waiting
    from ebbflow.nats.publish import Tally
    from ebbflow.status.model import PipelineStatus, VertexStatus

_EVERY = 2.0
_RATE_OVER = 3.0
# Seconds after which a vertex that still waits is announced again, at first.
_STUCK_EVERY = 5.0
_UNKNOWN_WIDTH = 160
# A pipe without a reader, and a terminal that was closed.
_NOBODY_READS = (errno.EPIPE, errno.EIO)
_ALWAYS = ("read", "done", "written")
_TITLES = {"dead_lettered": "dead letters", "on_success": "on success"}


class Display(Protocol):
    """A ``Watcher`` that can be closed. Results are printed to its ``console`` afterwards."""

    console: Console

    def stage(self, text: str) -> None:
        """Shows that the run starts or stops something."""

    def line(self, text: str) -> None:
        """Shows a line that a vertex has printed; called from another thread."""

    def log(self, entry: LogEntry) -> None:
        """Shows what user code has printed or logged; called from another thread."""

    def look(self, status: PipelineStatus) -> None:
        """Shows the state of all vertices."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


@contextmanager
def open_display(plain: bool = False) -> Iterator[Display]:
    """Shows a run in the way that suits standard output, for as long as the context lasts."""
    display: Display = PlainLines() if plain or not sys.stdout.isatty() else LiveTable()
    try:
        yield display
    finally:
        display.close()


def console_for(file: TextIO) -> Console:
    """Returns a console; without a terminal, it is wide enough to cut nothing off."""
    return Console(file=file, width=None if file.isatty() else _UNKNOWN_WIDTH, highlight=False)


class Rates:
    """The rates at which vertices read, in messages a second over the last few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def update(self, vertex: str, read: int) -> float:
        """Takes note of how many have been read by now; returns the present rate."""
        now = self._clock()
        seen = self._seen.setdefault(vertex, deque())
        seen.append((now, read))
        while len(seen) > 2 and now - seen[1][0] >= _RATE_OVER:
            seen.popleft()
        then, before = seen[0]
        return (read - before) / (now - then) if now > then else 0.0


class LiveTable:
    """One row a vertex, redrawn in place; what vertices print goes above it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=_outlasting(sys.stdout), highlight=False)
        self._rates = Rates()
        self._title = ""
        self._live: Live | None = None

    def stage(self, text: str) -> None:
        """Prints a line while there is no table yet; from then on it is the title."""
        self._title = text
        # Not live before: there is nothing to show while Spark starts.
        if text == "running":
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        elif self._live is None:
            self.console.print(f"{text} …", style="dim")

    def line(self, text: str) -> None:
        """Prints above the table, as it is."""
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def log(self, entry: LogEntry) -> None:
        """Prints above the table, with the vertex."""
        self.line(entry.with_vertex())

    def look(self, status: PipelineStatus) -> None:
        """Redraws the table."""
        if self._live is not None:
            self._live.update(self._table(status))

    def close(self) -> None:
        """Takes the table away; the result of the run takes its place."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self, status: PipelineStatus) -> Table:
        table, names = counts_table({v.name: v.counts for v in status.vertices}, self._title)
        table.add_column("rate/s", justify="right", no_wrap=True)
        table.add_column("state and last nack reason", overflow="ellipsis", no_wrap=True)
        for view in status.vertices:
            rate = self._rates.update(view.name, view.counts.read)
            table.add_row(*_cells(view.name, view.counts, names), f"{rate:,.0f}", _words(view))
        return table


def counts_table(counted: Mapping[str, Counts], title: str = "") -> tuple[Table, list[str]]:
    """Returns a table with a column for every counter that is not zero, and their names."""
    names = [
        name
        for name in COUNTERS
        if name in _ALWAYS or any(getattr(counts, name) for counts in counted.values())
    ]
    table = Table(title=title, title_justify="left")
    table.add_column("vertex", no_wrap=True)
    for name in names:
        table.add_column(_TITLES.get(name, name), justify="right", no_wrap=True)
    return table, names


def result_table(counted: Mapping[str, Counts]) -> Table:
    """Returns the table of a run's result, one row per vertex."""
    table, names = counts_table(counted)
    for vertex, counts in counted.items():
        table.add_row(*_cells(vertex, counts, names))
    return table


def _cells(vertex: str, counts: Counts, names: list[str]) -> list[str]:
    return [vertex, *(f"{getattr(counts, name):,}" for name in names)]


def _words(view: VertexStatus) -> Text:
    words = Text(state_of(view), "red" if view.failure else "green")
    return words.append(f"; {one_line(view.nack_reason)}", "") if view.nack_reason else words


def state_of(view: VertexStatus) -> str:
    """Returns in words whether a vertex runs, waits or was stopped, and why."""
    if view.halted:
        return one_line(f"stopped taking messages until it is resumed: {view.halted}")
    if view.waiting:
        return one_line(waiting_words(view.waiting))
    if view.failure:
        # A source that is fed on the driver fails and begins again without its vertex.
        count = f" (restart {view.restarts})" if view.restarts else ""
        return one_line(f"restarting{count}: {view.failure}")
    running = f"running, {view.restarts} restarts" if view.restarts else "running"
    calling = [f"in a call for {view.in_call:.0f} s"] if view.in_call else []
    waiting = [f"{view.source_pending:,} waiting at the source"] if view.source_pending else []
    return ", ".join([running, *calling, *waiting, *_troubles(view.publishing)])


def waiting_words(waiting: Waiting) -> str:
    """Returns in words what a vertex waits for, since when, and when it tries again."""
    times = f"since {waiting.seconds:.0f} s, next try in {waiting.next_in:.0f} s"
    if not waiting.certain:
        return f"stopped taking messages: all of them fail alike: {waiting.what}; {times}"
    what = waiting.what if waiting.named else f"a system that is away ({waiting.what})"
    return f"waiting for {what}, {times}"


def _troubles(tally: Tally) -> list[str]:
    """Returns in words what publishing has met with, apart from success."""
    met = {
        "without a stream": tally.no_responders,
        "unanswered": tally.unanswered,
        "at a full buffer": tally.full,
        f"refused ({one_line(tally.refusal)})": tally.refused,
    }
    return [f"{number:,} times {what}" for what, number in met.items() if number]


def one_line(text: str) -> str:
    """Returns the text without anything that could move the cursor or change the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class PlainLines:
    """Lines for files, pipes and logs: nothing is repeated, nothing is redrawn."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out or sys.stdout
        self._err = _outlasting(err or sys.stderr)
        self.console = console_for(self._err)
        self._clock = clock
        self._began = self._shown_at = clock()
        self._progress = ""
        self._restarts: dict[str, int] = {}
        self._failures: dict[str, str | None] = {}
        self._reasons: dict[str, str] = {}
        self._stuck: dict[str, tuple[str, float]] = {}
        self._call_shown: dict[str, float] = {}
        self._reader_gone = False
        self._lock = threading.Lock()

    def stage(self, text: str) -> None:
        """Prints a line at once."""
        self._tell(text)

    def line(self, text: str) -> None:
        """Writes to standard output; stops the run in good order when nobody reads any more."""
        with self._lock:
            if self._reader_gone:
                return
            try:
                self._out.write(f"{text}\n")
                self._out.flush()
            except OSError as error:
                if error.errno not in _NOBODY_READS:
                    raise
                self._reader_gone = True
                _discard(self._out)
                _thread.interrupt_main()

    def log(self, entry: LogEntry) -> None:
        """Writes prints to standard output, the rest to standard error, each with its vertex."""
        if entry.printed.kind == "print":
            self.line(entry.with_vertex())
        else:
            self._tell(entry.with_vertex())

    def look(self, status: PipelineStatus) -> None:
        """Prints new failures and nack reasons at once, and changed counts now and then."""
        for view in status.vertices:
            vertex = view.name
            self._tell_stuck(vertex, view)
            if self._is_news(vertex, view):
                self._tell(f"{vertex}: {state_of(view)}")
            if view.nack_reason and view.nack_reason != self._reasons.get(vertex):
                self._reasons[vertex] = view.nack_reason
                self._tell(f"{vertex}: redelivered: {one_line(view.nack_reason)}")
            self._look_at_call(vertex, view)
        counted = {view.name: _nonzero(view.counts) for view in status.vertices}
        progress = "  ".join(f"{vertex}: {text}" for vertex, text in counted.items() if text)
        if progress != self._progress and self._clock() - self._shown_at >= _EVERY:
            self._progress, self._shown_at = progress, self._clock()
            self._tell(progress)

    def _tell_stuck(self, vertex: str, view: VertexStatus) -> None:
        """Tells of a vertex that waits or was stopped: at once, ever less often, and of the end."""
        stuck = view.halted or (view.waiting and "waiting") or ""
        before, due = self._stuck.get(vertex, ("", 0.0))
        if before and not stuck:
            self._tell(f"{vertex}: running again")
        elif stuck and (stuck != before or self._clock() >= due):
            self._tell(f"{vertex}: {state_of(view)}")
            waited = view.waiting.seconds if view.waiting else 60.0
            due = self._clock() + max(_STUCK_EVERY, waited)
        self._stuck[vertex] = (stuck, due)

    def _is_news(self, vertex: str, view: VertexStatus) -> bool:
        """Returns whether the vertex was started again, or fails for another reason than it did."""
        failure = None if view.waiting or view.halted else view.failure
        restarts, before = self._restarts.get(vertex, 0), self._failures.get(vertex)
        self._restarts[vertex], self._failures[vertex] = view.restarts, failure
        return view.restarts > restarts or failure not in (None, before)

    def _look_at_call(self, vertex: str, view: VertexStatus) -> None:
        """Tells of a long call when it is first seen, and each time that it is twice as long."""
        if view.in_call is None:
            self._call_shown.pop(vertex, None)
        elif view.in_call >= 2 * self._call_shown.get(vertex, 0.0):
            self._call_shown[vertex] = view.in_call
            self._tell(f"{vertex}: {state_of(view)}")

    def close(self) -> None:
        """Does nothing: nothing is open."""

    def _tell(self, text: str) -> None:
        with self._lock:
            self._err.write(f"{self._clock() - self._began:7.1f} s  {text}\n")
            self._err.flush()


def _nonzero(counts: Counts) -> str:
    shown = [f"{name}={number}" for name, number in counts.as_dict().items() if number]
    return " ".join(shown)


class Outlasting:
    """A stream that may lose its reader: then what is written goes nowhere."""

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
            if error.errno not in _NOBODY_READS:
                raise
            _discard(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _outlasting(file: TextIO) -> TextIO:
    return cast("TextIO", Outlasting(file))


def _discard(file: TextIO) -> None:
    """Lets later writes go nowhere, or Python complains about the pipe once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)
