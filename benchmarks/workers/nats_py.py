"""A plain nats-py worker that fetches, calls, publishes and acknowledges each message.

python -m benchmarks.workers.nats_py STREAM SUBJECT OUT IN_FLIGHT

With more than one message in flight it does so for that many at once, as a careful author would.
"""

from __future__ import annotations

import asyncio
import sys

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from benchmarks.work import work
from benchmarks.workers import connected


async def serve(stream: str, subject: str, out: str, in_flight: int) -> None:
    """Work until killed."""
    jetstream = (await connected()).jetstream()
    subscription = await jetstream.pull_subscribe(subject, durable="worker", stream=stream)
    while True:
        try:
            messages = await subscription.fetch(500, timeout=1)
        except nats.errors.TimeoutError:
            continue
        for start in range(0, len(messages), in_flight):
            some = messages[start : start + in_flight]
            await asyncio.gather(*(_one(jetstream, message, out) for message in some))


async def _one(jetstream: JetStreamContext, message: Msg, out: str) -> None:
    await jetstream.publish(out, work(message.data))
    await message.ack()


if __name__ == "__main__":
    stream, subject, out, in_flight = sys.argv[1:]
    asyncio.run(serve(stream, subject, out, int(in_flight)))
