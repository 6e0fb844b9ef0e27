"""The verdict on a chunk: an outcome for every input, and the outputs.

User code returns, yields, raises and answers; a verdict turns each of these into a decision about
the input. A nack among the outputs of an input takes back all its siblings. An error is counted on
the input alone, never on the chunk. A message that breaks a rule (``check_message``: types, sizes,
times) is an error of its input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import ContractViolation, MessageTooLarge
from ebbflow.domain.message import Message, Metadata, Nack, NackOptions, Signal, Status
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.decisions import Decisions, Failure
from ebbflow.engine.frames import TIME, Rows
from ebbflow.engine.outputs import AnyOutputs, event_times
from ebbflow.engine.redelivery import decide_error, decide_nack, draw_chance, shorten

# Iterable, but never a list of messages; an empty one must not pass for "nothing to forward".
NOT_MESSAGES = (str, bytes, bytearray, memoryview, Mapping)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one chunk of a vertex.

    ``policy`` says how often an input comes back after an exception, ``largest`` is the most bytes
    of a message. ``allowed`` are the statuses that the sink at hand may answer with beside OK,
    FAILURE and NACK. With ``has_fallback`` an input that is out of deliveries or retries goes to
    the fallback sink in place of the dead letters. In an ``ordered`` vertex nothing overtakes an
    input that has to come back. ``beside`` names the sink at hand, unless it is the primary.
    """

    vertex: str
    policy: Backoff
    largest: int
    allowed: frozenset[Status] = frozenset()
    has_fallback: bool = False
    ordered: bool = False
    beside: str | None = None


def check_message(message: Message, rules: Rules) -> None:
    """Raises unless this is a message that frames can hold and the vertex may forward."""
    if not isinstance(message, Message):
        raise ContractViolation(
            rules.vertex,
            f"returned {type(message).__name__} where a Message belongs",
            fix="Return Message(value), a list of them, or None to drop the input.",
        )
    if not isinstance(message.value, bytes):
        raise ContractViolation(
            rules.vertex,
            f"returned a Message whose value is {type(message.value).__name__}, not bytes",
            fix="Encode it first, for example with json.dumps(...).encode().",
        )
    size = len(message.value)
    if message.keys is not None:
        size += check_keys(message.keys, rules)
    if message.metadata is not None:
        size += _check_metadata(message.metadata, rules.vertex)
    if size > rules.largest:
        raise MessageTooLarge(size, rules.largest)
    if message.tags:
        _check_texts("tags", message.tags, rules.vertex)
    if message.event_time is not None:
        _check_time(message.event_time, rules.vertex)
    if message.signal is not None:
        _check_signal(message, rules.vertex)


def check_keys(keys: Sequence[str], rules: Rules) -> int:
    """Returns the size of the keys; raises unless they are texts that frames can hold."""
    return _check_texts("keys", keys, rules.vertex)


def check_handed_on(message: Message, rules: Rules) -> None:
    """Raises unless the on-success sink can be given this message."""
    check_message(message, rules)
    if message.signal is not None:
        raise ContractViolation(
            rules.vertex,
            f"answered ON_SUCCESS with a message to {message.signal.value}",
            fix="Give Message(value), or no message to hand on the original.",
        )


def _check_time(event_time: datetime, vertex: str) -> None:
    if not isinstance(event_time, datetime):
        raise ContractViolation(
            vertex,
            f"returned an event_time of type {type(event_time).__name__}",
            fix="Give a datetime with a time zone.",
        )
    pa.scalar(event_time, TIME).as_py()  # refuses what is out of range, as for texts below


def _check_metadata(metadata: Metadata, vertex: str) -> int:
    """Returns the size of the metadata."""
    groups: list[Any] = list(metadata.values()) if isinstance(metadata, Mapping) else [None]
    mapped = all(isinstance(entries, Mapping) for entries in groups)
    texts: list[Any] = [*metadata, *(k for e in groups for k in e)] if mapped else [None]
    values = [value for entries in groups for value in entries.values()] if mapped else []
    if {type(text) for text in texts} - {str} or {type(value) for value in values} - {bytes}:
        raise ContractViolation(
            vertex,
            f"returned a Message whose metadata is {metadata!r:.80}",
            fix="Give {group: {key: bytes}}.",
        )
    return len("".join(texts).encode()) + sum(map(len, values))


