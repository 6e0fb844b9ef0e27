"""What user code decided about a chunk: an outcome for every input, and the outputs.

Only inputs that do not simply end as done are written down one by one; the outputs are gathered
as columns. That keeps the cost of the normal case low and the rule simple: an input that is not
in ``outcomes`` is done. A nack among the outputs of an input takes back all its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.core.frames import TIME, Rows
from ebbflow.core.outputs import AnyOutputs, Outputs
from ebbflow.core.redelivery import brief, failed, nacked
from ebbflow.durations import Backoff
from ebbflow.errors import ContractViolation, MessageTooLarge
from ebbflow.message import Message, Metadata, Signal, Status
from ebbflow.nacks import Nack, NackOptions
from ebbflow.outcome import DeadLetter, Dropped, Outcome, Redeliver, Retry

EMPTY = Dropped("empty result")

# Iterable, but never a list of messages; an empty one must not pass for "nothing to forward".
NOT_MESSAGES = (str, bytes, bytearray, memoryview, Mapping)


@dataclass(frozen=True, slots=True)
class Failure:
    """What user code reported about an input that failed, and how often it had been retried."""

    error: str
    retries: int


class Decisions:
    """What has been decided about the rows of a chunk, by index; can be pickled.

    ``outcomes`` are final. ``unreached`` is where an ordered vertex stopped: rows from there on
    have not been given to user code. ``failed``, ``fallback``, ``on_success`` and ``served`` are
    what user code asked for and something has still to be done about. ``answers`` are to be
    stored with the chunk, and ``written`` is how much went to sinks where inputs do not tell.
    ``outputs`` of ``None`` forwards the inputs as they are.
    """

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.outputs: AnyOutputs | None = Outputs()
        self.failed: dict[int, Failure] = {}
        self.fallback: dict[int, DeadLetter] = {}
        self.on_success: dict[int, Message | None] = {}
        self.served: dict[int, bytes] = {}
        self.answers: dict[int, list[bytes]] = {}
        self.written: int | None = None
        self.unreached: int | None = None
        self.event_times: list[datetime] = []

    def merge(self, at: Sequence[int], part: Decisions) -> None:
        """Take over what was decided about some of the rows, those at the indexes ``at``."""
        for name in ("outcomes", "failed", "fallback", "on_success", "served", "answers"):
            mine, theirs = getattr(self, name), getattr(part, name)
            mine.update({at[index]: what for index, what in theirs.items()})
        self.event_times += part.event_times
        if part.written is not None:
            self.written = (self.written or 0) + part.written
        if part.unreached is not None and part.unreached < len(at):
            self.stop_at(at[part.unreached])
        if part.outputs is None:
            self.outputs = None
        elif self.outputs is not None and len(part.outputs):
            if not len(self.outputs):
                self.outputs = type(part.outputs)()
            self.outputs.extend(at, part.outputs)  # type: ignore[arg-type]

    def stop_at(self, index: int) -> None:
        """The rows from ``index`` on have not been decided about."""
        self.unreached = index if self.unreached is None else min(self.unreached, index)

    def decisions(self) -> Decisions:
        """Only the decisions, without the rows and the rules."""
        told = Decisions()
        for name in vars(told):
            setattr(told, name, getattr(self, name))
        return told


class Verdict(Decisions):
    """The decisions about one chunk, its rows, and the rules that user code is held to."""

    def __init__(
        self, vertex: str, rows: Rows, policy: Backoff, largest: int, chance: Random | None = None
    ) -> None:
        super().__init__()
        self.vertex = vertex
        self.rows = rows
        self.allowed: Collection[Status] = ()
        self.has_fallback = False
        self.ordered = False
        self.emit: Callable[[Verdict], None] | None = None
        self.emitted: set[int] = set()
        self.emitted_rows = 0
        self.usual = True  # whether the time that this chunk takes tells of others
        self.chance = chance or Random()  # noqa: S311 - spreads retries, protects nothing
        self._policy = policy
        self.largest = largest

    def forward_inputs(self) -> None:
        """The inputs are the outputs, as they are; those that no message can hold are dead."""
        self.outputs = None
        sizes = pc.binary_length(self.rows.batch.column("value"))
        if len(self.rows) and pc.max(sizes).as_py() > self.largest:
            for index, size in enumerate(sizes.to_pylist()):
                if size > self.largest:
                    self.raised(index, MessageTooLarge(size, self.largest))

    def part(self, rows: Rows) -> Verdict:
        """An empty verdict on some of the rows, under the same rules."""
        part = Verdict(self.vertex, rows, self._policy, self.largest, self.chance)
        part.allowed, part.has_fallback = self.allowed, self.has_fallback
        part.ordered = self.ordered
        return part

    def holds_up(self, start: int, end: int) -> bool:
        """Whether one of these rows has to come back before an ordered vertex may go on."""
        return self.ordered and any(
            isinstance(self.outcomes.get(index), Redeliver | Retry)
            or any(index in asked for asked in (self.failed, self.fallback, self.on_success))
            for index in range(start, end)
        )

    def first_held(self) -> int | None:
        """Where an ordered vertex has to stop settling: at a row that comes back, or unreached."""
        held = (i for i, o in self.outcomes.items() if isinstance(o, Redeliver | Retry))
        stops = [*held, *(() if self.unreached is None else (self.unreached,))]
        within = (index for index in stops if index < len(self.rows))
        return min(within, default=None) if self.ordered else None

    def cut(self, end: int) -> Verdict:
        """The verdict on the rows before ``end`` alone."""
        part = self.part(Rows(self.rows.batch.slice(0, end), self.rows.watermark))
        part.outcomes = {index: o for index, o in self.outcomes.items() if index < end}
        part.answers = {index: a for index, a in self.answers.items() if index < end}
        part.outputs = None if self.outputs is None else self.outputs.cut(end)
        part.event_times = self.event_times
        return part

    def returned(self, index: int, result: Any) -> None:
        """Take what a map or transformer returned for the input at ``index``."""
        if type(result) is Message:
            self._one(index, result)
        elif result is None:
            self.outcomes[index] = EMPTY
        elif type(result) is list:
            self._several(index, result)
        elif isinstance(result, Message):
            self._several(index, [result])
        elif isinstance(result, Iterable) and not isinstance(result, NOT_MESSAGES):
            self._several(index, list(result))
        else:
            self._check(result)

    def _one(self, index: int, message: Message) -> None:
        """The two that are common go the short way: a plain message, and a nack."""
        if self._is_fine(message):
            assert isinstance(self.outputs, Outputs)
            self.outputs.add_plain(index, message.value)
        elif message.signal is Signal.NACK and message.event_time is None:
            self._check(message)
            self.nack(index, message.nack_options)
        else:
            self._several(index, [message])

    def _several(self, index: int, messages: list[Message]) -> None:
        for message in messages:
            self._check(message)
        signals = {message.signal for message in messages}
        # Of nacked and dropped messages the event time still counts toward the watermark.
        self.event_times += [m.event_time for m in messages if m.signal and m.event_time]
        if Signal.NACK in signals:
            nacks = [m.nack_options for m in messages if m.signal is Signal.NACK]
            self.nack(index, next((options for options in nacks if options), None))
        elif Signal.FAIL in signals:
            self.fail(index, next(m.error or "failed" for m in messages if m.signal is Signal.FAIL))
        else:
            self._forward_all(index, [m for m in messages if m.signal is None])

    def yielded(self, index: int, number: int, message: Message) -> None:
        """Take one message that a stream map yielded, and forward it if it has been a while."""
        self._check(message)
        if message.signal and message.event_time:
            self.event_times.append(message.event_time)
        match message.signal:
            case Signal.NACK:
                raise Nack.of(message.nack_options)
            case Signal.FAIL:
                self.taken_back(index)
                self.fail(index, message.error or "failed")
            case None if index not in self.failed:
                self._forward(index, number, message)
                if self.emit is not None:
                    self.emit(self)

    def ended(self, index: int) -> None:
        """A stream map has yielded all it has to for the input at ``index``."""
        parents = self.outputs.parents if self.outputs is not None else []
        if index not in self.failed and index not in self.emitted and index not in parents[-1:]:
            self.outcomes[index] = EMPTY

    def taken_back(self, index: int) -> None:
        """What a stream map has yielded for the input, and is not forwarded yet, will not be."""
        self.failed.pop(index, None)
        if self.outputs is not None:
            self.outputs = self.outputs.cut(index)

    def _forward_all(self, index: int, messages: list[Message]) -> None:
        if not messages:
            self.outcomes[index] = EMPTY
        for number, message in enumerate(messages):
            self._forward(index, number, message)

    def _forward(self, index: int, number: int, message: Message) -> None:
        assert isinstance(self.outputs, Outputs)
        self.outputs.add(index, number, message)

    def _is_fine(self, message: Message) -> bool:
        """What most messages are: just a value of a size that is allowed."""
        value = message.value
        return message.is_plain and type(value) is bytes and len(value) <= self.largest

    def _check(self, message: Message) -> None:
        if not isinstance(message, Message):
            raise ContractViolation(
                self.vertex,
                f"returned {type(message).__name__} where a Message belongs",
                fix="Return Message(value), a list of them, or None to drop the input.",
            )
        if not isinstance(message.value, bytes):
            raise ContractViolation(
                self.vertex,
                f"returned a Message whose value is {type(message.value).__name__}, not bytes",
                fix="Encode it first, for example with json.dumps(...).encode().",
            )
        size = len(message.value)
        if message.keys is not None:
            size += self._check_texts("keys", message.keys)
        if message.metadata is not None:
            size += self._check_metadata(message.metadata)
        if size > self.largest:
            raise MessageTooLarge(size, self.largest)
        if message.tags:
            self._check_texts("tags", message.tags)
        if message.event_time is not None:
            self._check_time(message.event_time)
        if message.signal is not None:
            self._check_signal(message)

    def _check_time(self, event_time: datetime) -> None:
        if not isinstance(event_time, datetime):
            raise ContractViolation(
                self.vertex,
                f"returned an event_time of type {type(event_time).__name__}",
                fix="Give a datetime with a time zone.",
            )
        pa.scalar(event_time, TIME).as_py()  # refuses what is out of range, as for texts below

    def _check_metadata(self, metadata: Metadata) -> int:
        """The size of the metadata."""
        groups: list[Any] = list(metadata.values()) if isinstance(metadata, Mapping) else [None]
        mapped = all(isinstance(entries, Mapping) for entries in groups)
        texts: list[Any] = [*metadata, *(k for e in groups for k in e)] if mapped else [None]
        values = [value for entries in groups for value in entries.values()] if mapped else []
        if {type(text) for text in texts} - {str} or {type(value) for value in values} - {bytes}:
            raise ContractViolation(
                self.vertex,
                f"returned a Message whose metadata is {metadata!r:.80}",
                fix="Give {group: {key: bytes}}.",
            )
        return len("".join(texts).encode()) + sum(map(len, values))

    def _check_signal(self, message: Message) -> None:
        if not isinstance(message.signal, Signal):
            raise ContractViolation(
                self.vertex,
                f"returned a Message whose signal is {message.signal!r:.80}",
                fix="Make it with Message.to_drop(), .to_nack() or .to_fail().",
            )
        if not isinstance(message.error, str | None):
            raise ContractViolation(
                self.vertex,
                f"failed with an error of type {type(message.error).__name__}",
                fix="Give the error as text: Message.to_fail('what went wrong').",
            )
        if not isinstance(message.nack_options, NackOptions | None):
            raise ContractViolation(
                self.vertex,
                f"nacked with options of type {type(message.nack_options).__name__}",
                fix="Give NackOptions(delay=..., max_deliveries=..., reason=...).",
            )

    def _check_texts(self, what: str, texts: Sequence[str]) -> int:
        """The size of the texts together."""
        # A collection, because what can be gone through only once would be empty afterwards.
        if (
            isinstance(texts, str)
            or not isinstance(texts, Collection)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise ContractViolation(
                self.vertex,
                f"returned a Message whose {what} are {texts!r:.80}",
                fix=f"Give {what} as a list of texts.",
            )
        # Encoding refuses what no frame could hold, while only one message is at stake.
        return len("".join(texts).encode())

    def nack(self, index: int, options: NackOptions | None) -> None:
        """The input at ``index`` is to be redelivered, as far as its options allow."""
        outcome = nacked(options, self._deliveries(index), self.failures_of(index))
        if isinstance(outcome, DeadLetter) and self.has_fallback:
            self.fallback[index] = outcome
        else:
            self.outcomes[index] = outcome

    def succeeds(self, index: int, message: Message | None) -> None:
        """The on-success sink is to have the message, or the input at ``index`` itself."""
        try:
            if message is not None:
                self._check_handed_on(message)
        except Exception as error:
            self.raised(index, error)
        else:
            self.on_success[index] = message

    def _check_handed_on(self, message: Message) -> None:
        self._check(message)
        if message.signal is not None:
            raise ContractViolation(
                self.vertex,
                f"answered ON_SUCCESS with a message to {message.signal.value}",
                fix="Give Message(value), or no message to hand on the original.",
            )

    def fail(self, index: int, error: str) -> None:
        """User code reports that it failed on the input at ``index``."""
        self.failed[index] = Failure(brief(error), int(self.rows.column("retries")[index]))

    def raised(self, index: int, error: BaseException) -> None:
        """User code raised while it worked on the input at ``index``."""
        if isinstance(error, Nack):
            self.nack(index, error.options)
            return
        self.outcomes[index] = failed(
            error,
            self._deliveries(index),
            self.failures_of(index),
            self._policy,
            self.chance.random(),
        )

    def raised_for(self, indexes: Iterable[int], error: BaseException) -> None:
        """User code raised while it worked on several inputs at once."""
        for index in indexes:
            self.raised(index, error)

    def _deliveries(self, index: int) -> int:
        return int(self.rows.column("deliveries")[index])

    def failures_of(self, index: int) -> int:
        """How often user code has raised on the input at ``index`` so far."""
        return int(self.rows.column("failures")[index])
