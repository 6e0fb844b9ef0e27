"""Maps and transformers that are written for pynumaflow, called as a vertex calls them."""

import ast
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

import pytest

from ebbflow import Datum, Message
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DONE, DeadLetter, Dropped, Redeliver
from ebbflow.testing import run_map
from tests.numaflow.pynumaflow import functions

NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)


def values(*results):
    """What was forwarded for each message."""
    return [[message.value for message in result.messages] for result in results]


@pytest.mark.parametrize("code", [functions.shout, functions.server], ids=["function", "server"])
def test_a_handler_with_keys_and_datum_is_a_map(code):
    assert values(*run_map(code, b"a", b"b")) == [[b"A"], [b"B"]]


def test_an_output_without_keys_has_none_whatever_keys_its_input_had():
    (result,) = run_map(functions.shout, Datum(b"a", keys=["k"], metadata={"g": {"k": b"v"}}))
    (message,) = result.messages
    assert (message.value, message.keys, message.metadata) == (b"A", [], {})
    (result,) = run_map(functions.shout, Datum(b"a", keys=["k"]))
    assert result.messages[0].keys == []
    (result,) = run_map(functions.pass_keys, Datum(b"a", keys=["k", "l"]))
    assert result.messages[0].keys == ["k", "l"]


def test_async_handlers_are_awaited():
    results = run_map(functions.shout_later, Datum(b"a", keys=["k"]), b"b")
    assert values(*results) == [[b"A"], [b"B"]]
    assert results[0].messages[0].keys == ["k"]
    later = partial(lambda keys, datum: functions.shout_later(keys, datum))
    assert values(*run_map(later, b"c")) == [[b"C"]]


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        (functions.Counting, [[b"1"], [b"2"]]),
        (functions.AsyncCounting, [[b"1"], [b"2"]]),
        (partial(functions.AsyncCounting, 5), [[b"6"], [b"7"]]),
    ],
    ids=["class", "async class", "class with arguments"],
)
def test_a_class_is_instantiated_once_for_all_messages(code, counted):
    assert values(*run_map(code, b"a", b"b")) == counted


def test_an_object_is_used_as_it_is():
    counting = functions.Counting()
    assert values(*run_map(counting, b"a")) == [[b"1"]]
    assert values(*run_map(counting, b"a")) == [[b"2"]]
    assert values(*run_map(functions.async_server, b"a")) == [[b"11"]]


def test_reserved_tags_decide_the_outcome_of_the_input():
    dropped, nacked, failed, tagged, flat = run_map(
        functions.obey, b"drop", b"nack", b"fail", b"tags a,b", b"flat x,y"
    )
    assert dropped.outcome == Dropped("empty result")
    assert isinstance(nacked.outcome, Redeliver)
    assert nacked.messages == []
    assert isinstance(failed.outcome, DeadLetter)
    assert failed.outcome.error == "failed"
    assert [message.tags for message in tagged.messages] == [["a", "b"]]
    assert [(m.value, m.keys) for m in flat.messages] == [(b"x", ["x"]), (b"y", ["y"])]


class Asked:
    """Options as newer releases of pynumaflow have them."""

    delay, max_deliveries, reason = 1_500, None, "not yet"
    nack_map: ClassVar[dict[str, str]] = {}


class Newer(functions.Message):
    """A message of a release that has nacks."""

    nack_options = Asked()

    @classmethod
    def to_nack(cls) -> "Newer":
        """Nacks with options."""
        return cls(b"", tags=[functions.NACK])


def test_nack_options_are_honoured_where_a_release_of_pynumaflow_has_them():
    (result,) = run_map(lambda keys, datum: functions.Messages(Newer.to_nack()), b"a")
    assert isinstance(result.outcome, Redeliver)
    assert (result.outcome.delay, result.outcome.reason) == (1_500, "not yet")


def test_a_failure_is_retried_by_the_strategy():
    (result,) = run_map(functions.obey, b"fail", retry=Backoff("1ms", steps=2), on_failure="drop")
    assert isinstance(result.outcome, DeadLetter)


def test_an_empty_result_drops_the_input():
    (result,) = run_map(functions.obey, b"empty")
    assert result.outcome == Dropped("empty result")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (b"raise oops", "ValueError: oops"),
        (b"bytes", "a pynumaflow handler returned bytes, not Messages"),
        (b"nothing", "a pynumaflow handler returned NoneType, not Messages"),
    ],
)
def test_an_error_counts_only_against_its_message(word, text):
    result, other = run_map(functions.obey, word, b"flat x", on_error=Backoff("1ms", steps=0))
    assert isinstance(result.outcome, DeadLetter)
    assert text in result.outcome.error
    assert values(other) == [[b"x"]]


