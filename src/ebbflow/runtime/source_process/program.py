"""The process that a source runs in: started next to its vertex's task, kept across epochs.

Run as ``python -m ebbflow.runtime.source_process.program``, with an ``Order`` on standard input. It
serves one task at a time on a unix socket and calls the source's methods from one thread. It reads
ahead of its task, within a window of unsettled messages. It sends messages that a task has not
settled to the next task again, so that none is lost between epochs or when a worker is killed. When
the system behind a source is unavailable, the source is closed and made again for the next request.
Acks and nacks for messages of the old source go to the new one, which may not know them and then
redelivers them. The process ends on request, when no task has connected for a while, and when
Spark's own process next to it is gone.
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
# A source holds thousands of its client's messages that are about to be sent. Looking for cycles
# among them and all imported objects took half of a Kafka source's time.
_OBJECTS = 100_000


class SourceProcess:
    """Serves one source to one task at a time."""

    def __init__(self, order: Order) -> None:
        self._reading = SourceReading(order)

    def serve(self, listener: socket.socket) -> None:
        """Serves tasks one after another until one ends it or none connects for a while."""
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
        """Keeps a line that the source has printed, for the next report to its task."""
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
        """Answers the task and sends it messages; ``True`` when it was the last task.

        When the next task connects, it takes over: the previous one is obsolete.
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
                    self._handle(request)
        return False

    def _patience(self) -> float | None:
        """Returns the milliseconds to wait for a request before a read; ``None`` means forever."""
        if not (self._may_read and self._reading.has_room):
            return None
        pause, self._pause = self._pause, 0.0
        return pause * 1000

    def _handle(self, request: ToSource) -> None:
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
        # Sent before any other call of the source: messages that are in flight but were not sent
        # would wait for the next task.
        sent = self._answer(self._reading.attempt("read", self._reading.read))
        if self._may_read:
            self._answer(self._reading.attempt("read", self._reading.report))
        if not sent and time.monotonic() - began < _MIN_READ:
            self._pause = _MIN_READ  # a source that returns at once must not cause a busy loop

    def _answer(self, answer: FromSource | None) -> bool:
        """Sends an answer, if there is one; returns whether there was."""
        if isinstance(answer, Failed):
            self._may_read = False
        if answer is not None:
            self._line.send(answer, unless=self._listener)
        return answer is not None


def _end_with(keeper: int) -> None:
    """Ends this process soon after the keeper has ended, whatever user code is doing."""
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
        # It gets its final name once it listens: a task that finds the name can connect.
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
