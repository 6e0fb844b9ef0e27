"""The process that a source runs in: started beside its vertex's task, kept across epochs.

Run as ``python -m ebbflow.runtime.source_process.server``; what it needs comes through standard
input. It serves one task at a time on a unix socket and calls the source's methods from one thread.
Messages that a task has read and not settled are given again to the next task, so that nothing is
lost between epochs or when a worker is killed. When the system behind a source is away, the source
is closed and made anew for the next request; what the old one gave and is not settled yet is told
to the new one, which may not know it and then gives it again. The process ends when it is told to,
when no task has come for a while, and when Spark's own process beside it is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ebbflow.core.blame import Outage
from ebbflow.core.calling import Handler
from ebbflow.core.printing import redirected
from ebbflow.core.targets import resolve
from ebbflow.errors import SetupError
from ebbflow.nacks import NackOptions
from ebbflow.runtime.source_process.protocol import Failed, Given, Hello, Order, frame_of
from ebbflow.source import NackOffset, Source, SourceMessage

_ALONE = 20.0
_LOOK_EVERY = 1.0
_PRINTED = 1_000


class SourceProcess:
    """Serves one source to one task at a time."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._handed: dict[bytes, SourceMessage] = {}
        self._inherited: set[bytes] = set()
        self._again: list[SourceMessage] = []
        self._lines: list[str] = []
        self._source: Any = None

    def serve(self, listener: socket.socket) -> None:
        """Serve tasks one after another until told to end or left alone."""
        listener.settimeout(_ALONE)
        ended = False
        with redirected(self._print):
            while not ended:
                try:
                    accepted, _ = listener.accept()
                except TimeoutError:
                    break
                with Connection(accepted.detach()) as connection:
                    ended = self._serve_task(connection, listener)
            self._close()

    def _print(self, text: str) -> None:
        self._lines = [*self._lines[1 - _PRINTED :], text]

    def _serve_task(self, connection: Connection, listener: socket.socket) -> bool:
        """Answer a task's requests; ``True`` when it was the last one.

        Whoever comes next takes over: the task before it is not wanted any more.
        """
        self._again, self._handed = [*self._handed.values(), *self._again], {}
        while listener not in wait([connection, listener]):
            try:
                method, arguments = connection.recv()
                if method == "end":
                    connection.send(None)
                    return True
                connection.send(self._answer(method, arguments))
            except (EOFError, OSError):
                break
        return False

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(self, method)(*arguments)
        except SetupError as error:  # says all there is to say
            return Failed(str(error), traceback.format_exc())
        except (Exception, SystemExit) as error:
            what = f"{method}() raised {type(error).__name__}: {error}"
            return Failed(what, traceback.format_exc(), self._outage(error, what))

    def _outage(self, error: BaseException, what: str) -> Outage | None:
        """What is away, if the error says so: the source is then closed, to be made anew."""
        if not self._order.systems.means_away(error):
            return None
        self._close()
        self._source = None
        self._inherited |= self._handed.keys()
        outage = Outage.of(error)
        return outage if outage.named else replace(outage, what=" ".join(what.split()))

    # --- what a task can ask for ----------------------------------------------------------------

    def hello(self) -> Hello:
        """The first request of every task."""
        self._open()
        nack = getattr(type(self._source), "nack", Source.nack)
        partitions = list(self._call("partitions", ()))
        return Hello(nack is not Source.nack, self._exhausted and not self._again, partitions)

    def _open(self) -> None:
        """Make and open the source, if it is not there: at first, and after an outage."""
        if self._source is None:
            code = pickle.loads(self._order.code)  # noqa: S301 - from our own parent process
            search = self._order.search
            if isinstance(code, str):
                code = resolve(code, Path(search) if search else None)
            self._handler = Handler(code)
            self._source = self._handler.instance

    @property
    def _exhausted(self) -> bool:
        return bool(getattr(self._source, "exhausted", False))

    def read(self, limit: int, timeout: float) -> Given:
        """Messages, those first that an earlier task has not settled."""
        found, self._again = self._again[:limit], self._again[limit:]
        if not found:
            found = self._fresh(self._call("read", None, limit, timeout))
        self._handed |= {message.offset: message for message in found}
        printed, self._lines = self._lines, []
        return Given(
            frame_of(found, self._order.vertex, self._order.partition),
            [message.offset for message in found],
            [message.deliveries for message in found],
            not found and self._exhausted,
            printed,
        )

    def _fresh(self, given: Iterable[SourceMessage] | None) -> list[SourceMessage]:
        found: dict[bytes, SourceMessage] = {}
        for message in given or ():
            if not isinstance(message, SourceMessage):
                kind = type(message).__name__
                raise TypeError(f"read() must give SourceMessage objects, not {kind}")
            if message.offset not in self._handed:  # it is in hand already
                found[message.offset] = message
        return list(found.values())

    def settle(self, acks: list[bytes], nacks: list[tuple[bytes, NackOptions]]) -> None:
        """Tell the source what is settled and what it is to give again."""
        told = [*acks, *(offset for offset, _ in nacks)]
        unknown = not self._inherited.isdisjoint(told)
        try:
            if acks:
                self._call("ack", None, acks)
            if nacks:
                self._call("nack", None, [NackOffset(offset, options) for offset, options in nacks])
        except Exception as error:
            # A source that was made anew need not know what an earlier one gave: it gives it again.
            if not unknown or self._order.systems.means_away(error):
                raise
        for offset in told:
            self._handed.pop(offset, None)
            self._inherited.discard(offset)

    def pending(self) -> int | None:
        """How many messages wait to be read, as far as the source knows."""
        count = self._call("pending", None)
        return None if count is None else int(count)

    def _call(self, name: str, absent: Any, *arguments: Any) -> Any:
        self._open()
        method: Callable[..., Any] | None = getattr(self._source, name, None)
        return absent if method is None else self._handler.finish(method(*arguments))

    def _close(self) -> None:
        if self._source is not None:
            with contextlib.suppress(Exception, SystemExit):
                self._handler.close()


def _end_with(keeper: int) -> None:
    """End this process soon after the keeper has gone, whatever user code is doing."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(keeper, 0)
            time.sleep(_LOOK_EVERY)
    os._exit(0)


def main() -> None:
    """Serve the source that standard input describes."""
    order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent process
    sys.path[:] = order.path
    threading.Thread(target=_end_with, args=(order.keeper,), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        # Complete before it has its name: whoever finds the name can connect.
        listener.bind(f"{order.socket}.new")
        listener.listen()
        os.rename(f"{order.socket}.new", order.socket)
        try:
            SourceProcess(order).serve(listener)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(order.socket)


if __name__ == "__main__":
    main()
