"""The maps that stand in for images, called as a vertex calls them."""

from __future__ import annotations

from typing import Any

import pytest

from ebbflow import Datum, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DONE, DeadLetter, Dropped, FellBack, Redeliver, Served, Succeeded
from ebbflow.domain.user_source import Source
from ebbflow.numaflow import image_functions
from ebbflow.numaflow.image_functions import CountingMetadataSource, CountingSource
from ebbflow.spec.bindings import BUILT_IN
from ebbflow.testing import Result, run_map, run_sink

KEYED = ("key",)
GROUPS = {"mine": {"a": b"1"}}


def call(image: str, *values: bytes) -> list[Result]:
    """Returns the results of the code that the table has for an image.

    Outputs lack whatever an image does not pass on by itself.
    """
    entry = BUILT_IN[image]
    code = getattr(image_functions, entry.target.partition(":")[2])
    assert entry.place == "udf"
    assert entry.mode is not None
    data = [Datum(value, keys=KEYED, metadata=GROUPS) for value in values]
    results = run_map(code, *data, mode=entry.mode)
    if image != "map-metadata":
        assert not any(message.metadata for result in results for message in result.messages)
    return results


def outputs(results: list[Result]) -> list[list[tuple[bytes, list[str], list[str]]]]:
    """Returns value, keys and tags of what was forwarded for each message."""
    return [
        [(m.value, list(m.keys or ()), list(m.tags)) for m in result.messages] for result in results
    ]


@pytest.mark.parametrize("image", ["map-cat", "map-forward-message", "batchmap-cat"])
def test_cat_forwards_values_and_keys(image: str) -> None:
    assert outputs(call(image, b"a", b"")) == [[(b"a", ["key"], [])], [(b"", ["key"], [])]]


def test_even_odd_gives_numbers_a_key_and_a_tag_and_drops_the_rest() -> None:
    results = call("map-even-odd", b"12", b"-7", b"seven", b"\xff", b"1 ", b"+0", b"3\n")
    assert outputs(results) == [
        [(b"12", ["even"], ["even-tag"])],
        [(b"-7", ["odd"], ["odd-tag"])],
        [],
        [],
        [],
        [(b"+0", ["even"], ["even-tag"])],
        [],
    ]
    assert [type(result.outcome) for result in results[2:5]] == [Dropped] * 3


def test_even_odd_of_one_sdk_has_keys_only_and_drops_nothing() -> None:
    results = call("numaflow-rs/map-even-odd", b"3", b"two", b"4")
    assert outputs(results) == [
        [(b"3", ["odd"], [])],
        [(b"two", ["even"], [])],
        [(b"4", ["even"], [])],
    ]


def test_even_odd_of_another_sdk_reads_bytes_as_a_number() -> None:
    results = call("numaflow-python/even-odd", b"\x01\x00", b"\x00\x01", b"")
    assert outputs(results) == [
        [(b"\x01\x00", ["odd"], ["odd-tag"])],
        [(b"\x00\x01", ["even"], ["even-tag"])],
        [(b"", ["even"], ["even-tag"])],
    ]


@pytest.mark.parametrize("image", ["map-flatmap", "map-flatmap-stream", "batch-map-flatmap"])
def test_flatmap_splits_at_commas_into_messages_without_keys(image: str) -> None:
    results = call(image, b"a,b,,c", b"alone", b"", b"\xff,\xfe")
    assert [[m.value for m in result.messages] for result in results] == [
        [b"a", b"b", b"", b"c"],
        [b"alone"],
        [b""],
        [b"\xff", b"\xfe"],
    ]
    assert {tuple(m.keys or ()) for result in results for m in result.messages} == {()}


def test_flatmap_of_one_sdk_keeps_the_keys() -> None:
    assert outputs(call("batchmap-flatmap", b"a,b")) == [[(b"a", ["key"], []), (b"b", ["key"], [])]]


def test_a_filter_forwards_small_ids() -> None:
    results = call("map-filter-id", b'{"id": 99}', b'{"id": "7"}', b'{"id": 100}')
    assert outputs(results) == [[(b'{"id": 99}', [], [])], [(b'{"id": "7"}', [], [])], []]


def test_a_filter_forwards_good_greetings() -> None:
    good = b'{"id": 80, "msg": "hello", "desc": "A good example"}'
    results = call(
        "map-filter",
        good,
        b'{"id": 180, "msg": "hello", "desc": "A good example"}',
        b'{"id": 80, "msg": "hello1", "desc": "A good example"}',
        b'{"id": 80, "msg": "hello", "desc": "A bad example"}',
        b'{"id": 80}',
    )
    assert outputs(results) == [[(good, [], [])], [], [], [], []]


def test_a_message_that_a_filter_cannot_parse_fails_alone() -> None:
    results = call("map-filter-id", b'{"id": 1}', b"no JSON", b"[1]", b'{"name": 1}')
    assert results[0].outcome == DONE
    assert [type(result.outcome) for result in results[1:]] == [Redeliver] * 3
    assert results[2].outcome == Redeliver(
        results[2].outcome.delay,  # type: ignore[union-attr]
        "ValueError: the payload is not a JSON object but a list",
        1,
    )


def test_retry_sends_a_value_around_the_loop_twice() -> None:
    results = call("map-retry", b"a", b"b", b"a", b"a", b"a")
    tags = [result.messages[0].tags for result in results]
    assert tags == [["retry"], ["retry"], ["retry"], [], ["retry"]]


