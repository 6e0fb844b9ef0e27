"""The program that sends requests: on schedule, and checking each answer against its request."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from benchmarks.serving import _between, _highest
from benchmarks.work import numbered, work
from benchmarks.workers.asking import Crowd, Steady


@asynccontextmanager
async def answering(answer):
    """Yields a port where ``answer`` makes the whole response to the text of a request."""

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


def report_of(kind, answer, *numbers):
    async def ask():
        async with answering(answer) as port:
            clients = kind(port, "/", numbered(10_000, 20, seed=1))
            report = await clients.ask(*numbers)
            clients.close()
            return report

    return asyncio.run(ask())


async def right(text):
    return response(work(text))


def test_a_crowd_gets_the_answers_to_its_requests():
    report = report_of(Crowd, right, 50, 500)

    assert (report["requests"], report["troubles"]) == (500, {})
    assert 0 < report["p50"] <= report["p99"] <= report["max"]


def test_answers_to_other_requests_and_refusals_are_counted():
    before = [b"none"]

    async def wrong(text):
        number = int(text[:8])
        before.append(text)
        if number == 7:
            return response(work(before[-2]))
        return response(b"", 503) if number == 9 else response(work(text))

    report = report_of(Crowd, wrong, 1, 20)

    assert report["troubles"] == {"answer of another request": 1, "status 503": 1}


def test_a_lost_connection_is_counted_and_the_others_continue():
    async def breaking(text):
        if int(text[:8]) == 3:
            raise asyncio.IncompleteReadError(b"", None)
        return response(work(text))

    assert report_of(Crowd, breaking, 5, 50)["troubles"] == {"connection lost": 1}
    assert report_of(Steady, breaking, 500, 0.2, 0)["troubles"] == {"connection lost": 1}


def test_the_latency_of_a_request_counts_from_the_time_it_was_due():
    gate = asyncio.Event()

    async def halting(text):
        if int(text[:8]) == 0:
            asyncio.get_running_loop().call_later(0.3, gate.set)
        await gate.wait()
        return response(work(text))

    report = report_of(Steady, halting, 200, 0.5, 0)

    # All requests that became due in the pause waited for its end, the first for all of it.
    assert report["requests"] == 100
    assert report["troubles"] == {}
    assert report["max"] >= 300
    assert report["p50"] > 50


def test_the_highest_sustained_rate_is_found_by_bisection():
    tried = []

    class Fake:
        def holds(self, rate, seconds):
            tried.append(rate)
            return rate <= 1_300

    assert _highest(Fake(), 1.0) == 1_300
    assert tried == [400, 800, 1_600, 1_200, 1_400, 1_300]
    assert [_between(0, 400), _between(1_200, 1_600), _between(0, 30)] == [200, 1_400, 15]
