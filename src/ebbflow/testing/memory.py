"""A source and a sink in the memory of a test, for pipelines that run on local Spark.

    with MemorySource([b"1", b"2"]) as source, MemorySink() as sink:
        Pipeline("test").source("in", source.code).map("double", double).sink("out", sink.code).run(
            drain=True
        )
        assert sorted(sink.values) == [b"2", b"4"]

Both keep every rule of the conformance suite. What they hold is in this process: it is still there
after a pipeline was stopped, and gone with the test.

Workers are separate processes, so they ask for what is here over a unix socket. Each connection
is one client; when it ends, the object learns of it, as it would of a process that was killed.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing.connection import Client, Connection
from typing import Any, Self

import pyarrow as pa

from ebbflow.domain.code import Code, SinkMode
from ebbflow.domain.message import Datum, Response
from ebbflow.domain.user_source import Messages, NackOffset, Source, SourceMessage
from ebbflow.engine.source_columns import columns_of
from ebbflow.testing.conformance.rules import Sample

_LOOK_EVERY = 0.01
_REFUSAL = "the memory sink refuses it"


# --- an object of this process that workers can call --------------------------------------------


class ObjectServer:
    """Serves a target to other processes of this user, for as long as a context lasts.

    The first argument of the target's methods is the client that calls; ``gone`` hears that one is
    not there any more.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._folder = tempfile.mkdtemp(prefix="ebbflow-shared-")  # only this user can look inside
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets pipelines reach it no more; what it holds can still be looked at."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open.values()):
            with contextlib.suppress(OSError):
                socket.socket(fileno=os.dup(connection.fileno())).shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder, ignore_errors=True)


def _answer(target: Any, method: str, client: int, arguments: tuple[Any, ...]) -> Any:
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


# --- the source -----------------------------------------------------------------------------------


class MemorySource(ObjectServer):
    """A queue: gives each message until it is acknowledged.

    ``redelivers`` chooses whether nacked messages go back to it or are kept by Ebbflow, ``columns``
    whether it gives them as columns. A run with ``drain`` ends when everything that was put has
    been acknowledged.
    """

    def __init__(
        self,
        messages: Iterable[bytes | Sample] = (),
        *,
        redelivers: bool = True,
        columns: bool = False,
    ) -> None:
        self._queue = _Queue()
        self._redelivers = redelivers
        self._columns = columns
        super().__init__(self._queue)
        self.put(*messages)

    @property
    def code(self) -> Code:
        """The code to give to ``Pipeline(...).source("in", ...)``."""
        return partial(MemoryReader, self.address, self._redelivers, self._columns)

    def put(self, *messages: bytes | Sample) -> None:
        """Add messages, while a pipeline runs or before; from any thread."""
        self._queue.put(
            [Sample(message) if isinstance(message, bytes) else message for message in messages]
        )

    @property
    def waiting(self) -> int:
        """The number of messages that are to be given, for the first time or again."""
        return self._queue.waiting

    @property
    def unsettled(self) -> int:
        """The number of messages that are not acknowledged."""
        return self._queue.waiting + len(self._queue.given)


class _Queue:
    """The messages of a memory source, in the test's process; each has a number."""

    def __init__(self) -> None:
        self.given: dict[int, tuple[int, Sample]] = {}
        self._ready: deque[tuple[int, Sample]] = deque()
        self._later: list[tuple[float, int, Sample]] = []
        self._numbers = count(1)
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return len(self._ready) + len(self._later)

    def put(self, samples: Sequence[Sample]) -> None:
        with self._lock:
            self._ready.extend((next(self._numbers), sample) for sample in samples)

    def read(self, client: int, limit: int) -> list[tuple[int, Sample]]:
        with self._lock:
            while self._later and self._later[0][0] <= time.time():
                _, number, sample = heapq.heappop(self._later)
                self._ready.append((number, sample))
            due = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
            self.given |= {number: (client, sample) for number, sample in due}
        return due

    def ack(self, client: int, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                self.given.pop(number, None)

    def nack(self, client: int, delays: dict[int, int]) -> None:
        now = time.time()
        with self._lock:
            for number in delays.keys() & self.given.keys():
                _, sample = self.given.pop(number)
                heapq.heappush(self._later, (now + delays[number] / 1000, number, sample))

    def left(self, client: int) -> tuple[int, int]:
        """Returns how many are to be given, and how many to be acknowledged."""
        return self.waiting, len(self.given)

    def gone(self, client: int) -> None:
        """Gives what a process had that has ended to the next one."""
        with self._lock:
            lost = [number for number, (whose, _) in self.given.items() if whose == client]
            self._ready.extendleft((number, self.given.pop(number)[1]) for number in reversed(lost))


class MemoryReader(Source):
    """The source in its own process. Without ``redelivers`` Ebbflow keeps what is nacked."""

    def __init__(self, address: str, redelivers: bool = True, columns: bool = False) -> None:
        self._address = address
        self._columns = columns
        if not redelivers:
            self.nack = None  # type: ignore[method-assign, assignment]

    def open(self) -> None:
        """Connects to the test."""
        self._queue = ObjectClient(self._address)

    def read(self, limit: int, timeout: timedelta) -> Messages:
        """Returns the messages that are due, in the order they were put."""
        messages = self._read(limit, timeout.total_seconds())
        return columns_of(messages) if self._columns else messages

    def _read(self, limit: int, timeout: float) -> list[SourceMessage]:
        deadline = time.monotonic() + timeout
        while not (due := self._queue.ask("read", limit)) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY)
        return [
            SourceMessage(sample.value, b"%d" % number, keys=sample.keys, headers=sample.headers)
            for number, sample in due
        ]

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Takes these messages for done."""
        self._queue.ask("ack", [int(offset) for offset in offsets])

    def ack_columns(self, offsets: pa.BinaryArray) -> None:
        """Takes these messages for done, as a source of columns does or one by one."""
        if self._columns:
            self._queue.ask("ack", offsets.cast(pa.string()).cast(pa.int64()).to_pylist())
        else:
            super().ack_columns(offsets)

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Puts these back, each for its delay."""
        self._queue.ask("nack", {int(nack.offset): nack.options.delay or 0 for nack in nacks})

    def pending(self) -> int:
        """Returns how many wait."""
        ready, _ = self._queue.ask("left")
        return int(ready)

    @property
    def exhausted(self) -> bool:
        """Returns whether all messages are acknowledged."""
        return not any(self._queue.ask("left"))

    def close(self) -> None:
        """Leave; what was given and not acknowledged is given again."""
        self._queue.close()


