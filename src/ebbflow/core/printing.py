"""Catches what user code prints and hands it on in whole lines.

Printing never fails and never decides about a message: any text is taken, whatever characters it
has. Of one line, or of one text printed at once, more than ``LONGEST`` characters are cut off, and
the rest says so. Thus nothing that is printed can fill the memory, either.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

LONGEST = 256 * 1024
_STANDARD_ERROR = 2


def cut(text: str, more: int = 0) -> str:
    """Returns the text without what is too much of it; ``more`` characters are gone already."""
    more += max(0, len(text) - LONGEST)
    return f"{text[:LONGEST]}… ({more:,} more characters cut off)" if more else text


@contextmanager
def redirected(emit: Callable[[str], None]) -> Iterator[None]:
    """Gives ``emit`` everything that is printed in this process while the context lasts."""
    lines = _Lines(emit)
    try:
        with redirect_stdout(lines), redirect_stderr(lines):
            yield
    finally:
        lines.finish()  # the last line before an exception says most about it


class Collected:
    """Printed text that is kept to be handed on later, up to a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._forget()

    def _forget(self) -> None:
        self._room = self._most
        self._kept: list[str] = []
        self._lost = 0

    def add(self, text: str) -> None:
        """Keeps the lines if there is room."""
        if len(text) > self._room:
            self._lost += text.count("\n") + 1
            return
        self._room -= len(text)
        self._kept.append(text)

    def take(self) -> str:
        """Returns all that was kept since the last time, and says how much was cut off."""
        lost = [f"… ({self._lost:,} more lines cut off)"] if self._lost else []
        text = "\n".join([*self._kept, *lost])
        self._forget()
        return text


class _Lines(io.TextIOBase):
    """Text is handed on in whole lines, as ``print`` writes a line in several pieces."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
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
            self._emit(cut(text, length - len(text)))


class _Bytes(io.RawIOBase):
    """The binary side of standard output: what is no text is shown escaped."""

    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)
