"""The transformers that stand in for images, called as a vertex calls them."""

from datetime import UTC, datetime, timedelta

from ebbflow import Datum
from ebbflow.domain.outcome import Dropped
from ebbflow.numaflow import image_functions
from ebbflow.spec.bindings import BUILT_IN
from ebbflow.testing import Result, run_map

LONG_AGO = datetime(2020, 5, 1, tzinfo=UTC)


def call(image: str, *data: Datum) -> list[Result]:
    """Returns the results of the code that the table has for an image."""
    entry = BUILT_IN[image]
    assert entry.place == "transformer"
    assert entry.mode is not None
    return run_map(getattr(image_functions, entry.target.partition(":")[2]), *data, mode=entry.mode)


def is_now(time: datetime | None) -> bool:
    """Returns whether the time is a moment ago."""
    return time is not None and datetime.now(UTC) - time < timedelta(minutes=1)


def test_the_event_time_becomes_the_current_time() -> None:
    for image in ("mapt-assign-event-time", "source-transformer-now"):
        (result,) = call(image, Datum(b"x", keys=["k"], event_time=LONG_AGO))
        (message,) = result.messages
        assert (message.value, message.keys) == (b"x", ["k"])
        assert is_now(message.event_time)


def test_event_times_are_filtered_and_moved() -> None:
    times = [
        datetime(2021, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(2022, 1, 1, tzinfo=UTC),
        datetime(2022, 12, 31, tzinfo=UTC),
        datetime(2023, 1, 1, tzinfo=UTC),
    ]
    metadata = {"mine": {"a": b"1"}}
    data = [Datum(b"x", keys=["k"], event_time=time, metadata=metadata) for time in times]
    results = call("mapt-event-time-filter", *data)
    assert isinstance(results[0].outcome, Dropped)
    messages = [message for result in results for message in result.messages]
    facts = [(m.event_time, m.tags, m.keys, m.metadata) for m in messages]
    within = (datetime(2022, 1, 1, tzinfo=UTC), ["within_year_2022"], [], {})
    after = (datetime(2023, 1, 1, tzinfo=UTC), ["after_year_2022"], [], {})
    assert facts == [within, within, after]


def test_good_greetings_pass_with_their_keys() -> None:
    good = b'{"id": 8, "msg": "hello", "desc": "all good"}'
    results = call("mapt-filter", Datum(good, keys=["k"]), Datum(b'{"id": 8}'))
    assert [[(m.value, m.keys) for m in result.messages] for result in results] == [
        [(good, ["k"])],
        [],
    ]


def test_the_current_time_is_also_in_the_metadata() -> None:
    (result,) = call("transformer-metadata", Datum(b"x", metadata={"mine": {"a": b"1"}}))
    (message,) = result.messages
    assert message.metadata is not None
    assert message.metadata["mine"] == {"a": b"1"}
    written = datetime.fromisoformat(message.metadata["event-time-group"]["event-time"].decode())
    assert is_now(written)
    assert is_now(message.event_time)


def test_words_in_the_payload_become_tags_of_a_bypass() -> None:
    (result,) = call("source-transformer-bypass", Datum(b"primary", event_time=LONG_AGO))
    assert result.messages[0].tags == ["sink"]
    assert is_now(result.messages[0].event_time)
