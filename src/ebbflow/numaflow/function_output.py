"""What a function prints: shown line by line, the last lines kept.

It goes where user code's own prints go. Between two epochs nobody listens there; what is printed
then is shown with the next line.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import IO

from ebbflow.usercode.printing import LONGEST, cut

_KEPT, _SHOWN, _LONGEST = 200, 10, 2_000


class FunctionOutput:
    """The output of one function, read by a thread of its own."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._unshown: deque[str] = deque(maxlen=_KEPT)
        self._thread: threading.Thread | None = None

    def follow(self, pipe: IO[bytes]) -> None:
        """Reads the pipe to its end, beside the caller; forgets the output of earlier processes."""
        self._lines.clear()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in iter(lambda: pipe.readline(LONGEST), b""):
                line = cut(raw.decode("utf-8", "backslashreplace").rstrip("\r\n"))
                self._lines.append(line)
                self._unshown.append(f"{line}\n")
                self._show()

    def _show(self) -> None:
        if sys.stdout is sys.__stdout__:  # nobody listens here now
            return
        while self._unshown:
            sys.stdout.write(self._unshown.popleft())

    def finish(self) -> None:
        """Waits until all is read; the process must have ended."""
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        self._show()

    def last_lines(self) -> str:
        """Returns the last lines as the end of an error's text, on one line; all were shown."""
        lines = [text for line in list(self._lines)[-_SHOWN:] if (text := line.strip())]
        return f": {' | '.join(lines)[-_LONGEST:]}" if lines else ""
