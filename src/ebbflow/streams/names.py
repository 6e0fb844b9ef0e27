"""The names of the streams, subjects and buckets of a pipeline, and which of them a vertex has.

Pipeline and vertex names are DNS labels, which have no ``_`` and no ``.``, so names built with
these cannot run into each other. ``VertexStreams`` is the one account of a vertex's streams:
provisioning makes what permissions allow, because both read it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

REDELIVERY = "_redelivery"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one pipeline."""

    pipeline: str

    def buffer(self, vertex: str, partition: int) -> str:
        """The stream that holds the frames a partition reads."""
        return f"ebb_{self.pipeline}_{vertex}_{partition}"

    def buffer_subject(self, vertex: str, partition: int) -> str:
        """The subject where frames for a partition are published."""
        return f"ebb.{self.pipeline}.vertex.{vertex}.{partition}.in"

    def redelivery(self, vertex: str, partition: int) -> str:
        """The stream that holds what a partition is to get again."""
        return f"ebb_{self.pipeline}_{vertex}_{partition}{REDELIVERY}"

    def place_of(self, stream: str) -> tuple[str, int] | None:
        """Returns the vertex and partition of a stream of messages; ``None`` for any other."""
        own = stream.removeprefix(f"ebb_{self.pipeline}_").removesuffix(REDELIVERY)
        vertex, _, partition = own.rpartition("_")
        return (vertex, int(partition)) if vertex and partition.isdecimal() else None

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
        return f"ebb_{self.pipeline}_deadletters"

    def dead_letter_subject(self, vertex: str = "*") -> str:
        """The subject where dead letters of a vertex are published."""
        return f"ebb.{self.pipeline}.dead.{vertex}"

    @property
    def ledger(self) -> str:
        """The stream of what is known about messages that went back to their source."""
        return f"ebb_{self.pipeline}_returned"

    def ledger_subject(self, vertex: str = "*", partition: int | str = "*") -> str:
        """The subject where a partition writes down what it has returned."""
        return f"ebb.{self.pipeline}.returned.{vertex}.{partition}"

    @property
    def seen(self) -> str:
        """The stream of ids that sources were given lately, to know copies of them."""
        return f"ebb_{self.pipeline}_seen"

    def seen_subject(self, vertex: str = "*") -> str:
        """The subject where a source writes down ids."""
        return f"ebb.{self.pipeline}.seen.{vertex}"

    @property
    def trail(self) -> str:
        """The stream of what became of every message, where a source serves requests."""
        return f"ebb_{self.pipeline}_trail"

    def trail_subject(self, vertex: str = "*") -> str:
        """The subject where a vertex tells what became of its messages."""
        return f"ebb.{self.pipeline}.trail.{vertex}"

    @property
    def audit(self) -> str:
        """The stream of audit rows that are not in the table yet, where there is a table."""
        return f"ebb_{self.pipeline}_audit"

    def audit_subject(self, vertex: str = "*", partition: int | str = "*") -> str:
        """The subject where a partition tells what became of its messages, for the table."""
        return f"ebb.{self.pipeline}.audit.{vertex}.{partition}"

    @property
    def audit_key(self) -> str:
        """The key, beside the positions, of how far the table is written; no vertex has it."""
        return "audit"

    @property
    def logs(self) -> str:
        """The stream of what user code has printed and logged."""
        return f"ebb_{self.pipeline}_logs"

    def log_subject(self, vertex: str = "*") -> str:
        """The subject where the tasks of a vertex tell what user code prints."""
        return f"ebb.{self.pipeline}.log.{vertex}"

    @property
    def status(self) -> str:
        """The stream of the pipeline's state: the latest, and samples of the last hour."""
        return f"ebb_{self.pipeline}_status"

    def status_subject(self, kind: str = ">") -> str:
        """The subject where a run publishes a kind of its state."""
        return f"ebb.{self.pipeline}.status.{kind}"

    @property
    def positions(self) -> str:
        """The key-value bucket of positions."""
        return f"ebb_{self.pipeline}_positions"

    def position_key(self, vertex: str, partition: int) -> str:
        """The key of one partition's position."""
        return f"{vertex}.{partition}"

    @property
    def pauses_subject(self) -> str:
        """The key, as a subject, of what people have paused: beside positions, which have a dot."""
        return f"$KV.{self.positions}.paused"

    @property
    def spec_subject(self) -> str:
        """The key, as a subject, of the spec that the pipeline last ran with."""
        return f"$KV.{self.positions}.spec"

    @property
    def answers(self) -> str:
        """The key-value bucket of answers, unless the spec names another."""
        return f"ebb_{self.pipeline}_answers"

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

    ``has_buffer`` if it reads one; ``returns`` if its source may be given nacked messages back;
    ``remembers`` if its source writes down the ids that it was given; ``batched`` if the driver
    plans what it reads, instead of a task that follows its streams; ``serves`` if its source
    answers requests, for which all vertices of the pipeline publish a trail.
    """

    vertex: str
    partitions: int
    has_buffer: bool
    returns: bool = False
    remembers: bool = False
    batched: bool = False
    serves: bool = False

    def for_messages(self, names: Names) -> Iterator[str]:
        """Returns the streams that hold messages on their way, of all partitions."""
        for partition in range(self.partitions):
            if self.has_buffer:
                yield names.buffer(self.vertex, partition)
            yield names.redelivery(self.vertex, partition)
