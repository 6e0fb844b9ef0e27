"""The peer: a plain nats-py worker that fetches, calls, publishes and acks each message.

python -m benchmarks.nats_py_worker URL USER PASSWORD
"""

from __future__ import annotations

import asyncio
import sys

import nats
import nats.errors

from benchmarks.work import work


async def serve(url: str, user: str, password: str) -> None:
    """Work until killed."""
    client = await nats.connect(url, user=user, password=password)
    jetstream = client.jetstream()
    subscription = await jetstream.pull_subscribe("peer.in", durable="worker", stream="peer_in")
    while True:
        try:
            messages = await subscription.fetch(500, timeout=1)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            await jetstream.publish("peer.out", work(message.data))
            await message.ack()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
