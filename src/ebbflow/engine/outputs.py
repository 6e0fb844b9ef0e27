"""Outputs: the messages that user code returned for a chunk, and the rows they become.

Outputs are single messages (``Outputs``) or whole columns (``ColumnOutputs``); ``AnyOutputs`` is
their common interface. Either way a row's id is the path of the message, so ids stay unique where
branches meet again, and everything that the user did not set is inherited from the input.
``routing`` decides which edges an output follows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from ebbflow.domain.message import Message, Metadata
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows

INHERITED = ("event_time", "headers", "metadata")
GIVEN = ("value", "keys", "event_time", "headers", "metadata")
"""The columns that a columnar map may set for its outputs."""
DELIVERY = ("deliveries", "failures", "retries", "nack_reason", "first_seen")
"""The columns that a row also inherits if it stays in the vertex of its input."""

NO_PARENT = -1
"""The parent of an output that comes from the chunk as a whole."""

# In a cycle the path would grow with every round; beyond this length its start becomes a hash.
LONGEST_ID = 240
_BEHIND = 2**31 - 1


class AnyOutputs(ABC):
    """The outputs of a chunk.

    ``parents`` are the indexes of their inputs, ``indexes`` number the outputs of one input.
    Subclasses add the content: they can pick some of the rows, and fill in columns.
    """

    __slots__ = ("indexes", "parents")

    parents: list[int]
    indexes: list[int]

    def __len__(self) -> int:
        return len(self.parents)

    @property
    @abstractmethod
    def tags(self) -> list[Sequence[str]]:
        """The tags of each output."""

    @property
    def value_list(self) -> list[bytes] | None:
        """The values, if they are already a list."""
        return None

    @abstractmethod
    def earliest_times(self) -> list[datetime | None]:
        """Returns event times, including the earliest; one is None if an output has none."""

    @abstractmethod
    def extend(self, at: Sequence[int], others: Any) -> None:
        """Appends outputs of the same kind, whose inputs are those at the indexes ``at``."""

    @abstractmethod
    def _pick(self, rows: Sequence[int]) -> AnyOutputs:
        """Returns the outputs with these numbers, in this order."""

    @abstractmethod
    def _fill_in(self, columns: dict[str, Any]) -> None:
        """Replaces inherited values by those that user code has set."""

    def cut(self, end: int, start: int = NO_PARENT) -> AnyOutputs:
        """Returns the outputs of the inputs from ``start`` up to ``end``."""
        # Every output is checked: those of retried inputs may come behind those of later ones.
        return self._pick([row for row, p in enumerate(self.parents) if start <= p < end])

    def without(self, parent: int) -> AnyOutputs:
        """Returns the outputs of all inputs but one."""
        return self._pick([row for row, p in enumerate(self.parents) if p != parent])

    def sorted(self) -> AnyOutputs:
        """Returns the outputs in the order of their inputs."""
        if all(one <= other for one, other in pairwise(self.parents)):
            return self
        return self._pick(sorted(range(len(self)), key=self.parents.__getitem__))

    def shifted(self, by: int) -> AnyOutputs:
        """Returns the outputs with all input indexes reduced by a number."""
        moved = self._pick(range(len(self)))
        moved.parents = [parent - by for parent in self.parents]
        return moved

    def batch(
        self, rows: Rows, name: str, now: datetime | None, inherited: Sequence[str] = INHERITED
    ) -> pa.RecordBatch:
        """Returns the outputs as rows; ``name`` is the step that made them.

        ``now`` becomes their ``first_seen``; ``None`` if that is inherited.
        """
        columns = _inherit(self, rows, name, now, inherited)
        self._fill_in(columns)
        return frames.batch_of(columns, len(self))


class Outputs(AnyOutputs):
    """Single messages, stored as columns.

    Most messages have only a value. Other fields are stored by the number of the output, as copies:
    user code may continue to use its lists.
    """

    __slots__ = ("_event_times", "_keys", "_metadata", "_tags", "values")

    def __init__(self) -> None:
        self.parents = []
        self.indexes = []
        self.values: list[bytes] = []
        self._keys: dict[int, list[str]] = {}
        self._tags: dict[int, Sequence[str]] = {}
        self._event_times: dict[int, datetime] = {}
        self._metadata: dict[int, Metadata] = {}

    @property
    @override
    def value_list(self) -> list[bytes]:
        return self.values

    @property
    def tags(self) -> list[Sequence[str]]:
        """The tags of each output."""
        return self._column(self._tags, ())

    @property
    def event_times(self) -> list[datetime | None]:
        """The event time of each output for which one was set."""
        return self._column(self._event_times)

    def earliest_times(self) -> list[datetime | None]:
        """Returns event times, including the earliest; one is None if an output has none."""
        return self.event_times

    @property
    def keys(self) -> list[Sequence[str] | None]:
        """The keys of each output for which they were set, perhaps to none."""
        return self._column(self._keys)

    @property
    def metadata(self) -> list[Metadata | None]:
        """The metadata of each output for which it was set, perhaps to none."""
        return self._column(self._metadata)

    def _column(self, facts: Mapping[int, Any], absent: Any = None) -> list[Any]:
        """Returns one field of each output."""
        if len(facts) == len(self):
            return list(facts.values())  # outputs are only appended, so these are in order
        if not facts:
            return [absent] * len(self)
        return [facts.get(row, absent) for row in range(len(self))]

    def add(self, parent: int, index: int, message: Message) -> None:
        """Appends one output, after all outputs of its parent have been checked."""
        row = len(self.values)
        if message.tags:
            self._tags[row] = tuple(message.tags)
        if message.event_time is not None:
            self._event_times[row] = message.event_time
        if message.metadata is not None:
            own = message.metadata
            self._metadata[row] = {group: dict(own[group]) for group in own}
        self.add_plain(parent, message.value, message.keys, index)

    def add_plain(
        self, parent: int, value: bytes, keys: Sequence[str] | None = None, index: int = 0
    ) -> None:
        """Appends one output that has only a value and perhaps keys."""
        if keys is not None:
            self._keys[len(self.values)] = list(keys)
        self.parents.append(parent)
        self.indexes.append(index)
        self.values.append(value)

    def add_run(self, start: int, values: list[bytes]) -> None:
        """Appends the only outputs of consecutive inputs, which have only values."""
        self.parents += range(start, start + len(values))
        self.indexes += [0] * len(values)
        self.values += values

    def extend(self, at: Sequence[int], others: Outputs) -> None:
        """Appends outputs whose inputs are those at the indexes ``at``."""
        first = len(self)
        for own, facts in zip(self._all_facts, others._all_facts, strict=True):
            own.update({first + row: fact for row, fact in facts.items()})
        self.parents += [at[parent] for parent in others.parents]
        self.indexes += others.indexes
        self.values += others.values

    def _pick(self, rows: Sequence[int]) -> AnyOutputs:
        kept = Outputs()
        kept.parents = [self.parents[row] for row in rows]
        kept.indexes = [self.indexes[row] for row in rows]
        kept.values = [self.values[row] for row in rows]
        for own, facts in zip(kept._all_facts, self._all_facts, strict=True):
            own.update({new: facts[row] for new, row in enumerate(rows) if row in facts})
        return kept

    @property
    def _all_facts(self) -> tuple[dict[int, Any], ...]:
        return self._keys, self._tags, self._event_times, self._metadata

    def _fill_in(self, columns: dict[str, Any]) -> None:
        columns["value"] = self.values
        own = {"keys": self._keys, "event_time": self._event_times, "metadata": self._metadata}
        for column, facts in own.items():
            if facts:
                columns[column] = self._join(facts, columns[column])

    def _join(self, facts: Any, inherited: pa.Array) -> list[Any]:
        """Returns a column of the values that were set, and of inherited ones for the rest."""
        own = self._column(facts)
        if len(facts) == len(own):
            return own
        pairs = zip(own, frames.to_list(inherited), strict=True)
        return [parents_value if value is None else value for value, parents_value in pairs]


class ColumnOutputs(AnyOutputs):
    """Messages as whole columns: ``value``, and the others of ``GIVEN`` that were set."""

    __slots__ = ("_tags", "pieces")

    def __init__(self) -> None:
        self.parents = []
        self.indexes = []
        self._tags: list[Sequence[str]] = []
        self.pieces: list[dict[str, pa.Array]] = []

    @property
    def tags(self) -> list[Sequence[str]]:
        """The tags of each output."""
        return self._tags

    def add(
        self,
        parents: Sequence[int],
        indexes: list[int],
        tags: list[Sequence[str]],
        columns: dict[str, pa.Array],
    ) -> None:
        """Appends the outputs of one call."""
        self.parents += parents
        self.indexes += indexes
        self._tags += tags
        self.pieces.append(columns)

    def earliest_times(self) -> list[datetime | None]:
        """Returns event times, including the earliest; one is None if an output has none."""
        columns = [piece["event_time"] for piece in self.pieces if "event_time" in piece]
        complete = len(columns) == len(self.pieces) and not any(c.null_count for c in columns)
        earliest = [frames.to_time(pc.min(column)) for column in columns if len(column)]
        return earliest if complete else [*earliest, None]

    def extend(self, at: Sequence[int], others: ColumnOutputs) -> None:
        """Appends outputs whose inputs are those at the indexes ``at``."""
        self.parents += [at[parent] for parent in others.parents]
        self.indexes += others.indexes
        self._tags += others.tags
        self.pieces += others.pieces

    def _pick(self, rows: Sequence[int]) -> AnyOutputs:
        ends = list(accumulate(len(piece["value"]) for piece in self.pieces))
        kept = ColumnOutputs()
        for number, run in groupby(rows, lambda row: bisect_right(ends, row)):
            own, start = list(run), ends[number - 1] if number else 0
            chosen = pa.array([row - start for row in own], pa.int64())
            kept.add(
                [self.parents[row] for row in own],
                [self.indexes[row] for row in own],
                [self.tags[row] for row in own],
                {name: column.take(chosen) for name, column in self.pieces[number].items()},
            )
        return kept

    def _fill_in(self, columns: dict[str, Any]) -> None:
        for column in GIVEN:
            if any(column in piece for piece in self.pieces):
                columns[column] = self._join(column, columns.get(column))

    def _join(self, column: str, inherited: pa.Array) -> pa.Array:
        start, arrays = 0, []
        for piece in self.pieces:
            count = len(piece["value"])
            own = piece.get(column)
            if own is None or own.null_count:
                parents_values = inherited.slice(start, count)
                own = parents_values if own is None else pc.coalesce(own, parents_values)
            arrays.append(own)
            start += count
        return pa.concat_arrays(arrays)


def _inherit(
    outputs: AnyOutputs, rows: Rows, name: str, now: datetime | None, inherited: Sequence[str]
) -> dict[str, Any]:
    """Returns the columns that the outputs inherit from their inputs, and their ids."""
    batch, columns = rows.batch, {}
    if outputs.parents != list(range(len(rows))):
        batch = frames.take_rows(batch.select([*inherited, "keys", "id"]), outputs.parents)
    if now is not None:
        columns["first_seen"] = pa.repeat(pa.scalar(now, frames.TIME), len(outputs))
    for column in (*inherited, "keys"):
        columns[column] = batch.column(column)
    columns["id"] = output_ids(batch.column("id"), outputs.indexes, name)
    return columns


def event_times(outputs: AnyOutputs | None, rows: Rows) -> list[datetime]:
    """Returns event times, set or inherited, that include the earliest of the outputs."""
    own = [] if outputs is None else outputs.earliest_times()
    times = [time for time in own if time is not None]
    if not own or len(times) < len(own):
        inherited = frames.to_time(pc.min(rows.batch.column("event_time")))
        times += [] if inherited is None else [inherited]
    return [t if t.tzinfo else t.replace(tzinfo=UTC) for t in times]


def output_ids(parents: pa.Array, indexes: Sequence[int], name: str) -> pa.Array:
    """Returns the ids of outputs: the parent's path and this step, numbered from the second on.

    They contain nothing random: a replay makes the same ids, by which copies are recognised.
    """
    if len(parents) <= frames.FEW:
        paths = zip(map(_shorten_path, parents.to_pylist()), indexes, strict=True)
        return pa.array([f"{path}/{_step(name, index)}" for path, index in paths], pa.string())
    if pc.max(pc.binary_length(parents)).as_py() > LONGEST_ID:
        parents = pa.array([_shorten_path(parent) for parent in parents.to_pylist()], pa.string())
    if not any(indexes):  # takes a third of the time of joining
        return pc.binary_replace_slice(parents, _BEHIND, _BEHIND, f"/{name}")
    names = pa.array([_step(name, index) for index in indexes], pa.string())
    return pc.binary_join_element_wise(parents, names, "/")


def _step(name: str, index: int) -> str:
    return f"{name}.{index}" if index else name


def _shorten_path(path: str) -> str:
    if len(path) * 4 <= LONGEST_ID or len(path.encode()) <= LONGEST_ID:
        return path
    # The id of the source's message stays readable; the rest of the path becomes a hash.
    digest = hashlib.blake2b(path.encode(), digest_size=12).hexdigest()
    return f"{path.partition('/')[0][:LONGEST_ID]}/~{digest}"
