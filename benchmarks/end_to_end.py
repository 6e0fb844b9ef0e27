"""The whole job on single messages: from a user's stream, through a map, to another stream.

Every message lies by itself in an outside stream, is changed to upper case and confirmed in another
outside stream, and is then acknowledged. Every run starts with an empty store, and ends with a
check of all that was stored: a contestant that loses or doubles a message has no rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import psutil

from benchmarks import bento, contest, peers
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Contestant, Round, watched
from benchmarks.ours import EBBFLOW, lay_out, planned, running
from benchmarks.outside import IN, IN_SUBJECT, OUT, OUT_SUBJECT, Outside, outside
from benchmarks.work import upper
from benchmarks.workers import bulk, nats_py_batched
from ebbflow import MonoVertex, Pipeline
from ebbflow.builders import Builder
from ebbflow.connectors import JetStream

BATCHED, BULK, READS = "nats-py worker, batched", "floor (bulk process)", "reads and acks only"
MONO, PIPELINE = f"{EBBFLOW} MonoVertex", f"{EBBFLOW}, three vertices"
BENTO = f"{bento.NAME} {bento.VERSION}"
FASTSTREAM = f"{peers.FASTSTREAM}, 64 workers"
_EVERY = 0.05
_BENTO_IN_FLIGHT = 1_024

Start = Callable[[Outside], AbstractContextManager[psutil.Process]]


@dataclass
class Peer:
    """A separate program."""

    name: str
    start: Start
    pace: int
    mode = "unary"
    job = contest.END_TO_END

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        with outside(ground.seed) as server:
            server.load(messages, size)
            with self.start(server) as process:
                stored = partial(peers.stored, server, OUT, process)
                found = watched(lambda: [process], stored, messages, _EVERY, server.process)
            server.check(messages, size)
            return found.round(messages, server.span(OUT))


@dataclass
class Reader:
    """A program that reads and acknowledges, nothing else."""

    name: str
    start: Start
    consumer: str
    pace: int
    mode = READS
    job = contest.END_TO_END

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By what the server knows of its consumer."""
        with outside(ground.seed) as server:
            server.load(messages, size)
            with self.start(server) as process:
                acked = partial(_acked, server, self.consumer, process)
                found = watched(lambda: [process], acked, messages, _EVERY, server.process)
            return found.round(messages)


def _acked(server: Outside, consumer: str, process: psutil.Process) -> int:
    peers.check_runs(process)
    return server.acked(consumer)


@dataclass
class Ours:
    """Vertices of a spec, complete with positions and settling."""

    name: str
    build: Callable[[str], Builder]
    pace: int
    mode = "unary"
    job = contest.END_TO_END

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        with outside(ground.seed) as server:
            server.load(messages, size)
            plans = planned(ground, self.build(server.url))
            lay_out(ground, plans)
            with running(ground, plans):
                stored = partial(server.messages, OUT)
                found = watched(spark_processes, stored, messages, _EVERY, server.process)
            server.check(messages, size)
            return found.round(messages, server.span(OUT))


def contestants(left_out: list[str]) -> Iterator[Contestant]:
    """All contestants that are available; why others are not goes to ``left_out``."""
    yield Ours(MONO, _mono, 60_000)
    yield Ours(PIPELINE, _pipeline, 50_000)
    yield Peer(BULK, _worker("bulk", [IN, OUT_SUBJECT, "publish"]), 120_000)
    yield Reader(BULK, _worker("bulk", [IN, OUT_SUBJECT, "read"]), bulk.CONSUMER, 190_000)
    batched = "nats_py_batched"
    yield Peer(BATCHED, _worker(batched, [IN, OUT_SUBJECT, "publish"]), 16_000)
    yield Reader(
        BATCHED, _worker(batched, [IN, OUT_SUBJECT, "read"]), nats_py_batched.CONSUMER, 20_000
    )
    if peers.has_faststream(left_out):
        words = [IN, IN_SUBJECT, OUT, OUT_SUBJECT, "64", "upper"]
        yield Peer(FASTSTREAM, _worker("faststream", words), 2_500)
    if bento.is_there(left_out):
        yield Peer(BENTO, _bento, 35_000)


def _worker(module: str, arguments: Sequence[str]) -> Start:
    return lambda server: peers.started(server, module, arguments)


def _bento(server: Outside) -> AbstractContextManager[psutil.Process]:
    shared = {"urls": [server.url]}
    source = {"stream": IN, "subject": IN_SUBJECT, "durable": "bento", "deliver": "all"}
    limit = {"max_ack_pending": _BENTO_IN_FLIGHT}
    sink = {"subject": OUT_SUBJECT, "max_in_flight": _BENTO_IN_FLIGHT}
    return bento.bento(
        {"nats_jetstream": shared | source | limit}, {"nats_jetstream": shared | sink}
    )


def _mono(url: str) -> Builder:
    return (
        MonoVertex("bench")
        .source(JetStream(url=url, stream=IN))
        .map(upper)
        .sink(JetStream(url=url, subject=OUT_SUBJECT))
    )


def _pipeline(url: str) -> Builder:
    return (
        Pipeline("bench")
        .source("in", JetStream(url=url, stream=IN))
        .map("map", upper)
        .sink("sink", JetStream(url=url, subject=OUT_SUBJECT))
    )
