"""A nats-py worker that does all it can in batches: one fetch, many publishes in flight.

python -m benchmarks.workers.nats_py_batched STREAM OUT publish|read

A message is acknowledged when its output is confirmed. ``read`` only acknowledges.
"""

from __future__ import annotations

import asyncio
import sys

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from benchmarks.workers import connected

CONSUMER = "batched"
_FETCH = 500


async def serve(stream: str, out: str, publishes: bool) -> None:
    """Works until killed."""
    jetstream = (await connected()).jetstream(publish_async_max_pending=_FETCH)
    subscription = await jetstream.pull_subscribe(
        "", durable=CONSUMER, stream=stream, config=ConsumerConfig(max_ack_pending=-1)
    )
    while True:
        try:
            messages = await subscription.fetch(_FETCH, timeout=1)
        except nats.errors.TimeoutError:
            continue
        if publishes:
            await _publish(jetstream, messages, out)
        for message in messages:
            await message.ack()


async def _publish(jetstream: JetStreamContext, messages: list[Msg], out: str) -> None:
    sent = [await jetstream.publish_async(out, message.data.upper()) for message in messages]
    await asyncio.gather(*sent)


if __name__ == "__main__":
    stream, out, job = sys.argv[1:]
    asyncio.run(serve(stream, out, job == "publish"))
