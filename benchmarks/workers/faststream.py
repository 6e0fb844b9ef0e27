"""The same worker written with FastStream: a subscriber on a stream that publishes to another.

python -m benchmarks.workers.faststream STREAM SUBJECT OUT_STREAM OUT
"""

from __future__ import annotations

import asyncio
import os
import sys

from faststream import FastStream
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.security import SASLPlaintext

from benchmarks.work import work
from benchmarks.workers import PASSWORD, URL, USER


def application(stream: str, subject: str, out_stream: str, out: str) -> FastStream:
    """The worker, ready to run."""
    login = SASLPlaintext(os.environ[USER], os.environ[PASSWORD])
    broker = NatsBroker(os.environ[URL], security=login, logger=None)

    @broker.subscriber(
        subject,
        stream=JStream(stream, declare=False),
        durable="faststream",
        pull_sub=PullSub(batch_size=500, timeout=1.0),
    )
    @broker.publisher(out, stream=out_stream)
    async def changed(body: bytes) -> bytes:
        return work(body)

    return FastStream(broker, logger=None)


if __name__ == "__main__":
    asyncio.run(application(*sys.argv[1:5]).run())
