"""Processes that a test has started, any of which may end while it is looked at."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.waiting import until


def family_of(pid: int) -> list[psutil.Process]:
    """Returns all that a process has started and that is still running."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [one for one in psutil.Process(pid).children(recursive=True) if is_running(one)]
    return []


def is_running(process: psutil.Process) -> bool:
    """Returns whether it has not ended; one that was not waited for has."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def command_of(process: psutil.Process) -> list[str]:
    """Returns the words of its command; none of one that has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Halts a process, as a machine that swaps does; it is silent once all its threads stand."""
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
