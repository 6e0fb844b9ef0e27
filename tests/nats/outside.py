"""A NATS server that is not the pipeline's own, with streams and consumers as a user has them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses
from ebbflow.publishing import Publisher
from tests.nats.securing import nats_server

_numbers = count()


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with Outside.running(tmp_path_factory.mktemp("outside")) as server:
        yield server


class Outside:
    """The server, and a connection to it that is the test's own."""

    def __init__(self, port: int, login: str = "") -> None:
        self.url = f"nats://{login}127.0.0.1:{port}"
        self.server = Addresses.of(self.url)
        self.link = Link(self.server)

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, folder: Path, port: int = 0, config: str = "", login: str = ""
    ) -> Iterator[Outside]:
        """``login`` is the test's own, as it stands in a URL, including the ``@``."""
        with nats_server(folder, config, port) as chosen:
            outside = cls(chosen, login)
            try:
                yield outside
            finally:
                outside.link.close()

    def api(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.link.run(api.call(self.link.client, call, body))

    def stream(self, **config: Any) -> Stream:
        """A new stream, with a name and a subject that no other test uses."""
        name = f"S{next(_numbers)}"
        subject = name.lower()
        made = {"name": name, "subjects": [f"{subject}.>"], "allow_direct": True}
        self.api(f"STREAM.CREATE.{name}", made | config)
        return Stream(self, name, subject)


class Stream:
    """A stream on the server."""

    def __init__(self, outside: Outside, name: str, subject: str) -> None:
        self.outside = outside
        self.name = name
        self.subject = f"{subject}.x"

    def fill(self, values: list[bytes], producers: int = 1, **options: Any) -> None:
        """Publish values, shared out among producers that run in parallel."""

        def produce(number: int) -> None:
            with Publisher(self.outside.url) as publisher:
                mine = values[number::producers]
                publisher.publish_many([(self.subject, value) for value in mine], **options)

        with ThreadPoolExecutor(producers) as pool:
            list(pool.map(produce, range(producers)))

    def consumer(self, name: str = "c", **config: Any) -> str:
        """Make a consumer by hand."""
        made = {"durable_name": name, "ack_policy": "explicit"} | config
        body = {"stream_name": self.name, "config": made}
        self.outside.api(f"CONSUMER.CREATE.{self.name}.{name}", body)
        return name

    def info(self, consumer: str = "c") -> dict[str, Any]:
        """What NATS' own tools show about a consumer."""
        return self.outside.api(f"CONSUMER.INFO.{self.name}.{consumer}")

    def stored(self) -> list[tuple[str, bytes, dict[str, str]]]:
        """Subject, value and headers of every message in the stream."""
        from ebbflow.nats.stored import read_subject

        link = self.outside.link
        found = link.run(read_subject(link.client, self.name, ">"))
        return [(one.subject, one.payload, one.headers) for one in found]

    @contextlib.contextmanager
    def advisories(self, kind: str, consumer: str = "c") -> Iterator[list[dict[str, Any]]]:
        """The advisories of a kind that JetStream publishes about a consumer meanwhile."""
        received: list[dict[str, Any]] = []

        async def receive(message: Any) -> None:
            received.append(json.loads(message.data))

        link = self.outside.link
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{self.name}.{consumer}"
        subscription = link.run(link.client.subscribe(subject, cb=receive))
        link.flush()
        try:
            yield received
        finally:
            link.flush()
            link.run(subscription.unsubscribe())
