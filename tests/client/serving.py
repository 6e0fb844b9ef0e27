"""A small server that replies as a serving pipeline does, and drops connections on demand."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NOW = "2026-01-02T03:04:05.600000+00:00"
CUT_BEFORE, CUT_AFTER, BUSY = "cut before it is accepted", "cut after it is accepted", "429"
STOPPING = "503 after it is accepted"
DUPLICATE = {"message": "the id is in use", "code": 409, "timestamp": NOW}
FAILED = {
    "message": "the request failed",
    "code": 500,
    "timestamp": NOW,
    "vertex": "price",
    "reason": "failed",
    "error": "no such order",
}


class ServingServer(ThreadingHTTPServer):
    """The text of a request decides its outcome: ``words a b`` has the results ``a`` and ``b``.

    ``faults`` are what happens to the next calls. ``taken`` counts how often an id was accepted.
    Unless it is ``open`` there are no answers, and a stream has only its first result.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[str] = []
        self.bodies: dict[str, bytes] = {}
        self.taken: Counter[str] = Counter()
        self.calls: list[str] = []
        self.headers_received: list[dict[str, str]] = []
        self.open = threading.Event()
        self.open.set()
        self.cut_stream_after: int | None = None
        self.token = ""

    @property
    def url(self) -> str:
        scheme = "https" if isinstance(self.socket, ssl.SSLSocket) else "http"
        return f"{scheme}://127.0.0.1:{self.server_address[1]}"

    def next_fault(self) -> str:
        return self.faults.pop(0) if self.faults else ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that have disconnected."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[ServingServer]:
    with ServingServer() as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.open.set()
            server.shutdown()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ServingServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._record()
        id = parse_qs(urlsplit(self.path).query).get("id", [""])[0]
        if self.server.next_fault():
            return self._hang_up()
        if id not in self.server.bodies:
            return self._say(404, {"message": "no such request", "code": 404, "timestamp": NOW})
        match urlsplit(self.path).path:
            case "/v1/process/fetch":
                self._fetch(id)
            case "/v1/process/status":
                self._status(id)
            case "/v1/process/sse":
                self._stream(id)

    def do_POST(self) -> None:
        self._record()
        body = self.rfile.read(int(self.headers["content-length"]))
        id = self.headers["x-numaflow-id"]
        if self.server.token and self.headers["authorization"] != f"Bearer {self.server.token}":
            return self._say(401, {"message": "the token is wrong", "code": 401})
        fault = self.server.next_fault()
        if fault == CUT_BEFORE:
            return self._hang_up()
        if fault == BUSY:
            return self._say(429, {"message": "too many", "code": 429}, {"retry-after": "0.01"})
        if id in self.server.bodies:
            return self._say(409, DUPLICATE)
        self.server.bodies[id] = body
        self.server.taken[id] += 1
        if fault == CUT_AFTER:
            return self._hang_up()
        if fault == STOPPING:
            return self._say(503, {"message": "the run is stopping", "code": 503})
        match urlsplit(self.path).path:
            case "/v1/process/sync":
                self._sync(id)
            case "/v1/process/async":
                self._say(200, {"message": "published", "id": id, "code": 200, "timestamp": NOW})
            case "/v1/process/sse":
                self._stream(id)

    def _record(self) -> None:
        self.server.calls.append(f"{self.command} {urlsplit(self.path).path.rpartition('/')[2]}")
        self.server.headers_received.append(
            {name.lower(): value for name, value in self.headers.items()}
        )

    def _sync(self, id: str) -> None:
        timeout = float(parse_qs(urlsplit(self.path).query)["timeout"][0])
        if not self.server.open.wait(min(timeout, 0.05)):
            return self._say(408, {"message": "no answer yet", "code": 408, "id": id})
        self._fetch(id)

    def _fetch(self, id: str) -> None:
        if not self.server.open.is_set():
            return self._say(200, {"status": "in-progress"})
        if self.server.bodies[id] == b"fail":
            return self._say(500, FAILED)
        results = self._results(id)
        lengths = ",".join(str(len(result)) for result in results)
        headers = {"Numaflow-Array-Len": str(len(results)), "Numaflow-Array-Index-Len": lengths}
        self._send(200 if results else 204, b"".join(results), headers)

    def _results(self, id: str) -> list[bytes]:
        body = self.server.bodies[id]
        if body.startswith(b"words "):
            return body.split(b" ")[1:]
        return [] if body == b"drop" else [body]

    def _status(self, id: str) -> None:
        step = {"vertex": "price", "message": id, "deliveries": 2, "outcome": "dead_lettered"}
        failure = {"vertex": "price", "reason": "failed", "error": "no such order"}
        failed = self.server.bodies[id] == b"fail"
        facts = {
            "id": id,
            "status": "failed" if failed else "in-progress",
            "accepted": NOW,
            "ended": NOW if failed else None,
            "failure": failure if failed else None,
            "steps": [step | {"at": NOW, "reason": "failed", "error": "no such order"}],
        }
        self._say(200, facts)

    def _stream(self, id: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        seen = int(self.headers["last-event-id"] or 0)
        for place, result in enumerate(self._results(id), 1):
            if place == 2 and not self.server.open.wait(2):
                return self._hang_up()
            if place > seen and self.server.bodies[id] != b"fail":
                self._event(place, result)
                if place == self.server.cut_stream_after:
                    self.server.cut_stream_after = None
                    return self._hang_up()
        end = ("error", FAILED) if self.server.bodies[id] == b"fail" else ("done", {"id": id})
        self.wfile.write(f": a comment\nevent: {end[0]}\ndata: {json.dumps(end[1])}\n\n".encode())
        self._hang_up()

    def _event(self, place: int, result: bytes) -> None:
        try:
            name, text = "message", result.decode()
        except ValueError:
            name, text = "base64", base64.b64encode(result).decode()
        data = "".join(f"data: {line}\n" for line in text.split("\n"))
        self.wfile.write(f"event: {name}\nid: {place}\n{data}\n".encode())
        self.wfile.flush()

    def _say(self, status: int, facts: dict[str, Any], headers: dict[str, str] = {}) -> None:  # noqa: B006
        self._send(status, json.dumps(facts).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
