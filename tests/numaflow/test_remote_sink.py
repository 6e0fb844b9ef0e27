"""A sink in a process of its own decides about its messages as one in this process does."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from ebbflow.domain.errors import Unavailable
from ebbflow.domain.message import Message, NackOptions, Status
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.verdict import Verdict
from ebbflow.numaflow.grpc import GrpcStream
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.remote import RemoteSink
from ebbflow.numaflow.server_info import ContainerType
from ebbflow.usercode.call_watch import RUNNING
from ebbflow.usercode.calling import Handler, call_with_retries, run_columnar_sink
from tests.engine.sample_rows import NOW, some, verdict_on

pytestmark = pytest.mark.slow

SERVERS = Path(__file__).parent / "servers"


def plan(name: str, container: ContainerType = "udsink", *arguments: str) -> FunctionPlan:
    """The plan of one of the functions next to this file; short errors name it by its image."""
    command = (sys.executable, str(SERVERS / f"{name}.py"), *arguments)
    return FunctionPlan(container, image=name, command=command)


_NUMBERS = count()


@pytest.fixture(scope="module")
def pynumaflow() -> Iterator[Handler]:
    handler = Handler(partial(RemoteSink, plan("pynumaflow_sink")))
    yield handler
    handler.close()


@pytest.fixture(scope="module")
def odd() -> Iterator[Handler]:
    handler = Handler(partial(RemoteSink, plan("odd_sink")))
    yield handler
    handler.close()


def sink_verdict(
    handler: Handler, *values: str, ids: list[str] | None = None, **columns: object
) -> Verdict:
    """The verdict of a sink on messages with these values."""
    # Other messages each time: the handler remembers which of them have failed.
    names = ids or [f"m{next(_NUMBERS)}" for _ in values]
    texts = [value.encode() for value in values]
    rows = some(*names, value=texts, event_time=NOW)
    verdict = verdict_on(rows, allowed=frozenset(Status))
    decide(handler, verdict)
    return verdict


def decide(handler: Handler, verdict: Verdict) -> None:
    call = partial(run_columnar_sink, handler, batch_size=1_000, pandas=False)
    call_with_retries(verdict, call, None, lambda _: None, "sink")


def test_a_pynumaflow_sink_answers_each_message(pynumaflow: Handler) -> None:
    verdict = sink_verdict(
        pynumaflow,
        *("ok", "fail no such account", "fallback", "success", "success-as better"),
        *("success-plain just a value", "ok"),
    )
    assert verdict.outcomes == {1: DeadLetter("sink failure", error="no such account")}
    assert list(verdict.decisions.take_fallback()) == [2]
    better = Message(b"better", ["k"], metadata={"group": {"key": b"new"}})
    plain = Message(b"just a value", [], metadata={})
    assert verdict.decisions.take_on_success() == {3: None, 4: better, 5: plain}


def test_a_pynumaflow_sink_receives_every_field_of_a_message(pynumaflow: Handler) -> None:
    watermark = datetime(2026, 8, 1, tzinfo=UTC)
    rows = some(
        *("x/1", "x/2"),
        value=[b"describe", b"ok"],
        keys=[["a", "b"], None],
        headers=[[("h", "1")], None],
        event_time=NOW,
        metadata=[[("group", [("key", b"old")])], None],
        retries=[3, 0],
        deliveries=[2, 1],
    )
    rows.watermark = watermark
    verdict = verdict_on(rows)
    decide(pynumaflow, verdict)
    assert json.loads(verdict.outcomes[0].error) == {  # type: ignore[union-attr,arg-type]
        "id": "x/1",
        "keys": ["a", "b"],
        "headers": {"h": "1"},
        "event_time": NOW.timestamp(),
        "watermark": watermark.timestamp(),
        "user": "old",
        "retry_count": "3",
        "deliveries": "2",
    }


def test_many_batches_are_sent_over_one_stream(pynumaflow: Handler) -> None:
    for size in (1, 500, 33, 5_000):
        assert sink_verdict(pynumaflow, *["ok"] * size).outcomes == {}


@pytest.mark.parametrize("value", ["raise bad data", "exit"])
def test_only_the_message_on_which_a_function_breaks_is_penalised(
    pynumaflow: Handler, value: str
) -> None:
    verdict = sink_verdict(pynumaflow, "ok", "ok", value, "fail later", "ok")
    broken = verdict.outcomes.pop(2)
    assert isinstance(broken, Redeliver)
    assert (broken.failures, broken.delay) == (1, 1_000)
    expected = "bad data" if value.startswith("raise") else "it ended with code 3"
    assert expected in str(broken.reason)
    assert verdict.outcomes == {3: DeadLetter("sink failure", error="later")}
    assert sink_verdict(pynumaflow, "ok", "ok").outcomes == {}


def test_answers_sent_in_pieces_are_combined(odd: Handler) -> None:
    verdict = sink_verdict(
        odd, "ok", "nack 5000 3 busy", "nack-plain", "serve hello", "serve-itself", "ok"
    )
    assert verdict.outcomes == {
        1: Redeliver(5_000, "busy", 0, NackOptions(5_000, 3, "busy")),
        2: Redeliver(0, None, 0),
    }
    assert verdict.decisions.take_served() == {3: b"hello", 4: b"serve-itself"}


def violation_of(verdict: Verdict, row: int) -> str:
    outcome = verdict.outcomes[row]
    assert isinstance(outcome, Redeliver)
    assert outcome.failures == 1
    return str(outcome.reason)


def test_messages_without_exactly_one_answer_violate_the_contract(odd: Handler) -> None:
    values = ("ok", "skip", "twice", "stranger", "nack-plain")
    verdict = sink_verdict(odd, *values, ids=["c0", "c1", "c2", "c3", "c4"])
    assert verdict.outcomes.keys() == {1, 2, 3, 4}
    assert verdict.outcomes[4] == Redeliver(0, None, 0)
    said = {violation_of(verdict, row) for row in (1, 2, 3)}
    assert said == {
        "ContractViolation: odd_sink: answered 5 responses to 5 messages: no response for 2; "
        "several responses for 1; responses for unknown ids for 1 (ids: c1, c2, c3, nobody). "
        "A sink answers each message of a batch once, with its id, and then marks the end."
    }


def test_an_unknown_status_violates_the_contract(odd: Handler) -> None:
    verdict = sink_verdict(odd, "status 17", "ok")
    assert verdict.outcomes.keys() == {0}
    assert "answered with the unknown status 17" in violation_of(verdict, 0)


def test_an_answer_after_the_end_mark_counts_for_no_message(odd: Handler) -> None:
    assert sink_verdict(odd, "ok").outcomes == {}
    stream = stream_of(odd)
    assert sink_verdict(odd, "late").outcomes == {}
    if stream_of(odd) is stream:  # else it arrived together with the mark and was seen at once
        stream._connection.wait(stream._has_news, 10)
    for attempt in range(3):
        assert sink_verdict(odd, "skip", ids=["m0"]).outcomes.keys() == {0}, f"attempt {attempt}"


def stream_of(handler: Handler) -> GrpcStream:
    (stream,) = handler.instance._session.streams.values()
    return stream


def test_copies_of_a_message_are_sent_one_after_the_other(odd: Handler) -> None:
    verdict = sink_verdict(odd, "nack-plain", "ok", "nack-plain", "twice", ids=["a", "b", "a", "b"])
    assert verdict.outcomes.keys() == {0, 2, 3}
    assert "several responses for 1" in violation_of(verdict, 3)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("break bad data", "bad data"),
        ("end", "StreamBroken: "),
        ("exit", "it ended with code 3"),
    ],
)
def test_a_message_that_breaks_the_stream_fails_however_it_breaks(
    odd: Handler, value: str, reason: str
) -> None:
    verdict = sink_verdict(odd, "ok", value, "nack-plain", "ok")
    assert verdict.outcomes.keys() == {1, 2}
    assert reason in violation_of(verdict, 1)
    assert verdict.outcomes[2] == Redeliver(0, None, 0)


def test_no_message_is_penalised_if_all_of_them_pass_alone(odd: Handler) -> None:
    assert sink_verdict(odd, "ok", "break-in-company", "ok").outcomes == {}


def test_a_system_that_is_unavailable_to_the_function_penalises_no_message(odd: Handler) -> None:
    verdict = sink_verdict(odd, "ok", "away the bank")
    (unavailable,) = verdict.outcomes.values()
    assert isinstance(unavailable, Retry)
    assert unavailable.failures == 0
    assert "the bank" in unavailable.error
    odd.renew()


def test_a_function_that_never_answers_is_ended_after_the_timeout(
    odd: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUNNING, "limit", 0.5)
    verdict = sink_verdict(odd, "ok", "hang", "nack-plain")
    assert verdict.outcomes.keys() == {1, 2}
    assert violation_of(verdict, 1).startswith("CallTimeout: ")
    monkeypatch.setattr(RUNNING, "limit", None)
    assert sink_verdict(odd, "ok").outcomes == {}


def test_a_function_that_breaks_on_every_message_is_soon_left_alone(odd: Handler) -> None:
    verdict = sink_verdict(odd, *["exit"] * 15)
    tried = [row for row, outcome in verdict.outcomes.items() if isinstance(outcome, Redeliver)]
    left = [row for row, outcome in verdict.outcomes.items() if isinstance(outcome, Retry)]
    assert sorted(tried + left) == list(range(15))
    assert len(tried) <= 10
    odd.renew()
    assert sink_verdict(odd, "ok").outcomes == {}


@pytest.mark.parametrize(
    ("container", "kind"), [("fb-udsink", "fb-sink"), ("ons-udsink", "ons-sink")]
)
def test_sinks_next_to_the_primary_listen_on_their_own_sockets(
    container: ContainerType, kind: str
) -> None:
    handler = Handler(partial(RemoteSink, plan("odd_sink", container, kind)))
    assert sink_verdict(handler, "ok").outcomes == {}
    handler.close()


def test_a_function_that_does_not_start_is_unavailable() -> None:
    missing = FunctionPlan("udsink", command=(sys.executable, "-c", "print('no'); exit(4)"))
    with pytest.raises(Unavailable, match="it ended with code 4"):
        Handler(partial(RemoteSink, missing))
