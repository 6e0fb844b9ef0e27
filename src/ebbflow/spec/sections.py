"""The sections of pipelines and MonoVertices: sources, user code, sinks, retries, limits.

All durations are whole milliseconds. See ``model`` for what a section does and does not promise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field, StrictBool, StrictStr, create_model
from typing_extensions import override

from ebbflow.connectors.base import SINKS, SOURCES, SinkSection, SourceSection
from ebbflow.connectors.registry import (
    Role,
    shipped_fields,
    unusable,
)
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.spark.spec import FormatSection, Options
from ebbflow.connectors.user_code import CodeSection
from ebbflow.domain import code as words
from ebbflow.domain.durations import DEFAULT_ON_ERROR, SERVED_ON_ERROR, Backoff
from ebbflow.engine.outage import DEFAULT_LIMIT, DEFAULT_ON_UNAVAILABLE, BreakerLimit
from ebbflow.engine.system_errors import SystemErrors
from ebbflow.spec.kubernetes import BufferFields, LifecycleFields

# --- waiting and retrying -----------------------------------------------------------------------

DEFAULT_RETRY = Backoff("1ms", steps=65_535)
"""The defaults of a ``retryStrategy``."""


class WaitsSpec(Section):
    """Waits that grow; the defaults of its fields depend on where it is used."""

    interval: fields.Millis | None = None
    factor: fields.Factor | None = None
    cap: fields.Millis | None = None
    jitter: fields.Jitter | None = None

    def fill_from(self, defaults: Backoff) -> Backoff:
        """Returns the whole policy; a default cap never cuts an interval that was set."""
        own = {name: getattr(self, name) for name in self.__class__.model_fields}
        chosen = {name: value for name, value in own.items() if value is not None}
        interval = chosen.get("interval", defaults.interval)
        chosen.setdefault("cap", max(defaults.cap, interval))
        names = Backoff.__dataclass_fields__
        whole = {name: chosen.get(name, getattr(defaults, name)) for name in names}
        waits = {name: timedelta(milliseconds=whole[name]) for name in ("interval", "cap")}
        return Backoff(**{**whole, **waits})


class BackoffSpec(WaitsSpec):
    """Waits between retries, and the number of retries: ``steps``."""

    steps: fields.Positive | None = None


def _default_if_empty(value: Any) -> Any:
    return "retry" if value == "" else value


class RetrySpec(Section):
    """What to do about failures that user code reports."""

    backoff: BackoffSpec = BackoffSpec()
    on_failure: Annotated[words.OnFailure, BeforeValidator(_default_if_empty)] = "retry"

    @property
    def policy(self) -> Backoff:
        """The back-off, including defaults."""
        return self.backoff.fill_from(DEFAULT_RETRY)


class OnErrorBackoff(BackoffSpec):
    """As any back-off, but ``steps: 0`` is allowed: dead-letter at once."""

    steps: fields.Count | None = None


class OnError(Section):
    """What to do about unexpected exceptions in user code.

    By default, a message is redelivered five times, after 1 s, 2 s, 4 s, 8 s and 16 s. Behind a
    serving source, where a caller waits, it is redelivered once, after 100 ms.
    """

    backoff: OnErrorBackoff = OnErrorBackoff()

    def policy(self, *, served: bool) -> Backoff:
        """Returns the back-off, including defaults; after its last step comes the dead letter.

        With ``served`` a caller waits, which changes the default.
        """
        quick = served and self.backoff == OnErrorBackoff()
        return self.backoff.fill_from(SERVED_ON_ERROR if quick else DEFAULT_ON_ERROR)


class OnUnavailableSpec(Section):
    """What to do while a system that user code needs is down.

    ``errors`` are further exceptions that mean this, as ``module:Class``; ``backoff`` is how long
    to wait between two tries. The vertex retries for as long as it takes.
    """

    errors: tuple[fields.ErrorClass, ...] = ()
    backoff: WaitsSpec = WaitsSpec()

    @property
    def policy(self) -> Backoff:
        """The back-off, including defaults."""
        return self.backoff.fill_from(DEFAULT_ON_UNAVAILABLE)

    @property
    def systems(self) -> SystemErrors:
        """Which errors mean that a system is down."""
        return SystemErrors(frozenset(self.errors))


class BreakerSpec(Section):
    """How many messages may become dead letters before the vertex stops taking more.

    ``share`` of the last ``window`` messages; 1 switches it off.
    """

    share: fields.Share = DEFAULT_LIMIT.share
    window: fields.Positive = DEFAULT_LIMIT.window

    @property
    def limit(self) -> BreakerLimit:
        """The limit for each task."""
        return BreakerLimit(self.share, self.window)


# --- user code ----------------------------------------------------------------------------------


class Transformer(CodeSection):
    """Changes messages inside the source, before they are first stored."""

    PLACE = "transformer"
    retry_strategy: RetrySpec | None = None


class Udf(CodeSection):
    """A user-defined function: one message in, any number out.

    Instead of code for messages it may have a query over batches of them: ``sql`` over the view
    ``messages``, or ``dataframe``, a function from DataFrame to DataFrame.
    """

    mode: words.Mode = "unary"
    sql: fields.Text | None = None
    dataframe: fields.Code | None = None
    group_by: Any = None
    retry_strategy: RetrySpec | None = None

    @property
    def query(self) -> str | None:
        """``sql`` or ``dataframe``, whichever is set, if any."""
        return next((name for name in ("sql", "dataframe") if getattr(self, name)), None)


class OneOf(Section):
    """A section in which exactly one of several kinds must be set."""

    KINDS: ClassVar[tuple[str, ...]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are set; exactly one once the spec lints."""
        return tuple(name for name in self.KINDS if getattr(self, name) is not None)

    @property
    def kind(self) -> str:
        """The kind that is set."""
        return self.kinds[0]

    @classmethod
    def unusable(cls) -> Collection[str]:
        """Returns the kinds that are known but cannot be used."""
        return ()


