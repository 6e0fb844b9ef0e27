"""Tables that fit a terminal; the live table of a run, with what needs attention below it.

Names and numbers are shown whole at 80 columns. On narrower terminals the least important column is
left out first. Texts of errors are never in the table, but below it, errors first. ``draw_status``
is pure: it fits a status into a screen of any size. What vertices print appears above the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from ebbflow.domain.durations import format_duration
from ebbflow.domain.outcome import COUNTERS, Counts
from ebbflow.status.ending import describe_parked, list_leftovers
from ebbflow.status.model import Concern, ErrorGroup, PipelineStatus, VertexStatus
from ebbflow.status.terminal.terminal import (
    COUNTER_TITLES,
    Display,
    number,
    one_line,
    outlasting,
)
from ebbflow.streams.logs import LogEntry

_GAP = 2
_LONGEST_NAME = 24
_ALWAYS = ("read", "done", "written")
# Seconds that the oldest message of some vertex has to wait before its age is worth a column.
_SHOWN_AGE = 10.0
_COLOURS = {
    "running": "green",
    "busy": "green",
    "exhausted": "green",
    "ended": "",
    "starting": "dim",
    "paused": "yellow",
    "waiting": "yellow",
    "restarting": "bold red",
    "halted": "bold red",
    "stuck": "bold red",
}
_STYLES = {"error": "red", "warning": "yellow", "info": ""}
_MOST_ERRORS = 3
_FRAME = 3
_LINES_EACH, _BROKEN = 3, 30
_LINKS = {"ui": "web UI", "spark_ui": "Spark's web UI", "metrics": "metrics"}
_CALM = ("running", "busy", "exhausted", "ended")


@dataclass(frozen=True, slots=True)
class VertexColumn:
    """A column: its title, its cells, and its ``worth``; the least are left out first."""

    title: str
    cell: Callable[[VertexStatus], Text]
    worth: int
    is_number: bool = True


def _numbers(read: Callable[[VertexStatus], float]) -> Callable[[VertexStatus], Text]:
    return lambda vertex: Text(number(read(vertex)))


def _counter(name: str) -> Callable[[VertexStatus], Text]:
    return _numbers(lambda vertex: getattr(vertex.counts, name))


def _name(vertex: VertexStatus) -> Text:
    name = vertex.name
    half = _LONGEST_NAME // 2
    return Text(name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}")


def _pending(vertex: VertexStatus) -> Text:
    waiting = max(vertex.pending, vertex.in_flight.messages if vertex.in_flight else 0)
    return Text(f"{'' if vertex.pending_exact else '~'}{number(waiting)}")


def _age(vertex: VertexStatus) -> Text:
    age = vertex.oldest_waiting_seconds
    return Text("" if age is None else format_duration(age))


def _state(vertex: VertexStatus) -> Text:
    return Text(vertex.condition, _COLOURS[vertex.condition])


def live_columns(vertices: Sequence[VertexStatus]) -> list[VertexColumn]:
    """Returns the columns of a run that continues, in their order."""
    counters = _counters(vertex.counts for vertex in vertices)
    shown = {name: _counter(name) for name in counters if name not in _ALWAYS}
    worth = {"dead_lettered": 7, "redelivered": 5}
    is_late = any((v.oldest_waiting_seconds or 0) >= _SHOWN_AGE for v in vertices)
    late = [VertexColumn("oldest", _age, 5)] if is_late else []
    return [
        VertexColumn("vertex", _name, 10, is_number=False),
        VertexColumn("state", _state, 9, is_number=False),
        VertexColumn("rate/s", _numbers(lambda vertex: vertex.rate_in), 6),
        VertexColumn("read", _counter("read"), 8),
        VertexColumn("waiting", _pending, 8),
        *late,
        VertexColumn("parked", _numbers(lambda vertex: vertex.parked.messages), 7),
        VertexColumn("done", _counter("done"), 4),
        VertexColumn("written", _counter("written"), 3),
        *(
            VertexColumn("dead" if name == "dead_lettered" else name, cell, worth.get(name, 2))
            for name, cell in shown.items()
        ),
    ]


def _counters(counted: Iterable[Counts]) -> list[str]:
    """Returns the names of the counters that are shown: the usual ones, and those not zero."""
    counts = list(counted)
    return [n for n in COUNTERS if n in _ALWAYS or any(getattr(each, n) for each in counts)]


def result_table(counted: dict[str, Counts], width: int) -> Table:
    """Returns the table of a run's result: a row per vertex, every counter that is not zero."""
    vertices = [VertexStatus(name, counts=counts) for name, counts in counted.items()]
    columns = [VertexColumn("vertex", lambda v: Text(v.name), 10, is_number=False)]
    worth = {"read": 9, "dead_lettered": 8, "redelivered": 7, "done": 6, "written": 5}
    for name in _counters(counted.values()):
        title = COUNTER_TITLES.get(name, name)
        columns.append(VertexColumn(title, _counter(name), worth.get(name, 3)))
    return draw(vertices, columns, width)


