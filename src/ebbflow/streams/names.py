"""The names of the streams, subjects and buckets of a pipeline, and which of them a vertex has.

Pipeline and vertex names are DNS labels, which have no ``_`` and no ``.``, so names built with
these cannot collide. No other module knows how a name is composed; ``parse_stream`` is the inverse.
``VertexStreams`` says which streams a vertex has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

PREFIX = "ebb_"
"""The prefix of the names of all streams of pipelines."""

REDELIVERY, DEAD_LETTERS, AUDIT = "redelivery", "deadletters", "audit"
"""Kinds of streams; their names end with these."""

_STREAM = re.compile(rf"{PREFIX}([^_]+)_(?:([^_]+)_(\d+)(?:_({REDELIVERY}))?|([^_]+))")


class StreamName(NamedTuple):
    """The parts of a stream's name. A stream of the whole pipeline has no vertex."""

    pipeline: str
    kind: str
    vertex: str = ""
    partition: int = 0


def parse_stream(stream: str) -> StreamName | None:
    """Returns the parts of a stream's name; ``None`` if it does not belong to a pipeline."""
    match = _STREAM.fullmatch(stream)
    if match is None:
        return None
    pipeline, vertex, partition, redelivery, kind = match.groups()
    if kind is not None:
        return StreamName(pipeline, kind)
    return StreamName(pipeline, redelivery or "buffer", vertex, int(partition))


def list_pipelines(streams: Iterable[str], kind: str = DEAD_LETTERS) -> list[str]:
    """Returns the pipelines that have a stream of a kind; all have a dead-letter stream."""
    parsed = filter(None, map(parse_stream, streams))
    return sorted({stream.pipeline for stream in parsed if stream.kind == kind})


