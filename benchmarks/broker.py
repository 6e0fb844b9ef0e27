"""What all contestants run on: one NATS server and one Spark session, with helpers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.work import DISTINCT, numbered, objects, payloads
from ebbflow.engine import frames
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.streams import provision
from ebbflow.testing.background_run import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 600.0
_IN_FLIGHT = 64


@dataclass(frozen=True)
class Broker:
    """A NATS server, and what contests do with its streams. ``seed`` determines the payloads."""

    link: Link
    seed: int

    # --- streams --------------------------------------------------------------------------------

    def fresh(self, *configs: dict[str, Any]) -> None:
        """Creates these streams, and deletes all others."""
        client = self.link.client
        self.link.run(api.delete(client, self.link.run(api.list_streams(client, ""))))
        for config in configs:
            self.link.run(provision.ensure(client, config))
            while self.messages(config["name"]):  # the list missed it
                self.link.run(api.delete(client, [config["name"]]))
                self.link.run(provision.ensure(client, config))

    def messages(self, stream: str) -> int:
        """Returns how many messages a stream holds."""
        state = self.link.run(api.read_state(self.link.client, stream))
        return state.messages if state else 0

    def span(self, stream: str) -> float:
        """Seconds between the first and the last message that the server stored."""
        state = self.link.run(api.read_info(self.link.client, stream))
        first, last = (datetime.fromisoformat(state[f"{end}_ts"]) for end in ("first", "last"))
        return (last - first).total_seconds()

    # --- input ----------------------------------------------------------------------------------

    def load_plain(self, subject: str, messages: int, size: int) -> None:
        """Stores that many messages, each by itself."""
        values = payloads(size, self.seed)
        self._load(subject, (values[number % DISTINCT] for number in range(messages)))

    def _load(self, subject: str, bodies: Iterable[bytes]) -> None:
        async def load() -> None:
            for some in batched(bodies, _IN_FLIGHT):
                sent = (publish(self.link.client, subject, one, retry=BUFFER) for one in some)
                await asyncio.gather(*sent)

        self.link.run(load())


@dataclass(frozen=True)
class Ground(Broker):
    """The broker that Ebbflow keeps its buffers on, and the Spark session of its vertices."""

    spark: SparkSession

    def load_frames(self, subject: str, messages: int, size: int, name: str = "in") -> None:
        """Stores that many messages in frames as a vertex does; ``name`` begins their ids."""
        self._load(subject, _frames(messages, payloads(size, self.seed), name))

    def load_texts(self, subject: str, messages: int, size: int) -> None:
        """The same with texts on one line, for sinks that write lines."""
        texts = [*numbered(DISTINCT, size, self.seed)]
        self._load(subject, _frames(messages, texts, "in"))

    def load_objects(self, subject: str, messages: int, size: int) -> None:
        """The same with JSON objects, all of them different, for sinks that write rows."""
        values = enumerate(objects(messages, size, self.seed))
        while batch := list(islice(values, DISTINCT)):
            columns = {"id": [f"in-{n}" for n, _ in batch], "value": [one for _, one in batch]}
            rows = frames.batch_of(columns, len(batch))
            self._load(subject, map(frames.encode, frames.split(rows)))


def _frames(messages: int, values: Sequence[bytes], name: str) -> Iterator[bytes]:
    for first in range(0, messages, len(values)):
        ids = [f"{name}-{number}" for number in range(first, first + len(values))]
        rows = frames.batch_of({"id": ids, "value": values}, len(values))
        yield from map(frames.encode, frames.split(rows))


@contextmanager
def prepared(folder: Path, tasks: int, seed: int) -> Iterator[Ground]:
    """Yields a separate ground, for as long as the context lasts."""
    from ebbflow.spark.session import SessionPlan, open_session

    with (
        start_embedded(folder / "state") as server,
        open_link(server) as link,
        open_session(SessionPlan("bench", None, tasks, folder / "logs")) as spark,
    ):
        yield Ground(link, seed, spark)


def wait_until(condition: Callable[[], bool], every: float = 0.02) -> None:
    """Waits for a contestant; ``TimeoutError`` if the condition does not become true."""
    if not until(condition, _PATIENCE, every):
        raise TimeoutError("the contestant did not finish")


def batched(bodies: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Yields lists of up to ``size``."""
    left = iter(bodies)
    while some := list(islice(left, size)):
        yield some


def jvm() -> psutil.Process:
    """Spark's own process."""
    family = psutil.Process(os.getpid()).children()
    return next(one for one in family if one.name() == "java" and _is_spark(one))


def _is_spark(process: psutil.Process) -> bool:
    return any(word.startswith("org.apache.spark") for word in process.cmdline())


def spark_workers() -> list[psutil.Process]:
    """Spark's Python processes."""
    family = psutil.Process(os.getpid()).children(recursive=True)
    return [one for one in family if one.name() not in ("java", "nats-server")]


def spark_processes() -> list[psutil.Process]:
    """Returns all processes that run for Spark."""
    return [jvm(), *spark_workers()]


def command_of(process: psutil.Process) -> list[str]:
    """Returns the words of its command; none if it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Returns the seconds of CPU that these processes have used so far."""
    total = 0.0
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total
