"""A bare connection to NATS that reads and writes in bulk: the floor, and what fills streams.

It takes what the socket has, splits all of it at once and writes many messages as one buffer. It
knows a server on this machine and nothing else: no TLS, no reconnecting, no errors but its own end.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ebbflow.nats.login import Addresses

_READ = 1024 * 1024
_HEAD = re.compile(rb"MSG (\S+) \d+ (?:(\S+) )?(\d+)\r\n")
_HEAD_WITH_HEADERS = re.compile(rb"HMSG (\S+) \d+ (?:(\S+) )?(\d+) (\d+)\r\n")
_LINE = re.compile(rb"([A-Z+-]+)([^\r]*)\r\n")


class Delivery(NamedTuple):
    """A message as received. ``headers`` are the bytes of all of them."""

    subject: bytes
    reply: bytes | None
    headers: bytes
    payload: bytes


class Wire:
    """One connection. Used by one thread."""

    def __init__(self, server: Addresses) -> None:
        place = urlsplit(server.urls[0])
        self._socket = socket.create_connection((place.hostname, place.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        options: dict[str, Any] = {
            "verbose": False,
            "headers": True,
            "no_responders": True,
            "echo": False,
        }
        if server.login.user:
            options |= {"user": server.login.user, "pass": server.login.password}
        self.send(b"CONNECT %b\r\n" % json.dumps(options).encode())
        self._inbox = b"_BARE.%b" % secrets.token_hex(6).encode()
        self.send(b"SUB %b.> 1\r\n" % self._inbox)

    def inbox(self, name: bytes) -> bytes:
        """Returns a subject for answers that only this connection listens to."""
        return self._inbox + b"." + name

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Writes all of it."""
        self._socket.sendall(data)

    def receive(self) -> list[Delivery]:
        """Waits for messages and returns all that have arrived."""
        while True:
            deliveries, self._rest = self._split(self._rest + self.wait())
            if deliveries:
                return deliveries

    def wait(self) -> bytes:
        """Waits until something has arrived, and returns all of it unchanged."""
        came = self._socket.recv(_READ)
        if not came:
            raise ConnectionError("the server has ended the connection")
        return came

    def _split(self, data: bytes) -> tuple[list[Delivery], bytes]:
        """Returns the complete messages, and the beginning of an incomplete one."""
        deliveries: list[Delivery] = []
        at, end = 0, len(data)
        while at < end:
            if head := _HEAD.match(data, at):
                subject, reply, size = head.groups()
                start = begin = head.end()
            elif head := _HEAD_WITH_HEADERS.match(data, at):
                subject, reply, headers, size = head.groups()
                begin = head.end()
                start = begin + int(headers)
            elif line := _LINE.match(data, at):
                self._on_control_line(line[1], line[2])
                at = line.end()
                continue
            else:
                break
            stop = begin + int(size)
            if stop + 2 > end:
                break
            deliveries.append(Delivery(subject, reply, data[begin:start], data[start:stop]))
            at = stop + 2
        return deliveries, data[at:]

    def _on_control_line(self, word: bytes, rest: bytes) -> None:
        if word == b"PING":
            self.send(b"PONG\r\n")
        elif word == b"-ERR":
            raise ConnectionError(rest.decode().strip())

    # --- JetStream ------------------------------------------------------------------------------

    def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Returns the reply of JetStream's management interface; nothing else may be in flight.

        ``RuntimeError`` if it is an error.
        """
        payload = json.dumps(body).encode()
        self.send(publication(f"$JS.API.{subject}".encode(), payload, self.inbox(b"api")))
        (delivery,) = self.receive()
        answer: dict[str, Any] = json.loads(delivery.payload)
        if error := answer.get("error"):
            raise RuntimeError(error["description"])
        return answer

    def store(self, subject: str, payloads: Iterable[bytes], window: int = 4_000) -> None:
        """Publishes all, with that many in flight, until each is confirmed."""
        waiting, answers = iter(payloads), self.inbox(b"stored")
        on_their_way = _send_some(self, subject, waiting, answers, window)
        while on_their_way:
            confirmed = self.receive()
            for delivery in confirmed:
                if b'"error"' in delivery.payload or not delivery.payload:
                    raise RuntimeError(f"not stored: {delivery.headers!r} {delivery.payload!r}")
            on_their_way -= len(confirmed)
            on_their_way += _send_some(self, subject, waiting, answers, window - on_their_way)

    def read(self, stream: str, messages: int) -> Iterator[Delivery]:
        """Yields the first messages of a stream, in order."""
        config = {"ack_policy": "none", "mem_storage": True, "inactive_threshold": 10**10}
        made = self.request(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        left = messages
        while left:
            asked = min(left, 1_000)
            self.send(pull(stream, made["name"], asked, self.inbox(b"read")))
            left -= asked
            while asked:
                deliveries = self.receive()
                if any(delivery.reply is None for delivery in deliveries):
                    raise RuntimeError(f"{stream} has fewer than {messages:,} messages")
                asked -= len(deliveries)
                yield from deliveries


def publication(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """Returns a message as it is written."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def pull(stream: str, consumer: str, messages: int, reply: bytes) -> bytes:
    """Returns the request for that many messages, as it is written."""
    body = json.dumps({"batch": messages, "expires": 30 * 10**9}).encode()
    return publication(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode(), body, reply)


def _send_some(
    wire: Wire, subject: str, waiting: Iterator[bytes], answers: bytes, messages: int
) -> int:
    to = subject.encode()
    some = [publication(to, payload, answers) for payload in islice(waiting, messages)]
    wire.send(b"".join(some))
    return len(some)
