"""Standard output and error as a run uses them: a reader that goes away breaks nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console

_UNKNOWN_WIDTH = 160
# A pipe without a reader, and a terminal that was closed.
_NOBODY_READS = (errno.EPIPE, errno.EIO)


def console_for(file: TextIO) -> Console:
    """Returns a console; without a terminal, it is wide enough to cut nothing off."""
    return Console(file=file, width=None if file.isatty() else _UNKNOWN_WIDTH, highlight=False)


def is_unread(error: OSError) -> bool:
    """Returns whether a write failed because nobody reads any more."""
    return error.errno in _NOBODY_READS


def outlasting(file: TextIO) -> TextIO:
    """Returns the stream in a form that may lose its reader."""
    return cast("TextIO", Outlasting(file))


class Outlasting:
    """A stream that may lose its reader: then what is written goes nowhere."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Writes, unless the reader has gone."""
        self._try(lambda: self._file.write(text))
        return len(text)

    def flush(self) -> None:
        """Flushes, unless the reader has gone."""
        self._try(self._file.flush)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if not is_unread(error):
                raise
            discard(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def discard(file: TextIO) -> None:
    """Lets later writes go nowhere, or Python complains about the pipe once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)
