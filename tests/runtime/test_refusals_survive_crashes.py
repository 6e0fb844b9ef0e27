"""The server refuses some rows permanently: each is one dead letter, whatever crashes where.

All others are stored as if nothing had been refused.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.accounts.trail import TrailObserver
from ebbflow.engine.publications import Stage
from ebbflow.engine.refused import REASON
from tests.runtime.crash_model import DECISIONS, Chances, UserCode
from tests.runtime.crash_run import ModelTask, StreamTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.runtime.test_settlement_survives_crashes import Settled, live
from tests.runtime.test_stream_maps_survive_crashes import Yielding
from tests.thorough import examples

inlets = st.lists(st.integers(1, 6), min_size=1, max_size=4)
scripts = st.lists(st.sampled_from(DECISIONS), max_size=40)
chances = st.randoms(use_true_random=False)
crashes = st.lists(
    st.builds(
        Chances,
        random=chances,
        crash_after=st.integers(0, 30),
        zombie=st.sampled_from([0, 0, 1, 99]),
    ),
    max_size=4,
)
refusals = st.fixed_dictionaries(
    dict.fromkeys(
        (Stage.OUTPUT, Stage.REDELIVER), st.frozensets(st.integers(0, 23).map("m{}".format))
    )
)


class TrailTask(ModelTask):
    """A task of a pipeline with a serving source."""

    observers = (TrailObserver(),)


class TrailStreamTask(StreamTask):
    """The same for a stream map."""

    observers = (TrailObserver(),)


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(40))
@given(inlets, scripts, crashes, refusals, st.none() | chances)
def test_every_message_ends_even_though_the_server_refuses_some(
    sizes, script, given_crashes, refused, chance
):
    server = Server(inlet_of(*sizes), chance, refused=refused)
    assert run_to_the_end(server, UserCode(script), given_crashes, kind=TrailTask) == set()
    assert server.untrue == []
    assert not any(writer.startswith("awaited ") for writer in server.position.done.known)


@pytest.mark.guarantee("failures-stay-with-their-message")
@settings(max_examples=examples(40))
@given(inlets, live, refusals)
def test_a_refused_message_is_one_dead_letter_and_its_neighbours_are_stored_once(
    sizes, given_crashes, refused
):
    server, whole = (Server(inlet_of(*sizes)) for _ in range(2))
    server.refused = refused
    for each in (server, whole):
        crashed = given_crashes if each is server else []
        assert run_to_the_end(each, Settled(()), crashed) == set()
    counts = server.position.counts
    assert len(set(server.letters)) == len(server.letters) == counts.dead_lettered
    assert counts.read == counts.ended == sum(sizes) + counts.redelivered
    assert counts.redelivered == sum(batch.num_rows for batch in server.due)
    assert counts.written == len(server.read())
    gone = set(server.letters) - set(whole.letters)
    kept = [i for i in whole.read() if i.partition("/")[0] not in gone]
    assert Counter(server.read()) >= Counter(kept)


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(40))
@given(inlets, live, refusals, chances)
def test_pieces_and_dead_letters_are_stored_once_however_soon_the_server_forgets_ids(
    sizes, given_crashes, refused, chance
):
    server = Server(inlet_of(*sizes), chance, refused=refused)
    assert run_to_the_end(server, UserCode(["two"] * 1_000), given_crashes) == set()
    assert len(set(server.letters)) == len(server.letters) == server.position.counts.dead_lettered
    expected = {f"m{n}/v": 1 for n in range(sum(sizes)) if f"m{n}" not in refused[Stage.OUTPUT]}
    read = Counter(one for one in server.read() if not one.endswith(".1"))
    assert read == expected


@settings(max_examples=examples(40))
@given(inlets, crashes, refusals)
def test_a_stream_map_ends_an_input_whose_early_output_is_refused(sizes, given_crashes, refused):
    server = Server(inlet_of(*sizes), refused=refused)
    code = Yielding(server, [])
    assert run_to_the_end(server, code, given_crashes, kind=TrailStreamTask) == set()
    counts = server.position.counts
    assert counts.read == counts.ended == sum(sizes)
    ids = {f"m{n}" for n in range(sum(sizes))}
    assert set(server.letters) == refused[Stage.OUTPUT] & ids
    assert counts.dead_lettered == len(server.letters)
    assert server.untrue == []


def test_the_trail_says_why_a_refused_message_is_a_dead_letter():
    server = Server(inlet_of(3), refused={Stage.OUTPUT: {"m1"}})
    run_to_the_end(server, UserCode(()), [Chances(Random(1))], kind=TrailTask)
    recorded = {row.id: (row.outcome, row.reason, row.error, len(row.sent)) for row in server.trail}
    assert recorded["m1"] == ("dead_lettered", REASON, "too large", 0)
    assert {recorded["m0"], recorded["m2"]} == {("done", None, None, 1)}
