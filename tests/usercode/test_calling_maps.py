"""What a map or transformer may return, yield or raise, and the outcome of its input."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack, NackOptions, nack
from ebbflow.domain.message import Signal
from ebbflow.domain.outcome import DeadLetter, Redeliver
from ebbflow.engine.frames import Rows
from ebbflow.engine.verdict import EMPTY, Verdict
from ebbflow.usercode.calling import Handler, call_map
from tests.engine.sample_rows import some, verdict_on


def map_verdict(target, *ids: str, largest: int = 1_000, concurrency: int = 4) -> Verdict:
    """The verdict of a map on rows with these ids."""
    verdict = verdict_on(some(*ids or ("a",)), largest=largest)
    handler = Handler(target)
    try:
        call_map(handler, verdict, concurrency)
    finally:
        handler.close()
    return verdict


def forwarded(verdict: Verdict) -> list[tuple[int, int, bytes]]:
    outputs = verdict.outputs
    return list(zip(outputs.parents, outputs.indexes, outputs.values, strict=True))


def two(datum: Datum):
    yield Message(datum.value + b"1")
    yield Message(datum.value + b"2")


async def later(datum: Datum) -> Message:
    await asyncio.sleep(0)
    return Message(datum.value + b"1")


async def stream(datum: Datum):
    yield Message(datum.value + b"1")
    await asyncio.sleep(0)
    yield Message(datum.value + b"2")


class Doubling:
    def __call__(self, datum: Datum) -> list[Message]:
        return list(two(datum))


class AsyncCall:
    async def __call__(self, datum: Datum) -> Message:
        return await later(datum)


class AsyncStream:
    async def __call__(self, datum: Datum):
        async for message in stream(datum):
            yield message


class Subclassed(Message):
    pass


ONE = [(0, 0, b"a1"), (1, 0, b"b1")]
BOTH = [(0, 0, b"a1"), (0, 1, b"a2"), (1, 0, b"b1"), (1, 1, b"b2")]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (lambda d: Message(d.value + b"1"), ONE),
        (lambda d: Subclassed(d.value + b"1"), ONE),
        (lambda d: [Message(d.value + b"1")], ONE),
        (lambda d: (Message(d.value + b"1"),), ONE),
        (lambda d: [Message.to_drop(), Message(d.value + b"1")], ONE),
        (two, BOTH),
        (lambda d: list(two(d)), BOTH),
        (Doubling, BOTH),
        (Doubling(), BOTH),
        (later, ONE),
        (AsyncCall, ONE),
        (stream, BOTH),
        (AsyncStream, BOTH),
        (lambda d: later(d), ONE),
        (lambda d: stream(d), BOTH),
    ],
    ids=[
        "message", "subclass", "list", "tuple", "drop next to a message", "generator", "long list",
        "class", "instance", "async", "async class", "async generator", "async generator class",
        "function that returns a coroutine", "function that returns an async generator",
    ],
)  # fmt: skip
def test_messages_are_forwarded_in_order(target, expected):
    verdict = map_verdict(target, "a", "b")
    assert forwarded(verdict) == expected
    assert verdict.outcomes == {}


@pytest.mark.parametrize(
    "target",
    [
        lambda d: None,
        lambda d: [],
        lambda d: iter(()),
        lambda d: Message.to_drop(),
        lambda d: [Message.to_drop(), Message.to_drop()],
    ],
    ids=["None", "empty list", "empty generator", "drop", "drops"],
)
def test_an_input_without_outputs_is_dropped(target):
    verdict = map_verdict(target)
    assert verdict.outcomes == {0: EMPTY}
    assert forwarded(verdict) == []


FIVE, NINE = NackOptions(delay=5), NackOptions(delay=9)


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize(
    ("messages", "delay"),
    [
        ([Message.to_nack()], 0),
        ([Message.to_nack(FIVE)], 5),
        ([Message(b"1"), Message.to_nack(FIVE), Message(b"2")], 5),
        ([Message.to_drop(), Message.to_nack(FIVE)], 5),
        ([Message.to_nack(), Message.to_nack(NINE), Message.to_nack(FIVE)], 9),
        ([Message.to_nack(FIVE), Message.to_nack(NINE)], 5),
        ([Message.to_nack(NackOptions()), Message.to_nack(NINE)], 0),
    ],
)
def test_a_nack_among_the_outputs_redelivers_the_whole_input(messages, delay):
    """And of several nacks the first that has options counts."""
    verdict = map_verdict(
        lambda d: iter(messages) if d.id == "b" else Message(d.value), "a", "b", "c"
    )
    assert verdict.outcomes == {1: Redeliver(delay, None, 0)}
    assert forwarded(verdict) == [(0, 0, b"a"), (2, 0, b"c")]


def deep(datum: Datum, depth: int = 30) -> Message:
    return nack(delay="7ms", reason="deep") if not depth else deep(datum, depth - 1)


async def deep_async(datum: Datum) -> Message:
    await asyncio.sleep(0)
    return deep(datum)


def deep_generator(datum: Datum):
    yield Message(b"partial")
    deep(datum)


def deep_in_finally(datum: Datum):
    try:
        raise ValueError
    finally:
        raise Nack(delay="7ms", reason="deep")


@pytest.mark.parametrize("target", [deep, deep_async, deep_generator, deep_in_finally])
def test_a_nack_raised_at_any_depth_redelivers_the_input(target):
    verdict = map_verdict(target)
    assert verdict.outcomes == {0: Redeliver(7, "deep", 0)}
    assert forwarded(verdict) == []


def broken_generator(datum: Datum):
    yield Message(b"partial")
    if datum.id == "b":
        raise KeyError("gone")


async def broken_stream(datum: Datum):
    for message in broken_generator(datum):
        yield message


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("target", [broken_generator, broken_stream])
def test_an_exception_after_some_messages_forwards_none_of_them(target):
    verdict = map_verdict(target, "a", "b", "c")
    assert verdict.outcomes == {1: Redeliver(1_000, "KeyError: 'gone'", 1)}
    assert [parent for parent, _, _ in forwarded(verdict)] == [0, 2]


def exits(datum: Datum):
    if datum.id == "b":
        sys.exit(3)
    return Message(datum.value)


async def exits_async(datum: Datum):
    return exits(datum)


@pytest.mark.parametrize("target", [exits, exits_async])
def test_sys_exit_fails_only_its_message(target):
    verdict = map_verdict(target, "a", "b", "c")
    assert verdict.outcomes == {1: Redeliver(1_000, "SystemExit: 3", 1)}
    assert [parent for parent, _, _ in forwarded(verdict)] == [0, 2]


async def waits_for_a_cancelled_task(datum: Datum):
    if datum.id == "b":
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
    return Message(datum.value)


def test_a_cancelled_task_of_user_code_fails_only_its_message():
    verdict = map_verdict(waits_for_a_cancelled_task, "a", "b", "c")
    assert verdict.outcomes == {1: Redeliver(1_000, "CancelledError:", 1)}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_exception_that_cannot_be_printed_fails_only_its_message():
    def target(datum: Datum):
        raise Unspeakable

    assert map_verdict(target).outcomes[0].reason == "Unspeakable: (its text cannot be shown)"


RETURN = "Return Message(value), a list of them, or None to drop the input."
NO_TEXTS = "ContractViolation: v: returned a Message whose"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (b"raw", f"ContractViolation: v: returned bytes where a Message belongs. {RETURN}"),
        (b"", f"ContractViolation: v: returned bytes where a Message belongs. {RETURN}"),
        ("", f"ContractViolation: v: returned str where a Message belongs. {RETURN}"),
        ({}, f"ContractViolation: v: returned dict where a Message belongs. {RETURN}"),
        (5, f"ContractViolation: v: returned int where a Message belongs. {RETURN}"),
        (False, f"ContractViolation: v: returned bool where a Message belongs. {RETURN}"),
        (Message, f"ContractViolation: v: returned type where a Message belongs. {RETURN}"),
        ([b"raw"], f"ContractViolation: v: returned bytes where a Message belongs. {RETURN}"),
        ([None], f"ContractViolation: v: returned NoneType where a Message belongs. {RETURN}"),
        (
            [Message(b"1"), "2"],
            f"ContractViolation: v: returned str where a Message belongs. {RETURN}",
        ),
        (
            Message("text"),
            f"{NO_TEXTS} value is str, not bytes. "
            "Encode it first, for example with json.dumps(...).encode().",
        ),
        (Message(b"", keys="abc"), f"{NO_TEXTS} keys are 'abc'. Give keys as a list of strings."),
        (Message(b"", keys=[1]), f"{NO_TEXTS} keys are [1]. Give keys as a list of strings."),
        (Message(b"", keys=5), f"{NO_TEXTS} keys are 5. Give keys as a list of strings."),
        (Message(b"", tags="abc"), f"{NO_TEXTS} tags are 'abc'. Give tags as a list of strings."),
        (Message(b"", tags=[b"a"]), f"{NO_TEXTS} tags are [b'a']. Give tags as a list of strings."),
        (
            Message(b"", event_time=5),
            "ContractViolation: v: returned an event_time of type int. "
            "Give a datetime with a time zone.",
        ),
        *(
            (
                Message(b"", metadata=metadata),
                f"{NO_TEXTS} metadata is {metadata!r}. Give {{group: {{key: bytes}}}}.",
            )
            for metadata in (5, {"g": None}, {"g": {"k": None}}, {"g": {"k": "text"}}, {1: {}})
        ),
        (
            Message(b"", signal="nack"),
            f"{NO_TEXTS} signal is 'nack'. "
            "Make it with Message.to_drop(), .to_nack() or .to_fail().",
        ),
        (
            Message(b"", signal=Signal.NACK, nack_options={"delay": 5}),
            "ContractViolation: v: nacked with options of type dict. "
            "Give NackOptions(delay=..., max_deliveries=..., reason=...).",
        ),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_invalid_result_fails_its_input_and_the_error_says_what_to_do(result, error):
    verdict = map_verdict(lambda d: result if d.id == "b" else Message(d.value), "a", "b", "c")
    assert verdict.outcomes == {1: Redeliver(1_000, error, 1)}
    assert [parent for parent, _, _ in forwarded(verdict)] == [0, 2]


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", keys=(k for k in "ab")),
        Message(b"", tags=iter(["a"])),
    ],
    ids=["keys", "tags"],
)
def test_keys_and_tags_given_as_iterators_are_rejected_not_emptied(message):
    assert "as a list of strings" in map_verdict(lambda d: message).outcomes[0].reason


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", keys=["\ud800"]),
        Message(b"", tags=["\ud800"]),
        Message(b"", metadata={"\ud800": {}}),
        Message(b"", event_time=datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))),
        Message(b"", event_time=datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))),
    ],
    ids=["keys", "tags", "metadata", "too early", "too late"],
)
def test_an_output_that_no_frame_can_hold_fails_only_its_input(message):
    verdict = map_verdict(lambda d: message if d.id == "b" else Message(d.value), "a", "b", "c")
    assert verdict.outcomes.keys() == {1}


@pytest.mark.parametrize("tags", [None, (), []], ids=repr)
def test_tags_may_be_none_or_empty(tags):
    assert map_verdict(lambda d: Message(b"", tags=tags)).outputs.tags == [()]


def test_lists_of_user_code_are_copied_so_that_it_may_reuse_them():
    keys, tags, metadata = ["k"], ["t"], {"g": {"k": b""}}

    def target(datum: Datum) -> Message:
        keys[0], tags[0] = "k" + datum.id, "t" + datum.id
        metadata["g"]["k"] = datum.value
        return Message(b"", keys=keys, tags=tags, metadata=metadata)

    outputs = map_verdict(target, "a", "b").outputs
    assert outputs.metadata == [
        {"g": {"k": b"a"}},
        {"g": {"k": b"b"}},
    ]
    assert outputs.keys == [["ka"], ["kb"]]
    assert outputs.tags == [("ta",), ("tb",)]


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize(
    "message",
    [
        Message(b"x" * 101),
        Message(b"x" * 99, keys=["kk"]),
        Message(b"x" * 50, metadata={"g" * 20: {"k" * 20: b"x" * 11}}),
    ],
    ids=["value", "keys", "metadata"],
)
def test_an_output_that_is_too_large_dead_letters_its_input_at_once(message):
    outcome = map_verdict(lambda d: [Message(b"small"), message], largest=100)
    assert isinstance(outcome.outcomes[0], DeadLetter)
    assert outcome.outcomes[0].reason == "message too large"
    assert forwarded(outcome) == []


def test_an_output_of_exactly_the_size_limit_is_forwarded():
    assert forwarded(map_verdict(lambda d: Message(b"x" * 100), largest=100)) == [
        (0, 0, b"x" * 100)
    ]


def test_forwarding_the_inputs_rejects_only_those_that_are_too_large():
    rows = some("a", "bbb", "cc")
    verdict = verdict_on(rows, largest=2)
    verdict.forward_inputs()
    assert verdict.outputs is None
    assert [(i, o.reason) for i, o in verdict.outcomes.items()] == [(1, "message too large")]
    empty = verdict_on(Rows(rows.batch.slice(0, 0)))
    empty.forward_inputs()
    assert empty.outcomes == {}


class Resource:
    """Records the calls to its methods."""

    calls: list[str]

    def __init__(self) -> None:
        self.calls = ["made"]

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def __call__(self, datum: Datum) -> Message:
        self.calls.append(datum.id)
        return Message(datum.value)


class AsyncResource(Resource):
    async def open(self) -> None:
        await asyncio.sleep(0)
        self.calls.append("open")
        self.loop = asyncio.get_running_loop()

    async def close(self) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.calls.append("close")

    async def __call__(self, datum: Datum) -> Message:
        assert asyncio.get_running_loop() is self.loop
        return super().__call__(datum)


class AsyncHooksOnly(AsyncResource):
    def __call__(self, datum: Datum) -> Message:
        return Resource.__call__(self, datum)


@pytest.mark.parametrize("target", [Resource, AsyncResource, AsyncHooksOnly])
def test_a_class_is_created_and_opened_once_and_closed_at_the_end(target):
    handler = Handler(target)
    for ids in (("a", "b"), ("c",)):
        call_map(handler, verdict_on(some(*ids)), concurrency=1)
    handler.close()
    assert handler.call.calls == ["made", "open", "a", "b", "c", "close"]


def test_async_maps_run_as_many_calls_at_a_time_as_allowed_and_keep_the_order():
    running, most = 0, 0

    async def target(datum: Datum) -> Message:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - int(datum.id)):
            await asyncio.sleep(0)
        running -= 1
        return Message(datum.value)

    verdict = map_verdict(target, *map(str, range(12)), concurrency=3)
    assert most == 3
    assert verdict.outputs.values == [str(i).encode() for i in range(12)]


def test_the_helpers_set_event_time_signal_and_options():
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert Message.to_drop(when).event_time == when
    message = Message.to_nack(FIVE, when)
    assert (message.signal, message.nack_options, message.event_time) == (Signal.NACK, FIVE, when)


messages = st.builds(
    Message,
    st.binary(max_size=8),
    keys=st.none() | st.lists(st.sampled_from("xy"), max_size=2),
    tags=st.lists(st.sampled_from("tu"), max_size=2),
    event_time=st.none() | st.just(datetime(2026, 1, 1, tzinfo=UTC)),
) | st.builds(Message.to_nack, st.none() | st.just(NackOptions(delay=5, reason="later")))


@given(st.lists(messages, min_size=1, max_size=5))
def test_a_single_message_is_equivalent_to_a_list_with_that_message(given_messages):
    ids = [str(number) for number in range(len(given_messages))]
    rest_alone = iter(given_messages)
    alone = map_verdict(lambda datum: next(rest_alone), *ids)
    rest_listed = iter(given_messages)
    listed = map_verdict(lambda datum: [next(rest_listed)], *ids)

    assert alone.outcomes == listed.outcomes
    now = datetime(2026, 2, 1, tzinfo=UTC)
    rows = [v.outputs.batch(v.rows, "v", now).to_pylist() for v in (alone, listed)]
    assert rows[0] == rows[1]
    assert alone.outputs.tags == listed.outputs.tags
