"""The display of a run while it lasts, and of its end.

A live table on a terminal, plain lines elsewhere, JSON lines for those who ask for them: all of
them views of one ``PipelineStatus``. Vertices print through the NATS thread and the run speaks from
the main thread; both may call at any time. A terminal that is closed meanwhile does not keep a run
from ending in good order. Builders and the command line import it. Start with ``lines``.
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

    Without a format the table is for a terminal, and plain lines for everything else.
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
