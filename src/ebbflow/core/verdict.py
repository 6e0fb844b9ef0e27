"""What user code decided about a chunk: an outcome for every input, and the outputs.

Only inputs that do not simply end as done are written down one by one; the outputs are gathered
as columns. That keeps the cost of the normal case low and the rule simple: an input that is not
in ``outcomes`` is done. A nack among the outputs of an input takes back all its siblings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.core.redelivery import failed, nacked
from ebbflow.errors import ContractViolation, MessageTooLarge
from ebbflow.frames import TIME, Rows
from ebbflow.message import Message, Signal
from ebbflow.options import Backoff, NackOptions
from ebbflow.outcome import Dropped, Outcome

EMPTY = Dropped("empty result")

# Iterable, but never a list of messages; an empty one must not pass for "nothing to forward".
_NOT_MESSAGES = (str, bytes, bytearray, memoryview, Mapping)


class Outputs:
    """The messages that user code returned, as columns; ``parents`` are indexes of inputs."""

    __slots__ = ("event_times", "indexes", "keys", "parents", "tags", "values")

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.indexes: list[int] = []
        self.values: list[bytes] = []
        self.keys: list[Sequence[str] | None] = []
        self.tags: list[Sequence[str]] = []
        self.event_times: list[datetime | None] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, parent: int, index: int, message: Message) -> None:
        """Append one output; the parent's other outputs have been checked before."""
        self.parents.append(parent)
        self.indexes.append(index)
        self.values.append(message.value)
        # Copies: the lists are the user's, who may go on with them.
        self.keys.append(None if message.keys is None else list(message.keys))
        self.tags.append(tuple(message.tags) if message.tags else ())
        self.event_times.append(message.event_time)

    def extend(self, start: int, others: Outputs) -> None:
        """Append outputs whose parents are counted from ``start``."""
        self.parents += [start + parent for parent in others.parents]
        for name in ("indexes", "values", "keys", "tags", "event_times"):
            getattr(self, name).extend(getattr(others, name))


class Verdict:
    """The outcomes and outputs of one chunk. ``outputs`` of ``None`` forwards the inputs as is."""

    def __init__(
        self, vertex: str, rows: Rows, policy: Backoff, largest: int, chance: Random | None = None
    ) -> None:
        self.vertex = vertex
        self.rows = rows
        self.outcomes: dict[int, Outcome] = {}
        self.outputs: Outputs | None = Outputs()
        self._policy = policy
        self._largest = largest
        self._chance = chance or Random()  # noqa: S311 - spreads retries, protects nothing

    def forward_inputs(self) -> None:
        """The inputs are the outputs, as they are; those that no message can hold are dead."""
        self.outputs = None
        sizes = pc.binary_length(self.rows.batch.column("value"))
        if len(self.rows) and pc.max(sizes).as_py() > self._largest:
            for index, size in enumerate(sizes.to_pylist()):
                if size > self._largest:
                    self.raised(index, MessageTooLarge(size, self._largest))

    def part(self, rows: Rows) -> Verdict:
        """An empty verdict on some of the rows, under the same rules."""
        return Verdict(self.vertex, rows, self._policy, self._largest, self._chance)

    def merge(self, start: int, outcomes: dict[int, Outcome], outputs: Outputs | None) -> None:
        """Take over the verdict on a part whose first row is the input at ``start``."""
        self.outcomes.update({start + index: outcome for index, outcome in outcomes.items()})
        if self.outputs is not None and outputs is not None:
            self.outputs.extend(start, outputs)

    def returned(self, index: int, result: Any) -> None:
        """Take what a map or transformer returned for the input at ``index``."""
        if result is None:
            self.outcomes[index] = EMPTY
        elif type(result) is Message and result.signal is None:
            self._check(result)
            self._forward(index, 0, result)
        elif type(result) is list:
            self._several(index, result)
        elif isinstance(result, Message):
            self._several(index, [result])
        elif isinstance(result, Iterable) and not isinstance(result, _NOT_MESSAGES):
            self._several(index, list(result))
        else:
            self._check(result)

    def _several(self, index: int, messages: list[Message]) -> None:
        for message in messages:
            self._check(message)
        nacks = [m.nack_options for m in messages if m.signal is Signal.NACK]
        data = [m for m in messages if m.signal is None]
        if nacks:
            self.nack(index, next((options for options in nacks if options), None))
        elif not data:
            self.outcomes[index] = EMPTY
        for number, message in enumerate(data if not nacks else ()):
            self._forward(index, number, message)

    def _forward(self, index: int, number: int, message: Message) -> None:
        assert self.outputs is not None
        self.outputs.add(index, number, message)

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
        if size > self._largest:
            raise MessageTooLarge(size, self._largest)
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

    def _check_signal(self, message: Message) -> None:
        if not isinstance(message.signal, Signal):
            raise ContractViolation(
                self.vertex,
                f"returned a Message whose signal is {message.signal!r:.80}",
                fix="Make it with Message.to_drop() or Message.to_nack().",
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
        self.outcomes[index] = nacked(options, self._deliveries(index), self._failures(index))

    def raised(self, index: int, error: BaseException) -> None:
        """User code raised while it worked on the input at ``index``."""
        self.outcomes[index] = failed(
            error,
            self._deliveries(index),
            self._failures(index),
            self._policy,
            self._chance.random(),
        )

    def raised_for(self, indexes: Iterable[int], error: BaseException) -> None:
        """User code raised while it worked on several inputs at once."""
        for index in indexes:
            self.raised(index, error)

    def _deliveries(self, index: int) -> int:
        return int(self.rows.column("deliveries")[index])

    def _failures(self, index: int) -> int:
        return int(self.rows.column("failures")[index])
