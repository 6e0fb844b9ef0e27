"""Whatever crashes where: a trail names only what is stored, and every row that ended has one.

Who waits for an answer relies on both. Of a trail that says too much a caller would get half of
its answers, and of one that is missing it would wait for ever.
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


class ToldTask(ModelTask):
    """A task of a pipeline whose source serves."""

    observers = (TrailObserver(),)


class ToldOrderedTask(OrderedTask):
    """The same, of an ordered vertex."""

    observers = (TrailObserver(),)


class ToldStreamTask(StreamTask):
    """The same, of a stream map."""

    observers = (TrailObserver(),)


def untold(server: Server) -> set[str]:
    """The ids of the rows that have ended and whose trail does not say so."""
    ids = {i for batch in server.inlet for i in batch.column("id").to_pylist()}
    return ids - {row.id for row in server.trail if row.is_final}


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
@pytest.mark.parametrize("kind", [ToldTask, ToldOrderedTask])
@settings(max_examples=examples(40))
@given(sizes=inlets, script=scripts, given_crashes=crashes, chance=st.none() | st.randoms())
def test_every_row_that_has_ended_has_a_trail_which_is_true(
    kind, sizes, script, given_crashes, chance
):
    server = Server(inlet_of(*sizes), chance)
    assert run_to_the_end(server, UserCode(script), given_crashes, kind=kind) == set()
    assert server.untrue == []
    assert untold(server) == set()


@settings(max_examples=examples(40))
@given(inlets, endings, crashes)
def test_so_has_every_row_of_a_stream_map(sizes, script, given_crashes):
    server = Server(inlet_of(*sizes))
    code = Yielding(server, script)
    assert run_to_the_end(server, code, given_crashes, kind=ToldStreamTask) == set()
    assert server.untrue == []
    assert untold(server) == set()
    told = {output.id for row in server.trail for output in row.sent}
    assert told <= set(server.outputs)
    # It yields the same in every replay, but for one that makes a dead letter of its input.
    silent = {one.partition("/")[0] for one in server.outputs if one not in told}
    assert silent <= set(server.letters)


@settings(max_examples=examples(30))
@given(inlets, st.sampled_from(["forward", "two", "serve", "drop", "dead"]), crashes)
def test_code_that_decides_the_same_is_told_the_same(sizes, kind, given_crashes):
    """A replay of a chunk that was told before is known as a copy, although it comes later.

    Unless it had no intent: then it may be cut otherwise, and is told again.
    """
    server = Server(inlet_of(*sizes))
    run_to_the_end(server, UserCode([kind] * 1_000), given_crashes, kind=ToldTask)
    rows = [(row.id, row.outcome) for row in server.trail]
    assert len(set(rows)) == sum(sizes)
    assert len(rows) == sum(sizes) or kind in ("serve", "drop")


def test_a_pipeline_that_does_not_serve_publishes_nothing_more():
    def publications(kind: type[ModelTask]) -> list[tuple[Stage, str]]:
        seen: list[tuple[Stage, str]] = []

        def note(settlement: Settlement) -> None:
            seen.extend((p.stage, p.msg_id) for p in settlement.publications)

        code = UserCode(["serve", "two", "dead", "nack", "drop"])
        chances = Chances(OneChunk())
        run_to_the_end(Server(inlet_of(2, 3)), code, [chances], on_settled=note, kind=kind)
        return seen

    silent, told = publications(ModelTask), publications(ToldTask)
    stages = {stage for stage, _ in told}
    assert {stage for stage, _ in silent} < stages == {*Stage} - {Stage.AUDIT, Stage.HAND_OVER}
    assert silent == [one for one in told if one[0] is not Stage.TRAIL]


# --- what each rule is for ----------------------------------------------------------------------


def short_runs(rules: Rules) -> Iterator[tuple[Server, list[TrailRow]]]:
    """All runs of a row with one crash, after which code decides anew; what is to be told."""
    kinds = ("two", "nack", "serve", "drop", "dead")
    for first, second, crash_after in product(kinds, kinds, range(9)):
        server, settled = Server(inlet_of(1)), list[TrailRow]()

        def note(settlement: Settlement, settled: list[TrailRow] = settled) -> None:
            publications = [p for p in settlement.publications if p.stage is Stage.TRAIL]
            settled += [row for p in publications for row in read_trail(p.payload)]

        crash = Chances(OneChunk(), crash_after)
        run_to_the_end(server, UserCode([first, second]), [crash], rules, note, ToldTask)
        yield server, settled


def facts(rows: list[TrailRow]) -> set[tuple]:
    """What the rows say, but for the times: a replay tells the same later."""
    return {(row.id, row.deliveries, row.outcome, row.sent) for row in rows}


def test_no_short_run_tells_too_much_or_too_little():
    for server, settled in short_runs(Rules()):
        assert not server.untrue
        assert not untold(server)
        assert facts(settled) <= facts(server.trail)


BEFORE = [stage for stage in Stage if stage < Stage.TRAIL and stage is not Stage.HAND_OVER]


@pytest.mark.parametrize("stage", BEFORE, ids=lambda one: one.name)
def test_a_trail_before_another_stage_tells_what_is_not_stored(stage):
    order = [one for one in Stage if one not in (stage, Stage.TRAIL)]
    assert any(s.untrue for s, _ in short_runs(Rules(order=(*order, Stage.TRAIL, stage))))


def test_an_id_that_says_nothing_about_the_outcomes_leaves_outputs_untold(monkeypatch):
    """The trail of the replay is taken for a copy of the first one, which said otherwise."""

    def fingerprint(rows: list[TrailRow]) -> str:
        return frames.fingerprint([row.id for row in rows])

    monkeypatch.setattr(trail_rows, "_fingerprint", fingerprint)
    assert any(facts(settled) - facts(server.trail) for server, settled in short_runs(Rules()))
