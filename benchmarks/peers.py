"""The peers: what people use instead, doing the same hop on the same broker and cores."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import psutil

from benchmarks import contest
from benchmarks.broker import Broker, Ground, spark_processes
from benchmarks.contest import Round, watched
from benchmarks.ours import NAMES
from benchmarks.work import work
from benchmarks.workers import environment
from ebbflow.streams import catalogue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NATS_PY, NATS_PY_64 = "nats-py worker", "nats-py worker, 64 in flight"
FASTSTREAM, STRUCTURED, FLOOR = "FastStream", "Spark foreachBatch", "floor (bare process)"
IN, OUT = "peer_in", "peer_out"


def started(
    broker: Broker, module: str, arguments: Sequence[str]
) -> AbstractContextManager[psutil.Process]:
    """Runs a worker, for as long as the context lasts."""
    command = [sys.executable, "-m", f"benchmarks.workers.{module}", *arguments]
    return process_of(command, environment(broker.link.server))


@contextmanager
def process_of(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> Iterator[psutil.Process]:
    """Runs a program, for as long as the context lasts."""
    process = subprocess.Popen(command, env=variables)
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
            found = watched(lambda: [process], partial(stored, ground, OUT, process), messages)
        return found.round(messages, ground.span(OUT))


def nats_py(in_flight: int = 1) -> Worker:
    """The plain worker, or the one that has several messages in flight at once."""
    name = NATS_PY if in_flight == 1 else NATS_PY_64
    arguments = [IN, "peer.in", "peer.out", str(in_flight)]
    return Worker(name, "nats_py", arguments, 4_000 if in_flight == 1 else 8_000)


def faststream() -> Worker:
    """FastStream on the same streams."""
    arguments = [IN, "peer.in", OUT, "peer.out", "1", "work"]
    return Worker(FASTSTREAM, "faststream", arguments, 2_500)


def has_faststream(left_out: list[str]) -> bool:
    """Returns whether FastStream is installed; if not, that goes to ``left_out``."""
    if find_spec("faststream") is None:
        left_out.append("FastStream is not installed; make setup installs it")
        return False
    return True


@dataclass
class Structured:
    """The same job as a plain Spark streaming query, written out by ``foreachBatch``.

    Spark has no built-in source for JetStream, so it reads and writes with Ebbflow's.
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


def stored(broker: Broker, stream: str, process: psutil.Process) -> int:
    """Returns how many messages the stream has; ``RuntimeError`` if the process has ended."""
    check_runs(process)
    return broker.messages(stream)


def check_runs(process: psutil.Process) -> None:
    """Raises ``RuntimeError`` if a contestant has ended before its work was done."""
    if process.status() == psutil.STATUS_ZOMBIE:
        raise RuntimeError("the contestant has ended before its work was done")


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
            catalogue.buffer_config(NAMES, "map", 0, 10**6),
            catalogue.buffer_config(NAMES, "out", 0, 10**6),
        )
        buffer, out = NAMES.buffer("map", 0), NAMES.buffer("out", 0)
        subjects = (NAMES.buffer_subject("map", 0), NAMES.buffer_subject("out", 0))
        ground.load_frames(subjects[0], messages, size)
        frames = ground.messages(buffer)
        with started(ground, "floor", [buffer, *subjects, self.mode]) as process:
            found = watched(lambda: [process], partial(stored, ground, out, process), frames)
        return found.round(messages, ground.span(out))