def test_a_datum_has_the_fields_of_pynumaflow_with_times_in_naive_utc():
    datum = Datum(
        b"a",
        keys=["k"],
        event_time=NOON,
        watermark=NOON,
        headers={"h": "v"},
        metadata={"g": {"k": b"v"}},
    )
    (result,) = run_map(functions.describe, datum)
    text = result.messages[0].value.decode().replace("datetime.datetime(2026, 8, 1, 12, 0)", "0")
    assert ast.literal_eval(text) == {
        "keys": (["k"], ["k"]),
        "event_time": 0,
        "watermark": 0,
        "headers": {"h": "v"},
        "metadata": {"g": {"k": b"v"}},
        "system": [],
    }


def test_an_unknown_watermark_has_the_value_that_numaflow_gives_it():
    (result,) = run_map(functions.describe, b"a")
    assert b"datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)" in result.messages[0].value


def test_datums_are_of_pynumaflows_own_class():
    seen = []

    def look(keys, datum):
        seen.append(datum)
        return functions.shout(keys, datum)

    run_map(look, Datum(b"a", keys=["k"], event_time=NOON), Datum(b"a", keys=["k"]))
    assert isinstance(seen[0], functions.Datum)
    assert repr(seen[0]).startswith(
        "Datum(_keys=['k'], _value=b'a', _event_time=datetime.datetime(2026"
    )
    assert seen[0] == seen[0]
    assert seen[0] != seen[1]
    assert not hasattr(seen[0], "_nothing_of_this_name")


def test_a_handler_may_change_its_keys_and_metadata():
    def vandal(keys, datum):
        keys.append("more")
        datum.user_metadata.clear()
        return functions.Messages(functions.Message(repr(datum.keys).encode()))

    (result,) = run_map(vandal, Datum(b"a", keys=["k"], metadata={"g": {"k": b"v"}}))
    assert result.messages[0].value == b"['k']"


def test_metadata_is_passed_in_and_out():
    first, second = run_map(
        functions.change_metadata, Datum(b"a", metadata={"g": {"k": b"v"}}), b"b"
    )
    assert first.messages[0].metadata == {"g": {"k": b"v"}, "own": {"seen": b"yes"}}
    assert second.messages[0].metadata == {"own": {"seen": b"yes"}}


@pytest.mark.parametrize("code", [functions.batch, functions.Batching], ids=["function", "class"])
def test_batch_maps_are_called_in_batches_without_an_explicit_mode(code):
    data = [Datum(b"a,b", id="1", keys=["k"]), Datum(b"c", id="2")]
    assert values(*run_map(code, *data)) == [[b"a", b"b"], [b"c"]]


def test_a_batch_map_that_omits_a_message_violates_the_contract_for_it_alone():
    policy = Backoff("1ms", steps=0)
    first, second = run_map(functions.batch, b"forget", b"c", on_error=policy)
    assert isinstance(first.outcome, DeadLetter)
    assert "returned no result for 1" in first.outcome.error
    assert values(second) == [[b"c"]]


@pytest.mark.parametrize("code", [functions.split, functions.Splitting], ids=["function", "class"])
def test_stream_maps_are_streamed_without_an_explicit_mode(code):
    policy = Backoff("1ms", steps=0)
    good, bad = run_map(code, Datum(b"a,b", keys=["k"]), b"a,raise", on_error=policy)
    assert [(m.value, m.keys) for m in good.messages] == [(b"a", ["k"]), (b"b", ["k"])]
    assert isinstance(bad.outcome, DeadLetter)
    assert "ValueError: in the middle" in bad.outcome.error


@pytest.mark.parametrize("code", [functions.date_it, functions.Dating], ids=["function", "class"])
def test_transformers_set_event_times_and_compare_them_as_naive_times(code):
    old = Datum(b"old", event_time=datetime(2021, 1, 1, tzinfo=UTC))
    dropped, dated = run_map(code, old, Datum(b"new", keys=["k"], event_time=NOON))
    assert dropped.outcome == Dropped("empty result")
    assert dated.outcome == DONE
    assert dated.messages == [
        Message(b"new", ["k"], ["dated"], datetime(2022, 1, 1, tzinfo=UTC), metadata={})
    ]
