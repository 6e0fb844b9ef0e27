"""Processes that a test has started, any of which may end while it is looked at."""

from __future__ import annotations

import contextlib

import psutil


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
