"""Lifelines between processes: whoever waits for the end of a process sees it, however it ends.

An owner that is killed can end nothing any more. So a shell waits beside the process for the end of
a pipe that only the owner holds, and then asks the process to end. It does nothing else and needs
nothing that Linux alone has.

Such a line is a descriptor whose other end closes when its process dies, and Spark waits for its
worker like that. A process that user code has forked, and which lives on, would hold the descriptor
open, and nobody would notice that the worker has died: forked processes must not inherit it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from ebbflow.host import open_descriptors

_UNTIL_THE_PIPE_ENDS = 'read -r _; kill "$1"'


class Watch:
    """Ends the process ``pid`` when this one is gone; until ``stop``.

    In a session of its own: what a terminal sends to everybody is not for it.
    """

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _UNTIL_THE_PIPE_ENDS, "ebbflow-watch", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Ends the watch."""
        # Killed first: it must not see the pipe end, for the pid may be another's by then.
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


_private: set[tuple[int, int]] = set()


def keep_private(descriptor: int) -> None:
    """Makes every process that is forked from now on lose it, with all copies of it."""
    _private.add(_identity(descriptor))


def _identity(descriptor: int) -> tuple[int, int]:
    """The same for all copies of a descriptor."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _lose() -> None:
    """Puts nothing in the place of each, in a forked process.

    Closing them would do harm, when objects that were made for them close the number once more.
    """
    if not _private:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in open_descriptors():
        with contextlib.suppress(OSError):
            if _identity(descriptor) in _private:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _private.clear()


os.register_at_fork(after_in_child=_lose)
