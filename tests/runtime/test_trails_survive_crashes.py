"""Whatever crashes where: a trail names only what is stored, and every row that ended has one.

A caller that waits for an answer relies on both. With a trail that names too much it would
receive half of its answers, and with a missing one it would wait forever.
"""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.accounts.trail import TrailObserver
from ebbflow.engine import frames
from ebbflow.engine.publications import Stage
from ebbflow.engine.settlement import Settlement
from ebbflow.streams import trail_rows
from ebbflow.streams.trail_rows import TrailRow, read_trail
from tests.runtime.crash_model import DECISIONS, Chances, Rules, UserCode
from tests.runtime.crash_run import ModelTask, OrderedTask, StreamTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.runtime.test_settlement_survives_crashes import OneChunk
from tests.runtime.test_stream_maps_survive_crashes import Yielding, endings
from tests.thorough import examples

crashes = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        crash_after=st.integers(0, 25),
        zombie=st.sampled_from([0, 0, 1, 99]),
    ),
    max_size=5,
)
inlets = st.lists(st.integers(1, 4), min_size=1, max_size=4)
scripts = st.lists(st.sampled_from(DECISIONS), max_size=30)


class TrailTask(ModelTask):
    """A task of a pipeline with a serving source."""

    observers = (TrailObserver(),)


class TrailOrderedTask(OrderedTask):
    """The same for an ordered vertex."""

    observers = (TrailObserver(),)


class TrailStreamTask(StreamTask):
    """The same for a stream map."""

    observers = (TrailObserver(),)


def without_trail(server: Server) -> set[str]:
    """The ids of the rows that have ended without a final row in the trail."""
    ids = {i for batch in server.inlet for i in batch.column("id").to_pylist()}
    return ids - {row.id for row in server.trail if row.is_final}


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
@pytest.mark.parametrize("kind", [TrailTask, TrailOrderedTask])
@settings(max_examples=examples(40))
@given(sizes=inlets, script=scripts, given_crashes=crashes, chance=st.none() | st.randoms())
def test_every_row_that_has_ended_has_a_correct_trail(kind, sizes, script, given_crashes, chance):
    server = Server(inlet_of(*sizes), chance)
    assert run_to_the_end(server, UserCode(script), given_crashes, kind=kind) == set()
    assert server.untrue == []
    assert without_trail(server) == set()


@settings(max_examples=examples(40))
@given(inlets, endings, crashes)
def test_every_row_of_a_stream_map_has_a_correct_trail(sizes, script, given_crashes):
    server = Server(inlet_of(*sizes))
    code = Yielding(server, script)
    assert run_to_the_end(server, code, given_crashes, kind=TrailStreamTask) == set()
    assert server.untrue == []
    assert without_trail(server) == set()
    recorded = {output.id for row in server.trail for output in row.sent}
    assert recorded <= set(server.outputs)
    # It yields the same in every replay, but for one that makes a dead letter of its input.
    silent = {one.partition("/")[0] for one in server.outputs if one not in recorded}
    assert silent <= set(server.letters)


@settings(max_examples=examples(30))
@given(inlets, st.sampled_from(["forward", "two", "serve", "drop", "dead"]), crashes)
def test_a_replay_that_decides_the_same_adds_nothing_to_the_trail(sizes, kind, given_crashes):
    """A replayed trail that was published before is recognised as a copy, although it is later.

    Unless its chunk had no intent: then it may be cut differently, and is published again.
    """
    server = Server(inlet_of(*sizes))
    run_to_the_end(server, UserCode([kind] * 1_000), given_crashes, kind=TrailTask)
    rows = [(row.id, row.outcome) for row in server.trail]
    assert len(set(rows)) == sum(sizes)
    assert len(rows) == sum(sizes) or kind in ("serve", "drop")


def test_a_pipeline_that_does_not_serve_publishes_no_trail():
    def publications(kind: type[ModelTask]) -> list[tuple[Stage, str]]:
        seen: list[tuple[Stage, str]] = []

        def note(settlement: Settlement) -> None:
            seen.extend((p.stage, p.msg_id) for p in settlement.publications)

        code = UserCode(["serve", "two", "dead", "nack", "drop"])
        chances = Chances(OneChunk())
        run_to_the_end(Server(inlet_of(2, 3)), code, [chances], on_settled=note, kind=kind)
        return seen

    silent, traced = publications(ModelTask), publications(TrailTask)
    stages = {stage for stage, _ in traced}
    assert {stage for stage, _ in silent} < stages == {*Stage} - {Stage.AUDIT, Stage.HAND_OVER}
    assert silent == [one for one in traced if one[0] is not Stage.TRAIL]


# --- why each rule is needed --------------------------------------------------------------------


def short_runs(rules: Rules) -> Iterator[tuple[Server, list[TrailRow]]]:
    """All runs of a row with one crash, after which code decides again; and the expected trail."""
    kinds = ("two", "nack", "serve", "drop", "dead")
    for first, second, crash_after in product(kinds, kinds, range(9)):
        server, settled = Server(inlet_of(1)), list[TrailRow]()

        def note(settlement: Settlement, settled: list[TrailRow] = settled) -> None:
            publications = [p for p in settlement.publications if p.stage is Stage.TRAIL]
            settled += [row for p in publications for row in read_trail(p.payload)]

        crash = Chances(OneChunk(), crash_after)
        run_to_the_end(server, UserCode([first, second]), [crash], rules, note, TrailTask)
        yield server, settled


def facts(rows: list[TrailRow]) -> set[tuple]:
    """The rows without the times: a replay writes the same ones later."""
    return {(row.id, row.deliveries, row.outcome, row.sent) for row in rows}


def test_the_trail_of_every_short_run_is_correct_and_complete():
    for server, settled in short_runs(Rules()):
        assert not server.untrue
        assert not without_trail(server)
        assert facts(settled) <= facts(server.trail)


BEFORE = [stage for stage in Stage if stage < Stage.TRAIL and stage is not Stage.HAND_OVER]


@pytest.mark.parametrize("stage", BEFORE, ids=lambda one: one.name)
def test_a_trail_published_before_another_stage_names_what_is_not_stored(stage):
    order = [one for one in Stage if one not in (stage, Stage.TRAIL)]
    assert any(s.untrue for s, _ in short_runs(Rules(order=(*order, Stage.TRAIL, stage))))


def test_a_trail_id_without_the_outcomes_leaves_outputs_out_of_the_trail(monkeypatch):
    """The trail of the replay is taken for a copy of the first one, which was different."""

    def fingerprint(rows: list[TrailRow]) -> str:
        return frames.fingerprint([row.id for row in rows])

    monkeypatch.setattr(trail_rows, "_fingerprint", fingerprint)
    assert any(facts(settled) - facts(server.trail) for server, settled in short_runs(Rules()))
