"""Equivalent code for pynumaflow and for Ebbflow has equal results, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pynumaflow import batchmapper, mapper, mapstreamer, sinker
from pynumaflow.mapper import UserMetadata

from ebbflow import Message, Response
from ebbflow.domain.outcome import DeadLetter, Outcome
from ebbflow.engine.frames import Rows
from ebbflow.engine.verdict import Verdict
from ebbflow.numaflow.pynumaflow.adapters import adapt
from ebbflow.usercode.calling import Handler, call_map, call_sink, run_batch_map, run_stream
from tests.engine.sample_rows import some, verdict_on
from tests.numaflow.pynumaflow.functions import FAIL, NACK

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
DROP = mapper.DROP

texts = st.text("kl", max_size=2)
message = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=4) | st.just(b"x" * 40),
        "keys": st.lists(texts, max_size=2),
        "tags": st.lists(texts | st.sampled_from([NACK, FAIL, DROP]), max_size=1),
        "metadata": st.dictionaries(texts, st.dictionaries(texts, st.binary(max_size=2))),
    }
)
# Most messages set few fields, and are read in another way than the others.
message |= message.map(lambda fields: fields | {"tags": [], "metadata": {}})
message |= message.map(lambda fields: fields | {"keys": [], "tags": [], "metadata": {}})
answers = st.lists(
    st.just("raise") | st.lists(message, max_size=2) | st.lists(message, min_size=1, max_size=1),
    min_size=1,
    max_size=8,
)


def own_message(fields: dict[str, Any], metadata: bool) -> Message:
    """The message as Ebbflow's own code returns it."""
    signals = {NACK: Message.to_nack, FAIL: Message.to_fail, DROP: Message.to_drop}
    for tag in fields["tags"]:
        if tag in signals:
            return signals[tag]()
    own = fields["metadata"] if metadata else {}
    return Message(fields["value"], fields["keys"], fields["tags"], metadata=own)


def their_message(module: Any, fields: dict[str, Any]) -> Any:
    """The message as code for pynumaflow returns it."""
    given_fields = [fields["value"], fields["keys"], fields["tags"]]
    if module is mapper:
        return mapper.Message(*given_fields, UserMetadata(fields["metadata"]))
    return module.Message(*given_fields)


def decided(code: Any, run: Callable[..., None], answers: list[Any], columns: Any) -> Verdict:
    """The verdict on messages to which the code gives these answers."""
    count = len(answers)
    cut = {name: column[:count] for name, column in columns.items()}
    rows = some(*(f"m{n}" for n in range(count)), **cut)
    verdict = verdict_on(rows, largest=30)
    handler = Handler(code)
    try:
        run(handler, verdict)
    finally:
        handler.close()
    return verdict


def without_lines(verdict: Verdict) -> dict[int, Outcome]:
    """The outcomes without tracebacks."""
    return {
        index: replace(end, traceback=None) if isinstance(end, DeadLetter) else end
        for index, end in verdict.outcomes.items()
    }


def compare(one: Verdict, other: Verdict) -> None:
    """Outcomes, failures and rows are the same, except for the lines of tracebacks."""
    assert without_lines(one) == without_lines(other)
    assert dict(one.decisions.failed) == dict(other.decisions.failed)
    assert one.outputs is not None
    assert other.outputs is not None
    assert one.outputs.tags == other.outputs.tags
    rows = [Rows(v.outputs.batch(v.rows, "v", NOW)) for v in (one, other) if v.outputs is not None]
    for column in ("id", "value", "keys", "metadata", "event_time", "headers"):
        assert rows[0].column(column) == rows[1].column(column)


class Answers:
    """The answer to each message, by pynumaflow's code and by Ebbflow's."""

    def __init__(self, answers: list[Any], module: Any) -> None:
        self._answers = {b"m%d" % n: answer for n, answer in enumerate(answers)}
        self._module = module

    def own(self, datum: Any) -> list[Message]:
        """As Ebbflow's code answers."""
        answer = self._look_up(datum)
        return [own_message(fields, self._module is mapper) for fields in answer]

    def theirs(self, datum: Any) -> list[Any]:
        """As pynumaflow's code answers."""
        return [their_message(self._module, fields) for fields in self._look_up(datum)]

    def _look_up(self, datum: Any) -> list[dict[str, Any]]:
        answer = self._answers[datum.value]
        if answer == "raise":
            raise ValueError(datum.value)
        return answer  # type: ignore[no-any-return]