def _check_signal(message: Message, vertex: str) -> None:
    if not isinstance(message.signal, Signal):
        raise ContractViolation(
            vertex,
            f"returned a Message whose signal is {message.signal!r:.80}",
            fix="Make it with Message.to_drop(), .to_nack() or .to_fail().",
        )
    if not isinstance(message.error, str | None):
        raise ContractViolation(
            vertex,
            f"failed with an error of type {type(message.error).__name__}",
            fix="Give the error as text: Message.to_fail('what went wrong').",
        )
    if not isinstance(message.nack_options, NackOptions | None):
        raise ContractViolation(
            vertex,
            f"nacked with options of type {type(message.nack_options).__name__}",
            fix="Give NackOptions(delay=..., max_deliveries=..., reason=...).",
        )


def _check_texts(what: str, texts: Sequence[str], vertex: str) -> int:
    """Returns the size of the texts together."""
    if type(texts) is list or type(texts) is tuple:
        try:
            return len("".join(texts).encode())
        except TypeError:
            pass  # one of them is no text
    # A collection, because what can be gone through only once would be empty afterwards.
    if (
        isinstance(texts, str)
        or not isinstance(texts, Collection)
        or not all(isinstance(text, str) for text in texts)
    ):
        raise ContractViolation(
            vertex,
            f"returned a Message whose {what} are {texts!r:.80}",
            fix=f"Give {what} as a list of texts.",
        )
    # Encoding refuses what no frame could hold, while only one message is at stake.
    return len("".join(texts).encode())


class Emitter(Protocol):
    """Forwards outputs of a stream map while it goes on, before its chunk is settled."""

    def is_due(self) -> bool:
        """Returns whether it has been long enough since the last time."""

    def emit(self, part: Verdict) -> int | None:
        """Publishes the outputs of the part; returns how many rows were written.

        ``None`` if one of them cannot be published: then all wait until the chunk is settled.
        """


