"""A serving source without its pipeline: the feed, a book in memory, and a client."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ebbflow.accounts.completion import RequestFailure, RequestStep
from ebbflow.connectors.listening.posts import Envelope
from ebbflow.connectors.serving.replies import ServingSettings
from ebbflow.connectors.serving.source import ServingFeed
from ebbflow.connectors.serving.store import ServedRequest
from ebbflow.engine.answers import Answer, own_answers
from ebbflow.nats.link import Link
from ebbflow.streams.feed import FeedContext
from ebbflow.web.exchange import Refusal
from ebbflow.web.server import Endpoint

LOOPBACK = Endpoint("127.0.0.1", 0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Kept:
    """A request in the book: what came in, and its outcome."""

    envelope: Envelope
    body: bytes
    served: ServedRequest
    answers: list[Answer] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class BookInMemory:
    """Requests answered by what their body says, on the feed's loop.

    ``wait`` stays open, ``fail`` fails, ``drop`` has no results, ``full`` is refused and anything
    else is echoed: lines as one result each.
    """

    failure: str | None = None

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.open_calls = 0

    async def close(self) -> None:
        pass

    async def submit(self, envelope: Envelope, body: bytes) -> None:
        if envelope.id in self.kept:
            raise Refusal(409, f"a request of the id {envelope.id} was taken before")
        if body == b"full":
            raise Refusal(429, "the buffer is full", retry=1)
        served = ServedRequest(envelope.id, "in-progress", NOON)
        kept = self.kept[envelope.id] = Kept(envelope, body, served)
        if body == b"bug":
            raise RuntimeError("a bug")
        if body == b"fail":
            self.end(envelope.id, failure=RequestFailure("map", "poison", "ValueError: no"))
        elif body == b"drop":
            self.end(envelope.id)
        elif body != b"wait":
            for answer in own_answers(envelope.id, body.split(b"\n")):
                kept.answers.append(answer)
            self.end(envelope.id)

    def add(self, request: str, payload: bytes) -> None:
        kept = self.kept[request]
        kept.answers.append(replace(own_answers(request, [payload])[0], arrived=len(kept.answers)))
        kept.change()

    def end(self, request: str, failure: RequestFailure | None = None) -> None:
        kept = self.kept[request]
        status = "failed" if failure else "completed"
        answers = () if failure else tuple(kept.answers)
        step = RequestStep("map", request, 1, "done", at=NOON, reason=None, error=None)
        kept.served = ServedRequest(
            request, status, NOON, NOON, failure, answers=answers, steps=(step,)
        )
        kept.change()

    async def ask(self, envelope: Envelope, body: bytes, seconds: float) -> ServedRequest:
        await self.submit(envelope, body)
        return await self.wait(envelope.id, seconds)

    async def wait(self, request: str, seconds: float) -> ServedRequest:
        kept = self.kept[request]
        self.open_calls += 1
        try:
            async with asyncio.timeout(seconds):
                while kept.served.status == "in-progress":
                    await kept.changed.wait()
        finally:
            self.open_calls -= 1
        return kept.served

    async def find(self, request: str) -> ServedRequest | None:
        kept = self.kept.get(request)
        return kept and kept.served

    async def status(self, request: str) -> ServedRequest | None:
        found = await self.find(request)
        return found and replace(found, answers=())

    async def watch(self, request: str) -> AsyncIterator[Answer | ServedRequest]:
        kept = self.kept[request]
        self.open_calls += 1
        try:
            sent = 0
            while True:
                changed = kept.changed
                while sent < len(kept.answers):
                    sent += 1
                    yield kept.answers[sent - 1]
                if kept.served.status != "in-progress":
                    yield kept.served
                    return
                await changed.wait()
        finally:
            self.open_calls -= 1


@dataclass(frozen=True)
class Asked:
    status: int
    body: bytes
    headers: http.client.HTTPMessage

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Asking:
    """A running feed, as its clients see it."""

    def __init__(self, feed: ServingFeed, line: str) -> None:
        self.feed, self.book = feed, feed._book
        self.url = line.partition(" at ")[2].partition("/v1/process")[0]
        self.port = int(self.url.rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Asked:
        """One request on a connection of its own; ``x_a`` is the header ``x-a``."""
        connection = self.connect()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return Asked(response.status, response.read(), response.headers)
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Asked:
        return self.ask("POST", f"/v1/process/{path}", body, **headers)

    def get(self, path: str, **headers: str) -> Asked:
        return self.ask("GET", f"/v1/process/{path}", **headers)

    def on_loop(self, call: Any, *arguments: Any) -> Any:
        """Call a function of the book on its loop."""

        async def run() -> Any:
            return call(*arguments)

        return self.feed.link.run(run())


@contextmanager
def asking(
    link: Link,
    memory: Path,
    *,
    largest: int = 100_000,
    is_ready: Any = lambda: True,
    endpoints: tuple[Endpoint, ...] = (LOOPBACK,),
    **settings: Any,
) -> Iterator[Asking]:
    """The feed of one vertex on a book in memory, started, until the context ends."""
    book = BookInMemory()

    class Feed(ServingFeed):
        async def _open_book(self, link: Link) -> Any:
            return book

    pipeline = f"p-{secrets.token_hex(4)}"
    context = FeedContext(
        pipeline, "in", 1, largest, link, None, print, memory, False, is_ready=is_ready
    )
    with started(Feed, context, endpoints, **settings) as asked:
        yield asked


@contextmanager
def started(
    kind: type[ServingFeed],
    context: FeedContext,
    endpoints: tuple[Endpoint, ...] = (LOOPBACK,),
    **settings: Any,
) -> Iterator[Asking]:
    """A feed, until the context ends."""
    lines: list[str] = []
    feed = kind(ServingSettings(endpoints, **settings), replace(context, log=lines.append))
    feed.start()
    try:
        yield Asking(feed, lines[-1])
    finally:
        feed.stop()