def test_metadata_is_added_to_existing_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = call("map-metadata", b"x")
    assert result.messages[0].metadata == {**GROUPS, "map-group": {"map-key": b"map-value"}}
    assert capsys.readouterr().out == "Groups of metadata: ['mine']\n"


def test_words_in_the_payload_become_tags_of_a_bypass() -> None:
    results = call("map-bypass-cat", b"to Fallback", b"on-success, primary", b"else")
    assert [result.messages[0].tags for result in results] == [
        ["fallback"],
        ["onSuccess", "sink"],
        [],
    ]


def call_sink(image: str, *messages: bytes | Datum, **options: Any) -> list[Result]:
    """Returns the results of the code that the table has for an image."""
    entry = BUILT_IN[image]
    assert (entry.place, entry.mode) == ("udsink", "columnar")
    code = getattr(image_functions, entry.target.partition(":")[2])
    return run_sink(code, *messages, mode="columnar", **options)


def outcomes(results: list[Result]) -> list[Any]:
    """Returns the outcomes alone."""
    return [result.outcome for result in results]


class Secondary:
    """A sink next to the one in question, which keeps what it receives."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[list[str]] = []

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Accepts every message."""
        self.values += [datum.value for datum in data]
        self.keys += [datum.keys for datum in data]
        return [Response.ok(datum.id) for datum in data]


@pytest.mark.parametrize("variable", ["NUMAFLOW_VERTEX_NAME", "NUMAFLOW_MONO_VERTEX_NAME"])
def test_log_prints_payloads_with_the_name_of_the_vertex(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "out")
    assert outcomes(call_sink("sink-log", b"one", b"\xff\n")) == [DONE, DONE]
    assert capsys.readouterr().out == "(out) payload=one\n(out) payload=\\xff\\n\n"


def test_metadata_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call_sink("sink-metadata", Datum(b"x", metadata={"g": {"k": b"v"}}), b"y")
    assert capsys.readouterr().out == "metadata={'g': {'k': b'v'}}\nmetadata={}\n"


def test_all_messages_go_to_the_fallback_sink() -> None:
    secondary = Secondary()
    results = call_sink("fb-sink-log", b"a", b"b", fallback=lambda data: secondary(data))
    assert outcomes(results) == [FellBack(), FellBack()]
    assert secondary.values == [b"a", b"b"]


def test_all_messages_go_to_the_on_success_sink_with_a_value_of_its_own() -> None:
    secondary = Secondary()
    results = call_sink(
        "on-success-log", Datum(b"a", keys=["k"]), on_success=lambda data: secondary(data)
    )
    assert outcomes(results) == [Succeeded()]
    assert (secondary.values, secondary.keys) == ([b"on-success-message"], [()])


def test_messages_go_to_the_on_success_sink_or_the_fallback_sink_at_random() -> None:
    fell, succeeded = Secondary(), Secondary()
    values = [b"%d" % number for number in range(200)]
    results = call_sink(
        "all-sinks",
        *values,
        fallback=lambda data: fell(data),
        on_success=lambda data: succeeded(data),
    )
    assert {type(outcome) for outcome in outcomes(results)} == {FellBack, Succeeded}
    assert sorted(fell.values + succeeded.values) == sorted(values)


def test_payloads_are_served() -> None:
    (result,) = call_sink("sink-serve", b"answer", serves=True)
    assert (result.outcome, result.answers) == (Served(), [b"answer"])


def test_failures_are_retried_and_then_become_dead_letters() -> None:
    retry = Backoff("1ms", steps=2)
    (result,) = call_sink("sink-failure", b"x", retry=retry, on_failure="drop")
    assert isinstance(result.outcome, DeadLetter)
    assert "this sink fails for every message" in (result.outcome.error or "")


def test_a_panic_is_an_ordinary_exception() -> None:
    (result,) = call_sink("sink-panic", b"x")
    assert isinstance(result.outcome, Redeliver)
    assert "this sink takes no message" in (result.outcome.reason or "")


def test_numbers_arrive_once_all_before_them_are_acknowledged() -> None:
    source = CountingSource()
    first = source.read(3, 1.0)
    assert [message.value for message in first] == [b"0", b"1", b"2"]
    assert all(message.headers["x-txn-id"] for message in first)
    source.ack([message.offset for message in first[:2]])
    assert (source.read(3, 1.0), source.pending()) == ([], 1)
    source.ack([message.offset for message in first])
    assert [message.value for message in source.read(2, 1.0)] == [b"3", b"4"]


def test_a_source_that_replaces_another_has_offsets_of_its_own() -> None:
    offsets = [CountingSource().read(1, 1.0)[0].offset for _ in range(2)]
    assert len(set(offsets)) == 2


def test_nacked_messages_are_left_to_ebbflow() -> None:
    assert CountingSource.nack is Source.nack


def test_a_hundred_numbers_arrive_with_metadata_and_then_no_more() -> None:
    source = CountingMetadataSource()
    messages = source.read(80, 1.0)
    assert set(messages[0].metadata["simple-source"]) == {"txn-id"}
    source.ack([message.offset for message in messages])
    last = source.read(80, 1.0)
    assert [message.value for message in last] == [b"%d" % number for number in range(80, 100)]
    assert not source.exhausted
    source.ack([message.offset for message in last])
    assert (source.exhausted, source.read(80, 1.0)) == (True, [])