def draw(vertices: Sequence[VertexStatus], columns: list[VertexColumn], width: int) -> Table:
    """Returns a table no wider than ``width``, without the columns that do not fit."""
    cells = {column.title: [column.cell(vertex) for vertex in vertices] for column in columns}
    widths = {t: max(len(t), *(len(cell) for cell in column)) for t, column in cells.items()}
    while len(columns) > 2 and sum(widths[c.title] + _GAP for c in columns) > width:
        least = min(columns, key=lambda column: column.worth)
        columns = [column for column in columns if column is not least]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for column in columns:
        justify = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in range(len(vertices)):
        table.add_row(*(cells[column.title][row] for column in columns))
    return table


# --- remarks ------------------------------------------------------------------------------------


def list_remarks(status: PipelineStatus) -> list[Concern]:
    """Returns everything worth knowing, errors first, otherwise in the order of the vertices."""
    details = [detail for vertex in status.vertices for detail in _details(vertex, status)]
    everything = [*status.problems, *details]
    return sorted(everything, key=lambda concern: [*_STYLES].index(concern.level))


def _details(vertex: VertexStatus, status: PipelineStatus) -> Iterator[Concern]:
    name, at = vertex.name, status.at
    for group in vertex.errors[:_MOST_ERRORS]:
        if group.text not in (vertex.failure or ""):  # which a concern shows
            step = f"See its traceback: ebbflow status {status.pipeline} {name}."
            shown = step if group.traceback else ""
            yield Concern("warning", name, describe_error_group(group), shown)
    if vertex.parked.messages:
        yield Concern("info", name, describe_parked(vertex.parked, at))
    if vertex.nack_reason and not any(g.text in vertex.nack_reason for g in vertex.errors):
        yield Concern("info", name, f"redelivered: {vertex.nack_reason}")


def describe_error_group(group: ErrorGroup) -> str:
    """Returns an error on one line: the line of code, how often it occurred, the last message."""
    first = group.text.partition("\n")[0]
    where = f" ({group.where})" if group.where else ""
    times = f", {group.count:,} times" if group.count > 1 else ""
    last = " last" if group.count > 1 else ""
    which = f",{last} message {group.message_id}" if group.message_id else ""
    return one_line(f"{group.kind}: {first}{where}{times}{which}")


# --- the live table -----------------------------------------------------------------------------


