"""The program that asks: when it is due, with an eye on answers that are another request's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from benchmarks.serving import _between, _highest
from benchmarks.work import numbered, work
from benchmarks.workers.asking import Crowd, Steady


@asynccontextmanager
async def answering(answer):
    """A port where ``answer`` makes the whole response to the text of a request."""

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                writer.write(await answer(await reader.readexactly(length)))
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def response(body, status=200):
    return b"HTTP/1.1 %d Some\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def asked(kind, answer, *numbers):
    async def ask():
        async with answering(answer) as port:
            clients = kind(port, "/", numbered(10_000, 20, seed=1))
            told = await clients.ask(*numbers)
            clients.close()
            return told

    return asyncio.run(ask())


async def right(text):
    return response(work(text))


def test_a_crowd_gets_the_answers_of_its_requests():
    told = asked(Crowd, right, 50, 500)

    assert (told["requests"], told["troubles"]) == (500, {})
    assert 0 < told["p50"] <= told["p99"] <= told["max"]


def test_answers_of_other_requests_and_refusals_are_noticed():
    before = [b"none"]

    async def wrong(text):
        number = int(text[:8])
        before.append(text)
        if number == 7:
            return response(work(before[-2]))
        return response(b"", 503) if number == 9 else response(work(text))

    told = asked(Crowd, wrong, 1, 20)

    assert told["troubles"] == {"answer of another request": 1, "status 503": 1}


def test_a_connection_that_breaks_is_a_trouble_and_the_others_go_on():
    async def breaking(text):
        if int(text[:8]) == 3:
            raise asyncio.IncompleteReadError(b"", None)
        return response(work(text))

    assert asked(Crowd, breaking, 5, 50)["troubles"] == {"connection lost": 1}
    assert asked(Steady, breaking, 500, 0.2, 0)["troubles"] == {"connection lost": 1}


def test_a_request_counts_from_the_moment_at_which_it_was_due():
    gate = asyncio.Event()

    async def halting(text):
        if int(text[:8]) == 0:
            asyncio.get_running_loop().call_later(0.3, gate.set)
        await gate.wait()
        return response(work(text))

    told = asked(Steady, halting, 200, 0.5, 0)

    # All that came due in the pause waited for its end: the first for all of it.
    assert told["requests"] == 100
    assert told["troubles"] == {}
    assert told["max"] >= 300
    assert told["p50"] > 50


def test_the_highest_rate_is_found_between_one_that_is_held_and_one_that_is_not():
    tried = []

    class Fake:
        def holds(self, rate, seconds):
            tried.append(rate)
            return rate <= 1_300

    assert _highest(Fake(), 1.0) == 1_300
    assert tried == [400, 800, 1_600, 1_200, 1_400, 1_300]
    assert [_between(0, 400), _between(1_200, 1_600), _between(0, 30)] == [200, 1_400, 15]
