"""Builds the publications of a chunk by kind: redeliveries, dead letters, answers, outputs.

The observers of the chunk add the last ones (``account``).

All are functions of the chunk, the verdict and the time alone. A replay that makes the same
decisions makes the same publications with the same ids, to the same partitions: the time is in no
id, and decides neither which rows share a frame nor where frames are cut. Every dead letter of a
pipeline is built here, even if its source could not read the row.

The id of a publication consists of the key of its chunk and a hash of its rows. It must depend on
nothing else. With less (the chunk alone), a replay that decides differently is dropped as a copy,
and its messages are lost. With more (a time, a number of tries), the same messages are stored
twice.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import MessageTooLarge
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.answers import answer_headers, answer_key
from ebbflow.engine.dead_letter import MARK, Letter
from ebbflow.engine.frames import Rows, request_id
from ebbflow.engine.outputs import NO_PARENT
from ebbflow.engine.position import name_sender
from ebbflow.engine.redelivery import due_after, round_delay
from ebbflow.engine.routing import Edge, route
from ebbflow.engine.verdict import Verdict

FROM = "Ebbflow-From"
MOVED_FROM = "Nats-Scheduler"
"""The header in which the server names the subject that a due frame was parked on."""
PARKED_ON = "Ebbflow-Parked-On"
"""The same for a frame that a task has moved; ``MOVED_FROM`` is left to the server."""
DUE = "Ebbflow-Due"
"""The header of a frame in a buffer that its reader must park until this time, in ms since 1970."""
REDELIVERED_BY = "Ebbflow-Redelivered-By"
"""The header that names the chunk that a redelivery comes from (``position.name_sender``)."""
WATERMARK = "Ebbflow-Watermark"
ROWS = "Ebbflow-Rows"
"""The header with the number of rows in a frame, for readers that only count."""
REASONS = "Ebbflow-Reasons"
"""The header with the reasons of a frame's redeliveries, each with its number of rows."""

# Room for the headers of a message; those of frames have a known length.
_HEADERS = 32 * 1024
_MOST_REASONS, _LONGEST_REASON = 3, 200
_LETTER_FACTS = (
    *("id", "value", "keys", "headers", "metadata"),
    *("event_time", "first_seen", "deliveries"),
)


_UNKNOWN: dict[str, Any] = {"value": b"", "event_time": None, "first_seen": None, "deliveries": 1}


class Stage(IntEnum):
    """The order of publishing: everything of a stage is confirmed before the next one begins.

    Redeliveries come before outputs as a second safeguard besides the hash in the ids. It protects
    redeliveries that are not listed as awaited: even without the hash, none of them is lost if user
    code only improves from one try to the next.
    """

    REDELIVER = 1
    HAND_OVER = 2
    """Redeliveries of vertices that ran inline, to the buffers of those vertices."""
    DEAD_LETTER = 3
    ANSWER = 4
    OUTPUT = 5
    TRAIL = 6
    """The outcomes of the rows: late, so that everything they name is already stored."""
    AUDIT = 7
    """The same for the audit table; valid once the chunk is recorded as done."""


LATE = frozenset({Stage.TRAIL, Stage.AUDIT})
"""The stages that observers publish, when everything else of the chunk is stored."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One message to publish. ``target`` is a vertex, or the bucket of an answer.

    ``due`` is for redeliveries and ``key`` for answers. An output that ``discards`` is dropped when
    its buffer is full. ``parents`` are the inputs that it came from, one entry per row. ``ordered``
    outputs reach a partition one after another. ``via`` is the chain of inline vertices that it
    comes from (see ``Chunk``). ``refusal`` says why the server refused it permanently; if its
    pieces were stored then, it has no ``parents``.
    """

    stage: Stage
    target: str
    partition: int
    msg_id: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    due: int | None = None
    key: str = ""
    discards: bool = False
    ordered: bool = False
    parents: Sequence[int] = ()
    via: str = ""
    refusal: str = ""

    @property
    def token(self) -> str:
        """A unique token, which is part of the subject that it is parked on."""
        return token_of(self.msg_id)

    def check_size(self, max_payload: int) -> None:
        """Raises ``MessageTooLarge`` if the server would refuse it; dead letters are cut to fit."""
        if self.stage is not Stage.DEAD_LETTER:
            _check_payload(self.payload, max_payload)


