"""The live table: a row a vertex with its numbers, and below it what a person should know.

``draw_status`` is pure: it fits a status into a screen of any size. What vertices print appears
above the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ebbflow.status.leftovers import list_leftovers
from ebbflow.status.model import PipelineStatus, VertexStatus
from ebbflow.status.terminal.columns import draw, live_columns
from ebbflow.status.terminal.remarks import Remark, list_remarks
from ebbflow.status.terminal.terminal import outlasting
from ebbflow.status.terminal.words import one_line
from ebbflow.streams.logs import LogEntry

_FRAME = 3
_LINES_EACH, _BROKEN = 3, 30
_LINKS = {"ui": "page", "spark_ui": "Spark's own pages", "metrics": "metrics"}
_CALM = ("running", "busy", "exhausted", "ended")


class LiveTable:
    """A display on a terminal, redrawn in place. ``draining`` if the run ends when all is done."""

    def __init__(self, console: Console | None = None, draining: bool = False) -> None:
        self.console = console or Console(file=outlasting(sys.stdout), highlight=False)
        self._draining = draining
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
        """Prints above the table, with the vertex and with the level if it is a log."""
        printed = entry.printed
        level = f"{printed.level.upper()} " if printed.kind == "log" else ""
        style = {"error": "red", "critical": "red", "warning": "yellow"}.get(printed.level, "")
        for line in printed.text.split("\n"):
            text = Text(f"({entry.vertex}) {level}{line}", style if level else "")
            self.console.print(text, soft_wrap=True)

    def look(self, status: PipelineStatus) -> None:
        """Redraws the table."""
        if self._live is not None:
            self._live.update(draw_status(status, self.console, self._title, self._draining))

    def close(self) -> None:
        """Takes the table away; the result of the run takes its place."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def draw_status(
    status: PipelineStatus, console: Console, title: str = "", draining: bool = False
) -> RenderableType:
    """Returns the table with everything below it, cut to what the console has room for."""
    width = console.width
    remarks = [_remark_line(remark, width) for remark in list_remarks(status)]
    waits = _drain_line(status, width) if draining else None
    links = [Text(f"{_LINKS.get(name, name)}: {where}") for name, where in status.links.items()]
    below = [*([waits] if waits else []), *remarks]
    used = _FRAME + bool(title) + len(links)
    room = console.height - used if console.is_terminal else sys.maxsize
    vertices = _fitting(status.vertices, max(3, room - min(len(below), 4)))
    below = _cut_lines(below, room - len(vertices) - (len(vertices) < len(status.vertices)), width)
    more = len(status.vertices) - len(vertices)
    head = [Text(one_line(title), "bold")] if title else []
    hidden = [Text(f"… and {more} more vertices", "dim")] if more else []
    return Group(*head, draw(vertices, live_columns(vertices), width), *hidden, *below, *links)


def _fitting(vertices: Sequence[VertexStatus], most: int) -> list[VertexStatus]:
    """Returns as many vertices as there is room for; those in trouble first, in their order."""
    if len(vertices) <= most:
        return list(vertices)
    calm_last = sorted(vertices, key=lambda vertex: vertex.condition in _CALM)[: most - 1]
    return [vertex for vertex in vertices if vertex in calm_last]


def _cut_lines(lines: list[Text], room: int, width: int) -> list[Text]:
    """Returns the first lines that there is room for, some of them several lines high."""
    kept: list[Text] = []
    for number, line in enumerate(lines):
        height = -(-len(line) // width)
        last = number == len(lines) - 1
        if height + (not last) > room:
            return [*kept, Text(f"… and {len(lines) - number} more", "dim")]
        kept.append(line)
        room -= height
    return kept


def _remark_line(remark: Remark, width: int) -> Text:
    who = f"{remark.vertex}: " if remark.vertex else ""
    line = Text(f"{who}{remark.text}", remark.style)
    advice = Text(f" → {remark.next_step}" if remark.next_step else "", "default")
    # A word that does not fit moves to the next line: less than three whole lines stay three.
    room = width * _LINES_EACH - _BROKEN
    # Half of the room is the description's at least; the advice loses its end only beyond that.
    line.truncate(max(room - len(advice), room // 2), overflow="ellipsis")
    line.append_text(advice)
    line.truncate(room, overflow="ellipsis")
    return line


def _drain_line(status: PipelineStatus, width: int) -> Text | None:
    """Returns where a drain has something to wait for; why, the remarks say."""
    left = list_leftovers(status, draining=True)
    if not left:
        return None
    numbers = {each.vertex: f" ({each.messages:,})" if each.messages else "" for each in left}
    words = ", ".join(f"{vertex}{count}" for vertex, count in numbers.items())
    line = Text(one_line(f"--drain waits for {words}"), "bold")
    line.truncate(width * _LINES_EACH - _BROKEN, overflow="ellipsis")
    return line
