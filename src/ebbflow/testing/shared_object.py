"""An object of the test's process that code on Spark's workers can call, over a unix socket.

Workers are processes of their own, so what is in memory here has to be asked for. Each connection
is one client; when it ends, the object is told, as it would be of a process that was killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from itertools import count
from multiprocessing.connection import Client, Connection
from typing import Any, Protocol


class SharedObject(Protocol):
    """An object to share: the first argument of its methods is the client that calls."""

    def gone(self, client: int) -> None:
        """Hears that the client is not there any more."""


class ObjectServer:
    """Serves a target to other processes of this user, until it is closed."""

    def __init__(self, target: SharedObject) -> None:
        self._target = target
        self._folder = tempfile.mkdtemp(prefix="ebbflow-shared-")  # nobody else can look inside
        self.address = os.path.join(self._folder, "socket")
        self._lock = threading.Lock()
        self._numbers = count()
        self._open: dict[int, Connection[Any, Any]] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen()
        threading.Thread(target=self._accept, name="shared", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                client, connection = next(self._numbers), Connection(accepted.detach())
                self._open[client] = connection
                threading.Thread(
                    target=self._serve, args=(client, connection), name="shared", daemon=True
                ).start()

    def _serve(self, client: int, connection: Connection[Any, Any]) -> None:
        with contextlib.suppress(EOFError, OSError), connection:
            while True:
                method, arguments = connection.recv()
                with self._lock:
                    answer = _answer(self._target, method, client, arguments)
                connection.send(answer)
        with self._lock:
            self._open.pop(client, None)
            self._target.gone(client)

    def close(self) -> None:
        """Stops serving."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open.values()):
            with contextlib.suppress(OSError):
                socket.socket(fileno=os.dup(connection.fileno())).shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder, ignore_errors=True)


def _answer(target: SharedObject, method: str, client: int, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(target, method)(client, *arguments)
    except Exception as error:
        return error


class ObjectClient:
    """The client's end, in another process."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address, "AF_UNIX")

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object; raises what it raises."""
        self._connection.send((method, arguments))
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
