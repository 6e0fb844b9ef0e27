"""One map hop from JetStream to JetStream: Ebbflow on Spark beside a plain nats-py worker.

Both run one Python process on the same server in the same run, in alternating rounds.

* Throughput: the input is there before the start. The rate is taken from the server's own time
  stamps of the first and the last output, so starting up does not count.
* Latency: 100 messages a second, one by one. Taken from just before the publish of the input to
  the arrival of the output.

    python -m benchmarks.hop [--rounds 3] [--messages 300000] [--peer-messages 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.results import Figures, publish_results
from benchmarks.work import map_message
from ebbflow import frames
from ebbflow.core.routing import Edge
from ebbflow.jetstream import streams
from ebbflow.jetstream.access import embedded
from ebbflow.jetstream.connection import Link
from ebbflow.jetstream.names import Names
from ebbflow.jetstream.positions import read_all
from ebbflow.jetstream.publisher import BUFFER, publish
from ebbflow.options import DEFAULT_ON_ERROR
from ebbflow.spark.epoch import run_epoch
from ebbflow.spark.plan import UserMap, VertexPlan
from ebbflow.spark.session import start_session, stop_session

# Bytes that do not compress, the same in each run: nobody wins by squeezing them.
PAYLOADS = [random.Random(number).randbytes(200) for number in range(1_000)]
NAMES = Names("bench")
IN, OUT = NAMES.buffer_subject("map", 0), NAMES.buffer_subject("out", 0)
LATENCY_RATE, LATENCY_SECONDS = 100, 8


class Bench:
    """The server, the session and the two contestants."""

    def __init__(self, link: Link, spark: Any) -> None:
        self._link = link
        self._spark = spark

    def _fresh(self, configs: list[dict[str, Any]]) -> None:
        client = self._link.client
        existing = self._link.run(streams.names_of(client, ""))
        self._link.run(streams.delete(client, existing))
        for config in configs:
            self._link.run(streams.ensure(client, config))

    def _span(self, stream: str) -> float:
        """Seconds between the first and the last message that the server stored."""
        state = self._link.run(streams.api(self._link.client, f"STREAM.INFO.{stream}"))["state"]
        first, last = (datetime.fromisoformat(state[f"{end}_ts"]) for end in ("first", "last"))
        return (last - first).total_seconds()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the contestant did not finish")
            time.sleep(0.05)

    def _messages(self, stream: str) -> int:
        state = self._link.run(streams.state(self._link.client, stream))
        return state.messages if state else 0

    # --- ours -------------------------------------------------------------------------------

    @contextmanager
    def _our_vertex(self) -> Iterator[None]:
        client = self._link.client
        plan = VertexPlan(
            "bench", "map", 1, UserMap(map_message), (Edge("out"),), DEFAULT_ON_ERROR,
            500, 500, 10**6, self._link.server, client.max_payload,
        )  # fmt: skip
        epoch = threading.Thread(target=run_epoch, args=(self._spark, plan, 1, 600))
        epoch.start()
        try:
            yield
        finally:
            while epoch.is_alive():
                self._link.run(client.publish(NAMES.control_subject, b"stop"))
                epoch.join(0.1)

    def _our_streams(self) -> None:
        self._fresh(
            [
                streams.positions_config(NAMES),
                streams.dead_letter_config(NAMES),
                streams.redelivery_config(NAMES, "map", 0),
                streams.buffer_config(NAMES, "map", 0, 10**6),
                streams.buffer_config(NAMES, "out", 0, 10**6),
            ]
        )

    def our_rate(self, messages: int) -> float:
        """Messages a second through one Spark task."""
        self._our_streams()
        self._link.run(self._load_frames(messages))
        with self._our_vertex():
            self._wait_for(lambda: self._messages(NAMES.buffer("map", 0)) == 0)
        position = self._link.run(read_all(self._link, NAMES))["map", 0]
        assert position.counts.done == messages
        return messages / self._span(NAMES.buffer("out", 0))

    async def _load_frames(self, messages: int) -> None:
        for start in range(0, messages, 1_000):
            ids = [f"in-{number}" for number in range(start, start + 1_000)]
            batch = frames.batch_of({"id": ids, "value": PAYLOADS}, 1_000)
            await publish(self._link.client, IN, frames.encode(batch), msg_id=ids[0], retry=BUFFER)

    def our_latencies(self) -> list[float]:
        """Milliseconds, one for each message."""

        def encode(number: int, value: bytes) -> bytes:
            batch = frames.batch_of({"id": [f"in-{number}"], "value": [value]}, 1)
            return frames.encode(batch)

        def decode(payload: bytes) -> list[bytes]:
            return frames.decode(payload).column("value").to_pylist()  # type: ignore[no-any-return]

        self._our_streams()
        with self._our_vertex():
            return self._link.run(self._latencies(IN, OUT, encode, decode))

    # --- the peer ---------------------------------------------------------------------------

    @contextmanager
    def _peer(self) -> Iterator[None]:
        server, login = self._link.server, self._link.server.login
        assert login.user is not None
        assert login.password is not None
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.nats_py_worker"),
                *(str(server), login.user, login.password),
            ]
        )
        try:
            yield
        finally:
            worker.kill()
            worker.wait()

    def _peer_streams(self) -> None:
        common = {"storage": "file", "num_replicas": 1}
        self._fresh(
            [
                {"name": "peer_in", "subjects": ["peer.in"], "retention": "workqueue"} | common,
                {"name": "peer_out", "subjects": ["peer.out"], "retention": "limits"} | common,
            ]
        )

    def peer_rate(self, messages: int) -> float:
        """Messages a second through one nats-py worker."""
        self._peer_streams()
        self._link.run(self._load_plain(messages))
        with self._peer():
            self._wait_for(lambda: self._messages("peer_out") == messages)
        return messages / self._span("peer_out")

    async def _load_plain(self, messages: int) -> None:
        for _ in range(0, messages, 500):
            await asyncio.gather(
                *(publish(self._link.client, "peer.in", p, retry=BUFFER) for p in PAYLOADS[:500])
            )

    def peer_latencies(self) -> list[float]:
        """Milliseconds, one for each message."""
        self._peer_streams()
        with self._peer():
            return self._link.run(
                self._latencies("peer.in", "peer.out", lambda _, value: value, lambda p: [p])
            )

    async def _latencies(
        self,
        into: str,
        out: str,
        encode: Callable[[int, bytes], bytes],
        decode: Callable[[bytes], list[bytes]],
    ) -> list[float]:
        """Publish at a steady rate and time what comes out. The first second does not count."""
        found: dict[int, float] = {}
        messages = LATENCY_RATE * LATENCY_SECONDS

        async def arrived(message: Any) -> None:
            now = time.monotonic_ns()
            for value in decode(message.data):
                number, sent = value.rstrip(b"!").split()
                found.setdefault(int(number), (now - int(sent)) / 1e6)

        subscription = await self._link.client.subscribe(out, cb=arrived)
        await self._warm_up(into, encode, found)
        began = time.monotonic()
        for number in range(messages):
            await asyncio.sleep(max(0.0, began + number / LATENCY_RATE - time.monotonic()))
            value = b"%d %d" % (number, time.monotonic_ns())
            await publish(self._link.client, into, encode(number, value), retry=BUFFER)
        while len(found) < messages + 1:
            await asyncio.sleep(0.05)
        await subscription.unsubscribe()
        return [found[number] for number in range(LATENCY_RATE, messages)]

    async def _warm_up(
        self, into: str, encode: Callable[[int, bytes], bytes], found: dict[int, float]
    ) -> None:
        await publish(self._link.client, into, encode(-1, b"-1 0"), retry=BUFFER)
        while -1 not in found:
            await asyncio.sleep(0.05)


def main() -> None:
    """Run the rounds and publish the table, the plot and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--peer-messages", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as folder:
        spark = start_session("bench", None, 1, Path(folder), {})
        with embedded(Path(folder) / "state") as server:
            link = Link(server)
            figures = _measure(Bench(link, spark), arguments)
            link.close()
        stop_session(spark)
    publish_results(figures)


def _measure(bench: Bench, arguments: argparse.Namespace) -> Figures:
    ours, peers = [], []
    bench.our_rate(20_000)  # the first job starts the worker
    for number in range(arguments.rounds):
        ours.append(bench.our_rate(arguments.messages))
        peers.append(bench.peer_rate(arguments.peer_messages))
        print(f"round {number + 1}: {ours[-1]:,.0f}/s beside {peers[-1]:,.0f}/s", flush=True)
    figures = Figures(ours, peers, bench.our_latencies(), bench.peer_latencies())
    print(f"ratio of medians: {statistics.median(ours) / statistics.median(peers):.1f}")
    return figures


if __name__ == "__main__":
    main()