class LiveTable(Display):
    """A display on a terminal, redrawn in place. ``draining`` if the run ends when all is done."""

    def __init__(self, console: Console | None = None, draining: bool = False) -> None:
        self.console = console or Console(file=outlasting(sys.stdout), highlight=False)
        self._draining = draining
        self._title = ""
        self._live: Live | None = None

    @override
    def stage(self, text: str) -> None:
        """Prints a line while there is no table yet; from then on it is the title."""
        self._title = text
        # Not live before: there is nothing to show while Spark starts.
        if text == "running":
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        elif self._live is None:
            self.console.print(f"{text} …", style="dim")

    @override
    def line(self, text: str) -> None:
        """Prints above the table, as it is."""
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    @override
    def log(self, entry: LogEntry) -> None:
        """Prints above the table, with the vertex and with the level if it is a log."""
        printed = entry.printed
        level = f"{printed.level.upper()} " if printed.kind == "log" else ""
        style = {"error": "red", "critical": "red", "warning": "yellow"}.get(printed.level, "")
        for line in printed.text.split("\n"):
            text = Text(f"({entry.vertex}) {level}{line}", style if level else "")
            self.console.print(text, soft_wrap=True)

    @override
    def look(self, status: PipelineStatus) -> None:
        """Redraws the table."""
        if self._live is not None:
            self._live.update(draw_status(status, self.console, self._title, self._draining))

    @override
    def close(self) -> None:
        """Removes the table; the result of the run replaces it."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def draw_status(
    status: PipelineStatus, console: Console, title: str = "", draining: bool = False
) -> RenderableType:
    """Returns the table with everything below it, cut to fit the console."""
    width = console.width
    concerns = [_concern_line(concern, width) for concern in list_remarks(status)]
    waits = _drain_line(status, width) if draining else None
    links = [Text(f"{_LINKS.get(name, name)}: {where}") for name, where in status.links.items()]
    below = [*([waits] if waits else []), *concerns]
    used = _FRAME + bool(title) + len(links)
    room = console.height - used if console.is_terminal else sys.maxsize
    vertices = _fitting(status.vertices, max(3, room - min(len(below), 4)))
    below = _cut_lines(below, room - len(vertices) - (len(vertices) < len(status.vertices)), width)
    more = len(status.vertices) - len(vertices)
    head = [Text(one_line(title), "bold")] if title else []
    hidden = [Text(f"… and {more} more vertices", "dim")] if more else []
    return Group(*head, draw(vertices, live_columns(vertices), width), *hidden, *below, *links)


def _fitting(vertices: Sequence[VertexStatus], most: int) -> list[VertexStatus]:
    """Returns as many vertices as fit, in their order; those in trouble take precedence."""
    if len(vertices) <= most:
        return list(vertices)
    calm_last = sorted(vertices, key=lambda vertex: vertex.condition in _CALM)[: most - 1]
    return [vertex for vertex in vertices if vertex in calm_last]


def _cut_lines(lines: list[Text], room: int, width: int) -> list[Text]:
    """Returns the first lines that fit, some of them several lines high."""
    kept: list[Text] = []
    for place, line in enumerate(lines):
        height = -(-len(line) // width)
        last = place == len(lines) - 1
        if height + (not last) > room:
            return [*kept, Text(f"… and {len(lines) - place} more", "dim")]
        kept.append(line)
        room -= height
    return kept


def _concern_line(concern: Concern, width: int) -> Text:
    line = Text(one_line(str(concern)), _STYLES[concern.level])
    step = one_line(concern.next_step)
    advice = Text(f" → {step}" if step else "", "default")
    # A word that does not fit moves to the next line: less than three whole lines stay three.
    room = width * _LINES_EACH - _BROKEN
    # The description gets at least half of the room; only a longer advice is cut.
    line.truncate(max(room - len(advice), room // 2), overflow="ellipsis")
    line.append_text(advice)
    line.truncate(room, overflow="ellipsis")
    return line


def _drain_line(status: PipelineStatus, width: int) -> Text | None:
    """Returns the vertices that a drain waits for; the lines below say why."""
    left = list_leftovers(status, draining=True)
    if not left:
        return None
    numbers = {each.vertex: f" ({each.messages:,})" if each.messages else "" for each in left}
    words = ", ".join(f"{vertex}{count}" for vertex, count in numbers.items())
    line = Text(one_line(f"--drain waits for {words}"), "bold")
    line.truncate(width * _LINES_EACH - _BROKEN, overflow="ellipsis")
    return line
