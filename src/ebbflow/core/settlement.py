"""The plan that settles a chunk: what to publish, where, in which order, and what to count.

The order is the guarantee (see docs/guarantees.md): redeliveries first, then dead letters, then
outputs, and only then is the chunk done. Whatever crashes in between, the chunk is replayed.
Every publication has an id made of the chunk and a hash of the rows in it: the same rows are
dropped by JetStream as a copy, other rows (user code decided differently) are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow import frames
from ebbflow.core.letter import Letter
from ebbflow.core.redelivery import due_time
from ebbflow.core.routing import Edge, route
from ebbflow.core.verdict import Outputs, Verdict
from ebbflow.frames import Rows
from ebbflow.outcome import Counts, DeadLetter, Done, Dropped, Redeliver

_LETTER_FACTS = (
    *("id", "value", "keys", "headers", "metadata"),
    *("event_time", "first_seen", "deliveries"),
)


class Stage(IntEnum):
    """When a publication must be confirmed: everything of a stage before the next begins."""

    REDELIVER = 1
    DEAD_LETTER = 2
    OUTPUT = 3


@dataclass(frozen=True, slots=True)
class Publication:
    """One message to publish. ``target`` names a vertex; ``due`` is for redeliveries only."""

    stage: Stage
    target: str
    partition: int
    msg_id: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    due: int | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a chunk comes to. ``reasons`` are the nack reasons, each with its number of rows."""

    publications: list[Publication]
    counts: Counts
    reasons: dict[str, int]

    def stages(self) -> Iterator[list[Publication]]:
        """The publications of each stage that has any, in order."""
        for stage in Stage:
            if these := [p for p in self.publications if p.stage is stage]:
                yield these


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are settled together, under a key that only these rows have."""

    key: str
    rows: Rows


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk is being settled. ``max_payload`` is the server's limit for one message."""

    vertex: str
    partition: int
    edges: Sequence[Edge]
    max_payload: int


def settle(chunk: Chunk, verdict: Verdict, place: Place, now: datetime) -> Settlement:
    """Turn the verdict on a chunk into publications and counts. ``now`` starts every delay."""
    sorted_out = _Sorted(chunk.rows, verdict)
    publications = [
        *_redeliveries(chunk, sorted_out.redeliver, place, now),
        *_letters(chunk, sorted_out.dead, place, now),
    ]
    outputs, written, unrouted = _outputs(chunk, verdict, place, sorted_out.finished, now)
    publications += outputs
    counts = Counts(
        read=len(chunk.rows),
        written=written,
        done=len(sorted_out.finished) - unrouted,
        redelivered=len(sorted_out.redeliver),
        dead_lettered=len(sorted_out.dead),
        dropped=sorted_out.dropped + unrouted,
    )
    return Settlement(publications, counts, _reasons(sorted_out.redeliver))


class _Sorted:
    """Input indexes by the kind of their outcome."""

    def __init__(self, rows: Rows, verdict: Verdict) -> None:
        self.redeliver: dict[int, Redeliver] = {}
        self.dead: dict[int, DeadLetter] = {}
        self.dropped = 0
        done: set[int] = set()
        for index, outcome in verdict.outcomes.items():
            match outcome:
                case Redeliver():
                    self.redeliver[index] = outcome
                case DeadLetter():
                    self.dead[index] = outcome
                case Dropped():
                    self.dropped += 1
                case Done():
                    done.add(index)
                case never:
                    assert_never(never)
        ended = verdict.outcomes.keys() - done
        self.finished = [i for i in range(len(rows)) if i not in ended]


def _reasons(redeliver: dict[int, Redeliver]) -> dict[str, int]:
    reasons: dict[str, int] = defaultdict(int)
    for outcome in redeliver.values():
        reasons[outcome.reason or "nacked"] += 1
    return dict(reasons)


