"""The floor: a bare process that reads frames and publishes them, as fast as Python and NATS can.

python -m benchmarks.workers.floor STREAM SUBJECT OUT passed|columnar|unary

No Spark, no positions, no outcomes, no redelivery: if it is killed it loses or doubles what
it had in flight. ``passed`` does not even look into the frames.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import nats.errors
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.work import columnar, work
from benchmarks.workers import connected
from ebbflow.engine import frames

_FRAMES = 32


def _columnar(frame: bytes) -> bytes:
    rows = frames.decode(frame)
    return frames.encode(frames.with_columns(rows, value=columnar(rows).column("value")))


def _unary(frame: bytes) -> bytes:
    rows = frames.decode(frame)
    values = pa.array([work(value) for value in rows.column("value").to_pylist()], pa.binary())
    return frames.encode(frames.with_columns(rows, value=values))


_MODES: dict[str, Callable[[bytes], bytes]] = {
    "passed": lambda frame: frame,
    "columnar": _columnar,
    "unary": _unary,
}


async def serve(stream: str, subject: str, out: str, change: Callable[[bytes], bytes]) -> None:
    """Work until killed. The next frames are fetched while the last ones are being confirmed."""
    jetstream = (await connected()).jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await jetstream.pull_subscribe(subject, stream=stream, config=config)
    sent: asyncio.Future[list[object]] | None = None
    while True:
        try:
            fetched = await subscription.fetch(_FRAMES, timeout=1)
        except nats.errors.TimeoutError:
            continue
        if sent is not None:
            await sent
        changed = [change(message.data) for message in fetched]
        sent = asyncio.gather(*(jetstream.publish(out, frame) for frame in changed))


if __name__ == "__main__":
    stream, subject, out, mode = sys.argv[1:]
    asyncio.run(serve(stream, subject, out, _MODES[mode]))
