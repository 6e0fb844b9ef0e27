"""The same worker written with FastStream: a subscriber on a stream that publishes to another.

python -m benchmarks.workers.faststream STREAM SUBJECT OUT_STREAM OUT WORKERS work|upper
"""

from __future__ import annotations

import asyncio
import os
import sys

from faststream import FastStream
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.security import SASLPlaintext

from benchmarks.work import CHANGES
from benchmarks.workers import PASSWORD, URL, USER


def application(
    stream: str, subject: str, out_stream: str, out: str, workers: str, change: str
) -> FastStream:
    """The worker, ready to run; it has that many ``workers``."""
    user, work = os.environ[USER], CHANGES[change]
    login = SASLPlaintext(user, os.environ[PASSWORD]) if user else None
    broker = NatsBroker(os.environ[URL], security=login, logger=None)

    @broker.subscriber(
        subject,
        stream=JStream(stream, declare=False),
        durable="faststream",
        pull_sub=PullSub(batch_size=500, timeout=1.0),
        max_workers=int(workers),
    )
    @broker.publisher(out, stream=out_stream)
    async def changed(body: bytes) -> bytes:
        return work(body)

    return FastStream(broker, logger=None)


if __name__ == "__main__":
    asyncio.run(application(*sys.argv[1:]).run())
