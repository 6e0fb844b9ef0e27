"""The maps that stand in for images, called as a vertex calls them."""

import pytest

from ebbflow import Datum
from ebbflow.domain.outcome import DONE, Dropped, Redeliver
from ebbflow.numaflow.images import maps
from ebbflow.numaflow.images.table import BUILT_IN
from ebbflow.testing import Result, run_map

KEYED = ("key",)
GROUPS = {"mine": {"a": b"1"}}


def call(image: str, *values: bytes) -> list[Result]:
    """Returns the results of the code that the table has for an image.

    Whatever an image does not pass on by itself, its outputs do not have.
    """
    entry = BUILT_IN[image]
    code = getattr(maps, entry.target.partition(":")[2])
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


def test_even_odd_gives_numbers_key_and_tag_and_drops_the_rest() -> None:
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


def test_even_odd_of_another_sdk_takes_bytes_for_a_number() -> None:
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


def test_what_a_filter_cannot_read_fails_alone() -> None:
    results = call("map-filter-id", b'{"id": 1}', b"no JSON", b"[1]", b'{"name": 1}')
    assert results[0].outcome == DONE
    assert [type(result.outcome) for result in results[1:]] == [Redeliver] * 3
    assert results[2].outcome == Redeliver(
        results[2].outcome.delay,  # type: ignore[union-attr]
        "ValueError: the payload is no JSON object but a list",
        1,
    )


def test_retry_sends_a_value_round_twice() -> None:
    results = call("map-retry", b"a", b"b", b"a", b"a", b"a")
    tags = [result.messages[0].tags for result in results]
    assert tags == [["retry"], ["retry"], ["retry"], [], ["retry"]]


def test_metadata_is_added_to_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
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