def bucket_stream(bucket: str) -> str:
    """Returns the stream behind a key-value bucket, as all NATS tools name it."""
    return f"KV_{bucket}"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one pipeline."""

    pipeline: str

    @property
    def prefix(self) -> str:
        """The prefix of the names of all its streams and buckets."""
        return f"{PREFIX}{self.pipeline}_"

    def buffer(self, vertex: str, partition: int) -> str:
        """The stream with the frames that a partition reads."""
        return f"{self.prefix}{vertex}_{partition}"

    def buffer_subject(self, vertex: str, partition: int) -> str:
        """The subject where frames for a partition are published."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.in"

    def redelivery(self, vertex: str, partition: int) -> str:
        """The stream with the redeliveries of a partition."""
        return f"{self.prefix}{vertex}_{partition}_{REDELIVERY}"

    def partitions_in(self, streams: Iterable[str]) -> set[tuple[str, int]]:
        """Returns the vertices and partitions of these streams; each has a redelivery stream."""
        parsed = filter(None, map(parse_stream, streams))
        own = (stream for stream in parsed if stream.pipeline == self.pipeline)
        return {(each.vertex, each.partition) for each in own if each.kind == REDELIVERY}

    def due_subject(self, vertex: str, partition: int) -> str:
        """The subject of redeliveries once they are due."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.due"

    def later_subject(self, vertex: str, partition: int | str, name: str = ">") -> str:
        """The subject where a redelivery is parked: a unique one, or it would replace another."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.later.{name}"

    def replayed_subject(self, vertex: str, partition: int | str) -> str:
        """The subject where a replay of dead letters marks what it has sent to a partition.

        It is in the redelivery stream, so that a mark is stored together with its frames.
        """
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.replayed"

    @property
    def dead_letters(self) -> str:
        """The stream of dead letters."""
        return f"{self.prefix}{DEAD_LETTERS}"

    def dead_letter_subject(self, vertex: str = "*") -> str:
        """The subject where dead letters of a vertex are published."""
        return f"ebb.{self.pipeline}.dead.{vertex}"

    @property
    def ledger(self) -> str:
        """The stream of the histories of messages that were nacked to their source."""
        return f"{self.prefix}returned"

    def ledger_subject(self, vertex: str = "*", partition: int | str = "*") -> str:
        """The subject where a partition stores the histories of messages it has returned."""
        return f"ebb.{self.pipeline}.returned.{vertex}.{partition}"

    @property
    def seen(self) -> str:
        """The stream of ids that sources received lately, to recognise copies."""
        return f"{self.prefix}seen"

    def seen_subject(self, vertex: str = "*") -> str:
        """The subject where a source stores ids."""
        return f"ebb.{self.pipeline}.seen.{vertex}"

    @property
    def trail(self) -> str:
        """The stream of the outcome of every message, where a source serves requests."""
        return f"{self.prefix}trail"

    def trail_subject(self, vertex: str = "*") -> str:
        """The subject where a vertex publishes the outcomes of its messages."""
        return f"ebb.{self.pipeline}.trail.{vertex}"

    @property
    def audit(self) -> str:
        """The stream of audit rows that are not in the table yet, where there is a table."""
        return f"{self.prefix}{AUDIT}"

    def audit_subject(self, vertex: str = "*", partition: int | str = "*") -> str:
        """The subject where a partition publishes the outcomes of its messages, for the table."""
        return f"ebb.{self.pipeline}.audit.{vertex}.{partition}"

    @property
    def audit_key(self) -> str:
        """The key of how far the table is written: next to the positions, whose keys have a dot."""
        return "audit"

    @property
    def logs(self) -> str:
        """The stream of what user code has printed and logged."""
        return f"{self.prefix}logs"

    def log_subject(self, vertex: str = "*") -> str:
        """The subject where the tasks of a vertex publish what user code prints."""
        return f"ebb.{self.pipeline}.log.{vertex}"

    @property
    def status(self) -> str:
        """The stream of the pipeline's state: the latest one, and samples of the last hour."""
        return f"{self.prefix}status"

    def status_subject(self, kind: str = ">") -> str:
        """The subject where a run publishes a kind of its state."""
        return f"ebb.{self.pipeline}.status.{kind}"

    @property
    def positions(self) -> str:
        """The key-value bucket of positions."""
        return f"{self.prefix}positions"

    @property
    def positions_stream(self) -> str:
        """The stream behind the bucket of positions."""
        return bucket_stream(self.positions)

    def position_key(self, vertex: str, partition: int) -> str:
        """The key of one partition's position."""
        return f"{vertex}.{partition}"

    def record_subject(self, key: str) -> str:
        """The subject of a key of the bucket of positions."""
        return f"$KV.{self.positions}.{key}"

    @property
    def pauses_key(self) -> str:
        """The key of what people have paused: next to the positions, whose keys have a dot."""
        return "paused"

    @property
    def spec_key(self) -> str:
        """The key of the spec that the pipeline last ran with."""
        return "spec"

    @property
    def answers(self) -> str:
        """The key-value bucket of answers, unless the spec names another."""
        return f"{self.prefix}answers"

    @property
    def inbox(self) -> str:
        """The first token of all subjects where the pipeline's own requests are answered.

        It is unique to the pipeline, so that a login cannot read the answers of other pipelines.
        """
        return f"_INBOX_ebb_{self.pipeline}"

    @property
    def control_subject(self) -> str:
        """The subject where tasks are asked to end. Not stored."""
        return f"ebb.{self.pipeline}.control"

    @property
    def run_subject(self) -> str:
        """The subject where a run answers that it exists. Not stored."""
        return f"ebb.{self.pipeline}.run"

    def tap_subject(self, tap: str = "*") -> str:
        """The subject where tasks publish messages for a tap. Not stored."""
        return f"ebb.{self.pipeline}.tap.{tap}"

    def event_subject(self, kind: str = "*") -> str:
        """The subject where tasks report to the driver what people may want to see. Not stored."""
        return f"ebb.{self.pipeline}.event.{kind}"


@dataclass(frozen=True, slots=True)
class VertexStreams:
    """All facts about a vertex that determine its streams.

    ``has_buffer`` if it reads one, of at most ``max_frames`` frames; ``returns`` if messages may be
    nacked to its source; ``remembers`` if its source stores the ids that it received; ``batched``
    if the driver plans what it reads, instead of a task that follows its streams; ``serves`` if its
    source answers requests, for which all vertices of the pipeline publish a trail.
    """

    vertex: str
    partitions: int
    has_buffer: bool
    returns: bool = False
    remembers: bool = False
    batched: bool = False
    serves: bool = False
    max_frames: int = field(default=0, compare=False)

    def for_messages(self, names: Names) -> Iterator[str]:
        """Yields the streams with messages in flight, of all partitions."""
        for partition in range(self.partitions):
            if self.has_buffer:
                yield names.buffer(self.vertex, partition)
            yield names.redelivery(self.vertex, partition)
