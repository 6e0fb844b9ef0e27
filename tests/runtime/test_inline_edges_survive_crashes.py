"""Inline or through buffers, whatever crashes where: the same outcomes, and exact counts.

Random graphs, inline choices and crashes, with nacks, dead letters and failures at every vertex.
Then why each rule is needed: with the rule broken, the same runs lose or duplicate a message.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.engine import frames
from ebbflow.engine.position import Position, known_of_redeliveries
from ebbflow.engine.publications import Publication, Stage
from ebbflow.engine.routing import Edge
from tests.runtime.crash_model import Chances, Rules
from tests.runtime.graph_model import Decided, Graph, GraphRun, GraphTask, Scripted, World
from tests.thorough import examples

Y = frozenset("y")
CHAIN: Graph = {"a": [Edge("b")], "b": [Edge("c")], "c": []}
GRAPHS: list[Graph] = [
    CHAIN,
    {"a": [Edge("b"), Edge("c")], "b": [Edge("d")], "c": [Edge("d")], "d": []},
    {"a": [Edge("b"), Edge("c", values=Y)], "b": [Edge("c")], "c": [Edge("d")], "d": []},
    {"a": [Edge("b")], "b": [Edge("c"), Edge("a", values=Y)], "c": []},
]

graphs = st.sampled_from(GRAPHS)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)
seeds = st.integers(0, 10**9)
shares = st.sampled_from([0.3, 0.7, 1.0])


def plain(graph: Graph, given_sizes: list[int]) -> GraphRun:
    """The same job without crashes and without inline edges."""
    run = GraphRun(graph, given_sizes, seed=1, inline=0.0, crashes=0, forgets=0.0)
    run.run()
    return run


@pytest.mark.guarantee("counts-are-exact")
@settings(max_examples=examples(25))
@given(graphs.filter(lambda graph: graph is not GRAPHS[3]), sizes, shares, seeds)
def test_inline_edges_have_the_same_outcomes_as_buffers(graph, given_sizes, share, seed):
    expected = plain(graph, given_sizes)
    run = GraphRun(graph, given_sizes, seed, inline=share)
    world = run.run()
    assert world.counts == expected.world.counts
    assert Counter(world.dead) == Counter(expected.world.dead)
    assert run.calls.keys() == expected.calls.keys()


ACYCLIC = GRAPHS[:3]
rooms = st.integers(1, 3)


@pytest.mark.guarantee("back-pressure-loses-nothing")
@settings(max_examples=examples(25))
@given(st.sampled_from(ACYCLIC), sizes, shares, rooms, seeds)
def test_full_buffers_do_not_change_outcomes(graph, given_sizes, share, room, seed):
    expected = plain(graph, given_sizes)
    run = GraphRun(graph, given_sizes, seed, inline=share, room=room)
    world = run.run()
    assert world.counts == expected.world.counts
    assert Counter(world.dead) == Counter(expected.world.dead)


@pytest.mark.guarantee("back-pressure-loses-nothing")
@settings(max_examples=examples(25))
@given(st.sampled_from(ACYCLIC), sizes, st.sampled_from([0.0, 0.5]), rooms, seeds)
def test_vertices_that_share_a_task_make_room_for_each_other(graph, given_sizes, share, room, seed):
    """In one task that is never stopped: waiting for room means waiting for a vertex next to it."""
    run = GraphRun(graph, given_sizes, seed, inline=share, crashes=0, forgets=0.0, room=room)
    task = GraphTask(
        run.world,
        [*graph],
        partial(Decided, calls=run.calls),
        Chances(Random(seed)),
        share,
        Rules(),
    )
    assert task.run(), "a chunk is left to replay"
    assert run.world.is_idle


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(25))
@given(graphs, sizes, shares, seeds)
def test_nothing_is_lost_inline_when_code_decides_differently(graph, given_sizes, share, seed):
    chance = Random(seed)
    run = GraphRun(graph, given_sizes, seed, inline=share)
    world = run.run(lambda name: Scripted(name, chance))
    for counts in world.counts.values():
        assert counts.read == counts.ended


class Refusing(World):
    """Streams accept neither outputs nor redeliveries of every third message."""

    def refuses(self, publication: Publication) -> bool:
        if publication.stage not in (Stage.OUTPUT, Stage.REDELIVER, Stage.HAND_OVER):
            return False
        ids = frames.decode(publication.payload).column("id").to_pylist()
        return any(int(row_id.partition("/")[0][1:]) % 3 == 0 for row_id in ids)


class RefusingToPark(World):
    """Streams accept no redelivery, and no row that one task parks after another has nacked it."""

    def refuses(self, publication: Publication) -> bool:
        return publication.stage is Stage.REDELIVER


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("server", [Refusing, RefusingToPark])
@settings(max_examples=examples(25))
@given(graphs.filter(lambda graph: graph is not GRAPHS[3]), sizes, shares, seeds)
def test_a_refused_message_is_dead_lettered_by_the_vertex_that_read_it(
    server, graph, given_sizes, share, seed
):
    world = GraphRun(graph, given_sizes, seed, inline=share, server=server).run()
    dead = Counter(vertex for vertex, _ in world.dead)
    assert len(set(world.dead)) == len(world.dead)
    for name, counts in world.counts.items():
        assert counts.read == counts.ended
        assert counts.dead_lettered == dead[name]
    assert world.counts["a"].read == sum(given_sizes) + world.counts["a"].redelivered


class ForgetsTheChoice(GraphTask):
    """A replay chooses again which edges it takes inline."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        for loop in self.loops:
            settle = loop._inline.settle
            loop._inline.settle = partial(self._settle_again, settle)

    @staticmethod
    def _settle_again(settle, decider, verdict, facts, again=None):
        return settle(decider, verdict, facts)


class RemembersNoWriters(World):
    """Readers do not record which frames of other tasks they have read."""

    def record(self, position: Position) -> Position:
        known = known_of_redeliveries(position.done.known)
        return replace(position, done=replace(position.done, known=known))


def doubled(**how) -> bool:
    """Whether any of many short runs counts more, or has more dead letters, than it should."""
    expected = plain(CHAIN, [4, 3]).world
    for seed in range(100):
        world = GraphRun(CHAIN, [4, 3], seed, inline=0.7, forgets=0.3, **how).run()
        if world.counts != expected.counts or len(world.dead) != len(expected.dead):
            return True
    return False


def test_a_replay_that_forgets_which_edges_were_inline_duplicates_messages():
    assert doubled(task=ForgetsTheChoice)


def test_redeliveries_that_their_reader_does_not_record_are_duplicated_by_a_replay():
    assert doubled(server=RemembersNoWriters)


def test_vertices_that_leave_a_task_before_its_replay_duplicate_messages():
    assert doubled(regroups_late=False)
