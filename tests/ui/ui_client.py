"""The web UI on a real server and a real NATS server, and a client that asks as a browser would."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ebbflow.nats.link import Link
from ebbflow.ui.links import ServerLink
from ebbflow.ui.web_ui import UiAddress, open_web_ui

POST = {"X-Ebbflow": "1", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    raw: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class UiClient:
    """A web UI, seen from outside."""

    def __init__(self, port: int, secured: bool = False) -> None:
        self.port = port
        self.secured = secured

    def open(self) -> http.client.HTTPConnection:
        if not self.secured:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        trusting = ssl._create_unverified_context()
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=trusting)

    @staticmethod
    def read(connection: http.client.HTTPConnection) -> Answer:
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), dict(answer.getheaders()))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = self.open()
        raw = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, raw, dict(headers or {}))
            return self.read(connection)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, body: Any = None) -> Answer:
        return self.ask("POST", path, body if body is not None else {}, POST)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream, as pairs of their kind and their data."""
        connection = self.open()
        try:
            connection.request("GET", path)
            yield _events(connection.getresponse())
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    assert answer.status == 200, answer.read()
    kind = ""
    for line in answer:
        if line.startswith(b"event: "):
            kind = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield kind, json.loads(line[6:])


@contextmanager
def serve_ui(
    link: Link, *only: str, host: str = "127.0.0.1", whole: bool = True, secured: bool | None = None
) -> Iterator[UiClient]:
    """Serves a web UI of all pipelines on the server of a link, or of some."""
    address = UiAddress(host, 0, secured=secured)
    with open_web_ui(address, ServerLink(link.server), only, whole) as listening:
        yield UiClient(listening.bound.getsockname()[1], bool(secured))
