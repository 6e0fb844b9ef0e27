"""Waiting for something that happens in another thread or process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found],
    seconds: float = 30,
    process: subprocess.Popen[Any] | None = None,
    output: Callable[[], str] = str,
    every: float = 0.005,
) -> Found:
    """Wait until something holds, and return it.

    The limit only ends a test that would wait forever: it leaves room for a busy machine. The end
    of the process that is to bring it about ends the wait as well; its ``output`` is then told.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process is None or process.poll() is None, f"the process has ended: {output()}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every)
    return found
