"""Sinks that are written for pynumaflow, called as a vertex calls them."""

from collections.abc import AsyncIterable, Iterator
from types import SimpleNamespace

import pytest
from pynumaflow import sinker
from pynumaflow.sinker import Responses

from ebbflow import Datum, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DONE, DeadLetter, FellBack, Redeliver, Served, Succeeded
from ebbflow.testing import run_sink
from tests.numaflow.pynumaflow import functions

ONCE = Backoff("1ms", steps=0)


@pytest.mark.parametrize(
    "code",
    [functions.answer, functions.answer_later, functions.Answering, functions.sink_server],
    ids=["function", "async function", "class", "server"],
)
def test_a_handler_with_datums_is_a_sink(code):
    first, second = run_sink(code, b"a", b"b")
    assert (first.outcome, second.outcome) == (DONE, DONE)


def test_each_response_decides_the_outcome_of_its_message():
    handed_on = []

    def on_success(data):
        handed_on.extend((datum.value, datum.keys) for datum in data)
        return functions_ok(data)

    ok, failed, fell_back, original, other = run_sink(
        functions.answer,
        b"ok",
        b"failure disk full",
        b"fallback",
        Datum(b"on_success", keys=["k"]),
        b"on_success done",
        fallback=functions.Answering,
        on_success=on_success,
    )
    assert ok.outcome == DONE
    assert isinstance(failed.outcome, DeadLetter)
    assert failed.outcome.error == "disk full"
    assert isinstance(fell_back.outcome, Redeliver)
    assert "its fallback sink answered FALLBACK" in fell_back.outcome.reason
    assert original.outcome == other.outcome == Succeeded()
    assert handed_on == [(b"on_success", ("k",)), (b"done", ("on",))]


def functions_ok(data):
    """A sink for Ebbflow, next to one for pynumaflow."""
    return [Response.ok(datum.id) for datum in data]


def test_a_fallback_sink_may_be_written_for_ebbflow():
    (result,) = run_sink(functions.answer, b"fallback", fallback=functions_ok)
    assert isinstance(result.outcome, FellBack)


def test_a_message_without_a_response_violates_the_contract_alone():
    forgotten, ok = run_sink(functions.answer, b"forget", b"ok", on_error=ONCE)
    assert isinstance(forgotten.outcome, DeadLetter)
    assert "no response for 1" in forgotten.outcome.error
    assert ok.outcome == DONE


def test_a_failure_without_a_text_is_still_a_failure():
    (result,) = run_sink(functions.answer, b"failure ")
    assert isinstance(result.outcome, DeadLetter)
    assert result.outcome.error == "failed"


def test_a_sink_sees_how_often_a_message_was_retried():
    (result,) = run_sink(functions.count_retries, b"a", retry=Backoff("1ms", steps=3))
    assert result.outcome == DONE


def test_datums_can_be_iterated_over_only_once():
    seen = []

    def twice(datums: Iterator[Datum]) -> Responses:
        first = next(datums)
        seen.extend([first.value, *(datum.value for datum in datums), *datums])
        return functions.answer(iter([first]))

    run_sink(twice, b"a", b"b")
    assert seen == [b"a", b"b"]


def test_async_code_can_take_datums_one_by_one():
    async def sink(datums: AsyncIterable[Datum]) -> Responses:
        first = await anext(datums)
        rest = [datum async for datum in datums]
        return functions.answer(iter([first, *rest]))

    assert [result.outcome for result in run_sink(sink, b"a", b"b")] == [DONE, DONE]


def test_a_result_that_is_not_responses_is_named_in_the_error():
    def lazy(datums: Iterator[sinker.Datum]) -> None:
        return None

    (result,) = run_sink(lazy, b"a", on_error=ONCE)
    assert isinstance(result.outcome, DeadLetter)
    assert "returned NoneType where a list of responses belongs" in result.outcome.error


class Newer(sinker.Response):
    """A response of a release that has more of them."""

    def __init__(self, id: str, **facts: object) -> None:
        super().__init__(id, False, "not written", False, False, None)
        self.facts = facts

    def __getattr__(self, name: str) -> object:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({"nack": True}, Redeliver),
        ({"nack_options": SimpleNamespace(delay=5, reason="later")}, Redeliver),
        ({"serve": True, "serve_response": b"yes"}, Served),
        ({"nack": print, "serve": print}, DeadLetter),
        ({}, DeadLetter),
    ],
    ids=["nack", "nack with options", "serve", "methods of these names", "failure"],
)
def test_responses_of_newer_releases_are_understood(facts, outcome):
    def sink(datums: Iterator[sinker.Datum]) -> Responses:
        return Responses(*(Newer(datum.id, **facts) for datum in datums))

    (result,) = run_sink(sink, b"a", serves=True)
    assert isinstance(result.outcome, outcome)