@st.composite
def columns(draw: Any) -> dict[str, Any]:
    """Columns of the inputs: some have keys, metadata and headers, which no answer takes over."""
    full = {
        "keys": [["in"]] * 8,
        "metadata": [[("g", [("k", b"v")])]] * 8,
        "headers": [[("h", "1")]] * 8,
    }
    return {name: full[name] for name in full if draw(st.booleans())}


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@given(answers=answers, inputs=columns())
def test_pynumaflow_maps_decide_like_ebbflow_maps(
    later: bool, answers: list[Any], inputs: dict[str, Any]
) -> None:
    both = Answers(answers, mapper)

    def theirs(keys: list[str], datum: mapper.Datum) -> mapper.Messages:
        return mapper.Messages(*both.theirs(datum))

    async def theirs_later(keys: list[str], datum: mapper.Datum) -> mapper.Messages:
        return theirs(keys, datum)

    async def own_later(datum: Any) -> list[Message]:
        return both.own(datum)

    run = partial(call_map, concurrency=4)
    code, own = (theirs_later, own_later) if later else (theirs, both.own)
    compare(decided(adapt(code, "map"), run, answers, inputs), decided(own, run, answers, inputs))


@given(answers=answers, inputs=columns(), size=st.integers(1, 9))
def test_pynumaflow_batch_maps_decide_like_ebbflow_batch_maps(
    answers: list[Any], inputs: dict[str, Any], size: int
) -> None:
    both = Answers(answers, batchmapper)

    async def theirs(datums: Any) -> batchmapper.BatchResponses:
        responses = batchmapper.BatchResponses()
        async for datum in datums:
            responses.append(batchmapper.BatchResponse.with_msgs(datum.id, both.theirs(datum)))
        return responses

    def own(data: list[Any]) -> dict[str, list[Message]]:
        return {datum.id: both.own(datum) for datum in data}

    run = partial(run_batch_map, batch_size=size)
    compare(decided(adapt(theirs, "map"), run, answers, inputs), decided(own, run, answers, inputs))


@given(answers=answers, inputs=columns())
def test_pynumaflow_stream_maps_decide_like_ebbflow_stream_maps(
    answers: list[Any], inputs: dict[str, Any]
) -> None:
    both = Answers(answers, mapstreamer)

    async def theirs(keys: list[str], datum: mapstreamer.Datum) -> Any:
        for each in both.theirs(datum):
            yield each

    def own(datum: Any) -> Any:
        yield from both.own(datum)

    compare(
        decided(adapt(theirs, "map"), run_stream, answers, inputs),
        decided(own, run_stream, answers, inputs),
    )


responses = st.lists(
    st.sampled_from(["ok", "ok", "failure", "fallback", "forget", "twice"]), min_size=1, max_size=8
)


@given(words=responses, size=st.integers(1, 9))
def test_pynumaflow_sinks_decide_like_ebbflow_sinks(words: list[str], size: int) -> None:
    said = {b"m%d" % n: word for n, word in enumerate(words)}

    def theirs(datums: Any) -> sinker.Responses:
        answered = sinker.Responses()
        for datum in datums:
            match said[datum.value]:
                case "failure":
                    answered.append(sinker.Response.as_failure(datum.id, "full"))
                case "fallback":
                    answered.append(sinker.Response.as_fallback(datum.id))
                case "twice":
                    answered.append(sinker.Response.as_success(datum.id))
                    answered.append(sinker.Response.as_success(datum.id))
                case "ok":
                    answered.append(sinker.Response.as_success(datum.id))
        return answered

    def own(data: list[Any]) -> list[Response]:
        answered = {
            "ok": lambda i: [Response.ok(i)],
            "failure": lambda i: [Response.failure(i, "full")],
            "fallback": lambda i: [Response.fallback(i)],
            "forget": lambda i: [],
            "twice": lambda i: [Response.ok(i), Response.ok(i)],
        }
        return [r for datum in data for r in answered[said[datum.value]](datum.id)]

    run = partial(call_sink, batch_size=size)
    compare(decided(adapt(theirs, "sink"), run, words, {}), decided(own, run, words, {}))
