"""What user code decided about a chunk: an outcome for every input, and the outputs.

Only inputs that do not simply end as done are written down one by one; the outputs are gathered
as columns. That keeps the cost of the normal case low and the rule simple: an input that is not
in ``outcomes`` is done. A nack among the outputs of an input takes back all its siblings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from random import Random
from typing import Any

import pyarrow.compute as pc

from ebbflow.core.redelivery import failed, nacked
from ebbflow.errors import ContractViolation, MessageTooLarge
from ebbflow.frames import Rows
from ebbflow.message import Message, Signal
from ebbflow.options import Backoff, NackOptions
from ebbflow.outcome import Dropped, Outcome

EMPTY = Dropped("empty result")


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
        self.keys.append(message.keys)
        self.tags.append(message.tags)
        self.event_times.append(message.event_time)


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

    def returned(self, index: int, result: Any) -> None:
        """Take what a map or transformer returned for the input at ``index``."""
        if result is None:
            self.outcomes[index] = EMPTY
        elif type(result) is Message and result.signal is None:
            self._check(result)
            self._forward(index, 0, result)
        else:
            self._several(index, [result] if isinstance(result, Message) else list(result))

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
        if len(message.value) > self._largest:
            raise MessageTooLarge(len(message.value), self._largest)
        if message.keys is not None:
            self._check_texts("keys", message.keys)
        if message.tags:
            self._check_texts("tags", message.tags)
        if message.event_time is not None and not isinstance(message.event_time, datetime):
            raise ContractViolation(
                self.vertex,
                f"returned an event_time of type {type(message.event_time).__name__}",
                fix="Give a datetime with a time zone.",
            )

    def _check_texts(self, what: str, texts: Sequence[str]) -> None:
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ContractViolation(
                self.vertex,
                f"returned a Message whose {what} are {texts!r:.80}",
                fix=f"Give {what} as a list of texts.",
            )
        "".join(texts).encode()  # refuses what no frame could hold, while one message is at stake

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
