"""The display of a run while it lasts, and of its end.

A live table on a terminal, plain lines elsewhere, JSON lines on request: all are views of one
``PipelineStatus``. The NATS thread prints the output of vertices, and the main thread the reports
of the run; both may call at any time. Closing the terminal does not keep a run from ending in good
order. Builders and the command line import it. Start with ``lines``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ebbflow.status.terminal.lines import JsonLines, PlainLines
from ebbflow.status.terminal.table import LiveTable
from ebbflow.status.terminal.terminal import Display, console_for, one_line

LogFormat = Literal["plain", "json"]


@contextmanager
def open_display(log: LogFormat | None = None, draining: bool = False) -> Iterator[Display]:
    """Shows a run for as long as the context lasts: as a table, or in lines of a format.

    Without a format, a terminal shows the table, and everything else plain lines.
    """
    display: Display
    if log == "json":
        display = JsonLines(draining=draining)
    elif log == "plain" or not sys.stdout.isatty():
        display = PlainLines(draining=draining)
    else:
        display = LiveTable(draining=draining)
    try:
        yield display
    finally:
        display.close()


__all__ = ["Display", "LogFormat", "console_for", "one_line", "open_display"]
