"""Catches what user code prints and logs, and hands it on in whole lines.

Printing never fails and never decides about a message: any text is taken, whatever characters it
has. Of one line, or of one text printed at once, more than ``LONGEST`` characters are cut off, and
the rest says so. Thus nothing that is printed can fill the memory, either.

What goes through ``logging`` keeps its level and the name of its logger. Code that gives the root
logger its own handler shows its logs in its own way: they are then prints like any other.
"""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

LONGEST = 256 * 1024
LOG_LEVEL = "EBBFLOW_LOG_LEVEL"
"""The variable of workers and of sources' processes that names the lowest level to be shown."""
_STANDARD_ERROR = 2

Kind = Literal["message", "print", "error", "log"]
"""A message of a ``log`` sink, standard output, standard error, or ``logging``."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A text of one or more lines that a vertex prints; ``logger`` if it came by ``logging``."""

    text: str
    kind: Kind = "print"
    level: str = "info"
    logger: str = ""


Emit = Callable[[Printed], None]


def cut(text: str, more: int = 0) -> str:
    """Returns the text without what is too much of it; ``more`` characters are gone already."""
    more += max(0, len(text) - LONGEST)
    return f"{text[:LONGEST]}… ({more:,} more characters cut off)" if more else text


@contextmanager
def redirected(emit: Emit) -> Iterator[None]:
    """Gives ``emit`` all that is printed and logged in this process while the context lasts."""
    out, err = _Lines(emit, "print"), _Lines(emit, "error")
    _LOGS.open(emit)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        _LOGS.emit_to = None
        out.finish()  # the last line before an exception says most about it
        err.finish()


class _Logs(logging.Handler):
    """The handler of the root logger in a process of user code, if that sets up none itself."""

    def __init__(self) -> None:
        super().__init__()
        self.emit_to: Emit | None = None
        self._busy = threading.local()

    def open(self, emit: Emit) -> None:
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(self)
            root.setLevel(os.environ.get(LOG_LEVEL, "info").upper())
        self.emit_to = emit

    def emit(self, record: logging.LogRecord) -> None:
        # What sending a log may log itself is not sent: it would never end.
        if self.emit_to is None or getattr(self._busy, "emitting", False):
            return
        if _is_printed(logging.getLogger(record.name)):
            return
        self._busy.emitting = True
        try:
            text = cut(self.format(record))
            self.emit_to(Printed(text, "log", record.levelname.lower(), record.name))
        except Exception:  # a text that cannot be formatted: logging says so on standard error
            self.handleError(record)
        finally:
            self._busy.emitting = False


def _is_printed(logger: logging.Logger | None) -> bool:
    """Returns whether a handler that user code has added prints what the logger gets."""
    while logger is not None:
        streams = (getattr(handler, "stream", None) for handler in logger.handlers)
        if any(isinstance(stream, _Lines) for stream in streams):
            return True
        logger = logger.parent
    return False


_LOGS = _Logs()


class Collected:
    """Printed texts that are kept to be handed on later, up to a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._forget()

    def _forget(self) -> None:
        self._room = self._most
        self._kept: list[Printed] = []
        self._lost = 0

    def add(self, printed: Printed) -> None:
        """Keeps the lines if there is room."""
        if len(printed.text) > self._room:
            self._lost += printed.text.count("\n") + 1
            return
        self._room -= len(printed.text)
        self._kept.append(printed)

    def take(self) -> list[Printed]:
        """Returns all that was kept since the last time, and says how much was cut off."""
        alike = groupby(self._kept, lambda printed: replace(printed, text=""))
        kept = [replace(p, text="\n".join(each.text for each in group)) for p, group in alike]
        lost = [Printed(f"… ({self._lost:,} more lines cut off)")] if self._lost else []
        self._forget()
        return [*kept, *lost]


class _Lines(io.TextIOBase):
    """Text is handed on in whole lines, as ``print`` writes a line in several pieces."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, emit: Emit, kind: Kind) -> None:
        self._emit = emit
        self._kind = kind
        self._open: list[str] = []
        self._length = 0
        self.buffer = _Bytes(self.write)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """For programs that user code starts: what they print goes to the log of the process."""
        return _STANDARD_ERROR

    def write(self, text: str) -> int:
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._add(whole)
            self.finish(newline)
        self._add(rest)
        return len(text)

    def _add(self, text: str) -> None:
        if room := max(0, LONGEST - self._length):
            self._open.append(text[:room])
        self._length += len(text)

    def finish(self, newline: str = "") -> None:
        """Hands on what there is of a line, if anything."""
        if self._length or newline:
            text = "".join(self._open)
            self._open, length, self._length = [], self._length, 0
            self._emit(Printed(cut(text, length - len(text)), self._kind))


class _Bytes(io.RawIOBase):
    """The binary side of standard output: what is not text is shown escaped."""

    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)
