"""Tapping a vertex: choosing some of its messages, and showing them to a person.

A ``TapRequest`` comes from the person who taps; a task that has it picks rows from each chunk as
the chunk is decided. It matches whole columns first, and makes Python objects only of chosen rows,
so that only the tapped vertex pays for a tap. Nothing here changes a verdict.

A request arrives as a control message and is valid for some seconds; the tap's client repeats it.
Without a request a chunk costs nothing. Rows are sent over core NATS, and nothing waits for them:
rows that the connection does not take at once are counted as not shown. A tap that fails is
removed, and the task continues.
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain import records
from ebbflow.engine.account import SENT, Account, AccountPart, ChunkObserver
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import Place
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names

OUTCOMES = (
    "done", "sent", "redelivered", "dropped", "fallback", "served", "on_success", "dead_lettered",
)  # fmt: skip
"""The outcomes to choose by; ``sent`` are outputs of a message that has not ended yet."""

_MOST_OUTPUTS = 50
_LARGEST = 500_000

TappedRow = dict[str, Any]
"""One tapped message, for JSON."""


@dataclass(frozen=True, slots=True)
class TapFilter:
    """Which messages to see; unset fields match every message.

    ``id`` is the id of the message or of one it came from, ``key`` one of its keys, ``header`` a
    name or ``name=value``, ``tag`` one of the tags of its outputs, ``text`` a part of its value.
    """

    id: str | None = None
    key: str | None = None
    header: str | None = None
    tag: str | None = None
    text: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class TapRequest:
    """The messages of a vertex that a person wants to see, for ``seconds`` after a task gets it.

    Of the messages that match, the share ``sample`` is shown, and at most ``rate`` a second from
    each task. Values are cut to ``longest`` bytes. ``token`` identifies the request.
    """

    token: str
    vertex: str
    seconds: float = 10.0
    filter: TapFilter = TapFilter()
    sample: float = 1.0
    rate: int = 200
    longest: int = 4096

    def to_json(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return records.to_plain(self)

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Self:
        """Returns it from JSON."""
        return records.from_plain(cls, facts)


class PassingRows:
    """The rows of a chunk, to choose from. Used by one thread.

    ``part`` is the account of their outcomes; without one their outcome is ``state``. If the
    account is early, about outputs of rows that have not ended, their outcome is ``sent``.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        place: Place,
        at: datetime,
        part: AccountPart | None = None,
        *,
        is_early: bool = False,
        state: str = "arrived",
    ) -> None:
        self._batch = batch
        self._place = place
        self._at = at.astimezone(UTC)
        self._part = part
        self._is_early = is_early
        self._state = SENT if is_early else state

    def choose(self, request: TapRequest, most: int, chance: Random) -> tuple[list[TappedRow], int]:
        """Returns at most ``most`` of the rows that match, and how many more there were."""
        indexes = self._match(request.filter)
        if request.sample < 1:
            indexes = [index for index in indexes if chance.random() < request.sample]
        return self._describe(indexes[:most], request.longest), max(0, len(indexes) - most)

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
        if wanted.tag is not None or self._is_early:
            sending = self._find_senders(wanted.tag)
            indexes = [i for i in indexes if i in sending]
        return indexes

    def _match_columns(self, wanted: TapFilter) -> list[int]:
        """Returns the rows whose id and value match, without making an object for each row."""
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
        if self._part is None or self._is_early:
            return {"outcome": self._state}
        return self._part.end(index)

    def _find_senders(self, tag: str | None) -> set[int]:
        """Returns the inputs that have an output, or one with this tag."""
        if self._part is None:
            return set()
        routed = self._part.routed
        pairs = zip(routed.parents, routed.tags, strict=True)
        return {parent for parent, tags in pairs if tag is None or tag in tags}

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
            "at": self._at.isoformat(),
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
        """Returns the outputs of these inputs, with the vertices that they go to."""
        routed, edges = self._part.routed if self._part else None, self._place.edges
        if routed is None or routed.batch is None:
            return {}
        chosen = [n for n, parent in enumerate(routed.parents) if parent in parents]
        taken = Rows(routed.batch.take(pa.array(chosen, pa.int64())))
        listed: dict[int, list[TappedRow]] = {}
        for number, index in enumerate(chosen):
            tags = routed.tags[index]
            targets = [edge.to for edge in edges if edge.accepts(tags)]
            output = _describe_output(taken, number, tags, targets, longest)
            listed.setdefault(routed.parents[index], []).append(output)
        return listed


