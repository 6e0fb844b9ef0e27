"""Watching whether a server can store: the embedded server's disk, the user's server's answers.

A nats-server that failed to write a message stops answering for that stream, even when there is
room again, until it is restarted. Publishers get no answer and try again, so nothing is lost
meanwhile, but the pipeline would be stuck without an explanation. So the disk and the server's log
are checked every second. A warning says that the disk is full, with its path and the space left.
Once there is room, a server that has logged a write error is restarted.

The run cannot see the disk of the user's own server. From its tasks' counts the driver sees that
such a server no longer confirms anything, and warns, because an operator has to look after it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ebbflow.domain.durations import Backoff
from ebbflow.nats.publish import Tally

_EVERY = 1.0
_MIB = 1024 * 1024
# A write fails only if there is less space than one message takes, which is 8 MiB at most.
_LOW = 16 * _MIB
_FULL = 1 * _MIB
_ROOM = 32 * _MIB
_RESTART_WAITS = Backoff("5s", factor=2.0, cap="60s")
# Restarts within this many seconds of each other count as one problem, and back off.
_RECENT = 120.0
_COMPLAINTS = (b"no space left on device", b"disk quota exceeded")
_MOST_READ = 1 * _MIB

ShowLine = Callable[[str], None]


class Restartable(Protocol):
    """A server that stores on the disk."""

    def restart(self) -> None:
        """Ends it and lets it be started again; returns when the old process has ended."""


class DiskWatch:
    """Checks the disk of a folder, and the log of the server that stores there.

    ``left`` returns how many bytes may still be written there.
    """

    def __init__(
        self,
        folder: Path,
        server: Restartable,
        show: ShowLine,
        left: Callable[[Path], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._server = server
        self._show = show
        self._left = left or bytes_left
        self._clock = clock
        self._log = _Log(folder / "server.log")
        self._state = ""
        self._has_complained = False
        self._restarts = 0
        self._restarted_at = -math.inf

    def look(self) -> None:
        """Reports a change, and restarts the server if it cannot continue otherwise."""
        try:
            left = self._left(self._folder)
        except FileNotFoundError:  # it was deleted, which ends a run (``FolderWitness``)
            return
        self._has_complained |= self._log.complains()
        if left < _FULL or (self._has_complained and left < _ROOM):
            self._tell_change(
                "full",
                f"is full, with {_format(left)} left; nothing more can be stored, and "
                "the pipeline waits until there is room",
            )
        elif left < _LOW:
            self._tell_change(
                "low", f"has only {_format(left)} left; when it is full, the pipeline waits"
            )
        elif left >= _ROOM and self._has_complained:
            self._heal(left)
        elif left >= _ROOM and self._state:
            self._tell_change("", f"has room again: {_format(left)}")

    def _heal(self, left: int) -> None:
        """Restarts the server, with back-off: an error that persists has another cause."""
        now = self._clock()
        since = now - self._restarted_at
        if since < _RESTART_WAITS.seconds(self._restarts):
            return
        self._restarts = self._restarts + 1 if since < _RECENT else 1
        self._restarted_at = now
        self._server.restart()
        self._log.skip()
        self._has_complained = False
        self._state = "healing"
        self._tell_change(
            "",
            f"has {_format(left)} left, but NATS could not write to it; NATS was "
            "restarted, and the pipeline continues",
        )

    def _tell_change(self, state: str, what: str) -> None:
        if state != self._state:
            self._state = state
            self._show(f"the disk of {self._folder.parent} {what}")


@contextmanager
def watch_disk(folder: Path, server: Restartable, show: ShowLine) -> Iterator[None]:
    """Watches the disk of a server's folder, on its own thread, while the context lasts."""
    ended = threading.Event()
    watch = DiskWatch(folder, server, show)

    def keep_looking() -> None:
        while not ended.wait(_EVERY):
            watch.look()

    thread = threading.Thread(target=keep_looking, name="disk-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)


def bytes_left(folder: Path) -> int:
    """Returns how much may still be written: 0 if there is no room for another file."""
    facts = os.statvfs(folder)
    files = facts.f_favail if facts.f_files else 1  # some file systems do not count them
    return facts.f_bavail * facts.f_frsize if files else 0


def _format(left: int) -> str:
    return f"{left / _MIB:,.1f} MiB" if left >= _MIB else f"{left / 1024:,.0f} KiB"


class _Log:
    """The new lines of the server's log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.skip()

    def skip(self) -> None:
        """Continues at its end."""
        self._which, self._read = self._stat()

    def complains(self) -> bool:
        """``True`` if the server has logged since the last call that it could not write."""
        which, length = self._stat()
        if which != self._which:  # the log was rotated
            self._read = 0
        start = max(self._read, length - _MOST_READ)
        self._which, self._read = which, length
        if start >= length:
            return False
        with open(self._file, "rb") as log:
            log.seek(start)
            new = log.read(length - start).lower()
        return any(text in new for text in _COMPLAINTS)

    def _stat(self) -> tuple[int, int]:
        """Returns the inode of the file, and its length."""
        try:
            facts = self._file.stat()
        except OSError:
            return 0, 0
        return facts.st_ino, facts.st_size


_PATIENCE = 5.0


class Unconfirmed:
    """Notices vertices that have had no write confirmed for a while. ``show`` shows a line."""

    def __init__(
        self,
        server: str,
        show: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._show = show
        self._clock = clock
        self._last: dict[str, tuple[float, Tally]] = {}
        self._reported: set[str] = set()

    def look(self, tallies: Mapping[str, Tally]) -> None:
        """Reports vertices that get no confirmations any more, and those that get them again."""
        for vertex, tally in tallies.items():
            since, before = self._last.setdefault(vertex, (self._clock(), tally))
            if tally.confirmed != before.confirmed or tally.failures == before.failures:
                self._last[vertex] = self._clock(), tally
                self._resume(vertex)
            elif vertex not in self._reported and self._clock() - since >= _PATIENCE:
                self._reported.add(vertex)
                waited = f"for {self._clock() - since:.0f} s: {_problem(before, tally)}"
                self._show(
                    f"NATS at {self._server} has confirmed nothing that {vertex} wrote {waited}; "
                    "nothing is lost, and the vertex retries until it works"
                )

    def _resume(self, vertex: str) -> None:
        if vertex in self._reported:
            self._reported.discard(vertex)
            self._show(f"NATS at {self._server} confirms again what {vertex} writes")


def _problem(before: Tally, now: Tally) -> str:
    if now.refused > before.refused:
        return f"it says {now.refusal!r}; see whether its disk or a limit of its storage is full"
    if now.no_responders > before.no_responders:
        return "no server leads the stream; see whether enough of them are up"
    return "it does not answer; see whether its disk is full, and what is in its log"
