"""The peers: what people use instead, doing the same hop on the same broker and cores."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psutil

from benchmarks import contest
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Round, watched
from benchmarks.ours import NAMES
from benchmarks.work import work
from benchmarks.workers import environment
from ebbflow.buffers import streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NATS_PY, NATS_PY_64 = "nats-py worker", "nats-py worker, 64 in flight"
FASTSTREAM, STRUCTURED, FLOOR = "FastStream", "Spark foreachBatch", "floor (bare process)"
IN, OUT = "peer_in", "peer_out"


@contextmanager
def started(ground: Ground, module: str, arguments: Sequence[str]) -> Iterator[psutil.Process]:
    """A worker, for as long as the context lasts."""
    command = [sys.executable, "-m", f"benchmarks.workers.{module}", *arguments]
    process = subprocess.Popen(command, env=environment(ground.link.server))
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def plain_streams(ground: Ground, retention: str = "workqueue") -> None:
    """Makes the streams of a plain service: a queue to read from, and a log of its outputs."""
    shared = {"storage": "file", "num_replicas": 1}
    ground.fresh(
        {"name": IN, "subjects": ["peer.in"], "retention": retention, **shared},
        {"name": OUT, "subjects": ["peer.out"], "retention": "limits", **shared},
    )


@dataclass
class Worker:
    """A program that reads one message after another."""

    name: str
    module: str
    arguments: Sequence[str]
    pace: int
    mode = "unary"
    job = contest.HOP

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        plain_streams(ground)
        ground.load_plain("peer.in", messages, size)
        with started(ground, self.module, self.arguments) as process:
            found = watched(lambda: [process], partial(_stored, ground, OUT, process), messages)
        return found.round(messages, ground.span(OUT))


def nats_py(in_flight: int = 1) -> Worker:
    """The plain worker, or the one that has several messages on their way at once."""
    name = NATS_PY if in_flight == 1 else NATS_PY_64
    arguments = [IN, "peer.in", "peer.out", str(in_flight)]
    return Worker(name, "nats_py", arguments, 4_000 if in_flight == 1 else 8_000)


def faststream() -> Worker:
    """FastStream on the same streams."""
    return Worker(FASTSTREAM, "faststream", [IN, "peer.in", OUT, "peer.out"], 2_500)


@dataclass
class Structured:
    """The same job as a plain streaming query of Spark's, written out by ``foreachBatch``.

    Spark has no source for JetStream of its own, so it reads and writes with Ebbflow's.
    """

    pace: int = 8_000
    name = STRUCTURED
    mode = "unary"
    job = contest.HOP

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        from ebbflow.datasource import register

        plain_streams(ground, "limits")
        ground.load_plain("peer.in", messages, size)
        spark, server = ground.spark, ground.link.server
        register(spark, server.urls[0], server.login)
        source = spark.readStream.format("jetstream").option("stream", IN)
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                source.option("maxMessagesPerBatch", 20_000)
                .load()
                .writeStream.foreachBatch(_write)
                .option("checkpointLocation", checkpoint)
                .start()
            )
            found = watched(spark_processes, partial(_stored_by, query, ground), messages)
            query.stop()
        return found.round(messages, ground.span(OUT))


def _stored(ground: Ground, stream: str, process: psutil.Process) -> int:
    if process.status() == psutil.STATUS_ZOMBIE:
        raise RuntimeError("the contestant has ended before its work was done")
    return ground.messages(stream)


def _stored_by(query: StreamingQuery, ground: Ground) -> int:
    if (error := query.exception()) is not None:
        raise error
    return ground.messages(OUT)


def _write(rows: DataFrame, _number: int) -> None:
    from pyspark.sql.functions import udf

    changed = udf(lambda data: work(bytes(data)), "binary")
    out = rows.select(changed("data").alias("data"))
    out.write.format("jetstream").mode("append").option("subject", "peer.out").save()


@dataclass
class Floor:
    """The bare process on frames."""

    mode: str
    pace: int
    name = FLOOR
    job = contest.HOP

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        ground.fresh(
            streams.buffer_config(NAMES, "map", 0, 10**6),
            streams.buffer_config(NAMES, "out", 0, 10**6),
        )
        buffer, out = NAMES.buffer("map", 0), NAMES.buffer("out", 0)
        subjects = (NAMES.buffer_subject("map", 0), NAMES.buffer_subject("out", 0))
        ground.load_frames(subjects[0], messages, size)
        frames = ground.messages(buffer)
        with started(ground, "floor", [buffer, *subjects, self.mode]) as process:
            found = watched(lambda: [process], partial(_stored, ground, out, process), frames)
        return found.round(messages, ground.span(out))
