"""Which vertices may share tasks, and how chunks in flight are replayed after the spec changed."""

from __future__ import annotations

import pytest

from ebbflow import Message, Pipeline
from ebbflow.connectors import Generator, Log
from ebbflow.engine.position import Mark, Position, Span
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans, plan_replays
from ebbflow.runtime.task_sharing import group_plans


def forward(datum):
    return Message(datum.value)


def chain(*, inline: bool = True, **of_work) -> Pipeline:
    return (
        Pipeline("test", inline=inline)
        .source("in", Generator(messages=1))
        .map("work", forward, **of_work)
        .sink("out", Log())
    )


def in_flight(*chains: str) -> dict[tuple[str, int], Position]:
    position = Position("lineage", intent=Span(Mark(1)), inline=chains)
    return {("in", 0): position, ("work", 0): Position("lineage")}


def planned(pipeline: Pipeline, *chains: str) -> dict:
    plans = make_plans(pipeline.spec, Addresses.of("nats://x"), 1_000_000, None)
    plans = plan_replays(pipeline.spec, plans, in_flight(*chains))
    return {plan.vertex: plan for plan in plans}


def groups(plans: dict) -> list[list[str]]:
    return [[plan.vertex for plan in group] for group in group_plans([*plans.values()])]


def test_vertices_that_may_run_inline_replay_as_they_are():
    pipeline = chain()
    plans = planned(pipeline, "work", "work>out")
    assert plans["in"].inline == ("work", "out")
    assert plans["in"].inline_replays == ()


@pytest.mark.parametrize("pipeline", [chain(inline=False), chain()])
def test_without_a_chunk_in_flight_nothing_changes(pipeline):
    plans = make_plans(pipeline.spec, Addresses.of("nats://x"), 1_000_000, None)
    assert plan_replays(pipeline.spec, plans, in_flight()) == plans


def test_a_chunk_in_flight_is_replayed_inline_although_the_spec_now_forbids_it():
    plans = planned(chain(inline=False), "work", "work>out")
    assert groups(plans) == [["in", "work", "out"]]
    assert set(plans["in"].inline_replays) == {"work", "out"}
    assert plans["work"].inline_replays == ("out",)


def test_readers_behind_an_inline_replay_wait_for_its_task():
    """The task of ``in`` publishes for ``work`` in a replay, so ``out`` follows its watermark."""
    forbids = make_plans(chain(inline=False).spec, Addresses.of("nats://x"), 1_000_000, None)
    before = {plan.vertex: plan for plan in forbids}["out"].feeders
    (feeder,) = planned(chain(inline=False), "work")["out"].feeders
    assert [feeder._replace(inline=())] == [*before]
    assert [*feeder.every_task()] == ["work.0", "in.0"]


def test_a_vertex_that_can_no_longer_run_inline_reads_its_buffer():
    plans = planned(chain(partitions=2), "work", "work>out")
    assert plans["in"].inline_replays == ()
    assert "work" not in plans["in"].inline
