"""Batch maps, which answer by id, and stream maps, which forward outputs before they end."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from ebbflow import Datum, Message, Nack, NackOptions, Unavailable
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Redeliver
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.verdict import EMPTY, Verdict
from ebbflow.usercode.calling import Handler, call_with_retries, run_batch_map, run_stream
from tests.engine.sample_rows import some, verdict_on

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def forwarded(verdict: Verdict) -> list[tuple[int, int, bytes]]:
    outputs = verdict.outputs
    return list(zip(outputs.parents, outputs.indexes, outputs.values, strict=True))


# --- batch ---------------------------------------------------------------------------------------


def batched(target: Any, *ids: str, size: int = 100, **columns: Any) -> Verdict:
    """The verdict of a batch map on rows with these ids."""
    verdict = verdict_on(some(*ids or ("a", "b", "c"), **columns))
    handler = Handler(target)
    run_batch_map(handler, verdict, size)
    handler.close()
    return verdict


def by_id(data: list[Datum]) -> dict[str, Any]:
    return {d.id: Message(d.value) for d in reversed(data)}


async def async_by_id(data: list[Datum]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return by_id(data)


@pytest.mark.parametrize("target", [by_id, async_by_id, lambda data: async_by_id(data)])
def test_batch_results_are_matched_by_id_in_any_order(target):
    verdict = batched(target, *"abcde", size=2)
    assert forwarded(verdict) == [(n, 0, i.encode()) for n, i in enumerate("abcde")]
    assert verdict.outcomes == {}


def test_each_batch_result_may_be_anything_that_a_map_may_return():
    results = {
        "a": None,
        "b": [Message(b"1"), Message(b"2")],
        "c": (Message(b"3") for _ in range(1)),
        "d": [Message(b"never seen"), Message.to_nack(NackOptions(delay=5, reason="busy"))],
        "e": Message.to_drop(),
        "f": "text",
        "g": ValueError("this one only"),
        "h": Nack(delay="9ms"),
    }
    verdict = batched(lambda data: results, *results)
    assert forwarded(verdict) == [(1, 0, b"1"), (1, 1, b"2"), (2, 0, b"3")]
    wrong = (
        "ContractViolation: v: returned str where a Message belongs. "
        "Return Message(value), a list of them, or None to drop the input."
    )
    assert verdict.outcomes == {
        0: EMPTY,
        3: Redeliver(5, "busy", 0),
        4: EMPTY,
        5: Redeliver(1_000, wrong, 1),
        6: Redeliver(1_000, "ValueError: this one only", 1),
        7: Redeliver(9, None, 0),
    }


FIX = "Return {datum.id: messages} with an entry for each message of the batch."


def test_a_message_without_a_result_fails_alone_and_the_others_keep_theirs():
    verdict = batched(lambda data: {"a": Message(b"1"), "x": None, 5: None}, *"abcd")
    error = (
        "ContractViolation: v: returned no result for 3 and results for 2 unknown ids "
        f"of 4 messages (ids: b, c, d, x, 5). {FIX}"
    )
    assert verdict.outcomes == dict.fromkeys((1, 2, 3), Redeliver(1_000, error, 1))
    assert forwarded(verdict) == [(0, 0, b"1")]


def test_a_result_for_an_unknown_id_fails_no_message():
    """Numaflow's C3: a warning at most."""
    assert batched(lambda data: by_id(data) | {"x": Message(b"")}).outcomes == {}


@pytest.mark.parametrize("result", [None, [], [Message(b"")], Message(b""), "abc"], ids=repr)
def test_a_result_that_is_not_a_mapping_fails_the_batch(result):
    verdict = batched(lambda data: result)
    error = (
        f"ContractViolation: v: returned {type(result).__name__} where a mapping of results by id "
        f"belongs. {FIX}"
    )
    assert verdict.outcomes == dict.fromkeys(range(3), Redeliver(1_000, error, 1))