class Verdict:
    """The verdict on one chunk. Made for the chunk, on the worker that decides about it.

    ``emitter`` forwards early what a stream map yields; parts of a chunk have none, so what they
    yield waits until the chunk is settled.
    """

    def __init__(
        self,
        rows: Rows,
        rules: Rules,
        emitter: Emitter | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        self.rows = rows
        self.rules = rules
        self.emitter = emitter
        self.decisions = Decisions() if decisions is None else decisions
        self._usual = True

    # --- reading --------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """As in ``Decisions``."""
        return self.decisions.outcomes

    @property
    def outputs(self) -> AnyOutputs | None:
        """As in ``Decisions``."""
        return self.decisions.outputs

    @property
    def answers(self) -> Mapping[int, Sequence[bytes]]:
        """As in ``Decisions``."""
        return self.decisions.answers

    @property
    def usual(self) -> bool:
        """Whether the time that this chunk took tells how long others take."""
        return self._usual

    def gather_event_times(self) -> list[datetime]:
        """Returns the event times that a source's watermark follows, the earliest among them."""
        seen = list(self.decisions.event_times)
        if self.decisions.written is not None:
            return seen  # the outputs went into sinks; their times were noted on the way
        return [*event_times(self.decisions.outputs, self.rows), *seen]

    def failures_of(self, index: int) -> int:
        """Returns how often user code has raised on the input so far."""
        return int(self.rows.column("failures")[index])

    def chance_of(self, index: int, tries: int) -> float:
        """Returns by how much the input's next wait differs from others', after so many tries."""
        return draw_chance(self.rows.column("id")[index], tries)

    def holds_up(self, start: int, end: int) -> bool:
        """Returns whether an ordered vertex has to wait for one of these rows to come back."""
        if not self.rules.ordered:
            return False
        decisions = self.decisions
        asked = (decisions.failed, decisions.fallback, decisions.on_success)
        return any(
            isinstance(decisions.outcomes.get(index), Redeliver | Retry)
            or any(index in asking for asking in asked)
            for index in range(start, end)
        )

    def first_held(self) -> int | None:
        """Returns where an ordered vertex stops settling: at a row that comes back, or unreached.

        Settling a row behind it would let it overtake.
        """
        if not self.rules.ordered:
            return None
        stops = [i for i, o in self.decisions.outcomes.items() if isinstance(o, Redeliver | Retry)]
        if self.decisions.unreached is not None:
            stops.append(self.decisions.unreached)
        return min((index for index in stops if index < len(self.rows)), default=None)

    # --- parts ----------------------------------------------------------------------------------

    def part(self, rows: Rows, rules: Rules | None = None) -> Verdict:
        """Returns an empty verdict on other rows, under the same rules unless others are given."""
        return Verdict(rows, rules or self.rules)

    def part_at(self, indexes: Sequence[int], rules: Rules | None = None) -> Verdict:
        """Returns an empty verdict on the rows at the indexes, as they came."""
        # From the batch, not from the lists that user code was shown and may have changed.
        taken = frames.take_rows(self.rows.batch, indexes)
        return self.part(Rows(taken, self.rows.watermark), rules)

    def under(self, rules: Rules) -> Verdict:
        """Returns a verdict with the same rows and decisions, whose next ones obey these rules."""
        return Verdict(self.rows, rules, self.emitter, self.decisions)

    def cut(self, end: int) -> Verdict:
        """Returns the verdict on the rows before ``end`` alone."""
        rows = Rows(self.rows.batch.slice(0, end), self.rows.watermark)
        return Verdict(rows, self.rules, decisions=self.decisions.cut(end))

    def between(self, start: int, end: int) -> Verdict:
        """Returns the verdict on the rows from ``start`` up to ``end``, as if on them alone."""
        rows = Rows(self.rows.batch.slice(start, end - start), self.rows.watermark)
        return Verdict(rows, self.rules, decisions=self.decisions.between(start, end))

    def refuse(self, index: int, error: BaseException) -> None:
        """Dead-letters an input that cannot be settled as it was decided."""
        self.note_error(index, error)
        before = self.decisions.outcomes.get(index)
        letter = decide_error(error, sys.maxsize, self.rules.policy)
        assert isinstance(letter, DeadLetter)
        if isinstance(before, Redeliver | Retry):
            why = before.reason if isinstance(before, Redeliver) else before.error
            text = shorten(f"{letter.error}; it was to be redelivered: {why or 'nacked'}")
            letter = replace(letter, error=text)
        self.decisions.take_back(index, letter)

    def disregard_time(self) -> None:
        """Says that this chunk took a time that tells nothing about others."""
        self._usual = False

    # --- recording ------------------------------------------------------------------------------

    def record(self, index: int, result: Any) -> None:
        """Records what a map or transformer returned for the input; raises if it may not."""
        if type(result) is Message:
            value, keys = result.value, result.keys
            # Nearly every message is just a value of a size that is allowed: no further checks.
            if (
                result.is_plain
                and type(value) is bytes
                and len(value) + (0 if keys is None else check_keys(keys, self.rules))
                <= self.rules.largest
            ):
                self.decisions.forward_plain(index, value, keys)
            elif result.signal is None:
                check_message(result, self.rules)
                self.decisions.forward(index, 0, result)
            else:
                self._record_message(index, result)
        elif result is None:
            self.decisions.drop(index)
        elif type(result) is list:
            self._record_messages(index, result)
        elif isinstance(result, Message):
            self._record_messages(index, [result])
        elif isinstance(result, Iterable) and not isinstance(result, NOT_MESSAGES):
            self._record_messages(index, list(result))
        else:
            check_message(result, self.rules)

    def record_interpreted(self, index: int, result: Any) -> None:
        """Records what an interpreter returned: bytes stand for a message that is just a value.

        Making such a message takes longer than all of its checks.
        """
        if type(result) is bytes and len(result) <= self.rules.largest:
            self.decisions.forward_plain(index, result)
        else:
            self.record(index, Message(result) if type(result) is bytes else result)

    def _record_message(self, index: int, message: Message) -> None:
        if message.signal is Signal.NACK and message.event_time is None:
            check_message(message, self.rules)
            self.nack(index, message.nack_options)
        else:
            self._record_messages(index, [message])

    def _record_messages(self, index: int, messages: list[Message]) -> None:
        # All are checked before any is forwarded: an error in one must leave nothing of the others.
        for message in messages:
            check_message(message, self.rules)
        signals = {message.signal for message in messages}
        # Of nacked and dropped messages the event time still counts toward the watermark.
        self.decisions.note_event_times(m.event_time for m in messages if m.signal and m.event_time)
        if Signal.NACK in signals:
            nacks = [m.nack_options for m in messages if m.signal is Signal.NACK]
            self.nack(index, next((options for options in nacks if options), None))
        elif Signal.FAIL in signals:
            self.fail(index, next(m.error or "failed" for m in messages if m.signal is Signal.FAIL))
        else:
            self._forward(index, [m for m in messages if m.signal is None])

    def _forward(self, index: int, messages: list[Message]) -> None:
        if not messages:
            self.decisions.drop(index)
        for number, message in enumerate(messages):
            self.decisions.forward(index, number, message)

    def forward_inputs(self) -> None:
        """Forwards the inputs as they are; those that no message can hold are dead letters."""
        self.decisions.forward_inputs()
        largest = self.rules.largest
        sizes = pc.binary_length(self.rows.batch.column("value"))
        if len(self.rows) and pc.max(sizes).as_py() > largest:
            for index, size in enumerate(sizes.to_pylist()):
                if size > largest:
                    self.record_error(index, MessageTooLarge(size, largest))

    def nack(self, index: int, options: NackOptions | None) -> None:
        """Has the input redelivered, as far as its options allow."""
        deliveries = int(self.rows.column("deliveries")[index])
        outcome = decide_nack(options, deliveries, self.failures_of(index))
        if isinstance(outcome, DeadLetter) and self.rules.has_fallback:
            self.decisions.fall_back(index, outcome)
        else:
            self.decisions.finish(index, outcome)

    def fail(self, index: int, error: str) -> None:
        """Records that user code reports the input as failed."""
        retries = int(self.rows.column("retries")[index])
        failure = Failure(shorten(error), retries)
        self.decisions.fail(index, failure)
        self.decisions.note_failure(failure.error, self.rows.column("id")[index])

    def hand_on(self, index: int, message: Message | None) -> None:
        """Has the on-success sink get the message, or the input itself."""
        try:
            if message is not None:
                check_handed_on(message, self.rules)
        except Exception as error:
            self.record_error(index, error)
        else:
            self.decisions.hand_on(index, message)

    def record_error(self, index: int, error: BaseException) -> None:
        """Records that user code raised on the input: a nack, or a failure counted on it."""
        if isinstance(error, Nack):
            self.nack(index, error.options)
            return
        self.note_error(index, error)
        failures, policy = self.failures_of(index), self.rules.policy
        outcome = decide_error(error, failures, policy, self.chance_of(index, failures))
        self.decisions.finish(index, outcome)

    def note_error(self, index: int, error: BaseException) -> None:
        """Counts an error for people to see; what becomes of the input is decided elsewhere."""
        self.decisions.note_error(error, self.rows.column("id")[index])

    def record_errors(self, indexes: Iterable[int], error: BaseException) -> None:
        """Records that user code raised while it worked on several inputs at once."""
        for index in indexes:
            self.record_error(index, error)

    def postpone(self, index: int, delay: int, why: str) -> None:
        """Has the input come back as it is, with nothing counted on it."""
        retries = int(self.rows.column("retries")[index])
        self.decisions.redeliver(index, Retry(delay, why, retries, self.failures_of(index)))


Operator = Callable[[Verdict], None]
"""Decides about every row of a verdict. Runs on a worker, by calling user code or a built-in."""
