"""Processes that a test has started, any of which may end while it is inspected."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.waiting import until


def family_of(pid: int) -> list[psutil.Process]:
    """Returns all descendants of a process that are still running."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [one for one in psutil.Process(pid).children(recursive=True) if is_running(one)]
    return []


def is_running(process: psutil.Process) -> bool:
    """Returns whether it is running; a zombie is not."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def command_of(process: psutil.Process) -> list[str]:
    """Returns the words of its command; none if it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Suspends a process, as a swapping machine does; returns once all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: all(") T " in state for state in _thread_states(pid)))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _thread_states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield (thread / "stat").read_text()
