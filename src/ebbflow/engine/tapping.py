"""Tapping a vertex: which of the messages that pass it somebody wants to see, and what they see.

A ``TapWish`` comes from the person who taps; a task that knows it picks rows out of each chunk as
it is decided. It looks at whole columns first, and makes Python objects of chosen rows only, so
that nobody pays for a tap but the vertex that is tapped. Nothing here changes a verdict.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain import records
from ebbflow.domain.outcome import DONE
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import Place
from ebbflow.engine.trail import NOT_ROUTED, SENT, describe_outcome
from ebbflow.engine.verdict import Verdict

OUTCOMES = (
    "done", "sent", "redelivered", "dropped", "fallback", "served", "on_success", "dead_lettered",
)  # fmt: skip
"""The outcomes to choose by; ``sent`` are outputs of a message that has not ended yet."""

_MOST_OUTPUTS = 50

TappedRow = dict[str, Any]
"""One message that passed, as JSON has it."""


@dataclass(frozen=True, slots=True)
class TapFilter:
    """Which messages to see; what is left out does not matter.

    ``id`` is that of the message or of one it came from, ``key`` one of its keys, ``header`` a name
    or ``name=value``, ``tag`` one of the tags of its outputs, ``text`` a part of its value.
    """

    id: str | None = None
    key: str | None = None
    header: str | None = None
    tag: str | None = None
    text: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class TapWish:
    """What somebody wants to see of a vertex, for ``seconds`` from when a task hears of it.

    Of the messages that match, the share ``sample`` is shown, and of each task at most ``rate`` in
    a second. Values are cut to ``longest`` bytes. ``token`` tells wishes apart.
    """

    token: str
    vertex: str
    seconds: float = 10.0
    filter: TapFilter = TapFilter()
    sample: float = 1.0
    rate: int = 200
    longest: int = 4096

    def to_json(self) -> bytes:
        """Returns it as it is sent."""
        return records.to_json(self)

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Returns it from what was sent."""
        return records.from_json(cls, raw)


