"""A web server for sinks to send to: it records what it accepts, and fails when a test says so."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Taken:
    """A request, or one message of a batch; ``body`` is then its JSON."""

    body: bytes
    headers: dict[str, str]
    method: str = "POST"
    connection: int = 0


@dataclass(frozen=True)
class Reply:
    """An answer to send."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Receiver:
    """Listens on this machine until its context ends."""

    def __init__(self, answer: Callable[[Taken], Reply | None] | None = None) -> None:
        self.requests: list[Taken] = []
        self.taken: list[Taken] = []
        self.down = False
        self.hangs_up = False
        """Whether connections are closed after an answer that does not announce it."""
        self.answer = answer or self.take
        self._refused: Collection[bytes] = ()
        handler = type("Handler", (_Handler,), {"receiver": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/take"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refuse(self, values: Collection[bytes]) -> None:
        self._refused = frozenset(values)

    def go_down(self) -> None:
        self.down = True

    def come_up(self) -> None:
        self.down = False

    def take(self, request: Taken) -> Reply:
        """Take a message, or each message of a batch, unless it is refused."""
        if self.down:
            return Reply(500, b"down for a while")
        kind = request.headers.get("content-type")
        if kind == "application/json":
            records = json.loads(request.body)
        elif kind == "application/x-ndjson":
            records = [json.loads(line) for line in request.body.splitlines()]
        else:
            return self._take_one(request)
        return Reply(200, json.dumps([self._take_record(record) for record in records]).encode())

    def _take_one(self, request: Taken) -> Reply:
        if request.body in self._refused:
            return Reply(400, b"not this one")
        self.taken.append(request)
        return Reply()

    def _take_record(self, record: dict[str, Any]) -> dict[str, Any]:
        text = record.get("value")
        value = b64decode(record["valueBase64"]) if text is None else text.encode()
        if value in self._refused:
            return {"id": record["id"], "status": 400, "error": "not this one"}
        self.taken.append(Taken(json.dumps(record).encode(), {}))
        return {"id": record["id"], "status": 200}


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A sink that stops reading is not an error here."""


class _Handler(BaseHTTPRequestHandler):
    receiver: Receiver
    protocol_version = "HTTP/1.1"
    timeout = 30

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Taken(body, headers, self.command, self.client_address[1])
        self.receiver.requests.append(request)
        reply = self.receiver.answer(request)
        if reply is None:  # close the connection without an answer
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = self.close_connection or self.receiver.hangs_up

    do_POST = do_PUT = do_PATCH = _answer

    def log_message(self, *_: object) -> None:
        pass
