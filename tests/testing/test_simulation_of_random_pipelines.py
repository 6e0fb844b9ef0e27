"""Random pipelines, simulated: every message ends once, whatever the chunk sizes and crashes.

``tests.spark.test_nothing_is_lost`` runs the same pipelines on Spark and NATS, and checks that they
end as their simulation does.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.testing import Crash, Simulation, simulate, simulated_task
from ebbflow.testing.simulated_task import FixedSize
from tests.random_pipelines import MESSAGES, build, depends_on_batches, topologies
from tests.thorough import examples

sizes = st.sampled_from([1, 2, 7, 1_000])
crashes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(0, 40)), max_size=4)


def simulate_in_chunks(plan: dict[str, Any], size: int, incidents: list[Crash]) -> Simulation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_task, "FixedSize", partial(FixedSize, size))
        return simulate(build(plan), incidents=incidents)


def ends_of(result: Simulation) -> dict[str, Any]:
    letters = Counter((each.vertex, each.id, each.reason) for each in result.dead_letters)
    ends: dict[str, Any] = {"letters": letters}
    for name, vertex in result.vertices.items():
        ends[name] = vertex.counts, Counter(datum.id for datum in vertex.outputs)
    return ends


@settings(max_examples=examples(60))
@given(plan=topologies)
def test_every_message_ends_exactly_once(plan: dict[str, Any]) -> None:
    result = simulate(build(plan))
    assert result.pending == 0
    letters = Counter(letter.vertex for letter in result.dead_letters)
    first, *others = result.vertices.values()
    assert first.read - first.redelivered == MESSAGES
    for vertex in (first, *others):
        assert vertex.read == vertex.counts.ended
        assert vertex.dead_lettered == letters[vertex.name]
        ended = Counter(each.outcome for each in vertex.deliveries)
        assert ended["redelivered"] == vertex.redelivered


@settings(max_examples=examples(25))
@given(plan=topologies.filter(lambda p: not depends_on_batches(p)), size=sizes, crashed=crashes)
def test_neither_the_size_of_chunks_nor_crashes_change_how_messages_end(
    plan: dict[str, Any], size: int, crashed: list[tuple[int, int, int]]
) -> None:
    plain = simulate(build(plan))
    names = list(plain.vertices)
    incidents = [Crash(names[n % len(names)], f"{at}ms", step) for n, step, at in crashed]
    assert ends_of(simulate_in_chunks(plan, size, incidents)) == ends_of(plain)
