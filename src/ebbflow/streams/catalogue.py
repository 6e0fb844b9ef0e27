"""The catalogue of a pipeline's streams: one entry for each kind.

An entry says how streams of its kind are configured, when a pipeline keeps one and which
permissions a login needs on it. Provisioning and permissions are derived from ``KINDS``, so they
always match. Pure: from names to configurations and subjects.

Buffers use limits retention and refuse new messages when full, which causes back-pressure and never
evicts a message. A stream with schedules cannot refuse new messages, which is why redeliveries have
their own streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from ebbflow.streams.names import Names, VertexStreams, bucket_stream

_NANOS = 1_000_000_000
# The limits of what user code prints and logs.
_LOG_ENTRIES, _LOG_BYTES, _LOG_DAYS = 10_000, 64 * 1024**2, 7
DUPLICATE_WINDOW = 120
DEFAULT_BUFFER_BYTES = 1024**3
_STATUS_BYTES = 32 * 1024**2
TRAIL_TTL = 2 * 60 * 60 * 1000
"""The milliseconds that a trail is kept, unless the store of the answers has a time to live."""
ANSWERS_BUCKET = "ebbflow.answers"
"""The metadata key, on the positions' bucket, that names the bucket of the answers."""
AUDIT_TABLE = "ebbflow.audit-table"
"""The metadata key, on the stream of audit rows, that describes their table in JSON."""
OWN_STORE = "ebbflow.own-store"
"""The metadata key that says that the answers are in the user's own store."""

Config = dict[str, Any]
"""The configuration of a stream, in the form of JetStream's management interface."""

Where = Callable[[VertexStreams], bool]
"""Selects vertices."""


def any_vertex(_: VertexStreams) -> bool:
    """Selects all vertices."""
    return True


def _stream(name: str, subjects: list[str], replicas: int, **options: Any) -> Config:
    return {
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW * _NANOS,
        "allow_direct": True,
        **options,
    }


def buffer_config(
    names: Names, vertex: str, partition: int, max_frames: int, replicas: int = 1
) -> Config:
    """Describes the stream a partition reads; when full, it refuses new frames."""
    return _stream(
        names.buffer(vertex, partition),
        [names.buffer_subject(vertex, partition)],
        replicas,
        discard="new",
        max_msgs=max_frames,
        max_bytes=DEFAULT_BUFFER_BYTES,
    )


def redelivery_config(names: Names, vertex: str, partition: int, replicas: int = 1) -> Config:
    """Describes the stream of a partition's redeliveries, with schedules for those not yet due."""
    return _stream(
        names.redelivery(vertex, partition),
        [
            names.due_subject(vertex, partition),
            names.later_subject(vertex, partition),
            names.replayed_subject(vertex, partition),
        ],
        replicas,
        allow_msg_schedules=True,
        # A replay stores its frames and the mark about them together, or neither.
        allow_atomic=True,
    )


def dead_letter_config(names: Names, replicas: int = 1) -> Config:
    """Describes the stream of dead letters: only a purge or a replay deletes them."""
    return _stream(names.dead_letters, [names.dead_letter_subject()], replicas)


def ledger_config(names: Names, replicas: int = 1) -> Config:
    """Describes the stream of the histories of messages that were nacked to their source."""
    return _stream(names.ledger, [names.ledger_subject()], replicas)


def seen_config(names: Names, replicas: int = 1) -> Config:
    """Describes the stream of ids that sources received, kept for the duplicate window."""
    return _stream(names.seen, [names.seen_subject()], replicas, max_age=DUPLICATE_WINDOW * _NANOS)


def trail_config(names: Names, ttl_ms: int, replicas: int = 1) -> Config:
    """Describes the stream of the outcome of every message, kept for as long as answers are."""
    return _stream(
        names.trail,
        [names.trail_subject()],
        replicas,
        max_age=ttl_ms * _NANOS // 1000,
        # No message id may be remembered for longer than the message itself is kept.
        duplicate_window=min(DUPLICATE_WINDOW * 1000, ttl_ms) * _NANOS // 1000,
    )


