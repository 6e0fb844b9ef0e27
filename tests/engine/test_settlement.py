"""For any mix of outcomes, every input has exactly one outcome; nothing is lost or invented."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack, NackOptions
from ebbflow.domain.errors import MessageTooLarge
from ebbflow.domain.outcome import DONE, Dropped, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import Chunk, Place, Publication, Stage
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.streams.names import Names
from ebbflow.streams.publish_settlement import address
from ebbflow.usercode.calling import Handler, call_map
from tests.engine.sample_rows import NOW, POLICY, batch, decide, some, times, verdict_on
from tests.thorough import examples

tags = st.lists(st.sampled_from("abc"), max_size=2)
messages = st.builds(
    Message,
    value=st.binary(max_size=8),
    keys=st.none() | st.lists(st.text("kl", max_size=2), max_size=2),
    tags=tags,
    event_time=st.none() | times,
)
options = st.builds(
    NackOptions,
    delay=st.none() | st.sampled_from([0, 1, 700, 5_000, 3_600_000]),
    max_deliveries=st.none() | st.integers(0, 3),
    reason=st.none() | st.sampled_from(["busy", "späť"]),
)
decisions = st.one_of(
    st.lists(messages, max_size=3),
    options.map(lambda o: [Message(b"never seen"), Message.to_nack(o)]),
    options.map(lambda o: Nack(o)),
    st.just(Message.to_drop()),
    st.just(ValueError("no")),
    st.just(MessageTooLarge(9, 5)),
)
"""What user code does with one input: return it, or raise it."""

edges = st.lists(
    st.builds(
        Edge,
        to=st.sampled_from(["x", "y", "z"]),
        partitions=st.integers(1, 3),
        operator=st.sampled_from(["and", "or", "not"]),
        values=st.frozensets(st.sampled_from("abc"), max_size=2),
    ),
    max_size=3,
    unique_by=lambda edge: edge.to,
)
settled_rows = st.builds(
    lambda facts, deliveries, failures: facts | {"deliveries": deliveries, "failures": failures},
    st.sampled_from(
        [
            {"keys": None, "value": b""},
            {"keys": [], "value": b"1", "event_time": NOW, "first_seen": NOW},
            {"keys": ["k", "\u00e4"], "value": b"x" * 2_000, "nack_reason": "before"},
            {"value": b"2", "headers": [("h", "1")], "metadata": [("g", [("k", b"\x00")])]},
        ]
    ).map(lambda facts: dict.fromkeys(frames.SCHEMA.names) | facts),
    st.integers(1, 4),
    st.integers(0, 4),
)
inputs = st.lists(st.tuples(settled_rows, decisions), max_size=6).map(
    lambda pairs: [
        (row | {"id": f"{number}-ß"[: 1 + number % 3]}, decision)
        for number, (row, decision) in enumerate(pairs)
    ]
)
"""Rows with the decision on each."""


def decided(given_inputs: list[tuple[dict, Any]]) -> Verdict:
    """The verdict of user code with these decisions."""
    by_id = {row["id"]: decision for row, decision in given_inputs}

    def user_code(datum: Datum) -> Any:
        decision = by_id[datum.id]
        if isinstance(decision, Exception):
            raise decision
        return decision

    verdict = verdict_on(Rows(batch([row for row, _ in given_inputs])))
    call_map(Handler(user_code), verdict, concurrency=1)
    return verdict


def settled(
    verdict: Verdict, given_edges: list[Edge], key: str = "k", now: datetime = NOW
) -> Settlement:
    place = Place("v", 2, given_edges, max_payload=1_000_000)
    return settle(Chunk(key, verdict.rows), verdict, place, now)


def expected_end(row: dict, decision: Any, given_edges: list[Edge]) -> str:
    """The rules for outcomes, written once more."""
    if isinstance(decision, MessageTooLarge):
        return "dead"
    if isinstance(decision, ValueError):
        return "dead" if row["failures"] >= POLICY.steps else "again"
    asked = decision.options if isinstance(decision, Nack) else _nack_among(decision)
    if asked is not None:
        used_up = asked.max_deliveries is not None and row["deliveries"] > asked.max_deliveries
        return "dead" if used_up else "again"
    if isinstance(decision, Message) or not decision:
        return "dropped"
    reached = not given_edges or any(e.accepts(m.tags) for e in given_edges for m in decision)
    return "done" if reached else "dropped"


def _nack_among(decision: Any) -> NackOptions | None:
    listed = decision if isinstance(decision, list) else []
    return next((m.nack_options for m in listed if m.signal is not None), None)


def of(settlement: Settlement, stage: Stage) -> list[Publication]:
    return [p for p in settlement.publications if p.stage is stage]


def rows_of(publication: Publication) -> list[dict]:
    return frames.decode(publication.payload).to_pylist()


def letter_of(publication: Publication) -> Letter:
    return Letter.from_message(publication.payload, publication.headers)


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(50))
@given(inputs, edges)
def test_every_input_has_exactly_one_outcome_and_is_counted_there(given_inputs, given_edges):
    settlement = settled(decided(given_inputs), given_edges)
    ends = Counter(expected_end(row, decision, given_edges) for row, decision in given_inputs)
    counts = settlement.counts
    assert counts.read == counts.ended == len(given_inputs)
    assert ends == Counter(
        done=counts.done,
        again=counts.redelivered,
        dead=counts.dead_lettered,
        dropped=counts.dropped,
    )
    assert sum(settlement.reasons.values()) == counts.redelivered


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(50))
@given(inputs, edges)
def test_an_unfinished_input_is_in_exactly_one_redelivery_or_dead_letter(given_inputs, given_edges):
    settlement = settled(decided(given_inputs), given_edges)
    again = [row["id"] for p in of(settlement, Stage.REDELIVER) for row in rows_of(p)]
    dead = [letter_of(p).id for p in of(settlement, Stage.DEAD_LETTER)]
    ends = {row["id"]: expected_end(row, decision, given_edges) for row, decision in given_inputs}
    assert sorted(again) == sorted(i for i, end in ends.items() if end == "again")
    assert sorted(dead) == sorted(i for i, end in ends.items() if end == "dead")


@settings(max_examples=examples(50))
@given(inputs, edges)
def test_outputs_of_finished_inputs_are_on_exactly_the_edges_that_accept_them(
    given_inputs, given_edges
):
    settlement = settled(decided(given_inputs), given_edges)
    expected = {edge.to: [] for edge in given_edges}
    for row, decision in given_inputs:
        if expected_end(row, decision, given_edges) != "done":
            continue
        for number, message in enumerate(decision):
            for edge in given_edges:
                if edge.accepts(message.tags):
                    expected[edge.to].append(
                        {
                            "id": f"{row['id']}/v.{number}" if number else f"{row['id']}/v",
                            "value": message.value,
                            "keys": row["keys"] if message.keys is None else message.keys,
                            "event_time": message.event_time or row["event_time"],
                            "headers": row["headers"],
                            "metadata": row["metadata"],
                            "deliveries": 1,
                            "failures": 0,
                            "retries": 0,
                            "first_seen": NOW,
                            "nack_reason": None,
                        }
                    )
    found = {edge.to: [] for edge in given_edges}
    for publication in of(settlement, Stage.OUTPUT):
        found[publication.target] += rows_of(publication)
    assert found == expected
    if given_edges:
        assert settlement.counts.written == sum(map(len, found.values()))


@pytest.mark.guarantee("max-deliveries-is-exact")
@settings(max_examples=examples(50))
@given(inputs, edges)
def test_a_redelivered_row_is_the_same_message_delivered_once_more(given_inputs, given_edges):
    settlement = settled(decided(given_inputs), given_edges)
    before = {row["id"]: row for row, _ in given_inputs}
    for row in (row for p in of(settlement, Stage.REDELIVER) for row in rows_of(p)):
        was = before[row["id"]]
        for name in ("id", "keys", "value", "headers", "metadata", "event_time", "first_seen"):
            assert row[name] == was[name]
        assert row["deliveries"] == was["deliveries"] + 1


@settings(max_examples=examples(50))
@given(inputs)
def test_a_redelivery_carries_its_reason_and_its_failures(given_inputs):
    settlement = settled(decided(given_inputs), [])
    found = {row["id"]: row for p in of(settlement, Stage.REDELIVER) for row in rows_of(p)}
    for row, decision in given_inputs:
        if row["id"] in found:
            again = found[row["id"]]
            if isinstance(decision, ValueError):
                expected = ("ValueError: no", row["failures"] + 1)
            else:
                asked = decision.options if isinstance(decision, Nack) else _nack_among(decision)
                expected = (asked.reason, row["failures"])
            assert (again["nack_reason"], again["failures"]) == expected


@pytest.mark.guarantee("redeliveries-are-never-early")
@settings(max_examples=examples(50))
@given(inputs, st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_no_redelivery_is_due_before_its_delay_has_passed(given_inputs, now):
    verdict = decided(given_inputs)
    settlement = settled(verdict, [], now=now)
    index = {row["id"]: number for number, (row, _) in enumerate(given_inputs)}
    for publication in of(settlement, Stage.REDELIVER):
        for row in rows_of(publication):
            outcome = verdict.outcomes[index[row["id"]]]
            assert isinstance(outcome, Redeliver)
            if publication.due is None:
                assert outcome.delay == 0
            else:
                due = datetime.fromtimestamp(publication.due / 1000, UTC)
                wanted = now + timedelta(milliseconds=outcome.delay)
                assert timedelta() <= due - wanted <= timedelta(milliseconds=1_001)


@settings(max_examples=examples(50))
@given(inputs)
def test_a_dead_letter_carries_the_message_and_the_reason(given_inputs):
    settlement = settled(decided(given_inputs), [])
    before = {row["id"]: (row, decision) for row, decision in given_inputs}
    for letter in map(letter_of, of(settlement, Stage.DEAD_LETTER)):
        row, decision = before[letter.id]
        assert (letter.vertex, letter.value, letter.deliveries) == (
            "v",
            row["value"],
            row["deliveries"],
        )
        assert letter.keys == (row["keys"] or [])
        assert letter.headers == dict(row["headers"] or ())
        assert letter.metadata == {g: dict(entries) for g, entries in row["metadata"] or ()}
        assert (letter.first_seen, letter.event_time) == (row["first_seen"], row["event_time"])
        assert letter.last_seen == NOW
        assert letter.error
        assert (letter.traceback is not None) == isinstance(decision, (ValueError, MessageTooLarge))


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(50))
@given(inputs, inputs, edges)
def test_publications_with_the_same_id_hold_the_same_rows(one, other, given_edges):
    """Even between two verdicts on the same chunk; JetStream would drop the second as a copy."""
    ids: dict[tuple, list] = {}
    for given_inputs in (one, other):
        for p in settled(decided(given_inputs), given_edges).publications:
            held = (
                letter_of(p).id if p.stage is Stage.DEAD_LETTER else [r["id"] for r in rows_of(p)]
            )
            stream = (p.stage, p.target, p.partition)
            assert ids.setdefault((*stream, p.msg_id), held) == held


@settings(max_examples=examples(50))
@given(inputs, edges)
def test_one_settlement_never_uses_an_id_twice(given_inputs, given_edges):
    ids = [p.msg_id for p in settled(decided(given_inputs), given_edges).publications]
    assert len(set(ids)) == len(ids)


@settings(max_examples=examples(50))
@given(inputs, edges)
def test_different_chunks_use_different_ids(given_inputs, given_edges):
    verdict = decided(given_inputs)
    one, other = (
        {p.msg_id for p in settled(verdict, given_edges, key).publications} for key in "kl"
    )
    assert not one & other


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(50))
@given(inputs, edges, st.timedeltas(timedelta(), timedelta(minutes=1)))
def test_the_same_verdict_makes_the_same_publications_later_too(given_inputs, given_edges, later):
    """Redeliveries that were one group may be two later; all the others stay the same."""

    def places(now: datetime, *stages: Stage) -> list[tuple]:
        publications = settled(decided(given_inputs), given_edges, now=now).publications
        return [
            (p.msg_id, p.stage, p.target, p.partition) for p in publications if p.stage in stages
        ]

    assert places(NOW, *Stage) == places(NOW, *Stage)
    assert places(NOW, *list(Stage)[1:]) == places(NOW + later, *list(Stage)[1:])


@settings(max_examples=examples(50))
@given(inputs, edges)
def test_stages_are_in_the_order_that_loses_nothing_and_are_complete(given_inputs, given_edges):
    settlement = settled(decided(given_inputs), given_edges)
    stages = list(settlement.stages())
    kinds = [{p.stage for p in stage} for stage in stages]
    assert all(len(own) == 1 for own in kinds)
    flat = [kind for own in kinds for kind in own]
    assert flat == sorted(set(flat))
    assert [p for stage in stages for p in stage] == sorted(
        settlement.publications, key=lambda p: p.stage
    )
    back, forward = [Stage.REDELIVER, Stage.HAND_OVER], [Stage.ANSWER, Stage.OUTPUT]
    assert list(Stage) == [*back, Stage.DEAD_LETTER, *forward, Stage.TRAIL, Stage.AUDIT]


@settings(max_examples=examples(50))
@given(inputs, edges)
def test_publications_only_go_to_existing_partitions(given_inputs, given_edges):
    partitions = {edge.to: edge.partitions for edge in given_edges}
    for publication in settled(decided(given_inputs), given_edges).publications:
        if publication.stage is Stage.OUTPUT:
            assert 0 <= publication.partition < partitions[publication.target]
        else:
            assert (publication.target, publication.partition) == ("v", 2)


@settings(max_examples=examples(50))
@given(inputs)
def test_every_delayed_redelivery_waits_under_its_own_subject(given_inputs):
    settlement = settled(decided(given_inputs), [])
    later = [p for p in of(settlement, Stage.REDELIVER) if p.due is not None]
    subjects = [address(Names("p"), p)[0] for p in later]
    assert len(set(subjects)) == len(subjects)
    for publication in later:
        assert address(Names("p"), publication)[1]["Nats-Schedule"].startswith("@at ")


def forwarded(*ids: str, largest: int = 1_000, given_edges: list[Edge] | None = None) -> Settlement:
    verdict = verdict_on(some(*ids), largest=largest)
    verdict.forward_inputs()
    return settled(verdict, [Edge("x")] if given_edges is None else given_edges)


def test_inputs_that_are_forwarded_unchanged_keep_their_ids():
    settlement = forwarded("a", "b")
    assert [row["id"] for p in settlement.publications for row in rows_of(p)] == ["a", "b"]
    assert (settlement.counts.done, settlement.counts.written) == (2, 2)


@pytest.mark.parametrize("ids", [["aaa"], ["aaa", "bbb"], ["a", "bbb"]], ids=len)
def test_forwarding_continues_when_some_or_all_inputs_are_too_large(ids):
    settlement = forwarded(*ids, largest=2)
    passed = [row["id"] for p in of(settlement, Stage.OUTPUT) for row in rows_of(p)]
    assert passed == [i for i in ids if len(i) <= 2]
    assert settlement.counts.dead_lettered == len(ids) - len(passed)
    assert settlement.counts.read == settlement.counts.ended == len(ids)


def test_inputs_that_no_edge_accepts_are_counted_as_dropped():
    settlement = forwarded("a", "b", given_edges=[Edge("x", values=frozenset("a"))])
    assert settlement.publications == []
    assert (settlement.counts.dropped, settlement.counts.done) == (2, 0)


def test_an_input_with_one_output_routed_and_one_not_is_done():
    verdict = decided([(row_of("a"), [Message(b"1", tags=["a"]), Message(b"2", tags=["b"])])])
    counts = settled(verdict, [Edge("x", values=frozenset("a"))]).counts
    assert (counts.done, counts.dropped, counts.written) == (1, 0, 1)


def row_of(row_id: str, **facts: Any) -> dict:
    return {"id": row_id, "value": b"", "deliveries": 1, "failures": 0} | facts


def test_rows_that_are_explicitly_done_or_dropped_are_counted_as_such():
    verdict = decide(verdict_on(some("a", "b", "c")), {0: DONE, 1: Dropped("late")})
    counts = settled(verdict, []).counts
    assert (counts.read, counts.done, counts.dropped) == (3, 2, 1)


def test_an_empty_chunk_publishes_nothing():
    verdict = verdict_on(some())
    settlement = settled(verdict, [Edge("x")])
    assert settlement.publications == []
    assert settlement.counts.read == 0


def test_user_code_that_changes_its_datum_does_not_change_what_is_published():
    """Neither the dead letter nor the inherited fields of an output; and settling does not fail."""
    given_rows = Rows(
        batch([row_of("a", keys=["k"], headers=[("h", "1")]), row_of("b", keys=["k"])])
    )

    def vandal(datum: Datum) -> Message:
        datum.headers["g"] = "k"
        datum.headers["h"] = object()
        datum.metadata["g"] = {"k": "text"}
        if datum.id == "a":
            raise MessageTooLarge(9, 5)
        return [Message(b""), Message(b"", keys=["own"])]

    verdict = verdict_on(given_rows)
    call_map(Handler(vandal), verdict, concurrency=1)
    settlement = settled(verdict, [Edge("x")])
    letter = letter_of(of(settlement, Stage.DEAD_LETTER)[0])
    assert (letter.keys, letter.headers, letter.metadata) == (["k"], {"h": "1"}, {})
    outputs = [row["keys"] for p in of(settlement, Stage.OUTPUT) for row in rows_of(p)]
    assert outputs == [["k"], ["own"]]


def test_many_outputs_are_spread_over_the_partitions_in_frames():
    count = frames.MAX_ROWS * 6
    verdict = verdict_on(some(*map(str, range(count))))
    verdict.forward_inputs()
    outputs = settled(verdict, [Edge("x", partitions=3)]).publications
    assert sum(len(rows_of(p)) for p in outputs) == count
    assert len({p.msg_id for p in outputs}) == len(outputs) >= 6
    assert len({p.partition for p in outputs}) > 1
