"""The columns of a table of vertices: as many as there is room for, and none of them cut.

Names and numbers are shown whole at 80 columns. Of what does not fit, the least telling column is
left out first; the text of errors is never in the table, but below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ebbflow.domain.outcome import COUNTERS, Counts
from ebbflow.status.leftovers import duration
from ebbflow.status.model import VertexStatus
from ebbflow.status.terminal.words import COUNTER_TITLES, number

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


@dataclass(frozen=True, slots=True)
class VertexColumn:
    """A column: its title, its cells, and how much it tells; those that tell least go first."""

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
    waiting = max(vertex.pending, vertex.in_hand.messages if vertex.in_hand else 0)
    return Text(f"{'' if vertex.pending_exact else '~'}{number(waiting)}")


def _age(vertex: VertexStatus) -> Text:
    age = vertex.oldest_waiting_seconds
    return Text("" if age is None else duration(age))


def _state(vertex: VertexStatus) -> Text:
    return Text(vertex.condition, _COLOURS[vertex.condition])


def live_columns(vertices: Sequence[VertexStatus]) -> list[VertexColumn]:
    """Returns the columns of a run that goes on, in their order."""
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
    """Returns the table of a run's result, one row a vertex, every counter that is not zero."""
    vertices = [VertexStatus(name, counts=counts) for name, counts in counted.items()]
    columns = [VertexColumn("vertex", lambda v: Text(v.name), 10, is_number=False)]
    worth = {"read": 9, "dead_lettered": 8, "redelivered": 7, "done": 6, "written": 5}
    for name in _counters(counted.values()):
        title = COUNTER_TITLES.get(name, name)
        columns.append(VertexColumn(title, _counter(name), worth.get(name, 3)))
    return draw(vertices, columns, width)


def draw(vertices: Sequence[VertexStatus], columns: list[VertexColumn], width: int) -> Table:
    """Returns a table no wider than this, without the columns that there is no room for."""
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
