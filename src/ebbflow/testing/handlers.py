"""Calls handlers as a vertex calls them, without Spark and without NATS.

The rules are the real ones: messages are checked, retried, nacked and dead-lettered as in a
pipeline. Only waits are skipped: retries happen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ebbflow.domain.code import Mode, OnFailure, SinkMode
from ebbflow.domain.durations import DEFAULT_ON_ERROR, Backoff
from ebbflow.domain.message import Datum, Message
from ebbflow.domain.outcome import DONE, Outcome
from ebbflow.domain.spelling import named_options
from ebbflow.engine import frames
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.verdict import Verdict
from ebbflow.numaflow.pynumaflow.adapters import adapt, mode_of
from ebbflow.usercode.calling import Handler, call_with_retries, map_in_mode, sink_in_mode
from ebbflow.usercode.sinks import Sinks, run_sinks

_LARGEST = 8 * 1024 * 1024 - 64 * 1024
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one message: its outcome.

    ``messages`` are those that a map forwards for it, with everything they inherit. ``answers`` are
    the payloads that a sink serves.
    """

    id: str
    outcome: Outcome
    messages: list[Message] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)


@named_options
def run_map(
    code: Callable[..., Any],
    *messages: bytes | Datum,
    mode: Mode = "unary",
    retry: Backoff | None = None,
    on_failure: OnFailure = "retry",
    on_error: Backoff = DEFAULT_ON_ERROR,
) -> list[Result]:
    """Calls a map or transformer with messages; returns a result for each, in order.

    The code is a function or a class, as in ``Pipeline(...).map``; a class is opened and closed.
    A ``Datum`` without an id gets one.
    """
    handler = Handler(adapt(code, "map"))
    try:
        verdict = _verdict(messages, on_error)
        call = map_in_mode(handler, mode_of(code, mode), _BATCH)
        call_with_retries(verdict, call, _strategy(retry, on_failure), _pause, "map")
    finally:
        handler.close()
    return _results(verdict)


@named_options
def run_sink(
    code: Callable[..., Any],
    *messages: bytes | Datum,
    mode: SinkMode = "batch",
    fallback: Callable[..., Any] | None = None,
    on_success: Callable[..., Any] | None = None,
    serves: bool = False,
    retry: Backoff | None = None,
    on_failure: OnFailure = "retry",
    on_error: Backoff = DEFAULT_ON_ERROR,
) -> list[Result]:
    """Calls a sink, with its fallback and on-success sinks; returns a result for each message.

    ``mode`` is the mode of the sink itself; the other two get lists. ``serves`` says whether the
    pipeline has a store for answers. As in a pipeline, a response breaks the contract if it needs
    a sink or a store that is missing.
    """
    handlers = {
        name: Handler(adapt(function, "sink"))
        for name, function in (
            ("primary", code),
            ("fallback", fallback),
            ("on_success", on_success),
        )
        if function is not None
    }
    try:
        verdict = _verdict(messages, on_error)
        calls = {
            name: sink_in_mode(handler, mode if name == "primary" else "batch", _BATCH)
            for name, handler in handlers.items()
        }
        sinks = Sinks(
            calls["primary"],
            calls.get("fallback"),
            calls.get("on_success"),
            _strategy(retry, on_failure),
            serves,
        )
        run_sinks(verdict, sinks, _pause)
    finally:
        for handler in handlers.values():
            handler.close()
    return _results(verdict)


def _pause(_seconds: float) -> None:
    """Does not wait."""


def _strategy(retry: Backoff | None, on_failure: OnFailure) -> RetryStrategy | None:
    return None if retry is None else RetryStrategy(retry, on_failure)


def _verdict(messages: Sequence[bytes | Datum], on_error: Backoff) -> Verdict:
    data = [_datum(message) for message in messages]
    columns = {
        "id": [datum.id or f"test-{number}" for number, datum in enumerate(data)],
        "value": [datum.value for datum in data],
        "keys": [datum.keys for datum in data],
        "event_time": [datum.event_time for datum in data],
        "headers": [list(datum.headers.items()) for datum in data],
        "metadata": [
            [(group, list(entries.items())) for group, entries in datum.metadata.items()]
            for datum in data
        ],
        "deliveries": [datum.deliveries for datum in data],
        "nack_reason": [datum.nack_reason for datum in data],
        "retries": [datum.retries for datum in data],
    }
    watermark = min((datum.watermark for datum in data if datum.watermark), default=None)
    rows = Rows(frames.batch_of(columns, len(data)), watermark)
    rules = Rules("test", on_error, _LARGEST)
    return Verdict(rows, rules)


def _datum(message: bytes | Datum) -> Datum:
    if isinstance(message, bytes):
        return Datum(message)
    if not isinstance(message, Datum):
        raise TypeError(f"a message is bytes or a Datum, not {type(message).__name__}")
    return message


def _message_of(datum: Datum, tags: Sequence[str]) -> Message:
    keys, time = list(datum.keys), datum.event_time
    return Message(datum.value, keys, list(tags), time, metadata=datum.metadata)


def _results(verdict: Verdict) -> list[Result]:
    results = [
        Result(
            row_id,
            verdict.outcomes.get(index, DONE),
            answers=list(verdict.answers.get(index, ())),
        )
        for index, row_id in enumerate(verdict.rows.column("id"))
    ]
    outputs = verdict.outputs
    assert outputs is not None, "only a source without a transformer forwards its inputs"
    made = Rows(outputs.batch(verdict.rows, "test", datetime.now(UTC)))
    facts = zip(outputs.parents, outputs.tags, made.data(), strict=True)
    for parent, tags, datum in facts:
        results[parent].messages.append(_message_of(datum, tags))
    return results
