"""The bulk parser next to nats-py's own: the same messages, however the bytes are cut."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from ebbflow.nats.wire import BulkParser, Parcel, Publishes, read_headers, write_headers

BULK, SINGLE = 7, 8
Call = tuple[Any, ...]


@dataclass
class Client:
    """Records what a parser calls, in order."""

    calls: list[Call] = field(default_factory=list)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.calls.append((sid, subject, reply, data, headers or b""))

    async def _process_ping(self) -> None:
        self.calls.append(("ping",))

    async def _process_pong(self) -> None:
        self.calls.append(("pong",))

    async def _process_err(self, text: str) -> None:
        self.calls.append(("err", text))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.calls.append(("info", info))

    def take(self, parcel: Parcel) -> None:
        for row, payload in enumerate(parcel.payloads().to_pylist()):
            start, end = parcel.edges[3 * row : 3 * row + 2]
            assert payload == parcel.payload(row)
            headers = parcel.buffer[start:end]
            self.calls.append((BULK, parcel.subjects[row], parcel.replies[row], payload, headers))

    def of(self, sid: int | str) -> list[Call]:
        return [line for line in self.calls if line[0] == sid]


NAMES = st.text("abc.$-_*", min_size=1, max_size=12).map(str.encode)
PAYLOADS = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"PING\r\n", b"MSG a 7 1\r\n", b""])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    subject, sid = draw(NAMES), draw(st.sampled_from([BULK, SINGLE]))
    reply, payload = draw(NAMES | st.just(b"")), draw(PAYLOADS)
    to = b"%b %d %b" % (subject, sid, reply + b" " if reply else b"")
    if draw(st.booleans()):
        block = write_headers({"Name": draw(st.text("xyz: ", max_size=8)), "Other": "1"})
        size = len(block), len(block) + len(payload)
        return b"HMSG %b%d %d\r\n%b%b\r\n" % (to, *size, block, payload)
    return b"MSG %b%d\r\n%b\r\n" % (to, len(payload), payload)


CONTROL_LINES = st.sampled_from(
    [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Slow Consumer'\r\n", b'INFO {"a": 1}\r\n']
)


def parse(parser: Any, pieces: list[bytes]) -> None:
    async def feed() -> None:
        for piece in pieces:
            await parser.parse(piece)

    asyncio.run(feed())


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(n % (len(stream) + 1) for n in at), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def parse_on_arrival(parser: BulkParser, pieces: list[bytes]) -> None:
    """As a connection does: what can be parsed at once, and the rest when it may wait."""

    async def feed() -> None:
        for piece in pieces:
            if rest := parser.parse_at_once(piece):
                await parser.parse(rest)

    asyncio.run(feed())


def parse_in_bulk(pieces: list[bytes], parse: Any = parse) -> Client:
    client = Client()
    parser = BulkParser(client)
    parser.in_bulk[b"%d" % BULK] = client.take
    parse(parser, pieces)
    return client


WAYS = pytest.mark.parametrize("way", [parse, parse_on_arrival])


@WAYS
@given(
    lines=st.lists(messages() | CONTROL_LINES, max_size=12),
    at=st.lists(st.integers(0, 2000), max_size=8),
)
def test_the_bulk_parser_equals_that_of_nats_py_wherever_the_stream_is_cut(way, lines, at):
    stream = b"".join(lines)
    theirs = Client()
    parse(Parser(theirs), [stream])

    ours = parse_in_bulk(cut(stream, at), way)

    for kind in (BULK, SINGLE, "ping", "pong", "err", "info"):
        assert ours.of(kind) == theirs.of(kind)


@WAYS
def test_two_messages_and_a_pong_are_parsed_alike_at_every_cut(way):
    block = write_headers({"Nats-Msg-Id": "1"})
    stream = b"HMSG a.b 7 r.1 %d %d\r\n%bvalue\r\nPONG\r\nMSG c 7 5\r\nabc\r\n\r\n" % (
        len(block),
        len(block) + 5,
        block,
    )
    whole = parse_in_bulk([stream]).calls
    assert len(whole) == 3
    for at in range(len(stream)):
        assert parse_in_bulk([stream[:at], stream[at:]], way).calls == whole
    assert parse_in_bulk([stream[n : n + 1] for n in range(len(stream))], way).calls == whole


def test_a_message_before_a_pong_is_delivered_before_it():
    assert parse_in_bulk([b"MSG a 7 1\r\nx\r\nPONG\r\nMSG a 7 1\r\ny\r\n"]).calls == [
        (BULK, b"a", b"", b"x", b""),
        ("pong",),
        (BULK, b"a", b"", b"y", b""),
    ]


@WAYS
@pytest.mark.parametrize(
    "line",
    [
        b"WHAT\r\n",
        b"\r\n",
        b"MSG a 7 many\r\n",
        b"HMSG a 7 x 3\r\n",
        b"MSG a x 0\r\n\r\n",
        b"endless",
    ],
)
def test_a_line_that_is_not_part_of_the_protocol_ends_the_connection(line, way):
    line = line * 200_000 if line == b"endless" else line
    with pytest.raises(ProtocolError):
        parse_in_bulk([b"MSG a 7 1\r\nx\r\n", line], way)


def test_a_receiver_that_fails_on_a_parcel_does_not_stop_the_parser():
    client, complaints = Client(), []
    parser = BulkParser(client)

    def fail(parcel: Parcel) -> None:
        raise ValueError("no")

    async def feed() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        parser.in_bulk[b"7"] = fail
        await parser.parse(b"MSG a 7 1\r\nx\r\nMSG a 8 1\r\ny\r\n")

    asyncio.run(feed())
    assert [str(error) for error in complaints] == ["no"]
    assert client.calls == [(SINGLE, b"a", b"", b"y", b"")]


def test_parcels_can_be_joined_and_split():
    parcels: list[Parcel] = []
    parser = BulkParser(Client())
    parser.in_bulk[b"7"] = parcels.append
    parse(parser, [b"MSG a 7 1\r\n1\r\nMSG b 7 1\r\n2\r\n", b"MSG c 7 r 1\r\n3\r\n"])

    joined = Parcel.join(parcels)

    assert joined.payloads().to_pylist() == [b"1", b"2", b"3"]
    assert (joined.subjects, joined.replies[2]) == ([b"a", b"b", b"c"], b"r")
    assert joined.cut(1, 3).payloads().to_pylist() == [b"2", b"3"]
    assert joined.pick([2, 0]).subjects == [b"c", b"a"]
    assert (joined.pick([2, 0]).payload(0), joined.sizes()) == (b"3", [1, 1, 1])
    assert Parcel(b"").payloads().to_pylist() == []


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"NATS/1.0\r\nA: 1\r\nB:2\r\n\r\n", {"A": "1", "B": "2"}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\n\r\n",
            {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Consumer": "3"},
        ),
        (b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", {"A": "1"}),
    ],
)
def test_headers_are_parsed(block, headers):
    assert read_headers(block) == headers


def test_publishes_are_encoded_for_the_server_with_the_start_of_each():
    block = write_headers({"A": "1"})
    rows = Publishes([b"a", b"b"], [b"", block], [b"xy", b"z"])

    buffer, starts = rows.encode(b"in.", 5)

    first = b"PUB a in.5 2\r\nxy\r\n"
    second = b"HPUB b in.6 %d %d\r\n%bz\r\n" % (len(block), len(block) + 1, block)
    assert (bytes(buffer), starts) == (first + second, [0, len(first), len(first) + len(second)])
    assert rows.encode_unanswered().startswith(b"PUB a 2\r\nxy\r\n")


def test_a_line_break_in_a_header_does_not_start_another_header():
    block = write_headers({"Reason": "first\r\nNats-Rollup: all\nlast", "Other": "1"})

    assert read_headers(block) == {"Reason": "first Nats-Rollup: all last", "Other": "1"}
