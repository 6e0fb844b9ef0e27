"""Rate and memory as work grows: messages, vertices, partitions, nacks, parked messages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import psutil

from benchmarks.broker import Ground, jvm, spark_workers, wait_until
from benchmarks.ours import (
    NAMES,
    SINKS,
    chained,
    counts,
    lay_out,
    mapping,
    running,
    vertex,
    worked,
)
from benchmarks.work import each, payloads, work
from ebbflow import Datum, Message, NackOptions
from ebbflow.connectors.generator import GeneratorPlan
from ebbflow.runtime.plan import Forward, UserMap, VertexPlan

SIZE = 100
_EPOCH = 30.0


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a growth: how many messages a second, and the most memory in megabytes.

    ``early`` and ``late`` are the workers' memory after a fifth of the messages and at the end.
    """

    grows: str
    at: int
    rate: float
    jvm: float = 0.0
    early: float = 0.0
    late: float = 0.0


def chain(ground: Ground, messages: int) -> list[VertexPlan]:
    """A generator, a map, and a sink."""
    source = GeneratorPlan(None, messages, blob=payloads(SIZE, ground.seed)[0])
    plans = [
        vertex(ground, "in", Forward(), ["map"], source=source),
        vertex(ground, "map", mapping("unary"), ["sink"]),
        vertex(ground, "sink", SINKS),
    ]
    return chained(plans)


def by_messages(ground: Ground, messages: int) -> Point:
    """Source, map and sink; memory at a fifth and at the end."""
    plans = chain(ground, messages)
    lay_out(ground, plans)
    with running(ground, plans, _EPOCH):
        wait_until(lambda: counts(ground, "sink").done > 0)
        began = time.monotonic()
        wait_until(lambda: counts(ground, "sink").done >= messages // 5)
        early = _workers()
        wait_until(lambda: counts(ground, "sink").done >= messages)
        seconds, late = time.monotonic() - began, _workers()
        return Point("messages", messages, messages / seconds, _resident(jvm()), early, late)


def by_vertices(ground: Ground, vertices: int, messages: int) -> Point:
    """A chain of that many maps behind a filled buffer, the last one a sink."""
    names = [f"map{number}" for number in range(vertices - 1)] + ["sink"]
    plans = [vertex(ground, name, mapping("unary"), [to]) for name, to in pairwise(names)] + [
        vertex(ground, "sink", SINKS)
    ]
    plans = chained(plans)
    lay_out(ground, plans)
    ground.load_frames(NAMES.buffer_subject(names[0], 0), messages, SIZE)
    return Point("vertices", vertices, messages / worked(ground, plans, messages).seconds)


def by_partitions(ground: Ground, partitions: int, messages: int) -> Point:
    """One map in that many partitions, between filled buffers and empty ones."""
    plan = vertex(ground, "map", mapping("unary"), ["out"], partitions=partitions)
    lay_out(ground, [plan], "out")
    for partition in range(partitions):
        share = NAMES.buffer_subject("map", partition)
        ground.load_frames(share, messages // partitions, SIZE)
    return Point("partitions", partitions, messages / worked(ground, [plan], messages).seconds)


class Nacking:
    """Nacks a share of the messages once, without a delay, and does the work for the others."""

    def __init__(self, percent: int) -> None:
        self._percent = percent

    def __call__(self, datum: Datum) -> Message:
        """The first byte of a payload serves as a random number."""
        if datum.deliveries == 1 and datum.value[0] * 100 < self._percent * 256:
            return Message.to_nack(NackOptions(reason="in the benchmark"))
        return each(datum)


def by_nacks(ground: Ground, percent: int, messages: int) -> Point:
    """One map that nacks that many of a hundred messages at once; every message gets through."""
    plan = vertex(ground, "map", UserMap(partial(Nacking, percent)), ["out"])
    lay_out(ground, [plan], "out")
    ground.load_frames(NAMES.buffer_subject("map", 0), messages, SIZE)
    return Point("% nacked", percent, messages / worked(ground, [plan], messages).seconds)


def park(datum: Datum) -> Message:
    """Nacks the first messages for an hour, and does the work for the rest."""
    if datum.id.startswith("parked"):
        return Message.to_nack(NackOptions(delay="1h", reason="parked"))
    return Message(work(datum.value))


def by_parked(ground: Ground, parked: int, messages: int) -> Point:
    """One map while that many of its messages wait for an hour to be over."""
    plan = vertex(ground, "map", UserMap(park), ["out"])
    lay_out(ground, [plan], "out")
    into = NAMES.buffer_subject("map", 0)
    if parked:
        ground.load_frames(into, parked, SIZE, name="parked")
        with running(ground, [plan]):
            wait_until(lambda: counts(ground, "map").redelivered >= parked)
    ground.load_frames(into, messages, SIZE)
    return Point("parked", parked, messages / worked(ground, [plan], messages).seconds)


def _workers() -> float:
    """The memory of all Python workers, in megabytes."""
    return sum(map(_resident, spark_workers()))


def _resident(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6