def test_an_exception_fails_its_batch_and_messages_that_failed_before_are_called_alone():
    calls: list[list[str]] = []

    def target(data: list[Datum]) -> dict[str, Any]:
        calls.append([d.id for d in data])
        if "c" in calls[-1]:
            raise ValueError("no")
        return by_id(data)

    assert batched(target, *"abcd", size=3).outcomes.keys() == {0, 1, 2}
    assert batched(target, *"abcd", size=3, failures=[1, 1, 1, 0]).outcomes.keys() == {2}
    assert calls == [["a", "b", "c"], ["d"], ["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize("change", [list.clear, list.reverse], ids=lambda f: f.__name__)
def test_a_batch_map_may_modify_the_list_it_receives(change):
    def target(data: list[Datum]) -> dict[str, Any]:
        results = {d.id: Message.to_nack() if d.id == "a" else Message(d.value) for d in data}
        change(data)
        return results

    verdict = batched(target)
    assert verdict.outcomes == {0: Redeliver(0, None, 0)}
    assert forwarded(verdict) == [(1, 0, b"b"), (2, 0, b"c")]


# --- stream --------------------------------------------------------------------------------------


class EmitterAt:
    """Forwards after the outputs with these numbers, counted from 1."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers = numbers
        self._made = 0
        self.emitted: list[tuple[int, int, bytes]] = []

    def is_due(self) -> bool:
        self._made += 1
        return self._made in self._numbers

    def emit(self, part: Verdict) -> int:
        outputs = forwarded(part)
        self.emitted += outputs
        return len(outputs)


def streamed(
    target: Any, *ids: str, emit_at: tuple[int, ...] = (), strategy: RetryStrategy | None = None
) -> tuple[Verdict, list[tuple[int, int, bytes]]]:
    """The verdict of a stream map, and what it had forwarded before the chunk was settled.

    ``emit_at`` are the outputs, counted from 1, after which all outputs so far are forwarded.
    """
    emitter = EmitterAt(emit_at)
    verdict = verdict_on(some(*ids or ("a", "b", "c")), emitter=emitter)
    handler = Handler(target)
    call = partial(run_stream, handler)
    call_with_retries(verdict, call, strategy, lambda _seconds: None, "map")
    handler.close()
    assert verdict.decisions.emitted_rows == len(emitter.emitted)
    return verdict, emitter.emitted


def two(datum: Datum):
    yield Message(datum.value + b"1")
    yield Message(datum.value + b"2")


async def async_two(datum: Datum):
    for message in two(datum):
        await asyncio.sleep(0)
        yield message


async def async_list(datum: Datum) -> list[Message]:
    return list(two(datum))


BOTH = [(n, k, b"%b%d" % (i, k + 1)) for n, i in enumerate((b"a", b"b", b"c")) for k in (0, 1)]


@pytest.mark.parametrize(
    "target",
    [two, async_two, lambda d: list(two(d)), lambda d: async_two(d), async_list],
    ids=["generator", "async generator", "list", "returned async generator", "async list"],
)
@pytest.mark.parametrize("emit_at", [(), (1, 2, 3, 4, 5, 6), (3,), (2, 5)], ids=repr)
def test_everything_yielded_is_forwarded_once_and_in_order(target, emit_at):
    verdict, emitted = streamed(target, emit_at=emit_at)
    assert emitted + forwarded(verdict) == BOTH
    assert verdict.outcomes == {}


@pytest.mark.parametrize(
    "target",
    [
        lambda d: None,
        lambda d: [],
        lambda d: iter(()),
        lambda d: [Message.to_drop()],
        lambda d: Message.to_drop(),
    ],
    ids=["None", "list", "generator", "drop", "one drop"],
)
def test_an_input_that_yields_nothing_is_dropped(target):
    verdict, _ = streamed(target)
    assert verdict.outcomes == dict.fromkeys(range(3), EMPTY)


def test_an_input_whose_outputs_were_all_forwarded_early_is_done_not_dropped():
    verdict, emitted = streamed(lambda d: [Message(d.value)], emit_at=(1, 2, 3))
    assert len(emitted) == 3
    assert (verdict.outcomes, len(verdict.outputs)) == ({}, 0)


def nacks_after_one(datum: Datum):
    yield Message(datum.value + b"1")
    if datum.id == "b":
        yield Message.to_nack(NackOptions(delay=5, reason="busy"))
        raise AssertionError("nothing is requested after a nack")
    yield Message(datum.value + b"2")


def raises_after_one(datum: Datum):
    yield Message(datum.value + b"1")
    if datum.id == "b":
        raise Nack(delay="5ms", reason="busy")
    yield Message(datum.value + b"2")


@pytest.mark.parametrize("target", [nacks_after_one, raises_after_one])
def test_a_nack_discards_outputs_that_were_not_forwarded_yet(target):
    verdict, emitted = streamed(target)
    assert (verdict.outcomes, emitted) == ({1: Redeliver(5, "busy", 0)}, [])
    assert forwarded(verdict) == [one for one in BOTH if one[0] != 1]


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("target", [nacks_after_one, raises_after_one])
def test_outputs_forwarded_before_a_nack_stay_forwarded(target):
    """The price of streaming; the outputs of other inputs are not touched by it."""
    verdict, emitted = streamed(target, emit_at=(3,))
    assert verdict.outcomes == {1: Redeliver(5, "busy", 0)}
    assert emitted == [(0, 0, b"a1"), (0, 1, b"a2"), (1, 0, b"b1")]
    assert forwarded(verdict) == [(2, 0, b"c1"), (2, 1, b"c2")]


@pytest.mark.parametrize("result", ["text", "", {}, b"", 5, [5]], ids=repr)
def test_an_output_that_is_not_a_message_is_rejected_not_dropped(result):
    verdict, _ = streamed(lambda d: result if d.id == "b" else Message(d.value))
    kind = type(result[0] if isinstance(result, list) else result).__name__
    error = (
        f"ContractViolation: v: returned {kind} where a Message belongs. "
        "Return Message(value), a list of them, or None to drop the input."
    )
    assert verdict.outcomes == {1: Redeliver(1_000, error, 1)}
    assert [parent for parent, _, _ in forwarded(verdict)] == [0, 2]


def test_event_times_of_nacked_and_dropped_messages_still_count():
    verdict, _ = streamed(lambda d: [Message.to_drop(WHEN), Message.to_nack(None, WHEN)], "a")
    assert verdict.decisions.event_times == [WHEN, WHEN]


def fails_after_one(datum: Datum):
    count = int(datum.system_metadata["sink"]["retry_count"])
    yield Message(datum.value + b"1")
    if datum.id == "b" and count < 2:
        yield Message.to_fail(f"try {count}")
        yield Message(b"never seen")
    yield Message(datum.value + b"2")


def test_a_failure_discards_its_outputs_and_is_retried():
    verdict, _ = streamed(fails_after_one, strategy=RetryStrategy(Backoff("1ms", 5)))
    assert verdict.outcomes == {}
    assert sorted(forwarded(verdict)) == BOTH


def test_without_a_strategy_a_failure_is_a_dead_letter():
    verdict, _ = streamed(fails_after_one)
    assert verdict.outcomes == {1: DeadLetter("map failure", error="try 0")}
    assert [parent for parent, _, _ in forwarded(verdict)] == [0, 0, 2, 2]


def fails_and_then_raises(datum: Datum):
    yield Message.to_fail("first")
    raise Nack(delay="5ms", reason="second")


@pytest.mark.parametrize("strategy", [None, RetryStrategy(Backoff("1ms", 1), "drop")])
def test_an_exception_after_a_failure_replaces_the_failure(strategy):
    verdict, _ = streamed(fails_and_then_raises, "a", strategy=strategy)
    assert verdict.outcomes == {0: Redeliver(5, "second", 0)}
    assert (verdict.decisions.failed, forwarded(verdict)) == ({}, [])


def test_a_stream_map_continues_with_all_messages_after_an_outage() -> None:
    down = True

    def target(datum: Datum) -> list[Message]:
        if down:
            raise Unavailable("the database")
        return [Message(datum.value)]

    handler = Handler(target)
    ids = [str(number) for number in range(6)]
    run_stream(handler, verdict_on(some(*ids)))
    assert handler.blame.outage is not None
    down = False
    handler.renew()
    verdict = verdict_on(some(*ids))
    run_stream(handler, verdict)
    assert len(forwarded(verdict)) == len(ids)
    assert handler.blame.outage is None
