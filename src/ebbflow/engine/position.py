"""The position: how far a partition of a vertex is, in one record replaced by compare-and-set.

A vertex reads two streams: its inlet (the buffer, or the source) and its redeliveries. Each has a
``Mark`` up to which everything is settled (``done``) and one up to which publishing may have begun
(``intent``). After a crash the rows between the two are replayed as exactly one chunk, so that
outputs get the same ids and copies are dropped: by JetStream while it remembers the ids, and by
their reader, which records the frames that it has read of each writer's last chunk. The counts are
part of the record: they change in the same write as ``done``, so they are exact across crashes.

A reader recognises copies by message ids (``Stamp``), which consist of ``chunk_key`` and a hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from ebbflow.domain.outcome import Counts

MOST = 256
"""The most frames that are remembered of a chunk: its last ones."""

MOVED = "due"
"""The writer of parked redeliveries: the server, which moves them when they are due."""

MOST_MOVED = 2_048
"""The most moved frames that are remembered of each span of ``_MOVED_SPAN`` seconds."""

# A server that was killed may have forgotten its last deletes, and moves these frames again when it
# is back: up to 10 seconds after the first time, as measured, not counting the time it was down.
_MOVED_SPAN, _MOVED_SPANS = 15, 4

AWAITED = "awaited"
"""The redeliveries that the vertex has published and not read, by the number of their chunk."""

MOST_AWAITED = 4_096
"""The most of these that are remembered; older ones are recognised as copies like moved frames."""

_LENGTH = 16
_MARK = r"(\d+)(?:\.(\d+))?"
# As made by ``chunk_key`` and the publication of an output.
_ID = re.compile(rf"([^:]+):([^:]+):(\d+):{_MARK}-[\d.]+:{_MARK}-[\d.]+:[^:]+:([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A frame's identity: its writer, where its chunk begins, and a hash of its rows.

    When the writer was started over, ``lineage`` differs, and ``begins`` counts from 0 again.
    """

    writer: str
    lineage: str
    begins: tuple[int, ...]
    rows: str

    @classmethod
    def of(cls, writer: str | None, msg_id: str | None) -> Stamp | None:
        """Returns the stamp in a frame's headers; ``None`` if no task of a vertex wrote it."""
        parts = _ID.fullmatch(msg_id) if writer and msg_id else None
        if parts is None or f"{parts[2]}.{parts[3]}" != writer:
            return None
        begins = tuple(int(number or 0) for number in parts.groups()[3:7])
        return cls(writer, parts[1], begins, parts[8][:_LENGTH])

    @classmethod
    def of_redelivery(cls, token: str | None, stored: float, sent_by: str | None) -> Stamp | None:
        """Returns the stamp of a redelivery, from the token of its id or a subject that ends in it.

        A server that was killed may move a parked frame again when it is back. A moved frame has no
        id, but the subject on which it was parked ends with the token. ``stored`` is when the
        server stored it, in seconds since 1970; ``sent_by`` names the chunk it comes from
        (``name_sender``).
        """
        if not token:
            return None
        lineage, _, number = (sent_by or ":0").rpartition(":")
        begins = (int(number), int(stored // _MOVED_SPAN))
        return cls(MOVED, lineage, begins, token.rpartition(".")[2][:_LENGTH])


@dataclass(frozen=True, slots=True)
class LastChunk:
    """The part of a writer's last chunk that was read: a hash of the rows of each frame."""

    lineage: str
    begins: tuple[int, ...]
    rows: tuple[str, ...] = ()

    def is_of(self, stamp: Stamp) -> bool:
        """Whether a frame belongs to this chunk."""
        return (self.lineage, self.begins) == (stamp.lineage, stamp.begins)


Known = Mapping[str, LastChunk]
"""What was read of the last chunk of each writer. It is never changed, only replaced."""

NOTHING: Known = {}


def is_copy(known: Known, stamp: Stamp) -> bool:
    """Returns whether a frame was read before."""
    if stamp.writer == MOVED and _is_tracked(known, stamp):
        return _find_awaited(known, stamp) is None
    if stamp.writer == MOVED:
        return any(stamp.rows in known[writer].rows for writer in known if _is_span(writer))
    last = known.get(stamp.writer)
    # A writer of another lineage counts its marks from 0 again: none of its frames is older, and
    # taking one for a copy would lose it.
    if last is None or last.lineage != stamp.lineage:
        return False
    return stamp.begins < last.begins or (stamp.begins == last.begins and stamp.rows in last.rows)


def with_frame(known: Known, stamp: Stamp) -> Known:
    """Returns ``known`` with a frame whose last row has been read.

    Not before the last row: a frame with unread rows must not pass for a copy when it is read
    again.
    """
    if stamp.writer == MOVED and _is_tracked(known, stamp):
        return _without_read(known, stamp)
    if stamp.writer == MOVED:
        return _with_moved(known, stamp)
    last = known.get(stamp.writer)
    if last is None or not last.is_of(stamp):
        last = LastChunk(stamp.lineage, stamp.begins)
    rows = (*last.rows, stamp.rows)[-MOST:]
    return {**known, stamp.writer: LastChunk(last.lineage, last.begins, rows)}


def _with_moved(known: Known, stamp: Stamp) -> Known:
    """Returns ``known`` with a moved frame, and without those of long ago."""
    span = stamp.begins[1]
    oldest = span - _MOVED_SPANS
    kept = {
        writer: last
        for writer, last in known.items()
        if not _is_span(writer) or last.begins[0] > oldest
    }
    writer = f"{MOVED} {span}"
    before = kept.get(writer, LastChunk("", (span,))).rows
    rows = (*before, stamp.rows)[-MOST_MOVED:]
    return {**kept, writer: LastChunk("", (span,), rows)}


def _is_span(writer: str) -> bool:
    # The names of tasks contain no space.
    return writer.startswith(f"{MOVED} ")


def name_sender(lineage: str, chunk: int) -> str:
    """Returns the name of a chunk in the headers of its redeliveries."""
    return f"{lineage}:{chunk}"


def with_awaited(known: Known, lineage: str, chunk: int, rows: Iterable[str]) -> Known:
    """Returns ``known`` with the redeliveries of a chunk, identified by their tokens.

    A frame is removed when its last row is read. So if it appears again, however much later, it is
    a copy because it is not awaited; so is a frame of an attempt that the replay did not repeat.
    """
    own = tuple(row[:_LENGTH] for row in rows)
    before = known.get(AWAITED)
    if before is None or before.lineage != lineage:
        known = {writer: last for writer, last in known.items() if not _is_awaited(writer)}
        known = {**known, AWAITED: LastChunk(lineage, (chunk - 1,))}
    if not own:
        return known
    return _without_oldest({**known, f"{AWAITED} {chunk}": LastChunk("", (chunk,), own)})


def without_awaited(known: Known, tokens: Iterable[str]) -> Known:
    """Returns ``known`` without redeliveries that were not stored."""
    gone = {token[:_LENGTH] for token in tokens}
    chunks = _list_awaited(known)
    left = {chunk: tuple(row for row in known[chunk].rows if row not in gone) for chunk in chunks}
    kept = {writer: last for writer, last in known.items() if left.get(writer, True)}
    return {w: replace(last, rows=left[w]) if w in left else last for w, last in kept.items()}


def _is_awaited(writer: str) -> bool:
    return writer == AWAITED or writer.startswith(f"{AWAITED} ")


def _list_awaited(known: Known) -> list[str]:
    return [writer for writer in known if writer.startswith(f"{AWAITED} ")]


def _without_oldest(known: Known) -> Known:
    """Returns ``known`` with as many awaited frames as a record may hold, of the newest chunks."""
    chunks = _list_awaited(known)
    most = sum(len(known[chunk].rows) for chunk in chunks)
    if most <= MOST_AWAITED:
        return known
    kept = dict(known)
    for chunk in sorted(chunks, key=lambda chunk: known[chunk].begins):
        last = kept.pop(chunk)
        most -= len(last.rows)
        kept[AWAITED] = LastChunk(kept[AWAITED].lineage, last.begins)
        if most <= MOST_AWAITED:
            break
    return kept


def _is_tracked(known: Known, stamp: Stamp) -> bool:
    """Returns whether ``known`` would list the frame if it were still awaited.

    Not if the frame is from before the pipeline was started over, and not if its chunk was dropped
    because there were too many frames: ``begins`` is the last such chunk.
    """
    since = known.get(AWAITED)
    if since is None or since.lineage != stamp.lineage:
        return False
    return stamp.begins[0] > since.begins[0]


def _find_awaited(known: Known, stamp: Stamp) -> str | None:
    """Returns the key under which an awaited frame is listed; ``None`` if it is not awaited."""
    own = f"{AWAITED} {stamp.begins[0]}"
    # Usually under its own chunk. Looking at the other chunks as well can only save it.
    chunks = (own, *_list_awaited(known)) if own in known else _list_awaited(known)
    return next((chunk for chunk in chunks if stamp.rows in known[chunk].rows), None)


def _without_read(known: Known, stamp: Stamp) -> Known:
    """Returns ``known`` without an awaited frame that has been read."""
    chunk = _find_awaited(known, stamp)
    if chunk is None:
        return known
    left = tuple(rows for rows in known[chunk].rows if rows != stamp.rows)
    others = {writer: last for writer, last in known.items() if writer != chunk}
    return {**others, chunk: replace(known[chunk], rows=left)} if left else others


def known_of_redeliveries(known: Known) -> Known:
    """Returns the part of ``known`` about redeliveries."""
    return {writer: last for writer, last in known.items() if _is_of_redeliveries(writer)}


def known_of_writers(known: Known) -> Known:
    """Returns the part of ``known`` about the tasks that write to the inlet."""
    return {writer: last for writer, last in known.items() if not _is_of_redeliveries(writer)}


def _is_of_redeliveries(writer: str) -> bool:
    # The names of tasks contain no space.
    return " " in writer or writer == AWAITED


def dump_known(known: Known) -> dict[str, list[Any]]:
    """Returns ``known`` as it is stored with a position: small, as every chunk writes it."""
    return {
        writer: [last.lineage, [*last.begins], "".join(last.rows)] for writer, last in known.items()
    }


def load_known(stored: Mapping[str, Any]) -> Known:
    """Returns ``known`` from its stored form."""
    return {
        writer: LastChunk(lineage, tuple(begins), _cut(rows))
        for writer, (lineage, begins, rows) in stored.items()
    }


def _cut(rows: str) -> tuple[str, ...]:
    return tuple(rows[start : start + _LENGTH] for start in range(0, len(rows), _LENGTH))


LINEAGE = "EBBFLOW_LINEAGE"
"""The environment variable with a pipeline's lineage, for sinks: it changes after --fresh."""


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """All frames up to sequence ``seq``, and the first ``row`` rows of the next frame."""

    seq: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A mark in each of the two streams.

    ``known`` lists the frames by which the reader recognises copies at that point.
    """

    inlet: Mark = Mark()
    redelivery: Mark = Mark()
    known: Known = field(default_factory=dict, compare=False)


NO_COUNTS: Mapping[str, Counts] = {}


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """The counts of one or more chunks: of the vertex itself, and of vertices run inline."""

    own: Counts = field(default_factory=Counts)
    inline: Mapping[str, Counts] = field(default_factory=dict)

    def __add__(self, other: ChunkCounts) -> ChunkCounts:
        return ChunkCounts(self.own + other.own, add_counts(self.inline, other.inline))


def add_counts(one: Mapping[str, Counts], other: Mapping[str, Counts]) -> Mapping[str, Counts]:
    """Returns the sums of the counts of each vertex."""
    if not one or not other:
        return one or other
    return {**one, **{name: one.get(name, Counts()) + more for name, more in other.items()}}


@dataclass(frozen=True, slots=True)
class Held:
    """The row right behind ``done`` of an ordered vertex, which must be redelivered first."""

    due: int
    deliveries: int
    failures: int
    retries: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Position:
    """The record of one partition. ``lineage`` changes when a pipeline is started over.

    ``halted`` says why the breaker has stopped it, if it has. ``paused`` says that people have
    paused it: its task has settled what it had in flight, and takes nothing more. ``chunks`` is how
    many chunks are done: their numbers identify audit rows (``audit``). ``owner`` is the task that
    claimed it, ``attempts`` counts the tasks that have attempted the current intent, and
    ``exhausted`` is set when a source will never have more messages. ``inline`` are the chains of
    vertices that ran inline for the chunk of the current intent: a replay takes the same ones, so
    that it makes the same publications. ``inline_counts`` are the counts of inline vertices, as far
    as this task ran them. ``runs_inline`` are the vertices that the task may run: without those
    that people have paused.

    A position is never changed, only replaced. ``done`` may move only when all publications of the
    chunk are confirmed, and ``intent`` must be written before the first of them: the rows between
    the two are replayed, and no others.
    """

    lineage: str
    epoch: int = 0
    owner: str = ""
    done: Span = Span()
    intent: Span = Span()
    attempts: int = 0
    exhausted: bool = False
    halted: str | None = None
    paused: bool = False
    watermark: datetime | None = None
    held: Held | None = None
    counts: Counts = field(default_factory=Counts)
    chunks: int = 0
    inline: tuple[str, ...] = ()
    inline_counts: Mapping[str, Counts] = field(default_factory=dict)
    runs_inline: tuple[str, ...] = ()

    def claimed(self, owner: str, run: str = "") -> Position:
        """Returns the position for a new task of ``run``; the old task's next write fails.

        The new task finds out again whether the source is exhausted: there may be more messages. A
        new run resumes a halted vertex.
        """
        return replace(
            self,
            epoch=self.epoch + 1,
            owner=owner,
            attempts=self.attempts + 1 if self.replays else 0,
            exhausted=False,
            halted=self.halted if self.owner.startswith(run) else None,
        )

    def intending(self, end: Span, inline: tuple[str, ...] = ()) -> Position:
        """Returns the position to write before the chunk up to ``end`` is published."""
        # A replay may take fewer edges than the first attempt, whose choice still holds.
        inline = tuple(sorted({*self.inline, *inline}))
        return replace(self, intent=end, attempts=max(1, self.attempts), inline=inline)

    def settled(
        self,
        end: Span,
        counts: Counts,
        watermark: datetime | None = None,
        held: Held | None = None,
        chunks: int = 0,
        inline: Mapping[str, Counts] = NO_COUNTS,
    ) -> Position:
        """Returns the position to write when everything up to ``end`` is confirmed.

        ``chunks`` is how many chunks that is; none where only copies were passed over. ``inline``
        are the counts of vertices that ran inline.
        """
        # The counts change in the same write as ``done``: after a crash before that write, only the
        # replay counts the chunk.
        return replace(
            self,
            done=end,
            intent=end,
            attempts=0,
            watermark=watermark or self.watermark,
            held=held,
            counts=self.counts + counts,
            chunks=self.chunks + chunks,
            inline=(),
            inline_counts=add_counts(self.inline_counts, inline),
        )

    @property
    def replays(self) -> bool:
        """Whether a chunk was begun and not settled."""
        return self.done != self.intent

    @property
    def repeated(self) -> Mark | None:
        """The mark up to which redeliveries are read, if the current chunk was begun before.

        A replay looks from there on for redeliveries that the earlier attempt has stored.
        """
        return self.done.redelivery if self.attempts > 1 else None

    def to_json(self) -> bytes:
        """Returns the record as it is stored."""
        return json.dumps(
            {
                "lineage": self.lineage,
                "epoch": self.epoch,
                "owner": self.owner,
                "done": _dump(self.done.inlet),
                "intent": _dump(self.intent.inlet),
                "redelivery_done": _dump(self.done.redelivery),
                "redelivery_intent": _dump(self.intent.redelivery),
                "attempts": self.attempts,
                "exhausted": self.exhausted,
                "halted": self.halted,
                "paused": self.paused,
                "watermark": self.watermark.isoformat() if self.watermark else None,
                "held": asdict(self.held) if self.held else None,
                "counts": self.counts.as_dict(),
                "chunks": self.chunks,
                "known": dump_known(self.done.known),
                "inline": self.inline,
                "runs_inline": self.runs_inline,
                "inline_counts": {
                    vertex: counts.as_dict() for vertex, counts in self.inline_counts.items()
                },
            }
        ).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> Position:
        """Returns the record from its stored form, also that of earlier versions."""
        stored: dict[str, Any] = json.loads(raw)
        return cls(
            lineage=stored["lineage"],
            epoch=stored["epoch"],
            owner=stored["owner"],
            done=Span(
                Mark(*stored["done"]),
                Mark(*stored["redelivery_done"]),
                load_known(stored.get("known", NOTHING)),
            ),
            intent=Span(Mark(*stored["intent"]), Mark(*stored["redelivery_intent"])),
            attempts=stored["attempts"],
            exhausted=stored["exhausted"],
            halted=stored.get("halted"),
            paused=stored.get("paused", False),
            watermark=datetime.fromisoformat(stored["watermark"]) if stored["watermark"] else None,
            held=Held(**stored["held"]) if stored["held"] else None,
            counts=Counts(**stored["counts"]),
            chunks=stored.get("chunks", 0),
            inline=tuple(stored.get("inline", ())),
            runs_inline=tuple(stored.get("runs_inline", ())),
            inline_counts={
                vertex: Counts(**counts)
                for vertex, counts in stored.get("inline_counts", {}).items()
            },
        )


def count_by_vertex(positions: Mapping[tuple[str, int], Position]) -> Mapping[str, Counts]:
    """Returns the counts of each vertex, whichever tasks ran it."""
    counted: Mapping[str, Counts] = {}
    for (vertex, _), position in positions.items():
        counted = add_counts(counted, add_counts({vertex: position.counts}, position.inline_counts))
    return counted


def _dump(mark: Mark) -> list[int]:
    return [mark.seq, mark.row]


def chunk_key(lineage: str, vertex: str, partition: int, start: Span, end: Span) -> str:
    """Returns a unique name for the rows between two spans.

    It must be the same in a replay, so it consists of marks. It must differ after the pipeline is
    started over, when marks begin at 0 again, so it includes the lineage.
    """
    inlet = f"{_text(start.inlet)}-{_text(end.inlet)}"
    redelivery = f"{_text(start.redelivery)}-{_text(end.redelivery)}"
    return f"{lineage}:{vertex}:{partition}:{inlet}:{redelivery}"


def _text(mark: Mark) -> str:
    return f"{mark.seq}.{mark.row}" if mark.row else str(mark.seq)
