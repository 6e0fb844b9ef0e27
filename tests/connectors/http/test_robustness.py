"""Any input to the port of an HTTP source ends in a clear 4xx or a closed connection, without harm.

Real sockets against the real server, with what a broken or hostile client might send. The seed is
printed; ``EBBFLOW_SEED`` repeats a run.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.connectors.http.posting import NDJSON, posting
from tests.waiting import let_time_pass

CASES = int(os.environ.get("EBBFLOW_CASES", "150"))
GOOD = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
NAMES = [
    b"Content-Length", b"Transfer-Encoding", b"Content-Type", b"Connection", b"Expect", b"Host",
    b"Upgrade", b"Authorization", b"x-numaflow-id", b"x-numaflow-event-time", b"x-numaflow-keys",
    b"Content-Encoding", b"X-Any",
]  # fmt: skip
VALUES = [
    b"", b"0", b"5", b"-1", b"1e9", b"99999999999999999999", b"5, 5", b"chunked", b"gzip, chunked",
    b"close", b"keep-alive", b"upgrade", b"websocket", b"h2c", b"100-continue", NDJSON.encode(),
    b"\xff\xfe", b"a\tb", b"a" * 5_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def source(link, tmp_path_factory):
    with posting(link, tmp_path_factory.mktemp("source"), read_timeout=0.5) as source:
        yield source


@pytest.fixture
def rng():
    seed = int(os.environ.get("EBBFLOW_SEED", time.time_ns()))
    print(f"seed {seed}")
    return random.Random(seed)


def noise(rng):
    return rng.randbytes(rng.choice([1, 10, 1_000, 100_000]))


def damaged(rng):
    """A good request in which some bytes are changed, missing or duplicated."""
    request = bytearray(GOOD)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(request))
        request[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return bytes(request)


def headers(rng):
    """A request with headers that contradict each other, or themselves."""
    method = rng.choice([b"POST", b"GET", b"OPTIONS", b"CONNECT", b"TRACE", b"P\xd6ST", b""])
    paths = [
        b"/vertices/in",
        b"/health",
        b"*",
        b"//",
        b"/%00",
        b"http://x/vertices/in",
        b"/" * 9_000,
    ]
    version = rng.choice([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""])
    lines = [method + b" " + rng.choice(paths) + b" " + version]
    for _ in range(rng.randint(0, 8)):
        lines.append(rng.choice(NAMES) + b": " + rng.choice(VALUES))
    return b"\r\n".join(lines) + b"\r\n\r\n" + rng.randbytes(rng.randint(0, 50))


def endless_head(rng):
    line = b"X-%d: %s\r\n" % (rng.randrange(9), b"a" * rng.choice([10, 1_000]))
    return b"POST /vertices/in HTTP/1.1\r\n" + line * (200_000 // len(line))


def huge(rng):
    length = rng.choice([100_001, 2**31, 2**63, 2**70])
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length
    return head + b"x" * 300_000


def endless_chunks(rng):
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"ffff\r\n%b\r\n" % (b"x" * 0xFFFF) * rng.randint(3, 8)


def broken_chunks(rng):
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    sizes = [b"zz", b"-5", b"ffffffffffffffffffff", b"5;" + b"e" * 9_000, b""]
    return head + rng.choice(sizes) + b"\r\nhello\r\n0\r\n\r\n"


def endless_trailers(rng):
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 100_000


def other_protocols(rng):
    head = b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    return (b"GET /health HTTP/1.1\r\n" + head) * rng.choice([1, 900])


def one_after_another(rng):
    return b"".join(rng.choice([GOOD, damaged(rng)]) for _ in range(rng.randint(2, 6)))


def tls(rng):
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(400)


KINDS = [
    noise, damaged, headers, endless_head, huge, endless_chunks, broken_chunks, one_after_another,
    tls, endless_trailers, other_protocols,
]  # fmt: skip
ENDS = ["wait", "half-close", "close", "reset"]


def sent(source, rng, kind, end):
    """What comes back when something is sent in pieces, and the connection is then ended."""
    data = kind(rng)
    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        try:
            for piece in pieces(rng, data):
                client.sendall(piece)
            if end == "half-close":
                client.shutdown(socket.SHUT_WR)
            elif end == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if end in ("wait", "half-close"):
                return b"".join(iter(lambda: client.recv(65_536), b""))
        except TimeoutError:
            raise
        except OSError:
            pass  # closed before all was sent
    return b""


def pieces(rng, data):
    start = 0
    while start < len(data):
        size = rng.choice([1, 7, 4_096, len(data)])
        yield data[start : start + size]
        start += size
        if len(data) < 200 and rng.random() < 0.1:
            let_time_pass(0.001)


def checked(answer):
    """Every answer has an intended status, and JSON that says why."""
    while answer:
        head, _, answer = answer.partition(b"\r\n\r\n")
        status = int(head[9:12])
        assert status in (100, 200) or 400 <= status < 500 or status == 503, head
        length = re.search(rb"content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        body, answer = answer[:size], answer[size:]
        assert status == 100 or json.loads(body).keys() & {"reason", "id", "status"}, body


@pytest.mark.guarantee("http-200-means-stored")
def test_no_input_breaks_the_source(source, rng, caplog):
    process = psutil.Process()
    before = process.memory_info().rss
    seeds = [rng.getrandbits(64) for _ in range(CASES)]

    def send_any(seed):
        own = random.Random(seed)
        kind, end = own.choice(KINDS), own.choice(ENDS)
        try:
            checked(sent(source, own, kind, end))
        except Exception as error:
            raise AssertionError(f"{kind.__name__}, {end}, seed {seed}") from error

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(send_any, seeds))

    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert source.feed.failure is None
    assert source.post(b"still there", x_numaflow_id="still").status == 200
    # What remains is a connection or two that are still closing, not the data sent on them.
    assert process.memory_info().rss - before < 100 * 1024 * 1024


def test_everything_stored_had_been_sent_as_a_message(source):
    assert source.post(b"the last", x_numaflow_id="last").status == 200
    rows = source.rows()

    assert all(len(row["value"]) <= 100_000 for row in rows)
    assert any(row["id"] == "last" for row in rows)


HEAD = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UNCLEAR = {
    "a length and chunks": HEAD
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks and a length, one request hidden in the other": HEAD
    + b"Transfer-Encoding: chunked\r\nContent-Length: 50\r\n\r\n0\r\n\r\n"
    + GOOD,
    "a size that is not a number": CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
    "a negative size": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "no size": CHUNKED + b"\r\nhello\r\n0\r\n\r\n",
    "a size that is too small": CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
    "a good chunk before the bad one": CHUNKED + b"5\r\nhello\r\nzz\r\n\r\n",
    "a coding before chunked": HEAD
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "chunks in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"5\r\nhello\r\n0\r\n\r\n",
    "no host": b"POST /vertices/in HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "two hosts": HEAD + b"Host: y\r\nContent-Length: 5\r\n\r\nhello",
    "a head that does not end": HEAD + b"X-Long: " + b"x" * 400_000,
    "trailers that do not end": CHUNKED + b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 100_000,
    "a chunk whose extension does not end": CHUNKED + b"5;" + b"x" * 400_000,
    "a bad chunk with much data after it": CHUNKED + b"zz\r\n" + b"x" * 3_000_000,
}


@pytest.mark.guarantee("http-200-means-stored")
@pytest.mark.parametrize("request_", UNCLEAR.values(), ids=list(UNCLEAR))
def test_a_request_with_ambiguous_framing_is_a_bad_request(source, request_):
    before = len(source.rows())

    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        client.sendall(request_)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert json.loads(body) == {"reason": "this is not a valid HTTP request"}
    assert len(source.rows()) == before


def test_a_request_after_the_one_that_closes_the_connection_is_not_read(source):
    before = len(source.rows())
    last = GOOD.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")

    answer = exchanged(source, last + GOOD)

    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 OK") == 1
    assert len(source.rows()) == before + 1


def test_answers_come_in_the_order_of_the_requests(source):
    unknown = GOOD.replace(b"/in", b"/nobody")
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    answer = exchanged(source, GOOD + unknown + GOOD + last)

    statuses = re.findall(rb"HTTP/1.1 (\d+) ", answer)
    assert statuses in ([b"200", b"404", b"200", b"200"], [b"200", b"503", b"200", b"200"])
    assert answer.endswith(b'{"status":"ok"}')


def test_a_bad_request_is_answered_after_the_good_ones_before_it(source):
    answer = exchanged(source, GOOD + GOOD + b"what?\r\n\r\n")

    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"200", b"400"]


@pytest.mark.guarantee("http-200-means-stored")
def test_a_request_to_upgrade_the_protocol_is_served_over_http_1(source):
    head = b"Connection: upgrade, close\r\nUpgrade: h2c\r\nx-numaflow-id: upgraded\r\n"
    asking = GOOD.replace(b"Content-Length", head + b"Content-Length")

    answer = exchanged(source, asking)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    (row,) = [row for row in source.rows() if row["id"] == "upgraded"]
    assert row["value"] == b"hello"
    assert "upgrade" not in row["headers"]


def test_a_client_that_expects_100_continue_gets_it_or_a_refusal(source):
    asking = HEAD + b"Expect: 100-continue\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        client.sendall(asking + b"Content-Length: 5\r\n\r\n")
        assert client.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert b"HTTP/1.1 200 OK" in b"".join(iter(lambda: client.recv(65_536), b""))

    refused = exchanged(source, asking + b"Content-Length: 100001\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 413 ")


def test_a_head_request_for_health_has_no_body(source):
    head = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    answer = exchanged(source, head)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"content-length: 15\r\n\r\n")


def test_a_refused_post_leaves_the_connection_open_for_the_next(source):
    refused = GOOD.replace(b"Host: localhost", b"Host: localhost\r\nx-numaflow-id: a b")
    last = GOOD.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")

    answer = exchanged(source, refused + last)

    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"400", b"200"]


def exchanged(source, data):
    """Send the data, and return everything until the server closes."""
    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_many_idle_connections_leave_room_for_active_clients(source):
    idle = [socket.create_connection(("127.0.0.1", source.port)) for _ in range(300)]
    try:
        answers = [source.post(b"x").status for _ in range(20)]
    finally:
        for connection in idle:
            connection.close()

    assert answers == [200] * 20
