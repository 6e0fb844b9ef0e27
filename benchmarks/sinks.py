"""Every sink alone: a vertex behind a buffer that was filled in advance, by its own count."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import contest
from benchmarks.broker import Ground
from benchmarks.contest import Contestant, Round
from benchmarks.ours import NAMES, lay_out, planned, worked
from benchmarks.outside import OUT, OUT_SUBJECT, NotOnce, outside
from benchmarks.work import accept, write
from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, File, Generator, JetStream, Log, Nats, Spark

Settings = Mapping[str, Any]
Prepare = Callable[[Ground, int], AbstractContextManager[Settings]]


@dataclass
class SinkAlone:
    """One sink. ``prepare`` creates what it writes to, and checks it at the end."""

    name: str
    prepare: Prepare
    pace: int
    mode = ""
    job = contest.SINK_ALONE

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the sink's own count."""
        with self.prepare(ground, messages) as settings:
            pipeline = Pipeline("bench").source("in", Generator(messages=1))
            *_, plan = planned(ground, pipeline.sink("sink", **settings))
            plan = replace(plan, feeders=())
            lay_out(ground, [plan])
            ground.load_texts(NAMES.buffer_subject("sink", 0), messages, size)
            return worked(ground, [plan], messages).round(messages)


@contextmanager
def _jetstream(ground: Ground, messages: int) -> Iterator[Settings]:
    with outside(ground.seed) as server:
        server.lay_out()
        yield {"sink": JetStream(url=server.url, subject=OUT_SUBJECT)}
        if (stored := server.messages(OUT)) != messages:
            raise NotOnce(f"{stored:,} stored for {messages:,} messages")


@contextmanager
def _nats(ground: Ground, messages: int) -> Iterator[Settings]:
    with outside(ground.seed) as server:
        yield {"sink": Nats(url=server.url, subject=OUT_SUBJECT)}


@contextmanager
def _file(ground: Ground, messages: int) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as folder:
        path = f"{folder}/out"
        yield {"sink": File(path=path)}
        with open(path, "rb") as file:
            lines = sum(1 for _ in file)
        if lines != messages:
            raise NotOnce(f"{lines:,} lines for {messages:,} messages")


@contextmanager
def _parquet(ground: Ground, messages: int) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as folder:
        yield {"sink": Spark(format="parquet", options={"path": f"{folder}/out"})}


def _plain(**settings: Any) -> Prepare:
    @contextmanager
    def prepare(ground: Ground, messages: int) -> Iterator[Settings]:
        yield settings

    return prepare


def contestants() -> Iterator[Contestant]:
    """All sinks except those that need their own broker or endpoint."""
    yield SinkAlone("jetstream", _jetstream, 60_000)
    yield SinkAlone("nats", _nats, 80_000)
    yield SinkAlone("file", _file, 150_000)
    yield SinkAlone("Parquet files (spark)", _parquet, 100_000)
    yield SinkAlone("user-defined", _plain(sink=write), 500_000)
    yield SinkAlone("user-defined, columnar", _plain(sink=accept, mode="columnar"), 1_000_000)
    yield SinkAlone("blackhole", _plain(sink=Blackhole()), 1_000_000)
    yield SinkAlone("log", _plain(sink=Log()), 100_000)
