"""Reads what code for pynumaflow returns: its messages and responses as Ebbflow's.

A message of pynumaflow says all about itself: without keys it has none, and without metadata it has
none, whatever its input had. What is no message or response of pynumaflow's is left as it is, and
the rules for Ebbflow's own code then say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ebbflow.domain.message import Message, NackOptions, Response, Signal, Status
from ebbflow.engine.checks import NOT_MESSAGES
from ebbflow.numaflow.pynumaflow.datum import RowFacts

_SIGNALS = {signal.tag: signal for signal in (Signal.NACK, Signal.FAIL, Signal.DROP)}
"""The tags by which Numaflow knows messages that are no data to forward, the strongest first."""

_NO_TIME = datetime(1, 1, 1)  # what pynumaflow puts for a missing event time


def read_usual(messages: Any, facts: RowFacts) -> Message | bytes | None:
    """Returns an answer of one message with a value, and keys perhaps: nearly all are so.

    Bytes stand for a message that is just a value. Of any other answer it returns ``None``.
    """
    try:
        # The slots themselves: a property takes as long as all that is done here.
        (message,) = messages._messages
        if message._tags or message._user_metadata._data or facts.has_more:
            return None
        value, keys = message._value, message._keys
    except (AttributeError, ValueError):  # of another class, or not one message
        return None
    return Message(value, keys) if keys or facts.has_keys or type(value) is not bytes else value


def read_messages(messages: Any, facts: RowFacts) -> Any:
    """Returns what a handler answered for a datum with these facts: a message or a list."""
    # Its own methods to go through the messages take longer than all the rest.
    several = getattr(messages, "_messages", messages)
    if type(several) is list:
        read = [read_message(message, facts) for message in several]
        return read[0] if len(read) == 1 else read
    if isinstance(messages, Message) or hasattr(messages, "_tags"):
        return read_message(messages, facts)
    if not isinstance(messages, Iterable) or isinstance(messages, NOT_MESSAGES):
        raise TypeError(f"a handler for pynumaflow returned {type(messages).__name__}, no Messages")
    return [read_message(message, facts) for message in messages]


def read_message(message: Any, facts: RowFacts) -> Any:
    """Returns a message of a map or transformer as Ebbflow's."""
    try:
        keys, tags = message._keys, message._tags
    except AttributeError:
        return message
    if not tags and not facts.has_more and not getattr(message, "_user_metadata", None):
        return Message(message._value, keys if keys or facts.has_keys else None)
    return _read_all(message)


def _read_all(message: Any) -> Message:
    event_time = getattr(message, "event_time", None)
    event_time = None if event_time == _NO_TIME else event_time
    for tag, signal in _SIGNALS.items():
        if tag in message.tags:
            return _read_signal(signal, message, event_time)
    return Message(
        message.value,
        message.keys or (),
        message.tags,
        event_time,
        metadata=read_metadata(getattr(message, "user_metadata", None)),
    )


def _read_signal(signal: Signal, message: Any, event_time: datetime | None) -> Message:
    match signal:
        case Signal.DROP:
            return Message.to_drop(event_time)
        case Signal.NACK:
            return Message.to_nack(read_options(message), event_time)
        case Signal.FAIL:
            return Message.to_fail(getattr(message, "error", None) or "failed", event_time)


def read_metadata(metadata: Any) -> Mapping[str, Mapping[str, bytes]]:
    """Returns the metadata of a message, by group and key."""
    return {} if metadata is None else {group: metadata[group] for group in metadata.groups()}


def read_options(answer: Any) -> NackOptions | None:
    """Returns the options of a nack; releases of pynumaflow without them give none."""
    options = getattr(answer, "nack_options", None)
    if options is None:
        return None
    names = ("delay", "max_deliveries", "reason")
    return NackOptions(*(getattr(options, name, None) for name in names))


def read_batch(responses: Any, facts: RowFacts) -> Any:
    """Returns what a batch map answered, by the ids of its datums."""
    if not isinstance(responses, Iterable) or isinstance(responses, Mapping | str | bytes):
        return responses
    results: dict[Any, Any] = {}
    for response in responses:
        read_id = getattr(response, "id", None)
        results[read_id] = read_messages(getattr(response, "messages", response), facts)
    return results


def read_responses(responses: Any) -> Any:
    """Returns what a sink answered."""
    several = getattr(responses, "_responses", responses)
    if not isinstance(several, Iterable):
        return responses
    return [_read_response(response) for response in several]


def _read_response(response: Any) -> Any:
    try:
        if response.success:
            return Response.ok(response.id)
        if response.fallback:
            return Response.fallback(response.id)
    except AttributeError:  # none of pynumaflow's
        return response
    # What not every release has; one that has it may call a method by the same name.
    if getattr(response, "on_success", None) is True:
        return Response.on_success(response.id, _read_handed_on(response.on_success_msg))
    if getattr(response, "serve", None) is True:
        return Response.serve(response.id, getattr(response, "serve_response", None) or b"")
    if getattr(response, "nack", None) is True or read_options(response) is not None:
        return Response.nack(response.id, read_options(response))
    return Response(response.id, Status.FAILURE, error=response.err or "failed")


def _read_handed_on(message: Any) -> Message | None:
    """Returns the message for the on-success sink, which replaces keys and metadata as well."""
    if message is None:
        return None
    return Message(message.value, message.keys or (), metadata=read_metadata(message.user_metadata))
