"""The end of a run on a terminal, in plain lines or as JSON: counts, what is left, what is next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ebbflow.status.terminal.columns import result_table
from ebbflow.status.terminal.lines import JsonLines
from ebbflow.status.terminal.news import NewsItem
from ebbflow.status.terminal.words import one_line

if TYPE_CHECKING:
    from ebbflow.status.run_report import Summary
    from ebbflow.status.terminal import Display


def show_end(display: Display, summary: Summary, where: str = "") -> None:
    """Shows how a run has ended. ``where`` are options that lead a command to the pipeline."""
    lines = [one_line(line) for line in summary.describe(where)]
    if isinstance(display, JsonLines):
        level = "info" if summary.ended in ("drained", "stopped") else "error"
        display.tell(NewsItem(level, "end", "", " ".join(lines), summary.facts()))
        return
    console = display.console
    console.print(result_table(summary.vertices, console.width))
    console.print()
    for line in lines:
        console.print(Text(line, _style(line)), soft_wrap=True)


def _style(line: str) -> str:
    return "bold red" if line.startswith(("Not drained", "Does not add up", "Failed")) else ""
