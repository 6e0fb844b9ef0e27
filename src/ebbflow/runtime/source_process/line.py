"""The line between a vertex's task and its source's process: pickled words over a unix socket.

Arrow buffers travel beside the word that holds them and are not copied into it. Whoever receives
is woken twice or three times for a word of any size: in a task whose other threads are busy, each
time may take milliseconds.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEAD = struct.Struct("!II")
_ALIGNED = 64
"""Buffers begin at multiples of it, as Arrow likes them."""


class Line:
    """One end of the line. One thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Returns the descriptor, to wait for what comes."""
        return self._end.fileno()

    def send(self, word: object, unless: socket.socket | None = None) -> None:
        """Returns when the word is on its way.

        ``OSError`` if nobody listens any more, or as soon as somebody knocks at ``unless`` while it
        has to wait.
        """
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(word, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        sizes = struct.pack(f"!{len(views)}Q", *(view.nbytes for view in views))
        parts: list[bytes | memoryview] = [_HEAD.pack(len(pickled), len(views)) + sizes + pickled]
        for view in views:
            parts += (view, bytes(-view.nbytes % _ALIGNED))
        self._send(parts, unless)

    def _send(self, parts: Sequence[bytes | memoryview], unless: socket.socket | None) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[self._end.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    self._wait_for_room(unless)

    def _wait_for_room(self, unless: socket.socket | None) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLOUT)
        if unless is not None:
            poll.register(unless, select.POLLIN)
        ready = dict(poll.poll())
        if unless is not None and unless.fileno() in ready:
            raise ConnectionAbortedError("somebody else has come")

    def receive(self) -> Any:
        """Returns the next word; ``EOFError`` or ``OSError`` when there will be none."""
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        rest = self._read(8 * count + size)
        sizes = struct.unpack_from(f"!{count}Q", rest)
        body = self._read(sum(size + -size % _ALIGNED for size in sizes))
        buffers, start = [], 0
        for size in sizes:
            buffers.append(body[start : start + size])
            start += size + -size % _ALIGNED
        return pickle.loads(rest[8 * count :], buffers=buffers)  # noqa: S301 - from our own process

    def _read(self, size: int) -> memoryview:
        whole = memoryview(bytearray(size))
        rest = whole
        while rest:
            count = self._end.recv_into(rest, len(rest), socket.MSG_WAITALL)
            if not count:
                raise EOFError
            rest = rest[count:]
        return whole

    def close(self) -> None:
        """Hangs up; whoever waits to receive, here or there, hears so."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
