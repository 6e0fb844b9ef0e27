"""Ordered vertices: no row overtakes one that has to be redelivered, and none is left out."""

import threading
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Datum, Message, NackOptions, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, FellBack, Redeliver, Retry, Succeeded
from ebbflow.engine.frames import Rows
from ebbflow.engine.inlet import settled_part, with_held
from ebbflow.engine.position import NOTHING, Held, Mark
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.verdict import EMPTY, Decisions, Verdict
from ebbflow.streams.reader import FrameReader
from ebbflow.usercode.calling import (
    Handler,
    call_map,
    call_ranges,
    call_sink,
    call_with_retries,
    run_batch_map,
    run_stream,
)
from tests.engine.sample_rows import decide, some, verdict_on

BUSY = NackOptions(delay=5, reason="busy")


def ordered(rows: Rows) -> Verdict:
    return verdict_on(rows, ordered=True)


def nacking(*bad: str) -> tuple[Any, list[str]]:
    """A map that nacks these ids, and the ids it was called with."""
    calls: list[str] = []

    def target(datum: Datum) -> Message:
        calls.append(datum.id)
        return Message.to_nack(BUSY) if datum.id in bad else Message(datum.value)

    return target, calls


async def later(datum: Datum) -> Message:
    return Message.to_nack(BUSY) if datum.id == "b" else Message(datum.value)


@pytest.mark.parametrize("run", [partial(call_map, concurrency=8), run_stream])
def test_a_map_stops_at_the_first_row_that_is_redelivered(run):
    target, calls = nacking("b")
    verdict = ordered(some(*"abcd"))
    run(Handler(target), verdict)
    assert calls == ["a", "b"]
    assert verdict.outcomes == {1: Redeliver(5, "busy", 0)}
    assert (verdict.decisions.unreached, verdict.first_held()) == (2, 1)


def test_an_async_map_of_an_ordered_vertex_takes_one_row_at_a_time():
    verdict = ordered(some(*"abcd"))
    handler = Handler(later)
    call_map(handler, verdict, concurrency=8)
    handler.close()
    assert (verdict.decisions.unreached, verdict.outputs.parents) == (2, [0])


@pytest.mark.parametrize(
    ("result", "stops"),
    [
        (None, False),
        (Message.to_nack(NackOptions(max_deliveries=0)), False),
        (Message.to_fail(), True),
        (Message.to_nack(), True),
        (5, True),
    ],
    ids=["drop", "dead letter", "failure", "nack", "violation"],
)
def test_only_a_row_that_is_redelivered_or_may_be_retried_stops_a_map(result, stops):
    verdict = ordered(some(*"abc"))
    call_map(Handler(lambda d: result if d.id == "b" else Message(d.value)), verdict, 1)
    assert verdict.decisions.unreached == (2 if stops else None)


def test_an_unordered_map_does_not_stop():
    target, calls = nacking("a", "b")
    verdict = verdict_on(some(*"abc"))
    call_map(Handler(target), verdict, 1)
    assert calls == ["a", "b", "c"]
    assert (verdict.decisions.unreached, verdict.first_held()) == (None, None)


def test_a_sink_stops_after_the_batch_that_has_a_row_to_redeliver():
    calls: list[list[str]] = []

    def target(data: list[Datum]) -> list[Response]:
        calls.append([d.id for d in data])
        return [Response.nack(d.id) if d.id == "b" else Response.ok(d.id) for d in data]

    verdict = ordered(some(*"abcdef", keys=[[k] for k in "klmnop"]))
    call_sink(Handler(target), verdict, 3)
    assert calls == [["a", "b", "c"]]
    assert (verdict.decisions.unreached, verdict.first_held()) == (3, 1)


def test_a_sink_that_raises_holds_the_first_row_of_its_batch():
    def target(data: list[Datum]) -> list[Response]:
        if any(d.id == "c" for d in data):
            raise ValueError("no")
        return [Response.ok(d.id) for d in data]

    verdict = ordered(some(*"abcdef", keys=[[k] for k in "klmnop"]))
    call_sink(Handler(target), verdict, 2)
    assert (verdict.decisions.unreached, verdict.first_held()) == (4, 2)


keyed = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]), st.lists(st.sampled_from("kl"), max_size=2)),
    max_size=20,
)


@pytest.mark.guarantee("order-by-key")
@given(keyed, st.integers(1, 6))
def test_no_batch_contains_two_rows_of_the_same_keys_and_every_row_is_in_one(rows, size):
    failures, keys = [f for f, _ in rows], [k for _, k in rows]
    cuts = list(call_ranges(failures, size, keys))
    assert [i for start, end in cuts for i in range(start, end)] == list(range(len(rows)))
    for start, end in cuts:
        assert 1 <= end - start <= size
        assert end - start == 1 or not any(failures[start:end])
        held = [tuple(k) for k in keys[start:end]]
        assert len(set(held)) == len(held)


