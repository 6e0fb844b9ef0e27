"""An HTTP source without its pipeline: the feed, the buffer that it fills, and a client."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbflow.connectors.http.source import HttpFeed, HttpSourceSettings
from ebbflow.engine import frames
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue, provision
from ebbflow.streams.feed import Feed, FeedContext
from ebbflow.streams.names import Names
from ebbflow.web.server import Endpoint

LOOPBACK = Endpoint("127.0.0.1", 0)
NDJSON = "application/x-ndjson"


@dataclass(frozen=True)
class Answered:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        return self.body["reason"]


class Posting:
    """A running feed, as its clients see it."""

    def __init__(
        self, link: Link, pipeline: str, vertex: str, feed: Feed, lines: list[str]
    ) -> None:
        self.link, self.vertex, self.feed, self.lines = link, vertex, feed, lines
        self.names = Names(pipeline)
        addresses = re.findall(r"takes messages at (\S+)/vertices/", "\n".join(lines))
        self.urls = dict(address.split("://") for address in addresses)
        self.url = addresses[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.path = f"/vertices/{vertex}"

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        if context is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, method: str, path: str, body: Any = None, headers: Any = (), **options: Any):
        """One request on a connection of its own."""
        connection = self.connect(options.pop("context", None))
        try:
            return asked(connection, method, path, body, dict(headers), **options)
        finally:
            connection.close()

    def post(self, body: Any, **headers: str) -> Answered:
        """A post to the vertex; ``x_numaflow_id`` is the header ``x-numaflow-id``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", self.path, body, named)

    def rows(self) -> list[dict[str, Any]]:
        """All rows in the buffer, by the order in which they were stored."""
        stream = self.names.buffer(self.vertex, 0)
        subject = self.names.buffer_subject(self.vertex, 0)
        messages = self.link.run(read_subject(self.link.client, stream, subject))
        rows = frames.Rows(frames.concat([frames.decode(message.payload) for message in messages]))
        names = ("id", "value", "keys", "headers", "event_time", "first_seen", "deliveries")
        columns = [rows.column(name) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows()]

    def purge(self) -> None:
        """Purge the buffer, as a vertex does with settled messages."""
        subject = self.names.buffer_subject(self.vertex, 0)
        stream = self.names.buffer(self.vertex, 0)
        self.link.run(api.purge_subject(self.link.client, stream, subject, 2**40))


def asked(connection, method, path, body=None, headers=None, **options) -> Answered:
    connection.request(method, path, body, headers or {}, **options)
    response = connection.getresponse()
    text = response.read()
    return Answered(response.status, json.loads(text) if text else None, dict(response.headers))


@contextmanager
def posting(
    link: Link,
    memory: Path,
    *,
    pipeline: str | None = None,
    vertex: str = "in",
    max_frames: int = 1_000_000,
    largest: int = 100_000,
    endpoints: tuple[Endpoint, ...] = (LOOPBACK,),
    **settings: Any,
) -> Iterator[Posting]:
    """The feed of one vertex, started, until the context ends."""
    pipeline = pipeline or f"p-{secrets.token_hex(4)}"
    names = Names(pipeline)
    for config in (
        catalogue.buffer_config(names, vertex, 0, max_frames),
        catalogue.seen_config(names),
    ):
        link.run(provision.ensure(link.client, config))
    lines: list[str] = []
    context = FeedContext(pipeline, vertex, 1, largest, link, None, lines.append, memory, False)
    feed = HttpFeed(HttpSourceSettings(endpoints, **settings), context)
    feed.start()
    try:
        yield Posting(link, pipeline, vertex, feed, lines)
    finally:
        feed.stop()


def in_background(call, *arguments) -> tuple[threading.Thread, list[Any]]:
    """Run a blocking call on its own thread; the list holds what it returned or raised."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call(*arguments))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results
