"""Leftovers of a pipeline: processes, threads and sockets that were not there before it ran.

Processes are found by the name of their pipeline, which a vertex's task puts into its environment
and everything that is started from there inherits. Where there is no ``/proc`` none are found.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"


def processes_of(pipeline: str) -> list[int]:
    """Returns the processes that the tasks of a pipeline have started, with their descendants."""
    mark = f"NUMAFLOW_PIPELINE_NAME={pipeline}\0".encode()
    processes = []
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                processes.append(int(entry.name))
    return processes


def listening_ports() -> set[int]:
    """Returns the TCP ports on which this process listens."""
    inodes = set()
    for descriptor in (_PROC / "self" / "fd").glob("*"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor))
    ports = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


@dataclass(frozen=True)
class Before:
    """The threads and ports that this process had before a pipeline ran."""

    threads: frozenset[int]
    ports: frozenset[int]

    @classmethod
    def now(cls) -> Before:
        """Returns the threads and ports of this moment."""
        idents = frozenset(
            thread.ident for thread in threading.enumerate() if thread.ident is not None
        )
        return cls(idents, frozenset(listening_ports()))

    def left_by(self, pipeline: str, more: Callable[[], Sequence[str]], wait: float) -> list[str]:
        """Returns what was not there before and is still there after ``wait`` seconds."""
        deadline = time.monotonic() + wait
        while (left := [*self._left(pipeline), *more()]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _left(self, pipeline: str) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread.ident not in self.threads]
        return [
            *(f"process {pid}: {_command(pid)}" for pid in processes_of(pipeline)),
            *(f"thread {thread.name}" for thread in threads),
            *(f"port {port} is listened on" for port in listening_ports() - self.ports),
        ]


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "has just ended"
    return b" ".join(words).decode("utf-8", "replace").strip()