def test_batches_are_as_large_as_the_keys_allow():
    assert list(call_ranges([0] * 5, 9, [["k"], ["l"], ["k"], ["k", "l"], []])) == [(0, 2), (2, 5)]


def test_a_list_of_keys_is_not_mistaken_for_their_concatenation():
    assert list(call_ranges([0] * 2, 9, [["a", "b"], ["ab"]])) == [(0, 2)]


@pytest.mark.parametrize(
    ("outcomes", "unreached", "expected"),
    [
        ({}, None, None),
        ({1: EMPTY, 2: DeadLetter("no"), 3: FellBack(), 0: Succeeded()}, None, None),
        ({3: Redeliver(5, None, 0), 1: Retry(5, "no", 1, 0)}, None, 1),
        ({3: Redeliver(5, None, 0)}, 2, 2),
        ({1: Redeliver(5, None, 0)}, 2, 1),
        ({}, 0, 0),
        ({}, 4, None),
        ({1: DeadLetter("no")}, 4, None),
    ],
)
def test_settling_stops_at_the_first_row_that_is_redelivered_or_was_not_reached(
    outcomes, unreached, expected
):
    """A vertex that stopped after its last row has reached them all."""
    verdict = ordered(some(*"abcd"))
    decide(verdict, outcomes).decisions.stop_at(unreached)
    assert verdict.first_held() == expected


def test_a_cut_verdict_covers_only_the_rows_before_the_cut():
    verdict = ordered(some(*"abcd"))
    target, _ = nacking("c")
    call_map(Handler(lambda d: None if d.id == "b" else target(d)), verdict, 1)
    part = verdict.cut(2)
    assert part.rows.column("id") == ["a", "b"]
    assert (part.outcomes, part.outputs.parents) == ({1: EMPTY}, [0])
    assert verdict.cut(0).rows.column("id") == []


def test_a_cut_verdict_stores_the_answers_of_its_own_rows():
    verdict = ordered(some(*"abc"))
    verdict.decisions.answer(0, [b"1"])
    verdict.decisions.answer(2, [b"2"])
    assert verdict.cut(2).answers == {0: [b"1"]}


def test_a_cut_keeps_rows_that_are_forwarded_unchanged():
    verdict = ordered(some(*"abcd"))
    verdict.forward_inputs()
    assert verdict.cut(2).outputs is None


def test_outputs_of_a_retried_row_are_kept_when_later_rows_are_cut_off():
    """They follow those of later rows, which an ordered vertex gives back."""

    def target(data: list[Datum]) -> dict[str, Message]:
        first = data[0].system_metadata["sink"]["retry_count"] == b"0"
        results = {d.id: Message(d.value) for d in data} | {"c": Message.to_nack()}
        return results | ({"a": Message.to_fail()} if first else {})

    verdict = ordered(some(*"abcd", keys=[[k] for k in "klmn"]))
    call = partial(run_batch_map, Handler(target), batch_size=9)
    strategy = RetryStrategy(Backoff("1ms", 3))
    call_with_retries(verdict, call, strategy, lambda _seconds: None, "map")
    assert verdict.first_held() == 2
    assert sorted(verdict.cut(2).outputs.values) == [b"a", b"b"]


def test_rows_that_a_part_of_a_chunk_did_not_reach_count_as_not_reached():
    whole = ordered(some(*"abcdef"))
    part = whole.part(Rows(whole.rows.batch.slice(2, 3)))
    target, _ = nacking("c")
    call_map(Handler(target), part, 1)
    whole.decisions.merge(range(2, 5), part.decisions)
    assert whole.decisions.unreached == 3
    assert whole.first_held() == 2
    complete = Decisions()
    complete.stop_at(3)
    whole = ordered(some(*"abcdef"))
    whole.decisions.merge(range(2, 5), complete)
    assert whole.decisions.unreached is None, "the part stopped after its last row"


NOW = datetime.fromtimestamp(1_000, UTC)
HELD = Held(due=1, deliveries=3, failures=2, retries=1, reason="busy")


def test_the_held_row_is_delivered_again_with_its_history():
    batch = some("a", "b", deliveries=[1, 5], nack_reason=[None, "other"]).batch
    columns = ("id", "value", "deliveries", "failures", "retries", "nack_reason")
    found = [tuple(row[name] for name in columns) for row in with_held(batch, HELD).to_pylist()]
    assert found == [("a", b"a", 3, 2, 1, "busy"), ("b", b"b", 5, 0, 0, "other")]
    assert with_held(batch, None) is batch


