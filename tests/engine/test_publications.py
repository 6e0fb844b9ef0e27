"""All outcomes settled together, keyed and discarding edges, ordered lanes, and answers."""

import math
from collections import Counter, defaultdict
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Datum, Message
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import (
    DONE,
    DeadLetter,
    Dropped,
    FellBack,
    Outcome,
    Redeliver,
    Retry,
    Served,
    Succeeded,
)
from ebbflow.engine import frames
from ebbflow.engine.answers import answer_key
from ebbflow.engine.publications import (
    FROM,
    ROWS,
    WATERMARK,
    Chunk,
    Place,
    Publication,
    Stage,
    partition_of,
)
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.streams.names import Names
from ebbflow.streams.publish_settlement import _split_lanes, address
from ebbflow.usercode.calling import Handler, call_map, call_with_retries
from tests.engine.sample_rows import NOW, decide, some, verdict_on
from tests.thorough import examples

BORDERS = (0, 10, 200, 1_000, 60_000)
"""Where the rounding of delays begins, or becomes coarser."""
delays = st.sampled_from([0, 5, 9_000]) | st.builds(
    lambda border, more: max(0, border + more), st.sampled_from(BORDERS), st.integers(-12, 12)
)
outcomes = st.one_of(
    st.none(),
    st.just(DONE),
    st.just(Dropped("rule")),
    st.builds(Redeliver, delays, st.none() | st.just("busy"), st.just(1)),
    st.builds(Retry, delays, st.just("down"), st.integers(1, 5), st.just(2)),
    st.just(FellBack()),
    st.just(Served()),
    st.just(Succeeded()),
    st.just(DeadLetter("no", error="why")),
)
RETRIES = RetryStrategy(Backoff("10ms", steps=3, jitter=0.5), "drop")
COUNTED = {
    Dropped: "dropped",
    Redeliver: "redelivered",
    Retry: "redelivered",
    FellBack: "fallback",
    DeadLetter: "dead_lettered",
}


def settled_as(given_outcomes: list[Outcome | None], now: Any = NOW) -> Settlement:
    """The settlement of a sink whose rows have these outcomes."""
    ids = [f"m{n}" for n in range(len(given_outcomes))]
    verdict = verdict_on(some(*ids, deliveries=3, retries=1))
    decide(verdict, {n: o for n, o in enumerate(given_outcomes) if o is not None})
    # Every other answer went to a user-defined store.
    for index, outcome in verdict.outcomes.items():
        if isinstance(outcome, Served) and index % 2:
            verdict.decisions.answer(index, [b"answer"])
    place = Place("v", 2, [], 1_000_000, "answers")
    return settle(Chunk("k", verdict.rows), verdict, place, now)


def ids_in(publication: Publication) -> list[str]:
    return frames.decode(publication.payload).column("id").to_pylist()


@given(st.lists(outcomes, max_size=12))
def test_every_outcome_is_counted_once_and_published_as_it_should(given_outcomes):
    settlement = settled_as(given_outcomes)
    counts = settlement.counts
    assert counts.read == counts.ended == len(given_outcomes)
    expected = Counter(COUNTED.get(type(o), "done") for o in given_outcomes)
    found = counts.as_dict()
    assert {name: found[name] for name in (*COUNTED.values(), "done")} == {
        name: expected[name] for name in (*COUNTED.values(), "done")
    }
    assert counts.served == sum(isinstance(o, Served) for o in given_outcomes)
    assert counts.on_success == sum(isinstance(o, Succeeded) for o in given_outcomes)
    assert counts.written == counts.done + counts.fallback + counts.on_success
    stages = defaultdict(list)
    for publication in settlement.publications:
        stages[publication.stage].append(publication)
    back = [i for p in stages[Stage.REDELIVER] for i in ids_in(p)]
    kinds = Redeliver | Retry
    assert sorted(back) == sorted(
        f"m{n}" for n, o in enumerate(given_outcomes) if isinstance(o, kinds)
    )
    assert len(stages[Stage.DEAD_LETTER]) == counts.dead_lettered
    assert len(stages[Stage.ANSWER]) == given_outcomes[1::2].count(Served())
    assert settlement.reasons == dict(
        Counter(
            o.error if isinstance(o, Retry) else o.reason or "nacked"
            for o in given_outcomes
            if isinstance(o, kinds)
        )
    )


