"""A source and a sink in memory, for tests that run pipelines on local Spark.

    with MemorySource([b"1", b"2"]) as source, MemorySink() as sink:
        Pipeline("test").source("in", source.code).map("double", double).sink("out", sink.code).run(
            drain=True
        )
        assert sorted(sink.values) == [b"2", b"4"]

Both pass every rule of the conformance suite. They keep their messages in this process: messages
outlive a pipeline that is stopped, but not the test.

Workers are separate processes, so they access the messages over a unix socket. Each connection is
one client. When a connection ends, also because its process was killed, the target is notified.
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


# --- an object that other processes can call ----------------------------------------------------


class ObjectServer:
    """Lets other processes of this user call a target, until the context ends.

    The target's methods get the calling client as their first argument. ``disconnected`` is called
    when a client's connection has ended.
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
            self._target.disconnected(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects pipelines; the messages can still be read here."""
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
    """Calls the object from another process."""

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
    """A queue that redelivers each message until it is acknowledged.

    ``redelivers`` chooses whether nacked messages return to the queue or are kept by Ebbflow,
    ``columns`` whether it returns messages as columns. A run with ``drain`` ends when all messages
    are acknowledged.
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
        """The code for ``Pipeline(...).source("in", ...)``."""
        return partial(MemoryReader, self.address, self._redelivers, self._columns)

    def put(self, *messages: bytes | Sample) -> None:
        """Adds messages, before or while a pipeline runs. Safe to call from any thread."""
        self._queue.put(
            [Sample(message) if isinstance(message, bytes) else message for message in messages]
        )

    @property
    def waiting(self) -> int:
        """The number of messages that wait for their first delivery or for a redelivery."""
        return self._queue.waiting

    @property
    def unsettled(self) -> int:
        """The number of messages that are not acknowledged."""
        return self._queue.waiting + len(self._queue.in_flight)


class _Queue:
    """The numbered messages of a memory source, in the test's process."""

    def __init__(self) -> None:
        self.in_flight: dict[int, tuple[int, Sample]] = {}
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
            self.in_flight |= {number: (client, sample) for number, sample in due}
        return due

    def ack(self, client: int, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                self.in_flight.pop(number, None)

    def nack(self, client: int, delays: dict[int, int]) -> None:
        now = time.time()
        with self._lock:
            for number in delays.keys() & self.in_flight.keys():
                _, sample = self.in_flight.pop(number)
                heapq.heappush(self._later, (now + delays[number] / 1000, number, sample))

    def left(self, client: int) -> tuple[int, int]:
        """Returns how many messages wait, and how many are in flight."""
        return self.waiting, len(self.in_flight)

    def disconnected(self, client: int) -> None:
        """Makes messages ready again that were in flight at a client that has ended."""
        with self._lock:
            lost = [number for number, (owner, _) in self.in_flight.items() if owner == client]
            self._ready.extendleft(
                (number, self.in_flight.pop(number)[1]) for number in reversed(lost)
            )


class MemoryReader(Source):
    """The source in its own process. Without ``redelivers``, Ebbflow keeps nacked messages."""

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
        """Removes messages that are done."""
        self._queue.ask("ack", [int(offset) for offset in offsets])

    def ack_columns(self, offsets: pa.BinaryArray) -> None:
        """Removes messages that are done, as columns if the source returns columns."""
        if self._columns:
            self._queue.ask("ack", offsets.cast(pa.string()).cast(pa.int64()).to_pylist())
        else:
            super().ack_columns(offsets)

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Returns messages to the queue, each with its delay."""
        self._queue.ask("nack", {int(nack.offset): nack.options.delay or 0 for nack in nacks})

    def pending(self) -> int:
        """Returns how many messages wait."""
        ready, _ = self._queue.ask("left")
        return int(ready)

    @property
    def exhausted(self) -> bool:
        """Returns whether all messages are acknowledged."""
        return not any(self._queue.ask("left"))

    def close(self) -> None:
        """Disconnects; messages that are not acknowledged are redelivered."""
        self._queue.close()


# --- the sink -------------------------------------------------------------------------------------


class MemorySink(ObjectServer):
    """Keeps the messages that land in it, and fails when a test says so.

    ``columns`` chooses whether it receives columns: then pass ``mode`` together with ``code``.
    """

    def __init__(self, *, columns: bool = False) -> None:
        self._target = _Target()
        self.mode: SinkMode = "columnar" if columns else "batch"
        super().__init__(self._target)

    @property
    def code(self) -> Code:
        """The code for ``Pipeline(...).sink("out", ...)``."""
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
        """Responds FAILURE to messages with these values, and only to these, from now on."""
        self._target.refused = frozenset(values)

    def go_down(self) -> None:
        """Raises ``ConnectionError`` for all messages, until ``come_up``."""
        self._target.is_down = True

    def come_up(self) -> None:
        """Accepts messages again."""
        self._target.is_down = False


@dataclass
class _Target:
    """The messages that a memory sink has accepted, in the test's process."""

    landed: list[Sample] = field(default_factory=list)
    refused: frozenset[bytes] = frozenset()
    is_down: bool = False

    def write(self, client: int, samples: Sequence[Sample]) -> list[bool]:
        """Stores the messages that are not refused; returns which ones it stored."""
        if self.is_down:
            raise ConnectionError("the memory sink is down")
        self.landed += [sample for sample in samples if sample.value not in self.refused]
        return [sample.value not in self.refused for sample in samples]

    def disconnected(self, client: int) -> None:
        """Does nothing: the target keeps nothing for its clients."""


class _Writer:
    """The connection of a sink on a worker."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self) -> None:
        """Connects to the test."""
        self._target = ObjectClient(self._address)

    def write(self, samples: Sequence[Sample]) -> list[bool]:
        """Writes samples; returns which of them were stored."""
        taken: list[bool] = self._target.ask("write", samples)
        return taken

    def close(self) -> None:
        """Disconnects."""
        self._target.close()


class MemoryWriter(_Writer):
    """The sink on a worker."""

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Writes messages, and returns a response for each."""
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
        """Writes messages, and returns responses for those that were refused."""
        names = ("value", "keys", "headers")
        columns = (batch.column(name).to_pylist() for name in names)
        samples = [
            Sample(value, tuple(keys or ()), dict(headers or ()))
            for value, keys, headers in zip(*columns, strict=True)
        ]
        refused = Response.failure(error=_REFUSAL)
        taken = self.write(samples)
        return {row: refused for row, ok in enumerate(taken) if not ok}
