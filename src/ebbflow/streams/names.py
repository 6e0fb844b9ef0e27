"""The names of the streams, subjects and buckets of a pipeline, and which of them a vertex has.

Pipeline and vertex names are DNS labels, which have no ``_`` and no ``.``, so names built with
these cannot run into each other. No other module knows how a name is made up: ``parse_stream`` is
the way back. ``VertexStreams`` says which streams a vertex has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

PREFIX = "ebb_"
"""How the names of all streams of pipelines begin."""

REDELIVERY, DEAD_LETTERS, AUDIT = "redelivery", "deadletters", "audit"
"""Kinds of streams, as their names end."""

_STREAM = re.compile(rf"{PREFIX}([^_]+)_(?:([^_]+)_(\d+)(?:_({REDELIVERY}))?|([^_]+))")


class StreamName(NamedTuple):
    """What the name of a stream says. A stream of the whole pipeline is of no vertex."""

    pipeline: str
    kind: str
    vertex: str = ""
    partition: int = 0


def parse_stream(stream: str) -> StreamName | None:
    """Returns what the name of a stream says; ``None`` for one that is of no pipeline."""
    match = _STREAM.fullmatch(stream)
    if match is None:
        return None
    pipeline, vertex, partition, redelivery, kind = match.groups()
    if kind is not None:
        return StreamName(pipeline, kind)
    return StreamName(pipeline, redelivery or "buffer", vertex, int(partition))


def list_pipelines(streams: Iterable[str], kind: str = DEAD_LETTERS) -> list[str]:
    """Returns the pipelines that have a stream of a kind; all have one of dead letters."""
    parsed = filter(None, map(parse_stream, streams))
    return sorted({stream.pipeline for stream in parsed if stream.kind == kind})


def bucket_stream(bucket: str) -> str:
    """Returns the stream that is behind a key-value bucket, as any NATS tool names it."""
    return f"KV_{bucket}"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one pipeline."""

    pipeline: str

    @property
    def prefix(self) -> str:
        """How the names of all its streams and buckets begin."""
        return f"{PREFIX}{self.pipeline}_"

    def buffer(self, vertex: str, partition: int) -> str:
        """The stream that holds the frames a partition reads."""
        return f"{self.prefix}{vertex}_{partition}"

    def buffer_subject(self, vertex: str, partition: int) -> str:
        """The subject where frames for a partition are published."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.in"

    def redelivery(self, vertex: str, partition: int) -> str:
        """The stream that holds what a partition is to get again."""
        return f"{self.prefix}{vertex}_{partition}_{REDELIVERY}"

    def partitions_in(self, streams: Iterable[str]) -> set[tuple[str, int]]:
        """Returns the vertices and partitions that these streams are of; each has redeliveries."""
        parsed = filter(None, map(parse_stream, streams))
        own = (stream for stream in parsed if stream.pipeline == self.pipeline)
        return {(each.vertex, each.partition) for each in own if each.kind == REDELIVERY}

    def due_subject(self, vertex: str, partition: int) -> str:
        """The subject of redeliveries once they are due."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.due"

    def later_subject(self, vertex: str, partition: int | str, name: str = ">") -> str:
        """The subject where a redelivery waits: one of its own, or it would replace another."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.later.{name}"

    def replayed_subject(self, vertex: str, partition: int | str) -> str:
        """The subject where a replay of dead letters marks what it has sent to a partition.

        It is in the redelivery stream, so that a mark is stored together with what it is about.
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
        """The stream of what is known about messages that went back to their source."""
        return f"{self.prefix}returned"

    def ledger_subject(self, vertex: str = "*", partition: int | str = "*") -> str:
        """The subject where a partition writes down what it has returned."""
        return f"ebb.{self.pipeline}.returned.{vertex}.{partition}"

    @property
    def seen(self) -> str:
        """The stream of ids that sources were given lately, to know copies of them."""
        return f"{self.prefix}seen"

    def seen_subject(self, vertex: str = "*") -> str:
        """The subject where a source writes down ids."""
        return f"ebb.{self.pipeline}.seen.{vertex}"

    @property
    def trail(self) -> str:
        """The stream of the outcome of every message, where a source serves requests."""
        return f"{self.prefix}trail"

    def trail_subject(self, vertex: str = "*") -> str:
        """The subject where a vertex tells the outcomes of its messages."""
        return f"ebb.{self.pipeline}.trail.{vertex}"

    @property
    def audit(self) -> str:
        """The stream of audit rows that are not in the table yet, where there is a table."""
        return f"{self.prefix}{AUDIT}"

    def audit_subject(self, vertex: str = "*", partition: int | str = "*") -> str:
        """The subject where a partition tells the outcomes of its messages, for the table."""
        return f"ebb.{self.pipeline}.audit.{vertex}.{partition}"

    @property
    def audit_key(self) -> str:
        """The key, next to the positions, of how far the table is written; no vertex has it."""
        return "audit"

    @property
    def logs(self) -> str:
        """The stream of what user code has printed and logged."""
        return f"{self.prefix}logs"

    def log_subject(self, vertex: str = "*") -> str:
        """The subject where the tasks of a vertex tell what user code prints."""
        return f"ebb.{self.pipeline}.log.{vertex}"

    @property
    def status(self) -> str:
        """The stream of the pipeline's state: the latest, and samples of the last hour."""
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
        """The subject of what is stored under a key of the bucket of positions."""
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
        """The first name of all subjects where the pipeline's own requests are answered.

        No other pipeline has it, so that a login can be kept from reading others' answers.
        """
        return f"_INBOX_ebb_{self.pipeline}"

    @property
    def control_subject(self) -> str:
        """The subject where tasks hear that they are to end. Not stored."""
        return f"ebb.{self.pipeline}.control"

    @property
    def run_subject(self) -> str:
        """The subject where a run answers that it is there. Not stored."""
        return f"ebb.{self.pipeline}.run"

    def tap_subject(self, tap: str = "*") -> str:
        """The subject where tasks show what passes to whoever taps. Not stored."""
        return f"ebb.{self.pipeline}.tap.{tap}"

    def event_subject(self, kind: str = "*") -> str:
        """The subject where tasks tell the driver what people may want to see. Not stored."""
        return f"ebb.{self.pipeline}.event.{kind}"


@dataclass(frozen=True, slots=True)
class VertexStreams:
    """A vertex as its streams show it.

    ``has_buffer`` if it reads one, of at most ``max_frames`` frames; ``returns`` if its source may
    be given nacked messages back; ``remembers`` if its source writes down the ids that it was
    given; ``batched`` if the driver plans what it reads, instead of a task that follows its
    streams; ``serves`` if its source answers requests, for which all vertices of the pipeline
    publish a trail.
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
        """Returns the streams that hold messages in flight, of all partitions."""
        for partition in range(self.partitions):
            if self.has_buffer:
                yield names.buffer(self.vertex, partition)
            yield names.redelivery(self.vertex, partition)