# --- the sink -------------------------------------------------------------------------------------


class MemorySink(ObjectServer):
    """Keeps what lands in it, and fails where you say so.

    ``columns`` chooses whether it is given columns: then its ``mode`` goes with its ``code``.
    """

    def __init__(self, *, columns: bool = False) -> None:
        self._target = _Target()
        self.mode: SinkMode = "columnar" if columns else "batch"
        super().__init__(self._target)

    @property
    def code(self) -> Code:
        """The code to give to ``Pipeline(...).sink("out", ...)``."""
        return partial(MemoryWriter if self.mode == "batch" else ColumnarWriter, self.address)

    @property
    def landed(self) -> list[Sample]:
        """All messages that have landed, with their keys and headers."""
        return list(self._target.landed)

    @property
    def values(self) -> list[bytes]:
        """The values of all messages that have landed."""
        return [sample.value for sample in self._target.landed]

    def refuse(self, values: Collection[bytes]) -> None:
        """Answer FAILURE for messages with these values from now on, and only for these."""
        self._target.refused = frozenset(values)

    def go_down(self) -> None:
        """Raises ``ConnectionError`` whatever comes, until it comes up again."""
        self._target.is_down = True

    def come_up(self) -> None:
        """Takes messages again."""
        self._target.is_down = False


@dataclass
class _Target:
    """The messages that a memory sink has taken, in the test's process."""

    landed: list[Sample] = field(default_factory=list)
    refused: frozenset[bytes] = frozenset()
    is_down: bool = False

    def write(self, client: int, samples: Sequence[Sample]) -> list[bool]:
        """Takes the messages that it does not refuse, and returns which it took."""
        if self.is_down:
            raise ConnectionError("the memory sink is down")
        self.landed += [sample for sample in samples if sample.value not in self.refused]
        return [sample.value not in self.refused for sample in samples]

    def gone(self, client: int) -> None:
        """Keeps nothing for a client that has gone."""


class _Writer:
    """The connection of a sink on a worker."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self) -> None:
        """Connects to the test."""
        self._target = ObjectClient(self._address)

    def write(self, samples: Sequence[Sample]) -> list[bool]:
        """Write samples; returns which of them were taken."""
        taken: list[bool] = self._target.ask("write", samples)
        return taken

    def close(self) -> None:
        """Leave."""
        self._target.close()


class MemoryWriter(_Writer):
    """The sink on a worker."""

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Writes the messages, and answers which were refused."""
        taken = self.write(
            [Sample(datum.value, tuple(datum.keys), datum.headers) for datum in data]
        )
        return [
            Response.ok(datum.id) if ok else Response.failure(datum.id, _REFUSAL)
            for datum, ok in zip(data, taken, strict=True)
        ]


class ColumnarWriter(_Writer):
    """The sink on a worker that receives columns."""

    def __call__(self, batch: pa.RecordBatch) -> dict[int, Response]:
        """Write them, and answer for those that were refused."""
        names = ("value", "keys", "headers")
        columns = (batch.column(name).to_pylist() for name in names)
        samples = [
            Sample(value, tuple(keys or ()), dict(headers or ()))
            for value, keys, headers in zip(*columns, strict=True)
        ]
        refused = Response.failure(error=_REFUSAL)
        taken = self.write(samples)
        return {row: refused for row, ok in enumerate(taken) if not ok}
