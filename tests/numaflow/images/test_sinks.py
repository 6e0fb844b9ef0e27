"""The sinks that stand in for images, called as a vertex calls them."""

from typing import Any

import pytest

from ebbflow import Datum, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DONE, DeadLetter, FellBack, Redeliver, Served, Succeeded
from ebbflow.numaflow.images import sinks
from ebbflow.numaflow.images.table import BUILT_IN
from ebbflow.testing import Result, run_sink


def call(image: str, *messages: bytes | Datum, **options: Any) -> list[Result]:
    """Returns the results of the code that the table has for an image."""
    entry = BUILT_IN[image]
    assert (entry.place, entry.mode) == ("udsink", "columnar")
    code = getattr(sinks, entry.target.partition(":")[2])
    return run_sink(code, *messages, mode="columnar", **options)


def outcomes(results: list[Result]) -> list[Any]:
    """Returns the outcomes alone."""
    return [result.outcome for result in results]


class Beside:
    """A sink beside the one in question, which keeps what it gets."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[list[str]] = []

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Takes all."""
        self.values += [datum.value for datum in data]
        self.keys += [datum.keys for datum in data]
        return [Response.ok(datum.id) for datum in data]


@pytest.mark.parametrize("variable", ["NUMAFLOW_VERTEX_NAME", "NUMAFLOW_MONO_VERTEX_NAME"])
def test_log_prints_payloads_with_the_name_of_the_vertex(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "out")
    assert outcomes(call("sink-log", b"one", b"\xff\n")) == [DONE, DONE]
    assert capsys.readouterr().out == "(out) payload=one\n(out) payload=\\xff\\n\n"


def test_metadata_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call("sink-metadata", Datum(b"x", metadata={"g": {"k": b"v"}}), b"y")
    assert capsys.readouterr().out == "metadata={'g': {'k': b'v'}}\nmetadata={}\n"


def test_all_go_to_the_fallback_sink() -> None:
    beside = Beside()
    results = call("fb-sink-log", b"a", b"b", fallback=lambda data: beside(data))
    assert outcomes(results) == [FellBack(), FellBack()]
    assert beside.values == [b"a", b"b"]


def test_all_go_to_the_on_success_sink_with_a_value_of_its_own() -> None:
    beside = Beside()
    results = call("on-success-log", Datum(b"a", keys=["k"]), on_success=lambda data: beside(data))
    assert outcomes(results) == [Succeeded()]
    assert (beside.values, beside.keys) == ([b"on-success-message"], [[]])


def test_chance_leads_to_the_on_success_sink_or_to_the_fallback_sink() -> None:
    fell, succeeded = Beside(), Beside()
    values = [b"%d" % number for number in range(200)]
    results = call(
        "all-sinks",
        *values,
        fallback=lambda data: fell(data),
        on_success=lambda data: succeeded(data),
    )
    assert {type(outcome) for outcome in outcomes(results)} == {FellBack, Succeeded}
    assert sorted(fell.values + succeeded.values) == sorted(values)


def test_payloads_are_served() -> None:
    (result,) = call("sink-serve", b"answer", serves=True)
    assert (result.outcome, result.answers) == (Served(), [b"answer"])


def test_failures_are_retried_and_then_dead() -> None:
    retry = Backoff(interval=1, steps=2)
    (result,) = call("sink-failure", b"x", retry=retry, on_failure="drop")
    assert isinstance(result.outcome, DeadLetter)
    assert "this sink fails for every message" in (result.outcome.error or "")


def test_a_panic_is_an_exception_and_nothing_else() -> None:
    (result,) = call("sink-panic", b"x")
    assert isinstance(result.outcome, Redeliver)
    assert "this sink takes no message" in (result.outcome.reason or "")
