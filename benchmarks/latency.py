"""From publish to the next vertex: how long messages take at a steady rate, across epoch ends.

Messages are published into the buffer of a map, and their times are taken when they arrive in the
last buffer: behind one map, which has the machine to itself as the peer's worker has, and behind
three maps one after another. Epochs are short, so that many end while it is measured. At high rates
a frame holds the messages of a millisecond or two, as it does when a vertex publishes them; each
message has its own time all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks import peers
from benchmarks.broker import Ground
from benchmarks.ours import EBBFLOW, NAMES, lay_out, mapping, running, vertex
from ebbflow.engine import frames
from ebbflow.nats.publish import BUFFER, publish

EPOCH = 5.0
_WARM = 3.0
_TICK = 0.002
_PATIENCE = 60.0
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

Encode = Callable[[int, list[bytes]], list[bytes]]
Decode = Callable[[bytes], list[bytes]]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds at each share of the messages."""

    name: str
    rate: int
    way: str
    messages: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, name: str, rate: int, way: str, found: list[float]) -> Latency:
        """From the milliseconds of every message."""
        ordered = sorted(found)
        last = len(ordered) - 1
        marks = (ordered[min(last, int(share * len(ordered)))] for share in SHARES.values())
        return cls(name, rate, way, len(ordered), *marks)


def ours(ground: Ground, rate: int, seconds: float) -> list[Latency]:
    """One hop and three of them, each in a separate run, with real epochs."""
    return [
        _through(ground, ["map", "out"], "one hop", rate, seconds),
        _through(ground, ["map", "second", "third", "out"], "3 hops", rate, seconds),
    ]


def _through(ground: Ground, names: Sequence[str], way: str, rate: int, seconds: float) -> Latency:
    plans = [vertex(ground, name, mapping("unary"), [to]) for name, to in pairwise(names)]
    lay_out(ground, plans, "out")
    out = NAMES.buffer_subject("out", 0)
    with running(ground, plans, EPOCH):
        flow = _Flow(ground, NAMES.buffer_subject("map", 0), out, _as_frame, _from_frame)
        found = ground.link.run(flow.measured(rate, seconds))
    return Latency.of(EBBFLOW, rate, way, found)


def plain(ground: Ground, rate: int, seconds: float) -> list[Latency]:
    """The plain nats-py worker, one hop."""
    peers.plain_streams(ground)
    with peers.started(ground, "nats_py", [peers.IN, "peer.in", "peer.out", "1"]):
        flow = _Flow(ground, "peer.in", "peer.out", lambda _, values: values, lambda v: [v])
        found = ground.link.run(flow.measured(rate, seconds))
    return [Latency.of(peers.NATS_PY, rate, "one hop", found)]


def _as_frame(number: int, values: list[bytes]) -> list[bytes]:
    ids = [f"in-{number + n}" for n in range(len(values))]
    return [frames.encode(frames.batch_of({"id": ids, "value": values}, len(values)))]


def _from_frame(payload: bytes) -> list[bytes]:
    return frames.decode(payload).column("value").to_pylist()  # type: ignore[no-any-return]


class _Flow:
    """Messages at a steady rate, and when they arrive."""

    def __init__(self, ground: Ground, into: str, out: str, encode: Encode, decode: Decode) -> None:
        self._client = ground.link.client
        self._into = into
        self._out = out
        self._encode = encode
        self._decode = decode
        self._arrived: dict[int, float] = {}
        self._sent: set[asyncio.Task[Any]] = set()

    async def measured(self, rate: int, seconds: float) -> list[float]:
        """Milliseconds of every message but those of the first seconds."""
        subscription = await self._client.subscribe(self._out, cb=self._on_arrival)
        await self._send([b"0 0"], 0)
        await self._until(1)
        first = 1 + int(rate * _WARM)
        last = await self._steadily(rate, seconds + _WARM)
        await self._until(last)
        await subscription.unsubscribe()
        assert len(self._arrived) == last, "a message has not arrived"
        return [self._arrived[number] for number in range(first, last)]

    async def _on_arrival(self, message: Any) -> None:
        now = time.monotonic_ns()
        for value in self._decode(message.data):
            number, sent = value.rstrip(b"!").split()
            self._arrived.setdefault(int(number), (now - int(sent)) / 1e6)

    async def _steadily(self, rate: int, seconds: float) -> int:
        """Publishes what is due, repeatedly; returns the number of messages sent in all."""
        began, number, last = time.monotonic(), 1, 1 + int(rate * seconds)
        while number < last:
            due = min(last, 1 + int((time.monotonic() - began) * rate))
            if due > number:
                now = time.monotonic_ns()
                await self._send([b"%d %d" % (n, now) for n in range(number, due)], number)
                number = due
            next_one = began + number / rate - time.monotonic()
            await asyncio.sleep(max(_TICK if rate > 1 / _TICK else 0.0, next_one))
        return last

    async def _send(self, values: list[bytes], number: int) -> None:
        """Does not wait for the confirmation, just as a vertex does not."""
        for payload in self._encode(number, values):
            sent = asyncio.create_task(publish(self._client, self._into, payload, retry=BUFFER))
            self._sent.add(sent)
            sent.add_done_callback(self._sent.discard)

    async def _until(self, messages: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while len(self._arrived) < messages:
            if time.monotonic() > deadline:
                raise TimeoutError("messages have not arrived")
            await asyncio.sleep(0.05)