# --- sources and sinks --------------------------------------------------------------------------

if TYPE_CHECKING:
    # Code that reads a spec uses its kind and its section, and names no connector.
    class SourceFields(OneOf):
        """A field for each kind of source."""

    class SinkFields(OneOf):
        """A field for each kind of sink."""

else:

    def _one_of(role: Role, kinds: Mapping[str, Any]) -> type[OneOf]:
        """Returns a model that has a field for each kind, in the order of the registry."""
        fields_of = {name: (kind.section | None, None) for name, kind in kinds.items()}
        return create_model("OneOfKinds", __base__=OneOf, **fields_of, **shipped_fields(role))

    SourceFields = _one_of("source", SOURCES)
    SinkFields = _one_of("sink", SINKS)


class SourceSpec(SourceFields):
    """Where messages come from: one of the kinds in the registry of connectors."""

    KINDS = tuple(SourceFields.model_fields)
    transformer: Transformer | None = None

    @classmethod
    @override
    def unusable(cls) -> Collection[str]:
        """Returns what other packages ship only as sinks."""
        return unusable("source")

    @property
    def section(self) -> SourceSection:
        """The fields of the kind that is set."""
        return cast("SourceSection", getattr(self, self.kind))


class SinkTarget(SinkFields):
    """A place to write messages to: one of the kinds in the registry of connectors."""

    KINDS = tuple(SinkFields.model_fields)

    @classmethod
    @override
    def unusable(cls) -> Collection[str]:
        """Returns what other packages ship only as sources."""
        return unusable("sink")

    @property
    def section(self) -> SinkSection:
        """The fields of the kind that is set."""
        return cast("SinkSection", getattr(self, self.kind))

    @property
    def batched(self) -> str | None:
        """The kind that is set, if Spark writes it in whole batches."""
        return next((name for name in self.kinds if name in SINKS and SINKS[name].batched), None)


class SinkSpec(SinkTarget):
    """Where messages are written, and what happens to those that cannot be."""

    fallback: SinkTarget | None = None
    on_success: SinkTarget | None = None
    retry_strategy: RetrySpec | None = None