class PassingRows:
    """The rows of a chunk, to choose from. Used by one thread.

    ``verdict`` is what was decided about them; without one they are just ``state``. ``is_part`` if
    the verdict is about outputs of rows that have not ended.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        place: Place,
        now: datetime,
        verdict: Verdict | None = None,
        *,
        is_part: bool = False,
        state: str = "arrived",
    ) -> None:
        self._batch = batch
        self._place = place
        self._now = now.astimezone(UTC)
        self._verdict = verdict
        self._is_part = is_part
        self._state = state
        self._unrouted: set[int] | None = None

    def choose(self, wish: TapWish, most: int, chance: Random) -> tuple[list[TappedRow], int]:
        """Returns rows that somebody wants to see, and how many of them were too many to show."""
        indexes = self._match(wish.filter)
        if wish.sample < 1:
            indexes = [index for index in indexes if chance.random() < wish.sample]
        return self._describe(indexes[:most], wish.longest), max(0, len(indexes) - most)

    # --- matching -------------------------------------------------------------------------------

    def _match(self, wanted: TapFilter) -> list[int]:
        indexes = self._match_columns(wanted)
        rows = Rows(self._batch)
        if wanted.key is not None:
            indexes = [i for i in indexes if wanted.key in rows.column("keys")[i]]
        if wanted.header is not None:
            name, has_value, value = wanted.header.partition("=")
            headers = rows.column("headers")
            indexes = [
                i for i in indexes
                if name in headers[i] and (not has_value or headers[i][name] == value)
            ]  # fmt: skip
        if wanted.outcome is not None:
            indexes = [i for i in indexes if self._end(i)["outcome"] == wanted.outcome]
        if wanted.tag is not None or self._is_part:
            sending = self._find_senders(wanted.tag)
            indexes = [i for i in indexes if i in sending]
        return indexes

    def _match_columns(self, wanted: TapFilter) -> list[int]:
        """Returns the rows whose id and value match, found without an object for each of them."""
        matching = None
        if wanted.id is not None:
            ids = self._batch.column("id")
            whole, later = pc.equal(ids, wanted.id), pc.starts_with(ids, pattern=f"{wanted.id}/")
            matching = pc.or_(whole, later)
        if wanted.text is not None:
            holds = pc.match_substring(self._batch.column("value"), pattern=wanted.text)
            matching = holds if matching is None else pc.and_(matching, holds)
        if matching is None:
            return list(range(self._batch.num_rows))
        indexes: list[int] = pc.indices_nonzero(matching).to_pylist()
        return indexes

    # --- describing -----------------------------------------------------------------------------

    def _end(self, index: int) -> dict[str, Any]:
        if self._verdict is None or self._is_part:
            return {"outcome": SENT if self._is_part else self._state}
        outcome = self._verdict.outcomes.get(index, DONE)
        if self._unrouted is None:
            self._unrouted = self._find_unrouted()
        if outcome == DONE and index in self._unrouted:
            outcome = NOT_ROUTED
        return describe_outcome(outcome, self._now)

    def _find_senders(self, tag: str | None) -> set[int]:
        """Returns the inputs that have an output, or one with this tag."""
        outputs = None if self._verdict is None else self._verdict.outputs
        if outputs is None:
            return set()
        pairs = zip(outputs.parents, outputs.tags, strict=True)
        return {parent for parent, tags in pairs if tag is None or tag in tags}

    def _find_unrouted(self) -> set[int]:
        """Returns the inputs of whose outputs no edge takes any."""
        outputs = None if self._verdict is None else self._verdict.outputs
        edges = self._place.edges
        if outputs is None or not edges or any(not edge.values for edge in edges):
            return set()
        pairs = list(zip(outputs.parents, outputs.tags, strict=True))
        taken = {p for p, tags in pairs if any(edge.accepts(tags) for edge in edges)}
        return set(outputs.parents) - taken

    def _describe(self, indexes: Sequence[int], longest: int) -> list[TappedRow]:
        taken = Rows(self._batch.take(pa.array(indexes, pa.int64())))
        sent = self._list_outputs(set(indexes), longest) if indexes else {}
        return [self._row(taken, n, i, sent, longest) for n, i in enumerate(indexes)]

    def _row(
        self, taken: Rows, number: int, index: int, sent: dict[int, list[TappedRow]], longest: int
    ) -> TappedRow:
        event_time = taken.column("event_time")[number]
        outputs = sent.get(index, [])
        end = self._end(index)
        return {
            "at": self._now.isoformat(),
            "vertex": self._place.vertex,
            "partition": self._place.partition,
            "id": taken.column("id")[number],
            "keys": taken.column("keys")[number],
            "headers": taken.column("headers")[number],
            "event_time": event_time.isoformat() if event_time else None,
            "deliveries": taken.column("deliveries")[number],
            **write_value(taken.column("value")[number], longest),
            **{name: f.isoformat() if isinstance(f, datetime) else f for name, f in end.items()},
            "outputs": outputs[:_MOST_OUTPUTS],
            "outputs_left_out": max(0, len(outputs) - _MOST_OUTPUTS),
        }

    def _list_outputs(self, parents: set[int], longest: int) -> dict[int, list[TappedRow]]:
        """Returns the outputs of these inputs, with the vertices they go to."""
        verdict, edges = self._verdict, self._place.edges
        outputs = None if verdict is None else verdict.outputs
        if verdict is None or not edges:
            return {}
        if outputs is None:
            return self._list_forwarded(verdict, parents, longest)
        tags = list(outputs.tags)
        rows = outputs.batch(verdict.rows, self._place.vertex, self._now)
        chosen = [n for n, parent in enumerate(outputs.parents) if parent in parents]
        taken = Rows(rows.take(pa.array(chosen, pa.int64())))
        listed: dict[int, list[TappedRow]] = {}
        for number, index in enumerate(chosen):
            ways = [edge.to for edge in edges if edge.accepts(tags[index])]
            output = _describe_output(taken, number, tags[index], ways, longest)
            listed.setdefault(outputs.parents[index], []).append(output)
        return listed

    def _list_forwarded(
        self, verdict: Verdict, parents: set[int], longest: int
    ) -> dict[int, list[TappedRow]]:
        """Returns inputs that go on as they are, each as its own output."""
        ways = [edge.to for edge in self._place.edges if edge.accepts(())]
        done = [n for n in sorted(parents) if verdict.outcomes.get(n, DONE) == DONE]
        taken = Rows(self._batch.take(pa.array(done, pa.int64())))
        return {
            index: [_describe_output(taken, number, (), ways, longest)]
            for number, index in enumerate(done)
        }


def _describe_output(
    rows: Rows, number: int, tags: Sequence[str], ways: list[str], longest: int
) -> TappedRow:
    return {
        "id": rows.column("id")[number],
        "keys": rows.column("keys")[number],
        "tags": list(tags),
        "to": ways,
        **write_value(rows.column("value")[number], longest),
    }


def write_value(value: bytes, longest: int) -> dict[str, Any]:
    """Returns a value for JSON: as text, or in base64 if it is none; ``size`` if it was cut."""
    shown = value[:longest]
    size = {"size": len(value)} if len(value) > longest else {}
    try:
        # A character may have been cut in two: its first bytes are left out.
        return {"value": shown.decode("utf-8", "strict" if not size else "ignore")} | size
    except UnicodeDecodeError:
        return {"value": {"base64": base64.b64encode(shown).decode()}} | size