def reader_behind(batch, more=None) -> FrameReader:
    """A reader without a server that has just returned ``batch``, the start of frame 8."""
    reader = FrameReader.__new__(FrameReader)
    reader._wake = threading.Event()
    reader._before, reader._last_seq = (Mark(7), NOTHING), 8
    reader._head = None if more is None else (8, more)
    reader.mark = Mark(8) if more is None else Mark(7, batch.num_rows)
    return reader


def rest_of(reader: FrameReader) -> list[str]:
    return [] if reader._head is None else reader._head[1].column("id").to_pylist()


@pytest.mark.parametrize("more", [None, "xy"])
def test_only_the_rows_before_the_held_row_are_settled_and_the_rest_is_given_back(more):
    target, _ = nacking("c")
    verdict = ordered(some(*"abcd", deliveries=2))
    reader = reader_behind(verdict.rows.batch, some(*more).batch if more else None)
    call_map(Handler(target), verdict, 1)
    part, held = settled_part(verdict, reader, verdict.rows.batch, NOW)
    assert part.rows.column("id") == ["a", "b"]
    assert (held.deliveries, held.failures, held.retries, held.reason) == (3, 0, 0, "busy")
    assert reader.mark == Mark(7, 2)
    assert rest_of(reader) == ["c", "d", *(more or "")]


def test_a_row_that_was_merely_not_reached_is_given_back_but_not_held():
    verdict = ordered(some(*"abc"))
    verdict.decisions.stop_at(1)
    reader = reader_behind(verdict.rows.batch)
    part, held = settled_part(verdict, reader, verdict.rows.batch, NOW)
    assert (part.rows.column("id"), held) == (["a"], None)
    assert rest_of(reader) == ["b", "c"]


def test_when_nothing_is_held_everything_is_settled():
    verdict = ordered(some(*"abc"))
    decide(verdict, {2: DeadLetter("no")}).decisions.stop_at(3)
    reader = reader_behind(verdict.rows.batch)
    assert settled_part(verdict, reader, verdict.rows.batch, NOW) == (verdict, None)
    assert (reader.mark, rest_of(reader)) == (Mark(8), [])


decisions = st.sampled_from(["ok", "ok", "nack", "fail", "raise", "drop", "dead"])


class Unsteady:
    """Decides as scripted, call by call, finally always with success; records what it finished."""

    def __init__(self, script: list[str]) -> None:
        self._script = iter(script)
        self.finished: list[str] = []

    def __call__(self, data: list[Datum]) -> list[Response]:
        return [self._one(datum.id) for datum in data]

    def _one(self, i: str) -> Response:
        match next(self._script, "ok"):
            case "nack":
                return Response.nack(i)
            case "fail":
                return Response.failure(i, "down")
            case "raise":
                raise ValueError("no")
            case "dead":
                self.finished.append(i)
                return Response.nack(i, NackOptions(max_deliveries=0))
        self.finished.append(i)
        return Response.ok(i)


@pytest.mark.guarantee("order-by-key")
@given(
    st.lists(st.sampled_from("kl"), min_size=1, max_size=8),
    st.lists(decisions, max_size=20),
    st.integers(1, 4),
    st.sampled_from(
        [None, RetryStrategy(Backoff("1ms", 2), "drop"), RetryStrategy(Backoff("9s", 2))]
    ),
)
def test_messages_of_the_same_keys_are_finished_in_their_order(keys, script, size, strategy):
    """The task's loop without a server: settle, hold, give back, until nothing is left."""
    ids = [f"{key}{number}" for key, number in zip(keys, count(), strict=False)]
    batch = some(*ids, keys=[[key] for key in keys]).batch
    sink = Unsteady(script)
    ended: list[str] = []
    held = None
    for _ in range(200):
        if not batch.num_rows:
            break
        verdict = ordered(Rows(with_held(batch, held)))
        call = partial(call_sink, Handler(sink), batch_size=size)
        call_with_retries(verdict, call, strategy, lambda _seconds: None, "sink")
        reader = reader_behind(verdict.rows.batch)
        part, held = settled_part(verdict, reader, verdict.rows.batch, NOW)
        assert not any(isinstance(o, Redeliver | Retry) for o in part.outcomes.values())
        ended += part.rows.column("id")
        batch = batch.slice(len(part.rows))
        assert rest_of(reader) == batch.column("id").to_pylist()
    assert ended == ids, "every row is settled once, in order"
    for key in "kl":
        own = [i for i in dict.fromkeys(sink.finished) if i.startswith(key)]
        assert own == sorted(own, key=ids.index)
