"""One connection to the web server: what it reads is bounded, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from ebbflow.web.connection import HttpConnection
from ebbflow.web.exchange import Exchange, HttpRequest, Receiver

CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
PLAIN = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TRAILERS = b"".join(b"a%d: b\r\n" % n for n in range(20_000))
EXTENSION = b"e" * 100_000


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def can_write_eof(self) -> bool:
        return False


class Desk:
    """A server that replies to each request with its body."""

    read_timeout = 10.0
    most_connections = 10

    def __init__(self) -> None:
        self.connections: set[HttpConnection] = set()
        self.heads: list[HttpRequest] = []

    def open(self, head: HttpRequest, exchange: Exchange) -> Receiver:
        self.heads.append(head)
        return Echo(exchange)


class Echo:
    def __init__(self, exchange: Exchange) -> None:
        self.exchange, self.body = exchange, b""

    def feed(self, piece: bytes) -> None:
        self.body += piece

    def finish(self) -> None:
        self.exchange.respond(200, self.body)

    def abandon(self) -> None: ...


def on_a_loop(talk: Callable[[Desk, HttpConnection, Wire], None]) -> Wire:
    async def connect() -> Wire:
        desk, wire = Desk(), Wire()
        connection = HttpConnection(desk)
        connection.connection_made(wire)
        talk(desk, connection, wire)
        return wire

    return asyncio.run(connect())


def answers_to(*packets: bytes) -> Wire:
    def talk(_: Desk, connection: HttpConnection, __: Wire) -> None:
        for packet in packets:
            connection.data_received(packet)

    return on_a_loop(talk)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


ENDLESS = {
    "trailers": CHUNKED + b"1\r\nx\r\n0\r\n" + TRAILERS,
    "one trailer": CHUNKED + b"1\r\nx\r\n0\r\na: " + EXTENSION,
    "one trailer behind a large body": CHUNKED
    + b"100000\r\n%b\r\n0\r\na: " % (b"x" * 0x100000)
    + EXTENSION,
    "an extension of a chunk": CHUNKED + b"1;" + EXTENSION,
    "an extension of the last chunk": CHUNKED + b"1\r\nx\r\n0;" + EXTENSION,
    "headers": PLAIN[:-2] + TRAILERS,
    "one header": PLAIN[:-2] + b"a: " + EXTENSION,
    "a target": b"GET /" + EXTENSION,
    "empty lines": b"\r\n" * 50_000,
}


@pytest.mark.guarantee("requests-are-bounded")
@pytest.mark.parametrize("size", [1_000, 262_144])
@pytest.mark.parametrize("request_", ENDLESS.values(), ids=list(ENDLESS))
def test_an_endless_part_of_a_request_is_refused_before_it_reaches_100_kb(request_, size):
    wire = answers_to(*pieces(request_, size))

    assert wire.written.startswith(b"HTTP/1.1 400 "), wire.written[:100]
    assert b"connection: close" in wire.written


def test_trailers_and_chunk_extensions_are_read_and_ignored():
    def talk(desk: Desk, connection: HttpConnection, _: Wire) -> None:
        body = b"2;a=b\r\nhe\r\n3\r\nllo\r\n0;c\r\nHost: evil\r\nX-Late: 1\r\n\r\n"
        connection.data_received(CHUNKED + body + PLAIN)
        names = [[name for name, _ in head.headers] for head in desk.heads]
        assert names == [[b"host", b"transfer-encoding"], [b"host"]]

    wire = on_a_loop(talk)

    assert wire.written.count(b"HTTP/1.1 200 OK") == 2
    assert wire.written.partition(b"\r\n\r\n")[2].startswith(b"hello")


def test_a_body_may_have_many_small_chunks():
    wire = answers_to(*pieces(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", 262_144))

    assert b"content-length: 100000\r\n" in wire.written


@pytest.mark.parametrize("count", [1, 64, 3_000])
def test_each_request_to_upgrade_the_protocol_is_answered_however_many_there_are(count):
    wire = answers_to(*pieces((UPGRADE + PLAIN) * count, 262_144))

    assert wire.written.count(b"HTTP/1.1 200 OK") == 2 * count


@pytest.mark.guarantee("requests-are-bounded")
@pytest.mark.parametrize(
    "request_", [PLAIN, UPGRADE, CHUNKED, CHUNKED + b"1\r\nx\r\n0\r\na: b\r\n", b"?"]
)
def test_an_ended_connection_is_freed_without_garbage_collection(request_):
    kept: list[weakref.ref[object]] = []

    def talk(desk: Desk, connection: HttpConnection, _: Wire) -> None:
        kept.append(weakref.ref(connection))
        connection.data_received(request_)
        connection.connection_lost(None)

    gc.collect()
    gc.disable()
    try:
        on_a_loop(talk)
        assert [ref() for ref in kept] == [None]
    finally:
        gc.enable()