def _redeliveries(
    chunk: Chunk, redeliver: dict[int, Redeliver], place: Place, now: datetime
) -> Iterator[Publication]:
    groups: dict[int, list[int]] = defaultdict(list)
    now_ms = -int(-now.timestamp() * 1000 // 1)
    for index in sorted(redeliver):
        delay = redeliver[index].delay
        groups[due_time(now_ms, delay) if delay else 0].append(index)
    for due, indexes in sorted(groups.items()):
        batch = _again(chunk.rows.batch, indexes, [redeliver[i] for i in indexes])
        for frame in frames.split(batch):
            yield Publication(
                Stage.REDELIVER,
                place.vertex,
                place.partition,
                f"{chunk.key}:again:{_fingerprint(frame)}",
                frames.encode(frame),
                due=due or None,
            )


def _again(batch: pa.RecordBatch, indexes: list[int], how: list[Redeliver]) -> pa.RecordBatch:
    taken = _taken(batch, indexes)
    columns = {name: taken.column(name) for name in taken.schema.names}
    columns["deliveries"] = pc.add(columns["deliveries"], pa.scalar(1, pa.uint32()))
    columns["failures"] = pa.array([h.failures for h in how], pa.uint32())
    columns["nack_reason"] = pa.array([h.reason for h in how], pa.string())
    return frames.batch_of(columns, len(indexes))


def _taken(batch: pa.RecordBatch, indexes: Sequence[int]) -> pa.RecordBatch:
    return batch.take(pa.array(indexes, pa.int64()))  # typed: an empty list would have no type


def _letters(
    chunk: Chunk, dead: dict[int, DeadLetter], place: Place, now: datetime
) -> Iterator[Publication]:
    # From the batch, not from the lists that user code was shown and may have changed.
    rows = Rows(_taken(chunk.rows.batch, sorted(dead)))
    for number, (_, outcome) in enumerate(sorted(dead.items())):
        letter = _letter(rows, number, outcome, place.vertex, now).fitting(place.max_payload)
        yield Publication(
            Stage.DEAD_LETTER,
            place.vertex,
            place.partition,
            f"{chunk.key}:dead:{frames.fingerprint([letter.id])}",
            letter.value,
            letter.to_headers(),
        )


def _letter(rows: Rows, index: int, why: DeadLetter, vertex: str, now: datetime) -> Letter:
    def fact(name: str) -> object:
        return rows.column(name)[index]

    return Letter(
        vertex=vertex,
        reason=why.reason,
        error=why.error,
        traceback=why.traceback,
        last_seen=now.astimezone(UTC),
        **{  # type: ignore[arg-type]
            name: fact(name) for name in _LETTER_FACTS
        },
    )


def _outputs(
    chunk: Chunk, verdict: Verdict, place: Place, finished: list[int], now: datetime
) -> tuple[list[Publication], int, int]:
    """The output publications, the number of rows in them, and of inputs that went nowhere."""
    if not place.edges:
        return [], len(finished), 0
    outputs = verdict.outputs
    if outputs is None:
        batch, parents = chunk.rows.batch, finished
        batch = batch if len(finished) == len(chunk.rows) else _taken(batch, finished)
        tags: Sequence[Sequence[str]] = [()] * len(finished)
    else:
        batch = _output_batch(outputs, chunk.rows, place.vertex, now)
        parents, tags = outputs.parents, outputs.tags
    return _routed(chunk, batch, parents, tags, place)


def _routed(
    chunk: Chunk,
    batch: pa.RecordBatch,
    parents: Sequence[int],
    tags: Sequence[Sequence[str]],
    place: Place,
) -> tuple[list[Publication], int, int]:
    publications: list[Publication] = []
    reached: set[int] = set()
    written = 0
    for edge, indexes in zip(place.edges, route(place.edges, tags), strict=True):
        everything = len(indexes) == batch.num_rows
        chosen = batch if everything else _taken(batch, indexes)
        publications += _frames_for(chunk, edge, chosen)
        reached.update(parents if everything else (parents[i] for i in indexes))
        written += len(indexes)
    return publications, written, len(set(parents)) - len(reached)


def _frames_for(chunk: Chunk, edge: Edge, batch: pa.RecordBatch) -> Iterator[Publication]:
    for number, frame in enumerate(frames.split(batch)):
        mark = _fingerprint(frame)
        yield Publication(
            Stage.OUTPUT,
            edge.to,
            # Taken from the content, so that a replay sends the same frame the same way.
            (int(mark[:8], 16) + number) % edge.partitions,
            f"{chunk.key}:{edge.to}:{mark}",
            frames.encode(frame),
        )


def _fingerprint(frame: pa.RecordBatch) -> str:
    return frames.fingerprint(frame.column("id").to_pylist())


def _output_batch(outputs: Outputs, rows: Rows, vertex: str, now: datetime) -> pa.RecordBatch:
    parents = pa.array(outputs.parents, pa.int64())
    count = len(outputs)
    columns = {
        name: rows.batch.column(name).take(parents)
        for name in ("event_time", "headers", "metadata")
    }
    columns["id"] = _output_ids(rows.batch.column("id").take(parents), outputs.indexes, vertex)
    columns["value"] = outputs.values
    columns["keys"] = _output_keys(outputs, rows, parents)
    if any(time is not None for time in outputs.event_times):
        inherited = columns["event_time"].to_pylist()
        columns["event_time"] = [
            own or given for own, given in zip(outputs.event_times, inherited, strict=True)
        ]
    columns["first_seen"] = pa.repeat(pa.scalar(now, frames.TIME), count)
    return frames.batch_of(columns, count)


def _output_ids(parents: pa.Array, indexes: list[int], vertex: str) -> pa.Array:
    # The id is the way the message took, so ids stay unique where branches meet again.
    if not any(indexes):
        return pc.binary_join_element_wise(parents, vertex, "/")
    names = pa.array([f"{vertex}.{i}" if i else vertex for i in indexes], pa.string())
    return pc.binary_join_element_wise(parents, names, "/")


def _output_keys(outputs: Outputs, rows: Rows, parents: pa.Array) -> pa.Array | list[Sequence[str]]:
    inherited = rows.batch.column("keys").take(parents)
    if not any(keys is not None for keys in outputs.keys):
        return inherited
    return [
        given if keys is None else keys
        for given, keys in zip(inherited.to_pylist(), outputs.keys, strict=True)
    ]