@given(st.lists(outcomes, max_size=12))
def test_rows_are_redelivered_as_their_outcome_says(given_outcomes):
    for publication in settled_as(given_outcomes).publications:
        if publication.stage is not Stage.REDELIVER:
            continue
        for row in frames.decode(publication.payload).to_pylist():
            outcome = given_outcomes[int(row["id"][1:])]
            state = (row["deliveries"], row["retries"], row["failures"], row["nack_reason"])
            if isinstance(outcome, Retry):
                assert state == (3, outcome.retries, 2, "down")
            else:
                assert state == (4, 0, 1, outcome.reason)
            assert (publication.due is None) == (outcome.delay == 0)


@pytest.mark.guarantee("at-least-once")
@given(
    st.lists(outcomes, max_size=12),
    st.integers(0, 1_100) | st.integers(0, 600_000),
    st.integers(0, 1_100) | st.integers(0, 600_000),
)
def test_a_replay_that_decides_the_same_makes_the_same_publications(given_outcomes, first, later):
    """However late it runs: no id contains a time, and no frame depends on one."""
    times = [NOW + timedelta(milliseconds=ms) for ms in (first, first + later)]
    one, other = (settled_as(given_outcomes, now).publications for now in times)
    assert [timeless(p) for p in one] == [timeless(p) for p in other]
    ids = [p.msg_id for p in one]
    assert len(set(ids)) == len(ids)
    assert [p.due and p.due + later for p in one] == [p.due for p in other]


def timeless(publication: Publication) -> tuple[Any, ...]:
    """A publication without the times at which it was made and is due."""
    headers = {k: v for k, v in publication.headers.items() if k != "Ebbflow-Last-Seen"}
    return (publication.msg_id, publication.payload, headers, publication.key)


@pytest.mark.guarantee("redeliveries-are-never-early")
@given(st.lists(outcomes, max_size=12))
def test_rows_that_share_a_redelivery_frame_have_about_the_same_delay(given_outcomes):
    for publication in settled_as(given_outcomes).publications:
        if publication.stage is Stage.REDELIVER and publication.due is not None:
            waits = publication.due - math.ceil(NOW.timestamp() * 1000)
            asked = [given_outcomes[int(i[1:])].delay for i in ids_in(publication)]
            grid = 10 if waits <= 1_000 else 100 if waits <= 60_000 else 1_000
            assert all(0 <= waits - delay < grid for delay in asked)


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("longer", [1_000, 2_000])
def test_a_longer_error_text_does_not_change_the_frames(longer):
    """For example with the address of an object; as many texts as the largest frame may have."""

    def settled(reason: str) -> list[Publication]:
        return settled_as([Redeliver(0, reason, 1)] * 4_000).publications

    short, long = settled("x"), settled("\U0001f600" * longer)
    assert [p.msg_id for p in short] == [p.msg_id for p in long]
    for publication in long:
        rows = frames.decode(publication.payload)
        assert frames.size_of(rows) < 1_000_000
        assert set(rows.column("nack_reason").to_pylist()) <= {"\U0001f600" * 15}


@pytest.mark.guarantee("at-least-once")
@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=12), st.data())
def test_outputs_after_retries_are_the_same_if_rows_are_decided_in_pieces(failing, data):
    """As they are after the death of a worker, until the message that kills it is found."""

    def decide_from(start: int, end: int) -> Verdict:
        def sink_like(datum: Datum) -> Any:
            tries = int(datum.system_metadata["sink"]["retry_count"])
            again = failing[int(datum.id[1:])] > tries
            return Message.to_fail("not yet") if again else [Message(b"1"), Message(b"2")]

        ids = [f"m{n}" for n in range(start, end)]
        verdict = verdict_on(some(*ids))
        call = partial(call_map, Handler(sink_like), concurrency=1)
        call_with_retries(verdict, call, RETRIES, lambda _: None, "map")
        return verdict

    count = len(failing)
    whole, pieces = decide_from(0, count), verdict_on(some(*(f"m{n}" for n in range(count))))
    middle = data.draw(st.integers(0, count))
    for start, end in ((0, middle), (middle, count)):
        pieces.decisions.merge(range(start, end), decide_from(start, end).decisions)
    place = Place("v", 0, [Edge("x", 2)], 1_000_000)
    ids = [
        [p.msg_id for p in settle(Chunk("k", v.rows), v, place, NOW).publications]
        for v in (whole, pieces)
    ]
    assert ids[0] == ids[1]


# --- edges ---------------------------------------------------------------------------------------

