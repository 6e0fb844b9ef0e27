"""Steps that work on values: what cannot be decoded or encoded fails its message alone."""

from typing import Any

import pytest
from pydantic import BaseModel

from ebbflow import Message, Pipeline
from ebbflow.connectors import Generator, Log
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Done
from ebbflow.spec.echo import outline
from ebbflow.testing import run_map, run_sink
from ebbflow.usercode.codecs import coded_map, coded_sink

NEVER = Backoff("0s", steps=0)


class Order(BaseModel):
    id: int


def doubled(order: Order) -> Order:
    return Order(id=order.id * 2)


async def doubled_later(order: Order) -> Order:
    return doubled(order)


class Doubling:
    def open(self) -> None:
        self.factor = 2

    def __call__(self, order: Order) -> Order:
        return Order(id=order.id * self.factor)


def many(order: Order) -> Any:
    yield Order(id=order.id)
    yield Message(b"own", tags=["t"])


def values(results: Any) -> list[list[bytes]]:
    return [[message.value for message in result.messages] for result in results]


@pytest.mark.parametrize("code", [doubled, doubled_later, Doubling, lambda order: doubled(order)])
def test_a_map_of_models_never_sees_bytes(code: Any) -> None:
    step = coded_map(code, "unary", Order, "json")
    assert values(run_map(step, b'{"id": 4}', b'{"id": 5}')) == [[b'{"id":8}'], [b'{"id":10}']]


def test_values_can_be_decoded_and_encoded_in_every_supported_way() -> None:
    assert values(run_map(coded_map(len, "unary", "json", "json"), b"[1, 2]")) == [[b"2"]]
    assert values(run_map(coded_map(str.upper, "unary", "text", "text"), b"abc")) == [[b"ABC"]]
    twice = coded_map(lambda n: n * 2, "unary", int, lambda n: b"%d" % n)
    assert values(run_map(twice, b"21")) == [[b"42"]]
    only_read = coded_map(lambda text: Message(text.encode()), "unary", "text", None)
    assert values(run_map(only_read, b"abc")) == [[b"abc"]]
    only_written = coded_map(lambda datum: datum.deliveries, "unary", None, "json")
    assert values(run_map(only_written, b"abc")) == [[b"1"]]
    assert values(run_map(coded_map(many, "unary", Order, "json"), b'{"id": 4}')) == [
        [b'{"id":4}', b"own"]
    ]


def test_a_value_that_cannot_be_decoded_or_encoded_fails_only_its_message() -> None:
    step = coded_map(doubled, "unary", Order, "json")
    bad, good = run_map(step, b"{", b'{"id": 4}', on_error=NEVER)
    assert isinstance(bad.outcome, DeadLetter)
    assert bad.outcome.reason == "ValidationError"
    assert values([good]) == [[b'{"id":8}']]
    (unwritable,) = run_map(
        coded_map(lambda text: {1, 2}, "unary", "text", "json"), b"x", on_error=NEVER
    )
    assert isinstance(unwritable.outcome, DeadLetter)


def test_a_sink_of_values_has_written_all_of_them_when_it_returns_nothing() -> None:
    table: list[Order] = []

    async def extend_later(orders: list[Order]) -> None:
        table.extend(orders)

    for code in (table.extend, extend_later):
        bad, good = run_sink(coded_sink(code, "batch", Order), b"{", b'{"id": 4}')
        assert isinstance(bad.outcome, DeadLetter)
        assert "ValidationError" in (bad.outcome.error or "")
        assert isinstance(good.outcome, Done)
    assert table == [Order(id=4), Order(id=4)]


def test_messages_of_a_sink_of_values_that_returns_a_result_fail() -> None:
    results = run_sink(coded_sink(lambda values: [True], "batch", "text"), b"a", on_error=NEVER)
    assert [type(result.outcome) for result in results] == [DeadLetter]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda p: p.map("m", doubled, decode=5), 'decode is "json", "text", a pydantic model'),
        (lambda p: p.map("m", doubled, encode="yaml"), 'encode is "json", "text" or a function'),
        (lambda p: p.map("m", doubled, decode=Order, mode="batch"), "are for Python functions"),
        (lambda p: p.map("m", "steps:doubled", decode=Order), "are for Python functions"),
        (lambda p: p.sink("out", Log(), decode=Order), "are for Python functions"),
    ],
)
def test_an_invalid_codec_is_rejected_by_the_call(build: Any, expected: str) -> None:
    with pytest.raises(TypeError, match=expected):
        build(Pipeline("orders").source("in", Generator()))


def test_a_pipeline_of_values_has_a_spec_and_an_outline() -> None:
    pipeline = Pipeline("orders").source("in", Generator(messages=1))
    pipeline = pipeline.map("double", doubled, decode=Order, encode="json")
    spec = pipeline.sink("out", list, decode="json").spec
    assert [each.detail for each in outline(spec).vertices] == ["generator", "doubled", "list"]
