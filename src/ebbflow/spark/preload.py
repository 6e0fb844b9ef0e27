"""Loading ahead: while the JVM is starting, a process imports what Python workers will need.

When Spark then starts ``ebbflow.spark.daemon``, that process hands its standard input and output
over to the one that is loaded already, and stays only to pass signals on. First messages arrive
more than a second earlier. On this machine only, and only where processes can be watched (Linux);
whatever goes wrong, the daemon loads everything itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PLACE = "EBBFLOW_LOADED_AHEAD"
_LOOK_EVERY = 1.0
_HANDED = (0, 1, 2)
_LARGEST = 2**20


@contextmanager
def loading() -> Iterator[None]:
    """On the driver: load ahead, until the context ends. Spark is started inside it."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    folder = tempfile.mkdtemp(prefix="ebbflow-ahead-")
    os.environ[_PLACE] = str(Path(folder) / "daemon")
    command = [sys.executable, "-m", __name__, str(os.getpid())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the driver, which ends this one
    )
    try:
        yield
    finally:
        del os.environ[_PLACE]
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def handed_over() -> bool:
    """In the process that Spark has started: whether another one did its work, and has ended."""
    place = os.environ.get(_PLACE)
    if place is None:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(place)
            told = {"argv": sys.argv, "path": sys.path, "env": {**os.environ}, "cwd": os.getcwd()}
            socket.send_fds(connection, [json.dumps(told).encode()], _HANDED)
            pid = int(connection.recv(16))
    except (OSError, ValueError):
        return False
    watched = os.pidfd_open(pid)
    signal.signal(signal.SIGTERM, lambda *_: _terminate(pid))
    for descriptor in _HANDED[:2]:
        os.close(descriptor)
    select.select([watched], [], [])
    return True


def _terminate(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def main() -> None:
    """In the process ahead: load, wait for the hand-over, and go on in the other's place."""
    from ebbflow.spark.daemon import load, serve

    driver = int(sys.argv[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.environ.pop(_PLACE))
        listener.listen()
        load()
        listener.settimeout(_LOOK_EVERY)
        while os.getppid() == driver:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                break
        else:
            return
    _take_over(connection)
    serve()


def _take_over(connection: socket.socket) -> None:
    with connection:
        told, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, len(_HANDED))
        given = json.loads(told)
        for descriptor, number in zip(descriptors, _HANDED, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.argv = given["argv"]
        sys.path[:] = given["path"]
        os.environ.clear()
        os.environ.update(given["env"])
        os.chdir(given["cwd"])
        connection.send(b"%d" % os.getpid())


if __name__ == "__main__":
    main()
