"""Clients that send requests and check that each answer belongs to its request: number and ``!``.

python -m benchmarks.workers.asking PORT PATH SIZE SEED steady RATE SECONDS WARM
python -m benchmarks.workers.asking PORT PATH SIZE SEED crowd CLIENTS REQUESTS

``steady`` asks that many times a second, whether or not earlier requests are answered. A request
counts from the moment it was due, so that one that could not be sent in time counts with
its wait; those of the first ``WARM`` seconds do not count. ``crowd`` has that many clients at once,
each of which sends the next request as soon as it is answered.

Prints JSON: the milliseconds of the requests at some shares, how many a second were answered, and
what went wrong.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.work import numbered, work

_HOST = "127.0.0.1"
_CONNECTIONS, _MOST_CONNECTIONS = 32, 1_000
_PATIENCE, _LOOK_EVERY = 30.0, 0.01
_MOST_REQUESTS = 10**8
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class Question:
    """One request. It is ``due`` on the loop's clock; ``counts`` if its time is measured."""

    text: bytes
    due: float
    counts: bool = True


class Tally:
    """The outcomes of the requests."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.troubles: Counter[str] = Counter()
        self.ended = 0
        self.last = 0.0

    def count_answer(self, question: Question, now: float, status: bytes, body: bytes) -> None:
        """Counts an answer."""
        self.ended += 1
        self.last = now
        if question.counts:
            self.took.append(now - question.due)
        if status != b"200":
            self.troubles[f"status {status.decode()}"] += 1
        elif body != work(question.text):
            self.troubles["answer of another request"] += 1

    def lose(self) -> None:
        """Counts a request whose connection has ended."""
        self.ended += 1
        self.troubles["connection lost"] += 1

    def report(self, began: float, asked: int) -> dict[str, object]:
        """Returns the report; requests without an answer are among the troubles."""
        if asked > self.ended:
            self.troubles["not answered"] += asked - self.ended
        ordered = sorted(self.took) or [0.0]
        last = len(ordered) - 1
        marks = {
            name: 1000 * ordered[min(last, int(share * len(ordered)))]
            for name, share in _SHARES.items()
        }
        rate = self.ended / max(self.last - began, 0.001)
        return {**marks, "requests": asked, "rate": rate, "troubles": dict(self.troubles)}


class Asker(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._question: Question | None = None
        self._answer = b""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is ready."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, question: Question) -> None:
        """Sends a request."""
        self._question, self._answer = question, b""
        self._transport.write(self._clients.head % len(question.text) + question.text)

    def data_received(self, data: bytes) -> None:
        """Passes the answer on when it is complete."""
        self._answer += data
        head, complete, body = self._answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if complete else None
        if length is None or len(body) < int(length[1]) or self._question is None:
            return
        question, self._question = self._question, None
        status = head.split(b" ", 2)[1]
        self._clients.tally.count_answer(question, self._loop.time(), status, body)
        self._clients.be_free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives up its request."""
        self.is_lost = True
        if self._question is not None:
            self._clients.tally.lose()
            self._clients.be_free(self)

    def close(self) -> None:
        """Ends the connection."""
        self._question = None
        self._transport.close()


class Clients:
    """All connections to one port."""

    def __init__(self, port: int, path: str, texts: Iterator[bytes]) -> None:
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/octet-stream\r\n"
            "Content-Length: %d\r\n\r\n"
        ).encode()
        self.tally = Tally()
        self._port = port
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._all: list[Asker] = []

    def be_free(self, asker: Asker) -> None:
        """Is called when a connection has nothing to do."""
        raise NotImplementedError

    async def connect(self) -> Asker:
        """Adds a connection."""
        _, asker = await self._loop.create_connection(lambda: Asker(self), _HOST, self._port)
        self._all.append(asker)
        return asker

    def close(self) -> None:
        """Ends all connections."""
        for asker in self._all:
            asker.close()


class Steady(Clients):
    """Sends each request when it is due, on any free connection."""

    def __init__(self, port: int, path: str, texts: Iterator[bytes]) -> None:
        super().__init__(port, path, texts)
        self._free: list[Asker] = []
        self._waiting: deque[Question] = deque()
        self._connecting: set[asyncio.Task[None]] = set()

    async def ask(self, rate: float, seconds: float, warm: float) -> dict[str, object]:
        """Sends that many requests a second, and returns the report."""
        self._free += [await self.connect() for _ in range(_CONNECTIONS)]
        began = self._loop.time()
        total = int(rate * (warm + seconds))
        for number in range(total):
            due = began + number / rate
            if (left := due - self._loop.time()) > 0:
                await asyncio.sleep(left)
            self._ask(Question(next(self._texts), due, due >= began + warm))
        await self._wait_for(total)
        return self.tally.report(began, total)

    def be_free(self, asker: Asker) -> None:
        """Makes the connection send a waiting request."""
        if asker.is_lost:
            if self._waiting:
                self._connect_soon()
        elif self._waiting:
            asker.ask(self._waiting.popleft())
        else:
            self._free.append(asker)

    def _ask(self, question: Question) -> None:
        while self._free:
            asker = self._free.pop()
            if not asker.is_lost:
                asker.ask(question)
                return
        self._waiting.append(question)
        self._connect_soon()

    def _connect_soon(self) -> None:
        if len(self._all) + len(self._connecting) < _MOST_CONNECTIONS:
            task = self._loop.create_task(self._connect_one_more())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect_one_more(self) -> None:
        self.be_free(await self.connect())

    async def _wait_for(self, total: int) -> None:
        deadline = self._loop.time() + _PATIENCE
        while self.tally.ended < total and self._loop.time() < deadline:
            await asyncio.sleep(_LOOK_EVERY)


class Crowd(Clients):
    """Each client sends the next request as soon as it is answered."""

    async def ask(self, clients: float, requests: float) -> dict[str, object]:
        """Sends that many requests in all, and returns the report."""
        askers = [await self.connect() for _ in range(int(clients))]
        began, self._left = self._loop.time(), int(requests)
        for asker in askers:
            self.be_free(asker)
        await self._wait_while_answered(requests)
        return self.tally.report(began, int(requests))

    def be_free(self, asker: Asker) -> None:
        """Makes the client send its next request."""
        if self._left and not asker.is_lost:
            self._left -= 1
            asker.ask(Question(next(self._texts), self._loop.time()))

    async def _wait_while_answered(self, requests: float) -> None:
        before, deadline = -1, 0.0
        while self.tally.ended < requests:
            now = self._loop.time()
            if self.tally.ended != before:
                before, deadline = self.tally.ended, now + _PATIENCE
            elif now > deadline:
                return
            await asyncio.sleep(_LOOK_EVERY)


async def ask(where: tuple[int, str], texts: Iterator[bytes], how: str, *numbers: float) -> None:
    """Sends the requests, and prints the report."""
    gc.disable()  # a pause of this program would count as one of the server
    used = time.process_time()
    clients = Steady(*where, texts) if how == "steady" else Crowd(*where, texts)
    report = await clients.ask(*numbers)
    clients.close()
    print(json.dumps(report | {"cpu": time.process_time() - used}))


if __name__ == "__main__":
    port, path, size, seed, how, *numbers = sys.argv[1:]
    texts = numbered(_MOST_REQUESTS, int(size), int(seed))
    asyncio.run(ask((int(port), path), texts, how, *map(float, numbers)))
