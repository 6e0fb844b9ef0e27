"""The plan of a vertex: all that its tasks need to know, made on the driver and sent to workers.

Plain data, without pydantic: workers start faster, and the spec is not checked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbflow.connectors.generator import GeneratorPlan
from ebbflow.connectors.plans import SinkPlan, UserSink, runs_inline
from ebbflow.domain.code import Code, Mode, Variables
from ebbflow.domain.durations import Backoff
from ebbflow.engine import frames
from ebbflow.engine.inlet import Feeder
from ebbflow.engine.outage import DEFAULT_LIMIT, DEFAULT_ON_UNAVAILABLE, BreakerLimit
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.routing import Edge
from ebbflow.engine.system_errors import LISTED, SystemErrors
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import BUFFER, PublishRetry
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.streams.feed import FeedPlan
from ebbflow.streams.names import VertexStreams
from ebbflow.usercode.monovertex import Bypass

TABLE_ROWS = 2_000
"""The default for the most rows that one call of a columnar map gets.

More than other maps get: a call costs the same for any number of rows.
"""

_TABLES = ("columnar", "pandas")
# Room in a JetStream message for the facts of a dead letter next to the value.
_RESERVED = 64 * 1024


@dataclass(frozen=True, slots=True)
class UserMap:
    """The user's map or transformer. ``env`` are the variables of its container.

    ``rows`` is the most rows of a call, for code that applies the limits of the spec itself.
    """

    code: Code
    mode: Mode = "unary"
    strategy: RetryStrategy | None = None
    env: Variables = field(default=(), repr=False)
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class SinksPlan:
    """A sink, its fallback and its on-success sink.

    ``store`` is the user's own store, ``serves`` if there is any store. ``store_env`` are the
    variables of its container.
    """

    primary: SinkPlan
    fallback: SinkPlan | None = None
    on_success: SinkPlan | None = None
    strategy: RetryStrategy | None = None
    serves: bool = False
    store: Code | None = None
    store_env: Variables = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class MonoPlan:
    """Transformer, map and sinks in one."""

    transformer: UserMap | None
    map: UserMap | None
    sinks: SinksPlan
    bypass: Bypass


@dataclass(frozen=True, slots=True)
class Forward:
    """A source without a transformer: messages are forwarded unchanged."""


@dataclass(frozen=True, slots=True)
class SqlMap:
    """A query over batches of messages."""

    query: str


@dataclass(frozen=True, slots=True)
class DataFrameMap:
    """The user's function from one DataFrame of messages to another, called on the driver."""

    code: Code


Role = UserMap | SinksPlan | MonoPlan | Forward | SqlMap | DataFrameMap


def _code_in(role: Role) -> list[UserMap | UserSink]:
    """Returns the maps and sinks that the vertex calls with all its messages."""
    parts: tuple[object, ...] = (role,)
    if isinstance(role, MonoPlan):
        parts = (role.transformer, role.map, role.sinks.primary)
    elif isinstance(role, SinksPlan):
        parts = (role.primary,)
    return [part for part in parts if isinstance(part, UserMap | UserSink)]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts that all vertices of a run have in common.

    ``id`` is different for each run, ``lineage`` for each time that the pipeline is started over.
    ``max_payload`` is the server's limit for one message. User code is looked up in ``search``
    first, and its logs are shown from ``log_level`` on. ``bucket`` is where answers go if they are
    stored in NATS, for ``bucket_ttl`` seconds. ``trail`` if the outcome of every message is
    published, because some vertex serves; ``audit`` is the table that it is written to, in JSON, if
    there is one. ``traces`` are OpenTelemetry's variables, if traces are recorded.
    """

    pipeline: str
    server: Addresses
    max_payload: int
    search: str | None = None
    id: str = ""
    lineage: str = ""
    namespace: str = "default"
    log_level: str = "info"
    publish: PublishRetry = BUFFER
    bucket: str | None = None
    bucket_ttl: int = 0
    trail: bool = False
    audit: str | None = None
    traces: Variables = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How user code is called.

    ``batch_size`` is the most messages of one call, ``concurrency`` the most messages that are
    processed at the same time, ``table_size`` the most rows of a columnar call if the spec sets it,
    ``timeout`` the seconds that a call may take, if that is limited.
    """

    batch_size: int
    concurrency: int
    table_size: int | None = None
    timeout: float | None = None

    def rows_of(self, part: UserMap | UserSink) -> int:
        """Returns the most rows that one call of a columnar map or sink gets."""
        if isinstance(part, UserMap) and part.rows is not None:
            return part.rows
        return self.table_size or part.rows or TABLE_ROWS


