"""The client of the HTTP sink: any reply becomes an answer, or the reason why there is none."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import asynccontextmanager

import pytest

from ebbflow.connectors.http.http_client import HttpAnswer, HttpClient, NoAnswer


class Script:
    """A server that answers each request with the next of its replies, and records the requests.

    A reply of ``None`` closes the connection without an answer; ``closes`` closes it after each.
    """

    def __init__(self, *replies: bytes | None, closes: bool = False) -> None:
        self.replies = list(replies)
        self.closes = closes
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(size))
                reply = self.replies.pop(0)
                if reply is None:
                    break
                writer.write(reply)
                await writer.drain()
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(script: Script, path: str = "/take", timeout: float = 5.0, **headers: str):
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HttpClient("POST", f"http://127.0.0.1:{port}{path}", headers, None, timeout)
    try:
        yield client
    finally:
        client.close()
        server.close()


def ask(script: Script, times: int = 1, longest: int = 1_000, **options) -> list[HttpAnswer | str]:
    async def run() -> list[HttpAnswer | str]:
        answers: list[HttpAnswer | str] = []
        async with served(script, **options) as client:
            for number in range(times):
                try:
                    answers.append(await client.send(b"%d" % number, {"x-n": "1"}, longest))
                except NoAnswer as error:
                    answers.append(str(error))
        return answers

    return asyncio.run(run())


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_consecutive_requests_use_the_same_connection():
    script = Script(OK, OK, OK)

    assert ask(script, 3) == [HttpAnswer(200, None, b"ok")] * 3
    assert (script.connections, script.bodies) == (1, [b"0", b"1", b"2"])


def test_a_request_has_a_target_a_host_and_all_headers():
    script = Script(OK)
    ask(script, path="/a b/ü?x=1&y=%20z", **{"x-team": "blue", "user-agent": "mine"})

    (head,) = script.heads
    assert head.startswith(b"POST /a%20b/%C3%BC?x=1&y=%20z HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"x-team: blue\r\n" in head
    assert b"user-agent: mine\r\n" in head
    assert b"x-n: 1\r\n" in head


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", HttpAnswer(204)),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, HttpAnswer(200, None, b"ok")),
        (
            b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
            HttpAnswer(201, None, b"abcd"),
        ),
        (
            b"HTTP/1.1 429 Slow\r\nRETRY-AFTER: 3\r\ncontent-length: 0\r\n\r\n",
            HttpAnswer(429, 3.0),
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2_000,
            HttpAnswer(200, None, b"x" * 1_000, whole=False),
        ),
    ],
)
def test_an_answer_is_read_completely_and_the_next_one_is_correct(reply, answer):
    assert ask(Script(reply, OK), 2) == [answer, HttpAnswer(200, None, b"ok")]


@pytest.mark.guarantee("http-each-message-has-its-answer")
@pytest.mark.parametrize(
    ("coding", "body", "answer"),
    [
        (b"gzip", gzip.compress(b"[1]", mtime=0), HttpAnswer(200, None, b"[1]")),
        (b"deflate", zlib.compress(b"[1]"), HttpAnswer(200, None, b"[1]")),
        (
            b"gzip",
            gzip.compress(b"x" * 5_000, mtime=0),
            HttpAnswer(200, None, b"x" * 1_000, whole=False),
        ),
        (b"gzip", b"no", HttpAnswer(200, None, b"", whole=False)),
        (b"br", b"no", HttpAnswer(200, None, b"", whole=False)),
        (b"identity", b"[1]", HttpAnswer(200, None, b"[1]")),
    ],
)
def test_a_compressed_answer_is_decompressed_or_marked_as_incomplete(coding, body, answer):
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\ncontent-length: %d\r\n\r\n"

    assert ask(Script(head % (coding, len(body)) + body)) == [answer]


def test_a_body_without_a_length_ends_with_the_connection():
    script = Script(b"HTTP/1.0 200 OK\r\n\r\nall of it", OK, closes=True)

    assert ask(script, 2) == [HttpAnswer(200, None, b"all of it"), HttpAnswer(200, None, b"ok")]


@pytest.mark.guarantee("http-each-message-has-its-answer")
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf", "no answer: the reply was cut off"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "no answer: the reply was cut off",
        ),
    ],
)
def test_a_truncated_answer_counts_as_no_answer(reply, reason):
    script = Script(reply, closes=True)

    assert ask(script) == [reason]
    assert len(script.bodies) == 1


def test_a_reply_that_is_not_http_counts_as_no_answer():
    (reason,) = ask(Script(b"SSH-2.0-OpenSSH\r\n"))

    assert reason.startswith("no answer: the reply is not HTTP: ")


def test_a_connection_closed_by_the_server_is_not_used_again():
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    script = Script(closing, OK)

    assert [answer.status for answer in ask(script, 2)] == [200, 200]
    assert script.connections == 2


def test_a_request_on_a_kept_connection_that_was_closed_is_retried_only_once():
    script = Script(OK, None, OK)
    assert [answer.status for answer in ask(script, 2)] == [200, 200]
    assert script.bodies == [b"0", b"1", b"1"]
    script = Script(OK, None, None, OK)
    assert ask(script, 2)[1] == "no answer: Server disconnected"
    assert script.bodies == [b"0", b"1", b"1"]


def test_a_request_cut_off_on_a_new_connection_is_not_retried():
    script = Script(None, OK)
    assert ask(script) == ["no answer: Server disconnected"]
    assert script.bodies == [b"0"]


def test_a_late_answer_is_not_mistaken_for_the_next_one():
    async def run() -> list[HttpAnswer | str]:
        script = Script(b"", OK)
        async with served(script, timeout=0.2) as client:
            with pytest.raises(NoAnswer, match=r"no answer within 0\.2 s"):
                await client.send(b"late", {}, 100)
            answer = await client.send(b"next", {}, 100)
        assert script.connections == 2
        return [answer]

    assert asyncio.run(run()) == [HttpAnswer(200, None, b"ok")]
