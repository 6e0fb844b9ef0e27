"""Every source alone: a MonoVertex that reads it and forgets what it read, by its own count."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count

import psutil
import pyarrow as pa
import pyarrow.parquet

from benchmarks import contest, peers
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Contestant, Round, watched
from benchmarks.ours import counts, lay_out, planned, running, worked
from benchmarks.outside import IN, IN_SUBJECT, outside
from benchmarks.work import numbered
from ebbflow import MonoVertex, Source, SourceMessage
from ebbflow.connectors import Blackhole, Connector, Generator, JetStream, Nats, Spark
from ebbflow.domain.code import Code

USER_DEFINED = "user-defined"
_BLOB = b"a" * 100
# What waits for a source without back-pressure has to fit into its memory.
_BURST = 80_000

Given = Code | Connector
Prepare = Callable[[Ground, int, int], AbstractContextManager[Given]]


@dataclass
class Pulled:
    """A source whose messages exist before it starts."""

    name: str
    prepare: Prepare
    pace: int
    mode = ""
    job = contest.SOURCE

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the count of its vertex."""
        with self.prepare(ground, messages, size) as source:
            plans = planned(ground, MonoVertex("bench").source(source).sink(Blackhole()))
            lay_out(ground, plans)
            return worked(ground, plans, messages).round(messages)


@dataclass
class Listening:
    """The NATS source, which receives what is published while it listens."""

    pace: int
    name = "nats"
    mode = ""
    job = contest.SOURCE

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the count of its vertex; the driver, which listens, counts as well."""
        burst = min(messages, _BURST)
        with outside(ground.seed) as server:
            source = Nats(url=server.url, subject=IN_SUBJECT)
            plans = planned(ground, MonoVertex("bench").source(source).sink(Blackhole()))
            lay_out(ground, plans)
            words = [IN_SUBJECT, str(burst), str(size), str(ground.seed)]
            with running(ground, plans), peers.started(server, "publishing", words):
                done = partial(_done, ground)
                found = watched(_with_driver, done, burst, server=server.process)
            return found.round(burst)


def _done(ground: Ground) -> int:
    return counts(ground, "bench").done


def _with_driver() -> list[psutil.Process]:
    return [psutil.Process(), *spark_processes()]


class Endless(Source):
    """A user's source that always has messages."""

    def __init__(self) -> None:
        self._numbers = count()

    def read(self, limit: int, timeout: timedelta) -> Sequence[SourceMessage]:
        """Returns as many as requested."""
        numbers = (next(self._numbers) for _ in range(limit))
        return [SourceMessage(_BLOB, b"%d" % number) for number in numbers]

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Forgets them."""


class EndlessColumns(Source):
    """The same, given as columns."""

    def __init__(self) -> None:
        self._next = 0

    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Returns as many as requested."""
        numbers = pa.array(range(self._next, self._next + limit))
        self._next += limit
        columns = {
            "offset": numbers.cast(pa.string()).cast(pa.binary()),
            "value": pa.repeat(pa.scalar(_BLOB), limit),
        }
        return pa.RecordBatch.from_pydict(columns)

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Is not called: ``ack_columns`` is."""

    def ack_columns(self, offsets: pa.BinaryArray) -> None:
        """Forgets them."""


@contextmanager
def _jetstream(ground: Ground, messages: int, size: int) -> Iterator[Given]:
    with outside(ground.seed) as server:
        server.load(messages, size)
        yield JetStream(url=server.url, stream=IN)


@contextmanager
def _user_defined(code: type[Source], ground: Ground, messages: int, size: int) -> Iterator[Given]:
    yield code


@contextmanager
def _generator(ground: Ground, messages: int, size: int) -> Iterator[Given]:
    yield Generator(messages=messages, msg_size=size)


@contextmanager
def _parquet(ground: Ground, messages: int, size: int) -> Iterator[Given]:
    with tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as folder:
        texts = pa.array([*numbered(messages, size, ground.seed)], pa.binary()).cast(pa.string())
        pyarrow.parquet.write_table(pa.table({"value": texts}), f"{folder}/in.parquet")
        yield Spark(format="parquet", options={"path": folder}, stream=False)


def contestants() -> Iterator[Contestant]:
    """All sources except those that need their own broker or client."""
    yield Pulled("jetstream", _jetstream, 80_000)
    yield Listening(40_000)
    yield Pulled(USER_DEFINED, partial(_user_defined, Endless), 200_000)
    yield Pulled(f"{USER_DEFINED}, columns", partial(_user_defined, EndlessColumns), 400_000)
    yield Pulled("Parquet files (spark)", _parquet, 150_000)
    yield Pulled("generator", _generator, 400_000)
