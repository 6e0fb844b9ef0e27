"""The operating system: the calls that differ between Linux and other systems, in one place.

On Linux the kernel watches processes and ends them together. Everywhere else a portable variant
does the same with threads and ``psutil``: it notices the end of a process up to ``LOOK_EVERY``
seconds late. ``EBBFLOW_PORTABLE=1`` selects the portable variant on Linux as well.

| | Linux | portable |
| --- | --- | --- |
| the end of a process | a descriptor of the kernel | a thread looks, and writes to a pipe |
| a child that ends with its parent | the kernel kills it | its own thread kills it |
| a file in memory | in memory | a temporary file without a name |
| a preloaded daemon (``spark.daemon``) | yes | no: Spark's first worker starts later |
| a function's own ``/var/run/numaflow`` (``numaflow.launcher``) | yes | no: another folder |
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import IO

PORTABLE = "EBBFLOW_PORTABLE"
"""The environment variable that selects the portable variant."""

LOOK_EVERY = 0.05
"""The seconds between two looks of the portable variant at a process."""

LONGEST_SOCKET_PATH = 103
"""The bytes that the path of a socket may have: macOS allows a few less than Linux."""

_PR_SET_PDEATHSIG = 1


def is_linux() -> bool:
    """Returns whether calls that only Linux knows are used."""
    return sys.platform == "linux" and not os.environ.get(PORTABLE)


@contextlib.contextmanager
def on_signals(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Calls the handler on any of these signals for as long as the context lasts.

    Only the main thread can do that.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def open_memory_file(name: str) -> IO[bytes]:
    """Opens a file that is gone once every process has closed it."""
    if is_linux():
        return open(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile(prefix=f"{name}-")


def watch_end(pid: int) -> int:
    """Returns a descriptor that becomes readable once a process has ended; close it.

    A child that has ended need not be waited for before that.
    """
    if is_linux():
        return os.pidfd_open(pid)
    readable, writable = os.pipe()
    _start_looking(lambda: has_ended(pid), lambda: _write_end(writable))
    return readable


def _write_end(pipe: int) -> None:
    """Writes something: a process that was forked meanwhile may hold the pipe open as well."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, b".")
    os.close(pipe)


def end_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Has this process, which ``parent`` has just forked, get a signal when that process ends.

    The parent may have ended already: then the signal comes at once.
    """
    if not is_linux():
        _start_looking(lambda: os.getppid() != parent, lambda: os.kill(os.getpid(), by))
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def _start_looking(happened: Callable[[], bool], act: Callable[[], None]) -> None:
    def look() -> None:
        while not happened():
            time.sleep(LOOK_EVERY)
        act()

    threading.Thread(target=look, name="look", daemon=True).start()


def open_descriptors() -> list[int]:
    """Returns the descriptors that this process has open, and maybe one that is closed again."""
    # Both are the same on Linux, where not every container has the second.
    where = "/proc/self/fd" if is_linux() else "/dev/fd"
    return [int(name) for name in os.listdir(where)]


def has_ended(pid: int) -> bool:
    """Returns whether a process has ended, be it that its parent has not waited for it yet."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def command_of(pid: int) -> list[str]:
    """Returns the words of the command that a process runs; none if it cannot be known."""
    import psutil

    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def available_memory() -> int:
    """Returns the bytes of memory that new programs can have without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


_UNTIL_THE_PIPE_ENDS = 'read -r _; kill "$1"'


class Watch:
    """Ends the process ``pid`` when this one is gone; until ``stop``.

    In its own session: what a terminal sends to everybody is not for it.
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
