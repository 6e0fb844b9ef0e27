"""A relay in front of a server of a test: while it is cut, the server cannot be reached."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Relay:
    """Passes bytes on between its own port and another one of this machine, as a context."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        _close(self._listener)
        for thread in self._threads:
            thread.join()

    def mend(self) -> None:
        """Pass bytes on again."""
        self._is_cut = False

    def cut(self) -> None:
        """End all connections, and new ones as soon as they are made."""
        self._is_cut = True
        for end in list(self._open):
            _close(end)

    def _start(self, work: Callable[..., None], *ends: socket.socket) -> None:
        thread = threading.Thread(target=work, args=ends, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut:
                    _close(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self._behind))
                self._open |= {near, far}
                self._start(self._pass_on, near, far)
                self._start(self._pass_on, far, near)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for end in (source, target):
            _close(end)
            self._open.discard(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