class NatsStoreSpec(Section):
    """Answers in a JetStream key-value bucket, by default the pipeline's own; kept for ``ttl``."""

    bucket: fields.Bucket | None = None
    ttl: fields.Millis = 2 * 60 * 60 * 1_000


class ServingStoreSpec(CodeSection, OneOf):
    """Where the answers that sinks serve are stored: NATS, or the user's own code."""

    KINDS = ("nats", "python", "container")
    PLACE = "store"
    nats: NatsStoreSpec | None = None


class AuditSpec(FormatSection):
    """The table of the outcome of every message at every vertex, in any Spark format."""

    format: fields.Text = Field(
        default="parquet", description="the format, as in `df.write.format(...)`"
    )
    options: Options = Field(
        default={}, description="its options; for a format with files, `path` is the folder"
    )
    interval: fields.Wait = Field(
        default=15 * 60 * 1000,
        description="how long rows may take to reach the table; each write adds a file",
    )
    retention: fields.Wait | None = Field(
        default=None,
        description="how long rows are kept, such as `720h`, for a format with files; left out, "
        "they stay",
    )

    @property
    def lasts(self) -> timedelta | None:
        """How long rows stay in the table, if not forever."""
        return None if self.retention is None else timedelta(milliseconds=self.retention)


# --- routing ------------------------------------------------------------------------------------


class TagCondition(Section):
    """Which tags a message must have: all of them, any of them, none of them."""

    operator: words.TagOperator = "or"
    values: tuple[StrictStr, ...] = ()


class Conditions(Section):
    """The conditions on a message to follow an edge, or to bypass steps."""

    tags: TagCondition | None = None


class EdgeSpec(Section):
    """Messages leaving ``from_`` go to ``to`` if the condition, if any, holds."""

    from_: StrictStr = Field(alias="from")
    to: StrictStr
    conditions: Conditions | None = None
    on_full: words.OnFull = "retryUntilSuccess"


class BypassSpec(Section):
    """Which messages of a MonoVertex skip its other steps and go straight to one of its sinks.

    The first matching field decides.
    """

    sink: Conditions | None = None
    fallback: Conditions | None = None
    on_success: Conditions | None = None


# --- conditions of a run ------------------------------------------------------------------------


class ReadLimits(Section):
    """How much is read and worked on at a time."""

    read_batch_size: fields.Positive | None = None
    read_timeout: fields.Millis | None = Field(default=None, description=fields.WITHOUT_EFFECT)
    concurrency: fields.Positive | None = None
    call_timeout: fields.Wait | None = None
    rate_limit: Annotated[Any, fields.LEFT_OUT_IF_EMPTY] = None


class Limits(ReadLimits):
    """How much is read and stored at a time; of the pipeline, or of one vertex."""

    buffer_max_length: fields.Positive | None = None
    buffer_usage_limit: fields.Percentage | None = None


class Publish(Section):
    """How long vertices try to write to NATS: by default, for as long as it takes.

    A task that reaches a bound starts again and publishes the same messages again: nothing is lost,
    but the vertex is shown as failing. Vertices always wait for room in a full buffer.
    """

    retry_wait: fields.Wait = 50
    retry_attempts: fields.Attempts = -1
    ack_wait: fields.Wait | None = None


class InterStepBuffer(BufferFields):
    """How the streams of a pipeline are kept and written; Numaflow's compression has no effect.

    ``replicas`` is the number of servers that keep each stream.
    """

    replicas: fields.Replicas = 1
    publish: Publish = Publish()


class Ordered(Section):
    """Whether messages keep their order."""

    enabled: StrictBool = False


class Lifecycle(Section):
    """Whether to run at all."""

    desired_phase: Annotated[words.Phase, BeforeValidator(lambda phase: phase or "Running")] = (
        "Running"
    )

    @property
    def paused(self) -> bool:
        """True if nothing should be read for now."""
        return self.desired_phase == "Paused"


class PipelineLifecycle(LifecycleFields, Lifecycle):
    """The lifecycle of a pipeline; Kubernetes' grace periods have no effect."""
