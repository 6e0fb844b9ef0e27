"""Random pipelines and MonoVertices, whose user code does anything that user code may do.

What it does with a message is decided by the message and its delivery alone, so whatever replays a
chunk, and whatever runs the pipeline, has the same outcomes: unless ``depends_on_batches``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from ebbflow import (
    Backoff,
    Datum,
    Limits,
    Message,
    MonoVertex,
    NackOptions,
    Pipeline,
    Response,
)
from ebbflow.connectors import Generator

MESSAGES = 60
BEHAVIOURS = ["ok", "ok", "ok", "drop", "raise", "nack", "limited", "fail", "two", "wrong"]
SINK_BEHAVIOURS = [
    "ok",
    "ok",
    "ok",
    "failure",
    "fallback",
    "on_success",
    "nack",
    "missing",
    "twice",
    "unknown",
]
CALLS = ["one by one", "batches", "batches that raise"]
"""How a sink is called. One that raises fails its whole batch, with all messages in it."""

topologies = st.fixed_dictionaries(
    {
        "mono": st.booleans(),
        "maps": st.integers(0, 2),
        "partitions": st.integers(1, 2),
        "fallback": st.booleans(),
        "on_success": st.booleans(),
        "retry": st.booleans(),
        "calls": st.sampled_from(CALLS),
        "seed": st.integers(0, 2**32),
    }
)


def random_map(seed: int) -> Callable[[Datum], Any]:
    def step(datum: Datum) -> Any:
        chance = random.Random(f"{seed} {datum.id} {datum.deliveries}")
        match chance.choice(BEHAVIOURS):
            case "drop":
                return None
            case "raise":
                raise ValueError("at random")
            case "nack":
                return Message.to_nack(NackOptions(delay=chance.choice([None, 20])))
            case "limited":
                return Message.to_nack(NackOptions(max_deliveries=1))
            case "fail":
                return Message.to_fail("at random")
            case "two":
                return [Message(datum.value), Message(datum.value)]
            case "wrong":
                return "text"
            case _:
                return Message(datum.value)

    return step


def random_sink(
    seed: int, role: str, may_raise: bool
) -> Callable[[list[Datum]], Iterator[Response]]:
    behaviours = [*SINK_BEHAVIOURS, *(["raise"] if may_raise else [])]

    def sink(data: list[Datum]) -> Iterator[Response]:
        for datum in data:
            chance = random.Random(f"{seed} {role} {datum.id} {datum.deliveries}")
            answer = {
                "failure": lambda d: [Response.failure(d.id, "at random")],
                "fallback": lambda d: [Response.fallback(d.id)],
                "on_success": lambda d: [Response.on_success(d.id)],
                "nack": lambda d: [Response.nack(d.id, NackOptions(max_deliveries=2))],
                "missing": lambda d: [],
                "twice": lambda d: [Response.ok(d.id)] * 2,
                "unknown": lambda d: [Response.ok(d.id), Response.ok("nobody")],
                "raise": lambda d: 1 / 0,
            }.get(chance.choice(behaviours), lambda d: [Response.ok(d.id)])
            yield from answer(datum)

    return sink


def depends_on_batches(plan: dict[str, Any]) -> bool:
    """Whether the outcome of a message depends on the others in the same call of the sink."""
    return bool(plan["calls"] == "batches that raise")


def build(plan: dict[str, Any]) -> Pipeline | MonoVertex:
    """Builds the pipeline of a plan; its name is ``test``."""
    seed, may_raise = plan["seed"], plan["calls"] != "batches"
    retry = {"retry": Backoff("5ms", steps=1), "on_failure": "drop"}
    options: dict[str, Any] = dict(retry) if plan["retry"] else {}
    for role in ("fallback", "on_success"):
        if plan[role]:
            options[role] = random_sink(seed, role, may_raise)
    errors = Backoff("5ms", steps=1)
    sink = random_sink(seed, "sink", may_raise)
    limits = Limits(read_batch_size=1) if plan["calls"] == "one by one" else Limits()
    source = Generator(messages=MESSAGES)
    if plan["mono"]:
        mono = MonoVertex("test", on_error=errors, limits=limits)
        mono = mono.source(source, transformer=random_map(seed))
        mono = mono.map(random_map(seed + 1)) if plan["maps"] else mono
        return mono.sink(sink, **options)
    pipeline = Pipeline("test").source("in", source)
    for number in range(plan["maps"]):
        partitions = plan["partitions"]
        step = random_map(seed + number)
        pipeline = pipeline.map(f"m{number}", step, on_error=errors, partitions=partitions)
    return pipeline.sink("out", sink, on_error=errors, limits=limits, **options)