@dataclass(frozen=True, slots=True)
class Policy:
    """What happens when something fails.

    ``systems`` recognises errors of unavailable systems, and ``on_unavailable`` is how long to wait
    for these. ``on_error`` is for all other errors, and ``breaker`` limits the dead letters.
    """

    on_error: Backoff
    systems: SystemErrors = LISTED
    on_unavailable: Backoff = DEFAULT_ON_UNAVAILABLE
    breaker: BreakerLimit = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """One vertex, ready to run.

    ``source`` is where a source vertex gets its messages, and ``paused`` stops it from taking any.
    ``feeders`` are the vertices that write to this one. ``inline`` are the downstream vertices that
    may share its tasks, which then run them inline. A spec that has changed since may no longer
    allow that for some of them (``inline_replays``): they run inline in the replay of the chunk
    that was in flight, and in no other chunk.
    """

    run: RunFacts
    streams: VertexStreams
    role: Role
    calls: CallLimits
    policy: Policy
    edges: tuple[Edge, ...] = ()
    source: GeneratorPlan | SourcePlan | FeedPlan | None = None
    feeders: tuple[Feeder, ...] = ()
    ordered: bool = False
    paused: bool = False
    inline: tuple[str, ...] = ()
    inline_replays: tuple[str, ...] = ()

    @property
    def can_run_inline(self) -> bool:
        """Whether the task of another vertex can run it: its code is Python within the worker."""
        if self.is_source or self.ordered or self.streams.batched:
            return False
        match self.role:
            case UserMap(rows=None, mode=mode):
                return mode != "stream"  # its outputs must be forwarded while it yields
            case SinksPlan() as sinks:
                every = (sinks.primary, sinks.fallback, sinks.on_success)
                return all(sink is None or runs_inline(sink) for sink in every)
            case _:
                return False

    @property
    def can_run_others(self) -> bool:
        """Whether its tasks can run other vertices inline."""
        # What a stream map yields is published while it yields, before its chunk is settled.
        streams = isinstance(self.role, UserMap) and self.role.mode == "stream"
        return not (self.streams.batched or streams)

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self.run.pipeline

    @property
    def vertex(self) -> str:
        """The name of the vertex."""
        return self.streams.vertex

    @property
    def partitions(self) -> int:
        """The number of its tasks."""
        return self.streams.partitions

    @property
    def is_source(self) -> bool:
        """Whether its messages come from outside."""
        return self.source is not None

    @property
    def vertex_of_run(self) -> tuple[str, str, str]:
        """The pipeline, vertex and run to which open user code on a worker belongs."""
        return self.pipeline, self.vertex, self.run.id

    @property
    def call_rows(self) -> int:
        """The most messages that user code processes at a time, in one call or concurrently."""
        role, calls = self.role, self.calls
        if tables := [calls.rows_of(part) for part in _code_in(role) if part.mode in _TABLES]:
            return max(tables)
        one_by_one = isinstance(role, UserMap) and role.mode == "unary"
        return calls.concurrency if one_by_one else calls.batch_size

    @property
    def has_own_store(self) -> bool:
        """Whether its answers go to the user's own store."""
        role = self.role.sinks if isinstance(self.role, MonoPlan) else self.role
        return isinstance(role, SinksPlan) and role.store is not None

    @property
    def largest(self) -> int:
        """The largest value of a message that is stored in NATS."""
        return self.run.max_payload - _RESERVED

    @property
    def largest_output(self) -> int:
        """The largest message that user code may return: messages to a sink are not stored.

        Redeliveries and dead letters are: see ``engine.rescue`` for those that are too large.
        """
        return self.largest if self.edges else frames.MAX_VALUE
