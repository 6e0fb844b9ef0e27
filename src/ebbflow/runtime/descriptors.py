"""Keeps file descriptors in this process: processes that user code forks do not inherit them.

Whoever waits for this process to end waits for the other end of such a descriptor to be closed.
Spark waits for its worker like that. A process that user code has forked, and which lives on, would
hold the descriptor open, and nobody would notice that the worker has died.
"""

from __future__ import annotations

import contextlib
import os

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
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptor = int(name)
            if _identity(descriptor) in _private:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _private.clear()


os.register_at_fork(after_in_child=_lose)
