"""What user code prints, caught and handed on in whole lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def redirected(emit: Callable[[str], None]) -> Iterator[None]:
    """Give ``emit`` everything that is printed in this process while the context lasts."""
    lines = _Lines(emit)
    with redirect_stdout(lines), redirect_stderr(lines):
        yield
    lines.finish()


class _Lines(io.TextIOBase):
    """Text is handed on in whole lines, as ``print`` writes a line in several pieces."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._open = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        whole, newline, self._open = (self._open + text).rpartition("\n")
        if newline:
            self._emit(whole)
        return len(text)

    def finish(self) -> None:
        """Hand on a last line without an end."""
        if self._open:
            self._emit(self._open)
