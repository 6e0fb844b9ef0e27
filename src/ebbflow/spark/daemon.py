"""The daemon: the process that Spark forks its workers from, with the slow imports done once.

Spark starts it as ``python -m ebbflow.spark.daemon`` when the first task needs a worker, and every
worker inherits the modules that it has loaded.

The driver saves that time with ``preload``. While the JVM is starting, the driver starts a second
process that loads the same modules. The daemon hands its standard input and output over to that
process and then only forwards signals. The first messages arrive more than a second earlier. This
works on this machine only, and only on Linux; if anything goes wrong, the daemon loads everything
itself.

Each worker keeps its connection to Spark private: see ``domain.host``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbflow.domain import host

# A chunk makes thousands of short-lived objects. Searching them for cycles after every 700
# allocations costs a fifth of a map's time; imported objects never need to be searched.
_OBJECTS = 100_000
# The seconds that user code may keep the connection's thread waiting. Confirming a chunk takes that
# thread about six turns. By default each turn waits 5 ms, which is longer than the work itself.
_TURN = 0.0005
# The variable that says where the preloaded process listens.
_SOCKET = "EBBFLOW_LOADED_AHEAD"
_PRELOAD = "--preload"
_LOOK_EVERY = 1.0
# Loading everything again takes longer than this.
_LISTENING = 2.0
_HANDED = (0, 1, 2)
_LARGEST = 2**20


def import_for_workers() -> None:
    """Imports everything that workers need."""
    import pandas  # noqa: F401 - Arrow looks for it in any case
    import pyarrow.compute  # noqa: F401
    import pyspark.worker  # noqa: F401

    import ebbflow.spark.epoch  # noqa: F401

    gc.freeze()
    gc.set_threshold(_OBJECTS)
    sys.setswitchinterval(_TURN)


def fork_workers() -> None:
    """Forks workers for as long as Spark requests them."""
    from pyspark import daemon

    from ebbflow.domain.host import keep_private

    work, this = daemon.worker, os.getpid()

    def worker(sock: socket.socket, authenticated: bool) -> int:
        # The same signal as when Spark ends normally. Without it, a worker whose daemon was killed
        # could wait forever for a server that is gone as well.
        host.end_with_parent(this, signal.SIGHUP)
        keep_private(sock.fileno())
        return work(sock, authenticated)

    daemon.worker = worker
    daemon.manager()


@contextmanager
def preload() -> Iterator[None]:
    """Keeps a preloaded process while the context lasts; the driver starts Spark inside it."""
    if not host.is_linux():
        yield
        return
    folder = tempfile.mkdtemp(prefix="ebbflow-ahead-")
    os.environ[_SOCKET] = str(Path(folder) / "daemon")
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, _PRELOAD, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the driver, which ends this process
    )
    try:
        yield
    finally:
        del os.environ[_SOCKET]
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def hand_over() -> bool:
    """Lets the preloaded process be the daemon until it ends; ``False`` if there is none."""
    # Spark may end the daemon as soon as the other process has answered, so block the signal until
    # it can be forwarded.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pid = _ask_preloaded()
        if pid is None:
            return False
        watched = host.watch_end(pid)
        signal.signal(signal.SIGTERM, lambda *_: _terminate(pid))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for descriptor in _HANDED[:2]:
        os.close(descriptor)
    select.select([watched], [], [])
    return True


def _ask_preloaded() -> int | None:
    """Hands this process's state to the preloaded process; returns its id, if there is one."""
    address = os.environ.get(_SOCKET)
    if address is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            _connect(connection, address)
            state = {"argv": sys.argv, "path": sys.path, "env": {**os.environ}, "cwd": os.getcwd()}
            socket.send_fds(connection, [json.dumps(state).encode()], _HANDED)
            return int(connection.recv(16))
    except (OSError, ValueError):
        return None


def _connect(connection: socket.socket, address: str) -> None:
    """Connects to the preloaded process, which on a busy machine may not listen yet."""
    deadline = time.monotonic() + _LISTENING
    while True:
        try:
            connection.connect(address)
            return
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _terminate(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def wait_preloaded(driver: int) -> None:
    """Loads the modules, waits for the daemon's state, and replaces it; ends with the driver."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.environ.pop(_SOCKET))
        listener.listen()
        import_for_workers()
        listener.settimeout(_LOOK_EVERY)
        while os.getppid() == driver:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                break
        else:
            return
    _take_over(connection)
    fork_workers()


def _take_over(connection: socket.socket) -> None:
    """Gives this process the state of the daemon that Spark has started."""
    with connection:
        text, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, len(_HANDED))
        state = json.loads(text)
        for descriptor, number in zip(descriptors, _HANDED, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.argv = state["argv"]
        sys.path[:] = state["path"]
        os.environ.clear()
        os.environ.update(state["env"])
        os.chdir(state["cwd"])
        connection.send(b"%d" % os.getpid())


def main() -> None:
    """Runs this process as the daemon, or as the preloaded process for it."""
    if sys.argv[1:2] == [_PRELOAD]:
        wait_preloaded(driver=int(sys.argv[2]))
    elif not hand_over():
        import_for_workers()
        fork_workers()


if __name__ == "__main__":
    main()
