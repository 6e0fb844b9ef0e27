"""Handlers in a test have the same outcomes as in a pipeline, without Spark or NATS."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbflow import Datum, Message, NackOptions, Response, nack
from ebbflow.domain.durations import Backoff
from ebbflow.testing import (
    DeadLetter,
    Done,
    Dropped,
    FellBack,
    Redeliver,
    Retry,
    Served,
    Succeeded,
    run_map,
    run_sink,
)
from tests.test_imports import loaded_by


def test_importing_the_testing_package_loads_neither_spark_nor_nats():
    assert not loaded_by("ebbflow.testing") & {"pyspark", "nats"}


def test_a_map_forwards_what_it_returns_with_inherited_keys_and_event_time():
    def split(datum):
        return [Message(part, tags=["t"]) for part in datum.value.split()]

    when = datetime(2026, 1, 1, tzinfo=UTC)
    (result,) = run_map(split, Datum(b"a b", keys=["k"], event_time=when))

    assert result.outcome == Done()
    assert [message.value for message in result.messages] == [b"a", b"b"]
    assert [message.keys for message in result.messages] == [["k"], ["k"]]
    assert result.messages[0].tags == ["t"]
    assert result.messages[0].event_time == when


def check(datum):
    if datum.value == b"early" and datum.deliveries == 1:
        nack(delay="2s", max_deliveries=3, reason="too early")
    if datum.value == b"never":
        nack(max_deliveries=1, reason="no")
    if datum.value == b"broken":
        raise ValueError("cannot read it")
    return Message(datum.value) if datum.value else None


def test_every_message_of_a_map_has_its_own_outcome():
    early, again, never, broken, empty = run_map(
        check,
        b"early",
        Datum(b"early", deliveries=2),
        Datum(b"never", deliveries=2),
        b"broken",
        b"",
    )

    assert early.outcome == Redeliver(2_000, "too early", 0)
    assert again.outcome == Done()
    assert isinstance(never.outcome, DeadLetter)
    assert broken.outcome == Redeliver(1_000, "ValueError: cannot read it", 1)
    assert empty.outcome == Dropped("empty result")
    assert [len(one.messages) for one in (early, again, never, broken, empty)] == [0, 1, 0, 0, 0]


def test_an_exception_is_a_dead_letter_at_once_when_the_policy_says_so():
    (result,) = run_map(check, b"broken", on_error=Backoff("0s", steps=0))

    assert isinstance(result.outcome, DeadLetter)
    assert result.outcome.error == "ValueError: cannot read it"
    assert "in check" in (result.outcome.traceback or "")


@pytest.mark.parametrize("mode", ["batch", "columnar", "pandas", "stream"])
def test_maps_of_every_mode_can_be_run(mode):
    def batch(data):
        return {datum.id: Message(datum.value * 2) for datum in data}

    def columnar(rows):
        values = [value * 2 for value in rows.column("value").to_pylist()]
        return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})

    def pandas(frame):
        return frame.assign(value=frame["value"] * 2)[["id", "value"]]

    def stream(datum):
        yield Message(datum.value * 2)

    code = {"batch": batch, "columnar": columnar, "pandas": pandas, "stream": stream}[mode]
    results = run_map(code, b"a", b"b", mode=mode)

    assert [result.messages[0].value for result in results] == [b"aa", b"bb"]


def test_a_class_is_opened_and_closed_and_async_code_is_awaited():
    seen = []

    class Counting:
        async def open(self):
            seen.append("open")

        async def __call__(self, datum):
            seen.append(datum.value)
            return Message(datum.value)

        def close(self):
            seen.append("close")

    run_map(Counting, b"1", b"2")

    assert seen == ["open", b"1", b"2", "close"]


def test_short_retries_run_without_waiting_and_end_as_in_a_pipeline():
    tries = []

    def fails(datum):
        tries.append(datum.system_metadata["sink"]["retry_count"])
        return Message.to_fail("not yet")

    (result,) = run_map(fails, b"x", retry=Backoff("100ms", steps=3), on_failure="drop")
    assert result.outcome == DeadLetter("retries exhausted", "not yet (after 3 retries)")
    assert tries == [b"0", b"1", b"2", b"3"]

    (result,) = run_map(fails, b"x", retry=Backoff("60s", steps=3))
    assert result.outcome == Retry(60_000, "not yet", 1, 0)


def answers(data):
    for datum in data:
        match datum.value:
            case b"failure":
                yield Response.failure(datum.id, "no room")
            case b"fallback":
                yield Response.fallback(datum.id)
            case b"serve":
                yield Response.serve(datum.id, b"answer")
            case b"success":
                yield Response.on_success(datum.id)
            case b"nack":
                yield Response.nack(datum.id, NackOptions("1s"))
            case b"silent":
                continue
            case _:
                yield Response.ok(datum.id)


def accept(data):
    return [Response.ok(datum.id) for datum in data]


def test_every_message_of_a_sink_has_its_own_outcome():
    values = [b"ok", b"failure", b"fallback", b"serve", b"success", b"nack", b"silent"]

    results = run_sink(answers, *values, fallback=accept, on_success=accept, serves=True)

    ok, failure, fallback, serve, success, nacked, silent = results
    assert ok.outcome == Done()
    assert failure.outcome == DeadLetter("sink failure", "no room")
    assert fallback.outcome == FellBack()
    assert (serve.outcome, serve.answers) == (Served(), [b"answer"])
    assert success.outcome == Succeeded()
    assert nacked.outcome == Redeliver(1_000, None, 0)
    assert isinstance(silent.outcome, Redeliver)
    assert "no response for 1" in (silent.outcome.reason or "")


def test_a_fallback_response_without_a_fallback_sink_breaks_the_contract():
    (result,) = run_sink(answers, b"fallback")

    assert isinstance(result.outcome, Redeliver)
    assert "ContractViolation" in (result.outcome.reason or "")


def test_a_traceback_shows_the_frames_of_user_code_and_its_libraries_only() -> None:
    def parse(datum: Datum) -> Message:
        try:
            return Message(json.loads(datum.value)["data"])
        except ValueError as error:
            raise RuntimeError("no order") from error

    (result,) = run_map(parse, b"{", on_error=Backoff("0s", steps=0))
    outcome = result.outcome
    assert isinstance(outcome, DeadLetter)
    assert outcome.traceback is not None
    files = re.findall(r'File "([^"]+)"', outcome.traceback)
    assert Path(files[0]) == Path(__file__) == Path(files[-1])
    assert any("/json/" in file for file in files)
    assert not [file for file in files if "/ebbflow/" in file.replace(str(Path(__file__)), "")]
    assert "JSONDecodeError" in outcome.traceback
    assert "RuntimeError: no order" in outcome.traceback


@pytest.mark.parametrize("value", ["text", {"a": 1}, [b"x"], Message(b"x")])
def test_a_value_that_is_not_a_message_is_an_error_at_the_call(value: Any) -> None:
    said = f"a message is bytes or a Datum, not {type(value).__name__}"
    for run in (run_map, run_sink):
        with pytest.raises(TypeError, match=said):
            run(check, value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (lambda datum: datum["amount"], "'Datum' object is not subscriptable"),
        (lambda datum: datum, "test: returned Datum where a Message belongs"),
    ],
)
def test_errors_about_a_datum_name_no_class_of_the_engine(code: Any, said: str) -> None:
    (result,) = run_map(code, b"x", on_error=Backoff("0s", steps=0))
    assert isinstance(result.outcome, DeadLetter)
    assert said in result.outcome.error


def test_an_unknown_attribute_of_a_datum_is_reported_with_the_nearest_one() -> None:
    (result,) = run_map(lambda datum: Message(datum.vaule), b"x", on_error=Backoff("0s", steps=0))
    assert isinstance(result.outcome, DeadLetter)
    text = "AttributeError: Datum has no attribute 'vaule'; did you mean 'value'?"
    assert result.outcome.error == text
