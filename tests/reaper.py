"""Kills what tests have left when pytest has ended, whatever the cause; a separate process.

It waits for the end of its input, which pytest holds open, and finds processes by the mark in their
environment that all of them have inherited.

    python tests/reaper.py MARK
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import psutil

MARK = "EBBFLOW_TEST_RUN"
_PATIENCE = 10.0


def marked(mark: str, unmarked: set[psutil.Process]) -> Iterator[psutil.Process]:
    """All processes with the mark; those without are remembered, for the next time."""
    for process in psutil.process_iter():
        if process in unmarked or process.pid == os.getpid():
            continue
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if environment.get(MARK) == mark:
            yield process
        elif environment:
            unmarked.add(process)


def reap(mark: str) -> None:
    """Waits for the end of pytest, and kills what it leaves."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    deadline = time.monotonic() + _PATIENCE
    while (found := list(marked(mark, set()))) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.05)


if __name__ == "__main__":
    reap(sys.argv[1])
