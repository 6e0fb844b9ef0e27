"""Many clients at once: each gets the answer to its own request, even if messages are reordered."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.outside import free_port
from benchmarks.work import numbered, work
from benchmarks.workers.asking import Crowd
from ebbflow import Message, Nack, Pipeline
from ebbflow.connectors import Ports, Serve
from ebbflow.testing.background_run import BackgroundRun

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

CLIENTS, REQUESTS = 500, 2_000


def answer(datum):
    if int(datum.value[:8]) % 40 == 0 and datum.deliveries == 1:
        raise Nack(reason="once")
    return Message(work(datum.value))


async def ask(port):
    crowd = Crowd(port, "/v1/process/sync", numbered(REQUESTS, 100, seed=1))
    try:
        return await crowd.ask(CLIENTS, REQUESTS)
    finally:
        crowd.close()


def test_500_concurrent_clients_get_the_answers_to_their_own_requests(tmp_path):
    port = free_port()
    pipeline = (
        Pipeline("crowd")
        .serve("in", ports=Ports(http=port))
        .map("map", answer, partitions=2)
        .sink("out", Serve())
    )
    live = BackgroundRun(pipeline, tmp_path / "state")
    try:
        result = asyncio.run(ask(port))
    finally:
        summary = live.stop()

    assert result["troubles"] == {}
    assert result["requests"] == REQUESTS
    assert summary.vertices["map"].redelivered == REQUESTS // 40