def _check_payload(payload: bytes, max_payload: int) -> None:
    limit = max_payload - min(_HEADERS, max_payload // 4)
    if len(payload) > limit:
        raise MessageTooLarge(len(payload), limit)


def redelivery_token(headers: Mapping[str, str]) -> str | None:
    """Returns what identifies a redelivery: where it was parked, or the token of its id."""
    if parked_on := headers.get(MOVED_FROM) or headers.get(PARKED_ON):
        return parked_on
    own = headers.get("Nats-Msg-Id") if REDELIVERED_BY in headers else None
    return token_of(own) if own else None


def token_of(msg_id: str) -> str:
    """Returns a hash of an id."""
    return frames.fingerprint([msg_id])


class ChunkNumber(NamedTuple):
    """The number of a chunk within its partition, and the claim of the task that settles it.

    A replayed chunk has the same number under a later claim.
    """

    number: int
    claim: int


UNNUMBERED = ChunkNumber(0, 0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are settled together, under a key that only these rows have.

    ``number`` counts the chunks of its partition. ``is_probe`` if it was taken to find out whether
    a system is back. A vertex that another vertex's task runs inline settles its rows under that
    task's key: ``writer`` is that task, and ``via`` names the inline vertices from there to this
    one, as in ``enrich>score``.
    """

    key: str
    rows: Rows
    number: ChunkNumber = UNNUMBERED
    is_probe: bool = False
    writer: str = ""
    via: str = ""

    def name(self, what: str) -> str:
        """Returns the beginning of the ids of its publications of one kind, or for one vertex."""
        # The chain is part of it: two inline vertices may get the same rows from one chunk.
        return f"{self.key}:{self.via}>{what}" if self.via else f"{self.key}:{what}"

    def mark(self, frame: pa.RecordBatch) -> str:
        """Returns the hash of a frame's rows, by which a reader recognises copies."""
        return mark_frame(frame, self.via)


def mark_frame(frame: pa.RecordBatch, via: str) -> str:
    """Returns the hash of the rows of a frame that comes from a chain of inline vertices."""
    mark = frames.fingerprint(frame.column("id"))
    return frames.fingerprint([via, mark]) if via else mark


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of a vertex with its edges. ``max_payload`` is the server's limit of a message.

    ``bucket`` holds the answers, unless the user's own store does.
    """

    vertex: str
    partition: int
    edges: Sequence[Edge]
    max_payload: int
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """The outputs that one edge has taken, and the inputs that they came from.

    ``values`` are their values, if there is already a list of them.
    """

    to: str
    parents: Sequence[int]
    batch: pa.RecordBatch
    values: list[bytes] | None = None

    @property
    def ids(self) -> pa.StringArray:
        """The ids of the outputs."""
        return self.batch.column("id")


class Finished(Protocol):
    """The inputs of a chunk that were processed."""

    @property
    def number_finished(self) -> int:
        """How many they are."""

    @property
    def finished(self) -> Sequence[int]:
        """Which ones, in their order."""


@dataclass(frozen=True, slots=True)
class Routed:
    """The outputs of a chunk. ``unrouted`` are the inputs whose outputs no edge took.

    ``batch``, ``parents`` and ``tags`` are all outputs, each with its input and its tags; empty if
    the vertex has no edges.
    """

    publications: list[Publication]
    written: int
    unrouted: frozenset[int] = frozenset()
    edges: Sequence[EdgeRows] = ()
    batch: pa.RecordBatch | None = None
    parents: Sequence[int] = ()
    tags: Sequence[Sequence[str]] = ()


def build_redeliveries(
    chunk: Chunk, again: Mapping[int, Redeliver | Retry], place: Place, now: datetime
) -> Iterator[Publication]:
    """Yields frames for the vertex itself, one or more for each delay."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index in sorted(again):
        # By the delay, never by the due time: a replay happens later and would group other rows.
        delay = again[index].delay
        groups[round_delay(delay) if delay else 0].append(index)
    now_ms = math.ceil(now.timestamp() * 1000)  # rounded up: a redelivery is never early
    for delay, indexes in sorted(groups.items()):
        start = 0
        for frame in _cut_again(chunk.rows.batch, indexes, again, place.max_payload):
            due = due_after(now_ms, delay) if delay else None
            own = indexes[start : start + frame.num_rows]
            yield _build_redelivery(chunk, frame, place, due, own)
            start += frame.num_rows


def _build_redelivery(
    chunk: Chunk,
    frame: pa.RecordBatch,
    place: Place,
    due: int | None,
    parents: Sequence[int],
) -> Publication:
    """Returns a frame for the vertex itself.

    If another vertex's task ran the vertex inline, the frame goes through the vertex's buffer:
    readers of buffers recognise copies by their writer, and only the vertex's own task may write to
    its redelivery stream.
    """
    if chunk.via:
        stage, headers = Stage.HAND_OVER, {FROM: chunk.writer, DUE: str(due or 0)}
    else:
        stage, headers = Stage.REDELIVER, _sender_headers(chunk) | {REASONS: list_reasons(frame)}
    return Publication(
        stage,
        place.vertex,
        place.partition,
        # Without the due time: a replay happens later, and would store the rows twice.
        f"{chunk.name('again')}:{chunk.mark(frame)}",
        frames.encode(frame),
        headers | {ROWS: str(frame.num_rows)},
        due=due if stage is Stage.REDELIVER else None,
        parents=parents,
        via=chunk.via,
    )


def build_parked(
    chunk: Chunk, parked: Iterable[pa.RecordBatch], place: Place, now: datetime
) -> Iterator[Publication]:
    """Yields a redelivery for each frame that was decided before it was read."""
    for frame in parked:
        due = due_of(frame)
        assert due is not None
        rows, orphans = frame.replace_schema_metadata(None), [NO_PARENT] * frame.num_rows
        later = due if due > now.timestamp() * 1000 else None
        yield _build_redelivery(chunk, rows, place, later, orphans)


def with_due(frame: pa.RecordBatch, due: int) -> pa.RecordBatch:
    """Returns the rows of a frame, marked for its reader to park until ``due``."""
    return frame.replace_schema_metadata({DUE: str(due)})


def due_of(frame: pa.RecordBatch) -> int | None:
    """Returns the time until which the rows must be parked; ``None`` for ordinary rows."""
    metadata = frame.schema.metadata
    return int(metadata[DUE.encode()]) if metadata else None


def _sender_headers(chunk: Chunk) -> dict[str, str]:
    """Returns the header that names the chunk of a redelivery; none if it has no number."""
    lineage, number = chunk.key.partition(":")[0], chunk.number.number
    return {REDELIVERED_BY: name_sender(lineage, number)} if number else {}


def _cut_again(
    batch: pa.RecordBatch,
    indexes: Sequence[int],
    again: Mapping[int, Redeliver | Retry],
    max_payload: int,
) -> Iterator[pa.RecordBatch]:
    """Yields the redelivered rows as frames, cut by the size of the rows as they were read.

    Not by their reasons: the text of an error may be longer in a replay.
    """
    rows = redelivered_rows(batch, indexes, [again[index] for index in indexes])
    bare = frames.with_columns(rows, nack_reason=pa.nulls(len(indexes), pa.string()))
    start = 0
    for part in frames.split(bare, _frame_bytes(max_payload)):
        yield _fit_reasons(rows.slice(start, part.num_rows), max_payload // 8)
        start += part.num_rows


def _frame_bytes(max_payload: int) -> int:
    """Returns the bytes of a frame: fewer than usual if the server takes only small messages."""
    return min(frames.MAX_BYTES, max_payload // 4)


def _fit_reasons(frame: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """Returns the rows with reasons that take at most this many bytes, all cut alike if needed."""
    reasons = frame.column("nack_reason")
    if (pc.sum(pc.binary_length(reasons)).as_py() or 0) <= most:
        return frame
    share = most // frame.num_rows // 4  # characters, of four bytes at most
    return frames.with_columns(frame, nack_reason=pc.utf8_slice_codeunits(reasons, 0, share))


def list_reasons(frame: pa.RecordBatch) -> str:
    """Returns the header with the reasons for which the rows of a frame are redelivered."""
    found = pc.value_counts(frame.column("nack_reason"))
    texts: Counter[str] = Counter()
    for text, count in zip(*(part.to_pylist() for part in found.flatten()), strict=True):
        texts[text or "nacked"] += count
    # JSON keeps a header on one line of plain ASCII, which is all that NATS carries.
    shown = texts.most_common(_MOST_REASONS)
    return json.dumps([[text[:_LONGEST_REASON], count] for text, count in shown])


def redelivered_rows(
    batch: pa.RecordBatch, indexes: Sequence[int], how: Sequence[Redeliver | Retry]
) -> pa.RecordBatch:
    """Returns the rows to redeliver: a redelivery counts as a delivery, a retry does not."""
    taken = frames.take_rows(batch, indexes)
    deliveries = taken.column("deliveries")
    if any(type(h) is Retry for h in how):
        more = pa.array([0 if isinstance(h, Retry) else 1 for h in how], pa.uint32())
        retries: Any = [h.retries if isinstance(h, Retry) else 0 for h in how]
        reasons = [h.error if isinstance(h, Retry) else h.reason for h in how]
    else:
        more, retries = pa.scalar(1, pa.uint32()), None  # no retries, as in a first delivery
        reasons = [h.reason for h in how]  # type: ignore[union-attr]
    return frames.with_columns(
        taken,
        deliveries=pc.add(deliveries, more),
        failures=[h.failures for h in how],
        retries=retries,
        nack_reason=reasons,
    )


def build_dead_letters(
    chunk: Chunk, dead: Mapping[int, DeadLetter], place: Place, now: datetime
) -> Iterator[Publication]:
    """Yields one plain message for each dead letter."""
    if not dead:
        return
    # From the batch, not from the lists that user code has seen and may have changed.
    rows = Rows(frames.take_rows(chunk.rows.batch, sorted(dead)))
    for number, (_, why) in enumerate(sorted(dead.items())):
        letter = _build_letter(rows, number, why, place.vertex, now).fitting(place.max_payload)
        yield Publication(
            Stage.DEAD_LETTER,
            place.vertex,
            place.partition,
            f"{chunk.name('dead')}:{frames.fingerprint([letter.id])}",
            letter.value,
            letter.to_headers(),
            via=chunk.via,
        )


def _build_letter(rows: Rows, index: int, why: DeadLetter, vertex: str, now: datetime) -> Letter:
    facts, unread = _read_facts(rows, index)
    facts["metadata"].pop(MARK, None)
    error = why.error
    if unread:
        error = f"{error or why.reason}; it is incomplete, as it cannot be read: {unread}"
    return Letter(
        vertex=vertex,
        reason=why.reason,
        error=error,
        traceback=why.traceback,
        last_seen=now.astimezone(UTC),
        size=why.size,
        unread=why.unread,
        **facts,
    )


def _read_facts(rows: Rows, index: int) -> tuple[dict[str, Any], str]:
    """Returns the facts of a row, and the names of those that cannot be read.

    A dead letter is all that is left of a message, so it is built whatever the row holds.
    """
    try:
        return {name: rows.column(name)[index] for name in _LETTER_FACTS}, ""
    except Exception:
        row, facts, unread = Rows(rows.batch.slice(index, 1)), dict(_UNKNOWN), []
        facts |= {"id": f"unreadable-{index}", "headers": {}, "metadata": {}, "keys": []}
        for name in _LETTER_FACTS:
            try:
                facts[name] = row.column(name)[0]
            except Exception:
                unread.append(name)
        return facts, ", ".join(unread)


def build_answers(
    chunk: Chunk, answers: Mapping[int, Sequence[bytes]], place: Place
) -> Iterator[Publication]:
    """Yields an entry of the serving store for each answer; a replay writes the same entries."""
    # From the batch, not from the headers that user code has seen and may have changed.
    rows = Rows(chunk.rows.batch)
    for index, payloads in sorted(answers.items()):
        assert place.bucket is not None
        request, message = answer_key(request_id(rows, index)), rows.column("id")[index]
        own, headers = frames.fingerprint([message]), answer_headers(message)
        for number, payload in enumerate(payloads):
            yield Publication(
                Stage.ANSWER,
                place.bucket,
                place.partition,
                f"{chunk.name('answer')}:{own}.{number}",
                payload,
                headers,
                key=f"{request}.{place.vertex}.{own}.{number}",
                parents=(index,),
                via=chunk.via,
            )


def build_outputs(
    chunk: Chunk,
    verdict: Verdict,
    inputs: Finished,
    place: Place,
    now: datetime,
    watermark: datetime | None,
    inline: Collection[str] = (),
) -> Routed:
    """Returns the outputs, routed by their tags, without frames for vertices in ``inline``."""
    if not place.edges:
        return Routed([], written=inputs.number_finished)
    values = None
    if verdict.outputs is None:
        finished = inputs.finished
        everything = len(finished) == len(chunk.rows)
        batch = chunk.rows.batch if everything else frames.take_rows(chunk.rows.batch, finished)
        parents, tags = finished, [()] * len(finished)
    else:
        batch = verdict.outputs.batch(chunk.rows, place.vertex, now)
        parents, tags = verdict.outputs.parents, verdict.outputs.tags  # type: ignore[assignment]
        values = verdict.outputs.value_list
    headers = _origin_headers(chunk, place, watermark)
    return _route_outputs(chunk, batch, parents, tags, place, headers, inline, values)


def _origin_headers(chunk: Chunk, place: Place, watermark: datetime | None) -> dict[str, str]:
    origin = {FROM: chunk.writer or f"{place.vertex}.{place.partition}"}
    return origin if watermark is None else origin | {WATERMARK: watermark.isoformat()}


def _route_outputs(
    chunk: Chunk,
    batch: pa.RecordBatch,
    parents: Sequence[int],
    tags: Sequence[Sequence[str]],
    place: Place,
    headers: dict[str, str],
    inline: Collection[str],
    values: list[bytes] | None = None,
) -> Routed:
    publications: list[Publication] = []
    edges: list[EdgeRows] = []
    unreached: set[int] | None = None  # the inputs whose outputs no edge has taken
    written = 0
    for edge, indexes in zip(place.edges, route(place.edges, tags), strict=True):
        everything = len(indexes) == batch.num_rows
        chosen = batch if everything else frames.take_rows(batch, indexes)
        own = parents if everything else [parents[i] for i in indexes]
        if edge.to in inline:
            _check_inline(chosen, place.max_payload)
        else:
            most = _frame_bytes(place.max_payload)
            publications += _build_frames(chunk, edge, chosen, headers, own, most)
        edges.append(EdgeRows(edge.to, own, chosen, values if everything else None))
        if unreached is None:
            unreached = set() if everything else set(parents) - {NO_PARENT}
        unreached.difference_update(own if unreached else ())
        written += len(indexes)
    unrouted = frozenset(unreached or ())
    return Routed(publications, written, unrouted, edges, batch, parents, tags)


def _check_inline(batch: pa.RecordBatch, max_payload: int) -> None:
    """Raises for outputs that are too large for a frame, although no frame is published.

    The outcome of a message must not depend on whether its edge is currently inline.
    """
    # Only a row that fills a frame by itself can be too large: frames of several rows are cut to
    # fit. Encoding all of them only to measure them costs as much as publishing them.
    half = max_payload // 2
    if frames.size_of(batch) > half:
        for frame in frames.split(batch, _frame_bytes(max_payload)):
            if frame.num_rows == 1 and frames.size_of(frame) > half:
                _check_payload(frames.encode(frame), max_payload)


def _build_frames(
    chunk: Chunk,
    edge: Edge,
    batch: pa.RecordBatch,
    headers: dict[str, str],
    parents: Sequence[int],
    most: int,
) -> Iterator[Publication]:
    for partition, rows in _split_by_partition(batch, edge).items():
        share = batch if rows is None else frames.take_rows(batch, rows)
        own = parents if rows is None else [parents[i] for i in rows]
        start = 0
        for number, frame in enumerate(frames.split(share, most)):
            mark = chunk.mark(frame)
            # Taken from the content, so that a replay sends the same frame the same way.
            spread = (int(mark[:8], 16) + number) % edge.partitions
            yield Publication(
                Stage.OUTPUT,
                edge.to,
                spread if partition is None else partition,
                f"{chunk.name(edge.to)}:{mark}",
                frames.encode(frame),
                headers | {ROWS: str(frame.num_rows)},
                discards=edge.discards,
                ordered=edge.keyed,
                parents=own[start : start + frame.num_rows],
                via=chunk.via,
            )
            start += frame.num_rows


def _split_by_partition(batch: pa.RecordBatch, edge: Edge) -> dict[int | None, list[int] | None]:
    """Returns the rows for each partition; ``None`` means any partition, or all rows."""
    if not edge.keyed:
        return {None: None}
    rows: dict[int | None, list[int] | None] = defaultdict(list)
    for index, keys in enumerate(batch.column("keys").to_pylist()):
        rows[partition_of(keys or (), edge.partitions)].append(index)  # type: ignore[union-attr]
    return rows


def partition_of(keys: Sequence[str], partitions: int) -> int:
    """Returns the partition that all messages with these keys go to."""
    return zlib.crc32("\x1f".join(keys).encode()) % partitions