def _describe_output(
    rows: Rows, number: int, tags: Sequence[str], targets: list[str], longest: int
) -> TappedRow:
    return {
        "id": rows.column("id")[number],
        "keys": rows.column("keys")[number],
        "tags": list(tags),
        "to": targets,
        **write_value(rows.column("value")[number], longest),
    }


def write_value(value: bytes, longest: int) -> dict[str, Any]:
    """Returns a value for JSON: as text, or else in base64; with its ``size`` if it was cut."""
    shown = value[:longest]
    size = {"size": len(value)} if len(value) > longest else {}
    try:
        # A character may have been cut in two; "ignore" drops its first bytes.
        return {"value": shown.decode("utf-8", "strict" if not size else "ignore")} | size
    except UnicodeDecodeError:
        return {"value": {"base64": base64.b64encode(shown).decode()}} | size


@dataclass
class Tap:
    """One request, its expiry, and how many rows may still be shown in the current second."""

    request: TapRequest
    until: float
    second: float
    left: int
    skipped: int = 0


class Taps(ChunkObserver):
    """The taps on one task. Wishes come from the link's thread, rows from the task's.

    ``known`` are the taps from the task's earlier epochs.
    """

    def __init__(
        self,
        link: Link,
        names: Names,
        vertex: str,
        known: dict[str, Tap],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._names = names
        self._vertex = vertex
        self._taps = known
        self._monotonic = monotonic
        self._chance = Random()  # noqa: S311 - chooses samples, protects nothing
        self._sending: concurrent.futures.Future[None] | None = None
        self.idle = not known

    def take(self, request: dict[str, Any]) -> None:
        """Adds or extends a request from a control message, if it is about this vertex."""
        wanted, now = TapRequest.from_json(request), self._monotonic()
        if wanted.vertex != self._vertex:
            return
        tap = self._taps.get(wanted.token)
        if tap is None:
            self._taps[wanted.token] = Tap(wanted, now + wanted.seconds, now, wanted.rate)
        else:
            tap.until = now + wanted.seconds
        self.idle = False  # last: before the tap is added, ``see`` could set it back

    def end(self, token: str) -> None:
        """Ends a tap before it expires."""
        self._taps.pop(token, None)

    def see(self, account: Account) -> None:
        """Sends the tapped rows of a chunk that is decided; never raises."""
        if not self._taps:
            self.idle = True
            if not self._taps:  # checked again: a tap may have been added in between
                return
            self.idle = False
        for part in account.parts:
            early = account.is_early
            self._show(PassingRows(part.batch, part.place, part.at, part, is_early=early))

    def _show(self, rows: PassingRows) -> None:
        for token, tap in list(self._taps.items()):
            try:
                if self._monotonic() > tap.until:
                    raise TimeoutError
                self._send(tap, rows)
            except Exception:  # a failing tap must not fail the task
                self._taps.pop(token, None)

    def _send(self, tap: Tap, rows: PassingRows) -> None:
        now = self._monotonic()
        if now - tap.second >= 1:
            tap.second, tap.left = now, tap.request.rate
        # A slow connection must not hold up the task: rows are skipped while others are in flight.
        busy = self._sending is not None and not self._sending.done()
        shown, skipped = rows.choose(tap.request, 0 if busy else tap.left, self._chance)
        tap.left -= len(shown)
        tap.skipped += skipped
        if shown:
            subject, skipped, tap.skipped = (
                self._names.tap_subject(tap.request.token),
                tap.skipped,
                0,
            )
            self._sending = self._link.submit(self._publish(subject, pack_rows(shown, skipped)))

    async def _publish(self, subject: str, parts: Sequence[bytes]) -> None:
        for part in parts:
            await self._link.client.publish(subject, part)


def pack_rows(rows: Sequence[TappedRow], skipped: int) -> list[bytes]:
    """Returns rows as messages of a limited size; the first has the number of rows not shown."""
    parts: list[bytes] = []
    texts: list[str] = []
    size = 0

    def close() -> None:
        count = 0 if parts else skipped
        parts.append(f'{{"skipped": {count}, "rows": [{", ".join(texts)}]}}'.encode())

    for text in map(json.dumps, rows):
        if texts and size + len(text) > _LARGEST:
            close()
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    close()
    return parts