keys = st.none() | st.lists(st.sampled_from(["", "a", "b", "ab", "ä"]), max_size=2)
outputs = st.lists(
    st.lists(
        st.builds(
            Message,
            value=st.binary(max_size=3),
            keys=keys,
            tags=st.lists(st.sampled_from("xy"), max_size=1),
        ),
        max_size=3,
    ),
    max_size=8,
)
edges = st.lists(
    st.builds(
        Edge,
        to=st.sampled_from(["x", "y", "z"]),
        partitions=st.integers(1, 4),
        values=st.frozensets(st.sampled_from("xy"), max_size=2),
        keyed=st.booleans(),
        discards=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda edge: edge.to,
)


def forwarded(
    given_outputs: list[list[Message]], given_edges: list[Edge], watermark: Any = None
) -> tuple[Verdict, Settlement]:
    """Settled outputs of a map; the inputs' keys are their ids."""
    ids = [f"m{n}" for n in range(len(given_outputs))]
    by_id = dict(zip(ids, given_outputs, strict=True))

    def target(datum: Datum) -> list[Message]:
        return by_id[datum.id]

    verdict = verdict_on(some(*ids, keys=[[i] for i in ids]))
    call_map(Handler(target), verdict, 1)
    place = Place("v", 2, given_edges, 1_000_000)
    return verdict, settle(Chunk("k", verdict.rows), verdict, place, NOW, watermark)


@pytest.mark.guarantee("order-by-key")
@settings(max_examples=examples(100))
@given(outputs, edges)
def test_a_keyed_edge_keeps_messages_of_the_same_keys_in_one_partition_and_in_order(
    given_outputs, given_edges
):
    verdict, settlement = forwarded(given_outputs, given_edges)
    rows = verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()
    for edge in given_edges:
        sent: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for publication in settlement.publications:
            if publication.target == edge.to:
                assert 0 <= publication.partition < edge.partitions
                assert (publication.ordered, publication.discards) == (edge.keyed, edge.discards)
                sent[publication.partition] += frames.decode(publication.payload).to_pylist()
        accepted = [
            row for row, tags in zip(rows, verdict.outputs.tags, strict=True) if edge.accepts(tags)
        ]
        assert sorted(r["id"] for part in sent.values() for r in part) == sorted(
            r["id"] for r in accepted
        )
        for partition, part in sent.items():
            assert part == [row for row in accepted if row in part], "in order"
            if edge.keyed:
                partitions = {partition_of(row["keys"] or (), edge.partitions) for row in part}
                assert partitions == {partition}


@given(st.lists(st.text(max_size=5), max_size=3), st.integers(1, 50))
def test_the_partition_depends_only_on_the_keys(given_keys, partitions):
    found = partition_of(given_keys, partitions)
    assert found == partition_of(tuple(given_keys), partitions)
    assert 0 <= found < partitions


def test_the_partition_of_keys_does_not_change_between_versions():
    """Or messages of the same keys would be in two partitions after an upgrade."""
    found = [partition_of(given_keys, 16) for given_keys in ([], ["a"], ["a", "b"], ["ab"], ["ä"])]
    assert found == [0, 3, 15, 13, 3]


def test_many_keys_are_spread_over_all_partitions():
    counts = Counter(partition_of([f"key-{n}"], 4) for n in range(4_000))
    assert min(counts.values()) > 800


@settings(max_examples=examples(100))
@given(outputs, edges)
def test_lanes_keep_the_order_of_ordered_partitions_and_leave_nothing_out(
    given_outputs, given_edges
):
    _, settlement = forwarded(given_outputs, given_edges)
    for stage in settlement.stages():
        lanes = list(_split_lanes(stage))
        assert sorted(p.msg_id for lane in lanes for p in lane) == sorted(p.msg_id for p in stage)
        for lane in lanes:
            assert len(lane) == 1 or all(p.ordered for p in lane)
            assert len({(p.target, p.partition) for p in lane}) == 1
        places = [(p.target, p.partition) for lane in lanes for p in lane[:1] if p.ordered]
        assert len(set(places)) == len(places), "one lane for each ordered partition"
        ordered = [p for p in stage if p.ordered]
        for lane in lanes:
            assert not lane[0].ordered or lane == [p for p in ordered if p in lane]


def test_frames_of_an_ordered_partition_share_a_lane_and_others_do_not():
    count = frames.MAX_ROWS * 3
    ids = [f"m{n}" for n in range(count)]
    for keyed, lanes in ((True, 1), (False, 3)):
        verdict = verdict_on(some(*ids))
        verdict.forward_inputs()
        place = Place("v", 0, [Edge("x", 1, keyed=keyed)], 1_000_000)
        (stage,) = settle(Chunk("k", verdict.rows), verdict, place, NOW).stages()
        assert len(stage) == 3
        assert len(list(_split_lanes(stage))) == lanes
        assert [i for p in stage for i in ids_in(p)] == ids


@pytest.mark.guarantee("back-pressure-loses-nothing")
@settings(max_examples=examples(100))
@given(outputs, edges, st.data())
def test_only_inputs_whose_outputs_are_all_discarded_count_as_dropped(
    given_outputs, given_edges, data
):
    verdict, settlement = forwarded(given_outputs, given_edges)
    may = [p for p in settlement.publications if p.discards]
    discarded = [p for p in may if data.draw(st.booleans())]
    counts = settlement.counts_without(discarded)
    assert counts.read == counts.ended
    kept = [p for p in settlement.publications if p not in discarded]
    if given_edges:
        rows = [i for p in kept for i in ids_in(p)]
        assert counts.written == len(rows)
        reached = {i.partition("/")[0] for i in rows}
        assert counts.done == len(reached)
    assert settlement.counts_without([]) is settlement.counts
    assert (counts.redelivered, counts.dead_lettered) == (0, 0)
    assert len(verdict.rows) == counts.done + counts.dropped


def test_an_input_with_one_output_discarded_and_one_stored_is_done():
    """Numaflow's B5, counted per message."""
    given_outputs = [
        [Message(b"1", tags=["x"]), Message(b"2", tags=["y"])],
        [Message(b"3", tags=["x"])],
    ]
    x = Edge("x", values=frozenset("x"), discards=True)
    _, settlement = forwarded(given_outputs, [x, Edge("y", values=frozenset("y"))])
    full = [p for p in settlement.publications if p.target == "x"]
    counts = settlement.counts_without(full)
    assert (counts.done, counts.dropped, counts.written) == (1, 1, 1)


def test_outputs_carry_their_writer_and_the_watermark():
    _, settlement = forwarded([[Message(b"")]], [Edge("x")], NOW)
    assert settlement.publications[0].headers == {
        FROM: "v.2",
        WATERMARK: NOW.isoformat(),
        ROWS: "1",
    }
    _, settlement = forwarded([[Message(b"")]], [Edge("x")])
    assert settlement.publications[0].headers == {FROM: "v.2", ROWS: "1"}


# --- answers -------------------------------------------------------------------------------------


def test_every_answer_has_its_own_entry_under_its_request():
    """Several messages of a request can answer, and a replay writes the same entries again."""
    ids = ("r1/map", "r1/map.1", "r2")
    headers = [None, None, [("X-Numaflow-Id", "own.id")]]
    verdict = decide(verdict_on(some(*ids, headers=headers)), dict.fromkeys(range(3), Served()))
    for index, payloads in enumerate(([b"0"], [b"1", b"more"], [b"2"])):
        verdict.decisions.answer(index, payloads)
    place = Place("out", 1, [], 1_000_000, "answers")
    settlement = settle(Chunk("k", verdict.rows), verdict, place, NOW)
    own = [frames.fingerprint([i]) for i in ids]
    expected = [
        (f"r1.out.{own[0]}.0", b"0"),
        (f"r1.out.{own[1]}.0", b"1"),
        (f"r1.out.{own[1]}.1", b"more"),
        (f"{answer_key('own.id')}.out.{own[2]}.0", b"2"),
    ]
    assert [(p.key, p.payload) for p in settlement.publications] == expected
    addresses = [address(Names("p"), p) for p in settlement.publications]
    assert [subject for subject, _ in addresses] == [f"$KV.answers.{key}" for key, _ in expected]
    by_message = ['"r1/map"', '"r1/map.1"', '"r1/map.1"', '"r2"']
    assert [headers["Ebbflow-Id"] for _, headers in addresses] == by_message


def test_user_code_that_changes_headers_neither_redirects_nor_stops_an_answer():
    rows = some("r1/map", headers=[[("x-numaflow-id", "r7")]])
    rows.data()[0].headers.update({5: object(), "x-numaflow-id": "r8"})
    verdict = decide(verdict_on(rows), {0: Served()})
    verdict.decisions.answer(0, [b"1"])
    place = Place("out", 1, [], 1_000_000, "answers")
    (answer,) = settle(Chunk("k", rows), verdict, place, NOW).publications
    assert answer.key.startswith("r7.out.")
