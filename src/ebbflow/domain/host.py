"""The operating system: the calls that differ between Linux and other systems, in one place.

On Linux the kernel watches processes and ends children with their parents. Everywhere else a
portable variant does the same with threads and ``psutil``: it notices the end of a process up to
``LOOK_EVERY`` seconds late. ``EBBFLOW_PORTABLE=1`` selects the portable variant on Linux as well.

| | Linux | portable |
| --- | --- | --- |
| the end of a process | a descriptor of the kernel | a thread polls, and writes to a pipe |
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
"""The seconds after which the portable variant checks a process again."""

LONGEST_SOCKET_PATH = 103
"""The most bytes that the path of a socket may have: macOS allows a few less than Linux."""

_PR_SET_PDEATHSIG = 1


def is_linux() -> bool:
    """Returns whether calls that exist only on Linux are used."""
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
    """Opens a file that is deleted once every process has closed it."""
    if is_linux():
        return open(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile(prefix=f"{name}-")


def watch_end(pid: int) -> int:
    """Returns a descriptor that becomes readable once a process has ended; the caller closes it.

    It becomes readable even before the parent waits for the child.
    """
    if is_linux():
        return os.pidfd_open(pid)
    readable, writable = os.pipe()
    _start_polling(lambda: has_ended(pid), lambda: _write_end(writable))
    return readable


def _write_end(pipe: int) -> None:
    """Writes a byte: closing alone may not suffice, as a forked process may hold the pipe open."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, b".")
    os.close(pipe)


def end_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to this process, which ``parent`` has just forked, when the parent ends.

    If the parent has ended already, the signal is sent at once.
    """
    if not is_linux():
        _start_polling(lambda: os.getppid() != parent, lambda: os.kill(os.getpid(), by))
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def _start_polling(happened: Callable[[], bool], act: Callable[[], None]) -> None:
    def poll() -> None:
        while not happened():
            time.sleep(LOOK_EVERY)
        act()

    threading.Thread(target=poll, name="look", daemon=True).start()


def open_descriptors() -> list[int]:
    """Returns this process's open descriptors, and possibly one that is closed already."""
    # Both are the same on Linux, where not every container has the second.
    where = "/proc/self/fd" if is_linux() else "/dev/fd"
    return [int(name) for name in os.listdir(where)]


def has_ended(pid: int) -> bool:
    """Returns whether a process has ended, even if its parent has not waited for it yet."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def command_of(pid: int) -> list[str]:
    """Returns the command line of a process; empty if it cannot be read."""
    import psutil

    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def available_memory() -> int:
    """Returns the bytes of memory that new programs can use without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


_UNTIL_THE_PIPE_ENDS = 'read -r _; kill "$1"'


class Watch:
    """Ends the process ``pid`` when this process ends, unless ``stop`` was called.

    The watch runs in its own session, so signals from the terminal do not reach it.
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
        # Killed before its pipe closes, or it would kill a pid that another process may have now.
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


_private: set[tuple[int, int]] = set()


def keep_private(descriptor: int) -> None:
    """Makes a descriptor and all its copies unusable in every process forked from now on."""
    _private.add(_identity(descriptor))


def _identity(descriptor: int) -> tuple[int, int]:
    """Returns the same for all copies of a descriptor."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _replace_private() -> None:
    """Replaces each private descriptor with the null device, in a forked process.

    Closing it would do harm: the object that owns it would close the same number once more.
    """
    if not _private:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in open_descriptors():
        with contextlib.suppress(OSError):
            if _identity(descriptor) in _private:
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _private.clear()


os.register_at_fork(after_in_child=_replace_private)
