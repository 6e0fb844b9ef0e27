"""Catches what user code prints and logs, and passes it on in whole lines.

Printing never fails and never affects a message: text with any characters is accepted. A line, or a
text printed at once, is cut off after ``LONGEST`` characters, with a note that says so. So printing
cannot fill the memory, either.

Records of ``logging`` keep their level and the name of their logger. If user code gives the root
logger its own handler, what that handler writes is treated like any other print.
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
    """One or more lines of text that a vertex prints; ``logger`` is set for ``logging`` records."""

    text: str
    kind: Kind = "print"
    level: str = "info"
    logger: str = ""


Emit = Callable[[Printed], None]


def cut(text: str, more: int = 0) -> str:
    """Returns the text cut to ``LONGEST``; ``more`` characters have been cut off already."""
    more += max(0, len(text) - LONGEST)
    return f"{text[:LONGEST]}… ({more:,} more characters cut off)" if more else text


@contextmanager
def redirected(emit: Emit) -> Iterator[None]:
    """Passes all that this process prints and logs to ``emit`` while the context lasts."""
    out, err = _Lines(emit, "print"), _Lines(emit, "error")
    _LOGS.open(emit)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        _LOGS.emit_to = None
        out.finish()  # an unfinished line before an exception often explains it
        err.finish()


class _Logs(logging.Handler):
    """The root logger's handler in a process of user code, unless user code sets up its own."""

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
        # Records logged while one is being sent are skipped: sending them would recurse forever.
        if self.emit_to is None or getattr(self._busy, "emitting", False):
            return
        if _is_printed(logging.getLogger(record.name)):
            return
        self._busy.emitting = True
        try:
            text = cut(self.format(record))
            self.emit_to(Printed(text, "log", record.levelname.lower(), record.name))
        except Exception:  # the record cannot be formatted; logging reports it on standard error
            self.handleError(record)
        finally:
            self._busy.emitting = False


def _is_printed(logger: logging.Logger | None) -> bool:
    """Returns whether a handler that user code has added prints the logger's records."""
    while logger is not None:
        streams = (getattr(handler, "stream", None) for handler in logger.handlers)
        if any(isinstance(stream, _Lines) for stream in streams):
            return True
        logger = logger.parent
    return False


_LOGS = _Logs()


class Collected:
    """Printed texts that are kept to be passed on later, up to a bound."""

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
        """Returns all that was kept since the last call, and says how much was cut off."""
        alike = groupby(self._kept, lambda printed: replace(printed, text=""))
        kept = [replace(p, text="\n".join(each.text for each in group)) for p, group in alike]
        lost = [Printed(f"… ({self._lost:,} more lines cut off)")] if self._lost else []
        self._forget()
        return [*kept, *lost]


class _Lines(io.TextIOBase):
    """Passes text on in whole lines, because ``print`` writes a line in several pieces."""

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
        """For programs that user code starts: their output goes to the log of the process."""
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
        """Passes an unfinished line on, if there is one."""
        if self._length or newline:
            text = "".join(self._open)
            self._open, length, self._length = [], self._length, 0
            self._emit(Printed(cut(text, length - len(text)), self._kind))


class _Bytes(io.RawIOBase):
    """The binary side of standard output: bytes that are not text are escaped."""

    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)
