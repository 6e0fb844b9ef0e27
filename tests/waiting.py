"""Waiting for something that happens in another thread or process, or for time to pass.

A test waits with ``until`` for anything observable. ``let_time_pass`` is for the rest:
the server forgets ids after a while, or nothing is to happen meanwhile.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found],
    seconds: float = 120,
    process: subprocess.Popen[Any] | None = None,
    output: Callable[[], str] = str,
    every: float = 0.005,
) -> Found:
    """Waits until a condition holds, and returns its value.

    The limit only ends a test that would wait forever: it leaves room for a busy machine. The end
    of the process that should bring it about ends the wait as well; the error has its ``output``.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process is None or process.poll() is None, f"the process has ended: {output()}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every)
    return found


def let_time_pass(seconds: float) -> None:
    """Waits for the clock alone: no observable event ends this wait."""
    time.sleep(seconds)
