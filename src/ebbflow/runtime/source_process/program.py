"""The process that a source runs in: started next to its vertex's task, kept across epochs.

Run as ``python -m ebbflow.runtime.source_process.program``; what it needs comes through standard
input. It serves one task at a time on a unix socket and calls the source's methods from one thread.
It reads ahead of its task, within a window of messages that are not settled. Messages that a task
was given and has not settled are given again to the next task, so that nothing is lost between
epochs or when a worker is killed. When the system behind a source is unavailable, the source is
closed and made again for the next request; what the old one gave and is not settled yet is told to
the new one, which may not know it and then gives it again. The process ends when it is told to,
when no task has come for a while, and when Spark's own process next to it is gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import socket
import sys
import threading
import time
from pathlib import Path

from ebbflow.runtime.source_process.protocol import (
    End,
    Failed,
    FromSource,
    Greet,
    Line,
    Order,
    Resume,
    Settle,
    ToSource,
)
from ebbflow.runtime.source_process.reading import SourceReading
from ebbflow.usercode.printing import Printed, redirected

_ALONE = 20.0
_LOOK_EVERY = 1.0
_MIN_READ = 0.02
# A source holds thousands of messages of its client that are about to be given. Looking for cycles
# among them, and with them among all that was imported, took half of a Kafka source's time.
_OBJECTS = 100_000


class SourceProcess:
    """Serves one source to one task at a time."""

    def __init__(self, order: Order) -> None:
        self._reading = SourceReading(order)

    def serve(self, listener: socket.socket) -> None:
        """Serves tasks one after another until told to end or left alone."""
        listener.settimeout(_ALONE)
        ended = False
        while not ended:
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                break
            accepted.setblocking(True)
            with Line(accepted) as line:
                ended = _Conversation(self._reading, line, listener).hold()
        self._reading.close()

    def note_printed(self, printed: Printed) -> None:
        """Has a line that the source has printed told to its task."""
        self._reading.note_printed(printed)


class _Conversation:
    """The conversation with one task."""

    def __init__(self, reading: SourceReading, line: Line, listener: socket.socket) -> None:
        self._reading = reading
        self._line = line
        self._listener = listener
        self._may_read = False
        self._pause = 0.0

    def hold(self) -> bool:
        """Answers the task and gives it messages; ``True`` when it was the last task.

        Whoever comes next takes over: the task before it is not wanted any more.
        """
        self._reading.begin_task()
        ready = select.poll()
        ready.register(self._line, select.POLLIN)
        ready.register(self._listener, select.POLLIN)
        with contextlib.suppress(EOFError, OSError):
            while True:
                waiting = {descriptor for descriptor, _ in ready.poll(self._patience())}
                if self._listener.fileno() in waiting:
                    return False
                if not waiting:
                    self._read()
                elif isinstance(request := self._line.receive(), End):
                    return True
                else:
                    self._hear(request)
        return False

    def _patience(self) -> float | None:
        """Returns the milliseconds to wait for a word before the next read; ``None`` for ever."""
        if not (self._may_read and self._reading.has_room):
            return None
        pause, self._pause = self._pause, 0.0
        return pause * 1000

    def _hear(self, request: ToSource) -> None:
        self._may_read = True
        match request:
            case Greet():
                self._answer(self._reading.attempt("greet", self._reading.greet))
            case Settle():
                self._answer(self._reading.attempt("settle", self._reading.settle, request))
            case Resume() | End():
                pass

    def _read(self) -> None:
        began = time.monotonic()
        # Given before anything else is asked of the source: what is in flight and was not given
        # would wait for the next task.
        given = self._answer(self._reading.attempt("read", self._reading.read))
        if self._may_read:
            self._answer(self._reading.attempt("read", self._reading.tell))
        if not given and time.monotonic() - began < _MIN_READ:
            self._pause = _MIN_READ  # a source that does not wait must not keep us spinning

    def _answer(self, answer: FromSource | None) -> bool:
        """Says it, if there is something to say; returns whether there was."""
        if isinstance(answer, Failed):
            self._may_read = False
        if answer is not None:
            self._line.send(answer, unless=self._listener)
        return answer is not None


def _end_with(keeper: int) -> None:
    """Ends this process soon after the keeper has gone, whatever user code is doing."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(keeper, 0)
            time.sleep(_LOOK_EVERY)
    os._exit(0)


def main() -> None:
    """Serves the source that standard input describes."""
    order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent process
    sys.path[:] = order.path
    gc.set_threshold(_OBJECTS)
    threading.Thread(target=_end_with, args=(order.keeper,), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        # Complete before it has its name: whoever finds the name can connect.
        listener.bind(f"{order.socket}.new")
        listener.listen()
        os.rename(f"{order.socket}.new", order.socket)
        process = SourceProcess(order)
        try:
            with redirected(process.note_printed):
                process.serve(listener)
        finally:
            Path(order.socket).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