def audit_config(names: Names, table: str, replicas: int = 1) -> Config:
    """Describes the stream of audit rows that are not in the table yet; it refuses rows when full.

    Its metadata say which ``table`` the rows go to, for its readers.
    """
    return _stream(
        names.audit,
        [names.audit_subject()],
        replicas,
        discard="new",
        max_bytes=DEFAULT_BUFFER_BYTES,
        metadata={AUDIT_TABLE: table},
    )


def logs_config(names: Names, replicas: int = 1) -> Config:
    """Describes the stream of logs: the newest of each vertex, within bounds."""
    return _stream(
        names.logs,
        [names.log_subject()],
        replicas,
        discard="old",
        max_msgs_per_subject=_LOG_ENTRIES,
        max_bytes=_LOG_BYTES,
        max_age=_LOG_DAYS * 24 * 60 * 60 * _NANOS,
    )


def status_config(names: Names, replicas: int = 1) -> Config:
    """Describes the stream of the pipeline's state: old samples expire, the latest state stays."""
    return _stream(
        names.status,
        [names.status_subject()],
        replicas,
        max_bytes=_STATUS_BYTES,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
    )


def positions_config(
    names: Names, replicas: int = 1, answers: str | None = None, own_store: bool = False
) -> Config:
    """Describes the key-value bucket of positions, in the usual form of NATS buckets.

    Its metadata say in which bucket the pipeline keeps its ``answers``, if in any, and whether it
    keeps them in the user's own store.
    """
    metadata = {} if answers is None else {ANSWERS_BUCKET: answers}
    return _stream(
        names.positions_stream,
        [names.record_subject(">")],
        replicas,
        max_msgs_per_subject=1,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
        metadata=metadata | ({OWN_STORE: "true"} if own_store else {}),
    )


