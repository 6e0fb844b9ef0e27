"""Maps on every SDK have the same results, and a broken call affects no other message.

All run as real programs with the rules of a pipeline, without Spark and NATS.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial

import pytest

from ebbflow import Datum, NackOptions
from ebbflow.domain.durations import Backoff
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.remote import RemoteMap
from ebbflow.testing import DeadLetter, Done, Dropped, Redeliver, run_map
from ebbflow.usercode.call_watch import RUNNING

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_000)]

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
OPTIONS = NackOptions(delay=1_500, max_deliveries=3, reason="busy")
ONCE = Backoff("0s", steps=0)
"""A message that fails is a dead letter at once."""

KINDS = [
    ("python", "map"),
    ("python", "async-map"),
    ("python", "batch-map"),
    ("python", "stream-map"),
    *((language, kind) for language in ("go", "rust", "java") for kind in
      ("map", "batch-map", "stream-map")),
]  # fmt: skip
SAY_OPTIONS = ("go", "rust")
"""Languages whose SDK sends options with a nack."""


@pytest.fixture
def call(function_in):
    """Calls a function with messages, as a vertex does."""

    def run(language, kind, *messages, **options):
        command = (*function_in(language), kind)
        container = "transformer" if kind.endswith("transformer") else "udf"
        code = partial(RemoteMap, FunctionPlan(container, command=command))
        return run_map(code, *messages, mode="columnar", **options)

    return run


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(RUNNING, "limit", 1.0)


def values(result):
    return [message.value.decode() for message in result.messages]


def everything():
    facts = {"keys": ["k"], "event_time": WHEN, "headers": {"h": "1"}}
    return (
        Datum(b"plain", **facts),
        *(b"drop", b"none", b"tags red,blue", b"keys a,b", b"flat a,b,c", b"fail no", b"nack"),
        *(b"nack delay=1500 max=3 reason=busy", b"panic oh dear"),
        Datum(b"describe", **facts, metadata={"g": {"k": b"v"}}),
        b"after",
    )


@pytest.mark.parametrize(("language", "kind"), KINDS)
def test_a_map_can_return_every_kind_of_result_over_the_wire(call, language, kind):
    results = call(language, kind, *everything(), on_error=ONCE)

    plain, drop, none, tags, keys, flat, fail, nack, options, panic, describe, after = results
    assert (plain.outcome, values(plain)) == (Done(), ["plain"])
    assert [(one.keys, one.event_time) for one in plain.messages] == [(["k"], WHEN)]
    assert isinstance(drop.outcome, Dropped)
    assert isinstance(none.outcome, Dropped)
    assert [message.tags for message in tags.messages] == [["red", "blue"]]
    assert [message.keys for message in keys.messages] == [["a", "b"]]
    assert (flat.outcome, values(flat)) == (Done(), ["a", "b", "c"])
    assert isinstance(fail.outcome, DeadLetter)
    assert isinstance(nack.outcome, Redeliver)
    assert nack.messages == []
    assert isinstance(options.outcome, Redeliver)
    assert options.outcome.options == (OPTIONS if language in SAY_OPTIONS else NackOptions())
    assert isinstance(panic.outcome, DeadLetter)
    # A stream map may end its stream and then close the connection before it sends the reason.
    reasons = ("oh dear", "accepts no more requests") if kind == "stream-map" else ("oh dear",)
    assert any(reason in (panic.outcome.error or "") for reason in reasons)
    assert (after.outcome, values(after)) == (Done(), ["after"])
    saw = json.loads(values(describe)[0])
    assert (saw["keys"], saw["headers"]) == (["k"], {"h": "1"})
    assert saw["event_time"] == WHEN.timestamp() * 1000


def test_a_transformer_on_the_java_sdk_returns_every_kind_of_result(call):
    """Transformers in the other languages are tested in whole pipelines."""
    time, plain, drop, tags, panic = call(
        "java",
        "transformer",
        *(Datum(b"time 1700000000000", event_time=WHEN), Datum(b"plain", event_time=WHEN)),
        *(b"drop", b"tags red", b"panic oh dear"),
        on_error=ONCE,
    )

    assert [one.event_time for one in time.messages] == [datetime.fromtimestamp(1.7e9, UTC)]
    assert [one.event_time for one in plain.messages] == [WHEN]
    assert isinstance(drop.outcome, Dropped)
    assert [one.tags for one in tags.messages] == [["red"]]
    assert isinstance(panic.outcome, DeadLetter)


@pytest.mark.parametrize(
    ("language", "stack"), [("python", "in trouble"), ("go", "main.trouble"), ("rust", "")]
)
def test_a_message_that_breaks_the_function_is_a_dead_letter_with_the_functions_own_stack(
    call, language, stack
):
    before, panic, after, exited = call(
        language, "map", b"before", b"panic oh dear", b"after", b"exit", on_error=ONCE
    )

    assert isinstance(panic.outcome, DeadLetter)
    assert "oh dear" in (panic.outcome.error or "")
    assert stack in (panic.outcome.traceback or "")
    assert isinstance(exited.outcome, DeadLetter)
    assert "it ended with code 3" in (exited.outcome.error or "")
    assert [values(one) for one in (before, after)] == [["before"], ["after"]]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["map", "batch-map"])
def test_a_message_that_is_never_answered_fails_alone_after_the_timeout(call, limit, kind):
    before, hang, after = call("go", kind, b"before", b"hang", b"after", on_error=ONCE)

    assert isinstance(hang.outcome, DeadLetter)
    assert (hang.outcome.error or "").startswith(
        "CallTimeout: the call did not return within callTimeout, 1 s"
    )
    assert [values(one) for one in (before, after)] == [["before"], ["after"]]


@pytest.mark.long
def test_a_batch_map_that_answers_for_another_id_violates_the_contract_for_one_message(call):
    before, wrong, after = call("go", "batch-map", b"before", b"wrong-id", b"after", on_error=ONCE)

    assert isinstance(wrong.outcome, DeadLetter)
    assert "ContractViolation" in (wrong.outcome.error or "")
    assert [values(one) for one in (before, after)] == [["before"], ["after"]]
