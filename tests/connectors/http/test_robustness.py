"""Whatever is sent to the port of an HTTP source: a clear 4xx or a closed connection, no harm.

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
def chance():
    seed = int(os.environ.get("EBBFLOW_SEED", time.time_ns()))
    print(f"seed {seed}")
    return random.Random(seed)


def noise(chance):
    return chance.randbytes(chance.choice([1, 10, 1_000, 100_000]))


def damaged(chance):
    """A good request in which some bytes are others, missing or there twice."""
    request = bytearray(GOOD)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(request))
        request[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return bytes(request)


def headers(chance):
    """A request with headers that contradict each other, or themselves."""
    method = chance.choice([b"POST", b"GET", b"OPTIONS", b"CONNECT", b"TRACE", b"P\xd6ST", b""])
    paths = [
        b"/vertices/in",
        b"/health",
        b"*",
        b"//",
        b"/%00",
        b"http://x/vertices/in",
        b"/" * 9_000,
    ]
    version = chance.choice([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""])
    lines = [method + b" " + chance.choice(paths) + b" " + version]
    for _ in range(chance.randint(0, 8)):
        lines.append(chance.choice(NAMES) + b": " + chance.choice(VALUES))
    return b"\r\n".join(lines) + b"\r\n\r\n" + chance.randbytes(chance.randint(0, 50))


def endless_head(chance):
    line = b"X-%d: %s\r\n" % (chance.randrange(9), b"a" * chance.choice([10, 1_000]))
    return b"POST /vertices/in HTTP/1.1\r\n" + line * (200_000 // len(line))


def huge(chance):
    length = chance.choice([100_001, 2**31, 2**63, 2**70])
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length
    return head + b"x" * 300_000


def endless_pieces(chance):
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"ffff\r\n%b\r\n" % (b"x" * 0xFFFF) * chance.randint(3, 8)


def broken_pieces(chance):
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    sizes = [b"zz", b"-5", b"ffffffffffffffffffff", b"5;" + b"e" * 9_000, b""]
    return head + chance.choice(sizes) + b"\r\nhello\r\n0\r\n\r\n"


def endless_trailers(chance):
    head = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 100_000


def other_protocols(chance):
    head = b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    return (b"GET /health HTTP/1.1\r\n" + head) * chance.choice([1, 900])


def one_after_another(chance):
    return b"".join(chance.choice([GOOD, damaged(chance)]) for _ in range(chance.randint(2, 6)))


def tls(chance):
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(400)


KINDS = [
    noise, damaged, headers, endless_head, huge, endless_pieces, broken_pieces, one_after_another,
    tls, endless_trailers, other_protocols,
]  # fmt: skip
ENDS = ["wait", "half-close", "close", "reset"]


def sent(source, chance, kind, end):
    """What comes back when something is sent in pieces, and the connection is then ended."""
    data = kind(chance)
    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        try:
            for piece in pieces(chance, data):
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


def pieces(chance, data):
    start = 0
    while start < len(data):
        size = chance.choice([1, 7, 4_096, len(data)])
        yield data[start : start + size]
        start += size
        if len(data) < 200 and chance.random() < 0.1:
            let_time_pass(0.001)


def checked(answer):
    """Every answer has a status that was meant, and JSON that says why."""
    while answer:
        head, _, answer = answer.partition(b"\r\n\r\n")
        status = int(head[9:12])
        assert status in (100, 200) or 400 <= status < 500 or status == 503, head
        length = re.search(rb"content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        body, answer = answer[:size], answer[size:]
        assert status == 100 or json.loads(body).keys() & {"reason", "id", "status"}, body


@pytest.mark.guarantee("http-200-means-stored")
def test_whatever_is_sent_nothing_breaks(source, chance, caplog):
    process = psutil.Process()
    before = process.memory_info().rss
    seeds = [chance.getrandbits(64) for _ in range(CASES)]

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
    # What is left of it is a connection or two that is being closed, not what was sent on them.
    assert process.memory_info().rss - before < 100 * 1024 * 1024


def test_all_that_was_stored_had_been_sent_as_a_message(source):
    assert source.post(b"the last", x_numaflow_id="last").status == 200
    rows = source.rows()

    assert all(len(row["value"]) <= 100_000 for row in rows)
    assert any(row["id"] == "last" for row in rows)


HEAD = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\n"
PIECES = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UNCLEAR = {
    "a length and pieces": HEAD
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "pieces and a length, one request hidden in the other": HEAD
    + b"Transfer-Encoding: chunked\r\nContent-Length: 50\r\n\r\n0\r\n\r\n"
    + GOOD,
    "a size that is no number": PIECES + b"zz\r\nhello\r\n0\r\n\r\n",
    "a size below zero": PIECES + b"-5\r\nhello\r\n0\r\n\r\n",
    "no size": PIECES + b"\r\nhello\r\n0\r\n\r\n",
    "a size that is too small": PIECES + b"3\r\nhello\r\n0\r\n\r\n",
    "a good piece before the bad one": PIECES + b"5\r\nhello\r\nzz\r\n\r\n",
    "a coding next to the pieces": HEAD
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "pieces twice": HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "pieces in HTTP/1.0": PIECES.replace(b"1.1", b"1.0") + b"5\r\nhello\r\n0\r\n\r\n",
    "no host": b"POST /vertices/in HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "two hosts": HEAD + b"Host: y\r\nContent-Length: 5\r\n\r\nhello",
    "a head that does not end": HEAD + b"X-Long: " + b"x" * 400_000,
    "trailers that do not end": PIECES + b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 100_000,
    "a chunk whose extension does not end": PIECES + b"5;" + b"x" * 400_000,
    "a bad piece with much behind it": PIECES + b"zz\r\n" + b"x" * 3_000_000,
}


@pytest.mark.guarantee("http-200-means-stored")
@pytest.mark.parametrize("request_", UNCLEAR.values(), ids=list(UNCLEAR))
def test_a_body_whose_end_is_unclear_is_a_bad_request(source, request_):
    before = len(source.rows())

    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        client.sendall(request_)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert json.loads(body) == {"reason": "this is not a valid HTTP request"}
    assert len(source.rows()) == before


def test_a_request_behind_the_one_that_ends_the_connection_is_not_read(source):
    before = len(source.rows())
    last = GOOD.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")

    answer = everything_about(source, last + GOOD)

    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 OK") == 1
    assert len(source.rows()) == before + 1


def test_answers_come_in_the_order_of_the_requests(source):
    unknown = GOOD.replace(b"/in", b"/nobody")
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    answer = everything_about(source, GOOD + unknown + GOOD + last)

    statuses = re.findall(rb"HTTP/1.1 (\d+) ", answer)
    assert statuses in ([b"200", b"404", b"200", b"200"], [b"200", b"503", b"200", b"200"])
    assert answer.endswith(b'{"status":"ok"}')


def test_a_bad_request_is_answered_behind_the_good_ones_before_it(source):
    answer = everything_about(source, GOOD + GOOD + b"what?\r\n\r\n")

    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"200", b"400"]


@pytest.mark.guarantee("http-200-means-stored")
def test_a_client_that_would_rather_speak_another_protocol_is_heard_all_the_same(source):
    head = b"Connection: upgrade, close\r\nUpgrade: h2c\r\nx-numaflow-id: upgraded\r\n"
    asking = GOOD.replace(b"Content-Length", head + b"Content-Length")

    answer = everything_about(source, asking)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    (row,) = [row for row in source.rows() if row["id"] == "upgraded"]
    assert row["value"] == b"hello"
    assert "upgrade" not in row["headers"]


def test_a_client_that_asks_first_is_told_to_go_on_or_why_not(source):
    asking = HEAD + b"Expect: 100-continue\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        client.sendall(asking + b"Content-Length: 5\r\n\r\n")
        assert client.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert b"HTTP/1.1 200 OK" in b"".join(iter(lambda: client.recv(65_536), b""))

    refused = everything_about(source, asking + b"Content-Length: 100001\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 413 ")


def test_the_head_of_a_health_check_has_no_body_behind_it(source):
    head = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    answer = everything_about(source, head)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"content-length: 15\r\n\r\n")


def test_a_refused_post_leaves_the_connection_open_for_the_next(source):
    refused = GOOD.replace(b"Host: localhost", b"Host: localhost\r\nx-numaflow-id: a b")
    last = GOOD.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")

    answer = everything_about(source, refused + last)

    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"400", b"200"]


def everything_about(source, data):
    """All that comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_many_who_say_nothing_leave_room_for_those_who_do(source):
    idle = [socket.create_connection(("127.0.0.1", source.port)) for _ in range(300)]
    try:
        answers = [source.post(b"x").status for _ in range(20)]
    finally:
        for connection in idle:
            connection.close()

    assert answers == [200] * 20
