import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.generator import GeneratorInlet, GeneratorPlan
from ebbflow.engine.position import Mark

TIMES: dict[str, Callable[[], Any]] = {}
"""The clock of the generators in a test; that of the machine if there is none."""


class Clock:
    """A clock that only the test moves forward."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setitem(TIMES, "monotonic", clock.monotonic)
    monkeypatch.setitem(TIMES, "now", lambda: datetime.fromtimestamp(5e-6, UTC))
    return clock


def inlet(plan: GeneratorPlan, partition: int = 0, partitions: int = 1, start: int = 0):
    return GeneratorInlet(plan, "in", partition, partitions, Mark(start), **TIMES)


def column(batches: list[pa.RecordBatch], name: str) -> list:
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [json.loads(value)["value"] for value in column(batches, "value")]


def everything(one: GeneratorInlet, limit: int) -> list[pa.RecordBatch]:
    taken = []
    while not one.exhausted:
        assert one.ready_in() == 0.0
        taken += one.take(limit)
    return taken


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9))
def test_partitions_together_count_from_zero_without_gap_or_overlap(messages, partitions, limit):
    plan = GeneratorPlan(rate=None, messages=messages)
    parts = [
        everything(inlet(plan, partition, partitions), limit) for partition in range(partitions)
    ]
    assert sorted(n for part in parts for n in numbers(part)) == list(range(messages))
    ids = [i for part in parts for i in column(part, "id")]
    assert sorted(ids) == sorted(f"in-{n}" for n in range(messages))
    assert all(numbers(part) == sorted(numbers(part)) for part in parts)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 4), st.data())
def test_a_replay_produces_exactly_the_same_messages(start, length, partitions, data):
    plan = GeneratorPlan(rate=None, key_count=3)
    partition = data.draw(st.integers(0, partitions - 1))
    end = Mark(start + length)
    first, again = (inlet(plan, partition, partitions, start) for _ in range(2))
    one, two = first.take(length) if length else [], again.take_until(end)
    for name in ("id", "keys"):
        assert column(one, name) == column(two, name)
    assert len(column(two, "id")) == length
    assert first.mark == again.mark == end
    assert again.take_until(end) == []


def test_an_exhausted_generator_returns_nothing_and_asks_for_a_long_wait():
    one = inlet(GeneratorPlan(rate=None, messages=3))
    assert not one.exhausted
    assert numbers(one.take(100)) == [0, 1, 2]
    assert one.exhausted
    assert one.take(100) == []
    assert one.ready_in() >= 60


def test_partitions_without_a_message_are_exhausted_from_the_start():
    plan = GeneratorPlan(rate=None, messages=2)
    assert [inlet(plan, p, 4).exhausted for p in range(4)] == [False, False, True, True]


def test_a_generator_without_a_message_count_never_ends():
    one = inlet(GeneratorPlan(rate=None), start=10**9)
    assert not one.exhausted
    assert numbers(one.take(2)) == [10**9, 10**9 + 1]


def test_the_rate_limits_the_messages_available_at_any_time(clock):
    one = inlet(GeneratorPlan(rate=10.0))
    assert one.take(100) == []
    assert one.ready_in() == pytest.approx(0.1)
    clock.now += 0.35
    assert numbers(one.take(100)) == [0, 1, 2]
    assert one.take(100) == []
    assert one.ready_in() == pytest.approx(0.05)
    clock.now += 10
    assert len(numbers(one.take(4))) == 4
    assert one.ready_in() == 0.0
    assert len(numbers(one.take(1_000))) == 103 - 7


def test_the_rate_applies_to_each_partition(clock):
    parts = [inlet(GeneratorPlan(rate=10.0), p, 2) for p in range(2)]
    clock.now += 1
    assert [len(numbers(part.take(100))) for part in parts] == [10, 10]


def test_a_generator_resumed_from_a_mark_does_not_make_up_for_lost_time(clock):
    one = inlet(GeneratorPlan(rate=10.0), start=50)
    clock.now += 0.2
    assert numbers(one.take(100)) == [50, 51]


def test_a_replay_is_not_limited_by_the_rate(clock):
    one = inlet(GeneratorPlan(rate=1.0))
    assert numbers(one.take_until(Mark(20))) == list(range(20))
    assert one.take(5) == []


@pytest.mark.parametrize(
    ("plan", "value"),
    [
        (GeneratorPlan(None), b'{"id":"5000-1","value":1}'),
        (GeneratorPlan(None, size=8), b'{"id":"5000-1","value":1}'),
        (GeneratorPlan(None, value=7), b'{"id":"5000-1","value":7}'),
        (GeneratorPlan(None, size=11), b'{"id":"5000-1","value":1,"padding":[177,101,34]}'),
        (GeneratorPlan(None, blob=b"\x00blob"), b"\x00blob"),
    ],
)
def test_the_payload_follows_the_settings(clock, plan, value):
    assert column(inlet(plan, 1, 2).take(1), "value") == [value]


def test_the_ids_in_the_payloads_differ(clock):
    batches = inlet(GeneratorPlan(None)).take(3)
    ids = [json.loads(value)["id"] for value in column(batches, "value")]
    assert ids == ["5000-0", "5001-0", "5002-0"]


def test_event_times_are_late_by_whole_seconds_below_the_jitter():
    batches = inlet(GeneratorPlan(None, jitter=4)).take(200)
    late = [
        (seen - time).total_seconds()
        for time, seen in zip(
            column(batches, "event_time"), column(batches, "first_seen"), strict=True
        )
    ]
    assert set(late) == {0.0, 1.0, 2.0, 3.0}
    same = inlet(GeneratorPlan(None, jitter=1)).take(2)
    assert column(same, "event_time") == column(same, "first_seen")


def test_keys_repeat_in_a_cycle():
    batches = inlet(GeneratorPlan(None, key_count=2)).take(3)
    assert column(batches, "keys") == [["key-0"], ["key-1"], ["key-0"]]
    assert column(inlet(GeneratorPlan(None)).take(1), "keys") == [None]