def bucket_config(bucket: str, ttl_ms: int, replicas: int = 1) -> Config:
    """Describes the stream behind the bucket of answers, in the usual form of NATS buckets."""
    return _stream(
        bucket_stream(bucket),
        [f"$KV.{bucket}.>"],
        replicas,
        max_msgs_per_subject=1,
        max_age=ttl_ms * _NANOS // 1000,
        # No message id may be remembered for longer than the message itself is kept.
        duplicate_window=min(DUPLICATE_WINDOW * 1000, ttl_ms) * _NANOS // 1000,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


# --- which streams there are ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineStreams:
    """All facts about a pipeline that determine its streams and their configuration.

    ``bucket`` is where its answers go, if anywhere, each kept for ``bucket_ttl`` milliseconds;
    ``own_store`` if they are in the user's own store; ``audit_table`` is where audit rows go.
    """

    names: Names
    vertices: Sequence[VertexStreams]
    bucket: str | None = None
    bucket_ttl: int = 0
    own_store: bool = False
    audit_table: str | None = None
    replicas: int = 1

    def has(self, what: Where) -> bool:
        """Returns whether it selects any vertex."""
        return any(map(what, self.vertices))

    def for_vertices(self, subject: Callable[[str], str], where: Where = any_vertex) -> list[str]:
        """Returns a subject for each vertex."""
        return [subject(each.vertex) for each in self.vertices if where(each)]

    def for_partitions(
        self, subject: Callable[[str, int], str], where: Where = any_vertex
    ) -> list[str]:
        """Returns a subject for each partition of each vertex."""
        return [
            subject(each.vertex, partition)
            for each in self.vertices
            if where(each)
            for partition in range(each.partitions)
        ]


class KeptStream(NamedTuple):
    """A stream that a pipeline keeps; without a vertex it belongs to the whole pipeline."""

    config: Config
    vertex: VertexStreams | None = None


class Purpose(Enum):
    """What a login needs permissions for, in the order in which they are listed."""

    SEE = "list the names of streams"
    MAKE = "create and inspect its streams, and delete them for --fresh"
    READ = "read its buffers and redeliveries, and purge finished messages"
    POSITIONS = "read its positions"
    STATUS = "publish and read its status"
    LETTERS = "read, replay and purge its dead letters"
    WRITE = "write messages, redeliveries, dead letters and positions"
    CONTROL = "control tasks, and receive their reports"
    TAP = "send messages to taps"
    RECORDS = "pause and resume, and store the spec"
    LOGS = "publish and read the output of user code"
    RUN = "lock the pipeline against a second run"
    LEDGER = "record messages that went back to a source"
    SEEN = "record the ids that clients sent to sources"
    TRAIL = "record the outcome of every message, and follow it"
    AUDIT = "record the outcome of every message until it is in the audit table"
    ANSWERS = "write and read answers"


READS = ("DIRECT.GET.{}", "STREAM.MSG.GET.{}")
FOLLOWS = ("CONSUMER.CREATE.{}.*", "CONSUMER.MSG.NEXT.{}.*", "CONSUMER.DELETE.{}.*")
PURGES = ("STREAM.PURGE.{}",)


def _no_subjects(_: PipelineStreams) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a login may do for a purpose: calls about streams, and subjects to publish to.

    ``where`` selects the vertices whose streams the calls are about, if streams of the kind belong
    to vertices.
    """

    purpose: Purpose
    calls: tuple[str, ...] = ()
    subjects: Callable[[PipelineStreams], Sequence[str]] = _no_subjects
    where: Where = any_vertex


@dataclass(frozen=True, slots=True)
class StreamKind:
    """One kind of stream. ``kept`` returns those that a pipeline keeps, none if it needs none.

    ``made_for`` is the purpose of the permission to make them. ``is_own`` says whether they are
    deleted when the pipeline starts over; streams that other pipelines may share are not.
    """

    kept: Callable[[PipelineStreams], Iterable[KeptStream]]
    grants: tuple[Grant, ...]
    made_for: Purpose = Purpose.MAKE
    is_own: Callable[[PipelineStreams], bool] = lambda _: True


def _for_pipeline(
    config: Callable[[PipelineStreams], Config],
    when: Callable[[PipelineStreams], bool] = lambda _: True,
) -> Callable[[PipelineStreams], Iterable[KeptStream]]:
    return lambda p: [KeptStream(config(p))] if when(p) else []


def _for_partitions(
    config: Callable[[PipelineStreams, VertexStreams, int], Config], where: Where = any_vertex
) -> Callable[[PipelineStreams], Iterable[KeptStream]]:
    return lambda p: [
        KeptStream(config(p, vertex, partition), vertex)
        for vertex in filter(where, p.vertices)
        for partition in range(vertex.partitions)
    ]


_has_buffer, _batched = attrgetter("has_buffer"), attrgetter("batched")
_returns, _remembers, _serves = map(attrgetter, ("returns", "remembers", "serves"))

POSITIONS = StreamKind(
    _for_pipeline(lambda p: positions_config(p.names, p.replicas, p.bucket, p.own_store)),
    (
        Grant(Purpose.POSITIONS, READS),
        Grant(
            Purpose.WRITE,
            subjects=lambda p: [
                p.names.record_subject(key) for key in p.for_partitions(p.names.position_key)
            ],
        ),
        Grant(
            Purpose.RECORDS,
            subjects=lambda p: [
                p.names.record_subject(key) for key in (p.names.pauses_key, p.names.spec_key)
            ],
        ),
    ),
)
LETTERS = StreamKind(
    _for_pipeline(lambda p: dead_letter_config(p.names, p.replicas)),
    (
        Grant(Purpose.LETTERS, (*READS, *FOLLOWS, "STREAM.MSG.DELETE.{}", *PURGES)),
        Grant(Purpose.WRITE, subjects=lambda p: p.for_vertices(p.names.dead_letter_subject)),
    ),
)
LOGS = StreamKind(
    _for_pipeline(lambda p: logs_config(p.names, p.replicas)),
    (Grant(Purpose.LOGS, (*READS, *FOLLOWS), lambda p: p.for_vertices(p.names.log_subject)),),
)
STATUS = StreamKind(
    _for_pipeline(lambda p: status_config(p.names, p.replicas)),
    (Grant(Purpose.STATUS, (*READS, *FOLLOWS), lambda p: [p.names.status_subject()]),),
)
ANSWERS = StreamKind(
    _for_pipeline(
        lambda p: bucket_config(p.bucket or "", p.bucket_ttl, p.replicas),
        lambda p: p.bucket is not None,
    ),
    (Grant(Purpose.ANSWERS, (*READS, *FOLLOWS), lambda p: [f"$KV.{p.bucket}.>"]),),
    made_for=Purpose.ANSWERS,
    is_own=lambda p: p.bucket == p.names.answers,
)
LEDGER = StreamKind(
    _for_pipeline(lambda p: ledger_config(p.names, p.replicas), lambda p: p.has(_returns)),
    (
        Grant(
            Purpose.LEDGER,
            (*READS, *PURGES),
            lambda p: p.for_partitions(p.names.ledger_subject, _returns),
        ),
    ),
)
SEEN = StreamKind(
    _for_pipeline(lambda p: seen_config(p.names, p.replicas), lambda p: p.has(_remembers)),
    (Grant(Purpose.SEEN, READS, lambda p: p.for_vertices(p.names.seen_subject, _remembers)),),
)
TRAIL = StreamKind(
    _for_pipeline(
        lambda p: trail_config(p.names, p.bucket_ttl or TRAIL_TTL, p.replicas),
        lambda p: p.has(_serves),
    ),
    (Grant(Purpose.TRAIL, FOLLOWS, lambda p: p.for_vertices(p.names.trail_subject)),),
)
AUDIT = StreamKind(
    _for_pipeline(
        lambda p: audit_config(p.names, p.audit_table or "", p.replicas),
        lambda p: p.audit_table is not None,
    ),
    (
        Grant(
            Purpose.AUDIT,
            (*PURGES, *FOLLOWS, *READS),
            lambda p: [
                *p.for_partitions(p.names.audit_subject),
                p.names.record_subject(p.names.audit_key),
            ],
        ),
    ),
)
REDELIVERIES = StreamKind(
    _for_partitions(lambda p, v, n: redelivery_config(p.names, v.vertex, n, p.replicas)),
    (
        Grant(Purpose.READ, (*FOLLOWS, *PURGES)),
        # The driver reads the redeliveries that it plans batches of; a replay of dead letters reads
        # all of them.
        Grant(Purpose.READ, READS, where=_batched),
        Grant(Purpose.LETTERS, ("STREAM.MSG.GET.{}",), where=lambda v: not v.batched),
        Grant(
            Purpose.WRITE,
            subjects=lambda p: [
                *p.for_partitions(p.names.due_subject),
                *p.for_partitions(lambda v, n: p.names.later_subject(v, n, "*")),
                *p.for_partitions(p.names.replayed_subject),
            ],
        ),
    ),
)
BUFFERS = StreamKind(
    _for_partitions(
        lambda p, v, n: buffer_config(p.names, v.vertex, n, v.max_frames, p.replicas),
        _has_buffer,
    ),
    (
        Grant(Purpose.READ, (*FOLLOWS, *PURGES)),
        Grant(Purpose.READ, READS, where=_batched),
        Grant(
            Purpose.WRITE,
            subjects=lambda p: p.for_partitions(p.names.buffer_subject, _has_buffer),
        ),
    ),
)
KINDS = (
    *(POSITIONS, LETTERS, LOGS, STATUS, ANSWERS, LEDGER, SEEN, TRAIL, AUDIT),
    *(BUFFERS, REDELIVERIES),
)
"""All kinds, in the order in which their streams are made."""


def list_configs(pipeline: PipelineStreams) -> list[Config]:
    """Returns the configuration of every stream that the pipeline keeps."""
    return [stream.config for kind in KINDS for stream in kind.kept(pipeline)]
