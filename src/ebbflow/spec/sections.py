"""What pipelines and MonoVertices are made of: sources, user code, sinks, retries, limits.

All durations are whole milliseconds. See ``model`` for what a section does and does not promise.
"""

from __future__ import annotations

import base64
from typing import Any, ClassVar

from pydantic import Field, StrictBool, StrictInt, StrictStr

from ebbflow.connectors.file.spec import FileSink
from ebbflow.connectors.http.spec import HttpSink, HttpSource
from ebbflow.connectors.jetstream.spec import JetStreamSink, JetStreamSource
from ebbflow.connectors.kafka.spec import KafkaSink, KafkaSource
from ebbflow.connectors.nats.spec import NatsSink, NatsSource
from ebbflow.connectors.spark.spec import SparkSink, SparkSource
from ebbflow.core.breaker import DEFAULT_LIMIT, BreakerLimit
from ebbflow.core.outage import DEFAULT_ON_UNAVAILABLE
from ebbflow.core.system_errors import SystemErrors
from ebbflow.durations import DEFAULT_ON_ERROR, Backoff
from ebbflow.schema import fields
from ebbflow.schema import literals as words
from ebbflow.schema.fields import Section
from ebbflow.spec.kubernetes import BufferFields, LifecycleFields

# --- waiting and retrying -----------------------------------------------------------------------

DEFAULT_RETRY = Backoff(interval=1, steps=65_535)
"""What a ``retryStrategy`` leaves out."""


class WaitsSpec(Section):
    """Waits that grow; what is left out comes from the defaults of where they are used."""

    interval: fields.Millis | None = None
    factor: fields.Factor | None = None
    cap: fields.Millis | None = None
    jitter: fields.Jitter | None = None

    def filled(self, defaults: Backoff) -> Backoff:
        """The whole policy; a default cap never cuts an interval that was asked for."""
        given = {name: getattr(self, name) for name in self.__class__.model_fields}
        chosen = {name: value for name, value in given.items() if value is not None}
        interval = chosen.get("interval", defaults.interval)
        chosen.setdefault("cap", max(defaults.cap, interval))
        names = Backoff.__dataclass_fields__
        return Backoff(**{name: chosen.get(name, getattr(defaults, name)) for name in names})


class BackoffSpec(WaitsSpec):
    """Waits between retries, of which there are so many."""

    steps: fields.Positive | None = None


class RetryStrategy(Section):
    """What to do about failures that user code reports."""

    backoff: BackoffSpec = BackoffSpec()
    on_failure: words.OnFailure = "retry"

    @property
    def policy(self) -> Backoff:
        """The back-off with nothing left out."""
        return self.backoff.filled(DEFAULT_RETRY)


class OnErrorBackoff(BackoffSpec):
    """As any back-off, but ``steps: 0`` is allowed: dead-letter at once."""

    steps: fields.Count | None = None


class OnError(Section):
    """What to do about exceptions that user code did not mean to raise."""

    backoff: OnErrorBackoff = OnErrorBackoff()

    @property
    def policy(self) -> Backoff:
        """The back-off with nothing left out; after its last step comes the dead letter."""
        return self.backoff.filled(DEFAULT_ON_ERROR)


class OnUnavailable(Section):
    """What to do while a system that user code needs is away.

    ``errors`` are further exceptions that say so, as ``module:Class``; ``backoff`` is how long to
    wait between two tries. There is no end to them: the vertex waits for as long as it takes.
    """

    errors: tuple[fields.ErrorClass, ...] = ()
    backoff: WaitsSpec = WaitsSpec()

    @property
    def policy(self) -> Backoff:
        """The back-off with nothing left out."""
        return self.backoff.filled(DEFAULT_ON_UNAVAILABLE)

    @property
    def systems(self) -> SystemErrors:
        """Which errors say that a system is away."""
        return SystemErrors(frozenset(self.errors))


class BreakerSpec(Section):
    """When too many messages end as dead letters, so that the vertex stops taking more.

    ``share`` of the last ``window`` messages; 1 switches it off.
    """

    share: fields.Share = DEFAULT_LIMIT.share
    window: fields.Positive = DEFAULT_LIMIT.window

    @property
    def limit(self) -> BreakerLimit:
        """The limit for each task."""
        return BreakerLimit(self.share, self.window)


# --- user code ----------------------------------------------------------------------------------


class UserCode(Section):
    """Code of the user's: a Python function or class, or a container."""

    container: Any = None
    python: fields.Code | None = None


class Transformer(UserCode):
    """Changes messages inside the source, before they are first stored."""

    retry_strategy: RetryStrategy | None = None


class Udf(UserCode):
    """A user-defined function: one message in, any number out.

    In place of code for messages it may have a query over batches of them: ``sql`` over the view
    ``messages``, or ``dataframe``, a function from DataFrame to DataFrame.
    """

    mode: words.Mode = "unary"
    sql: fields.Text | None = None
    dataframe: fields.Code | None = None
    group_by: Any = None
    retry_strategy: RetryStrategy | None = None

    @property
    def query(self) -> str | None:
        """Which of ``sql`` and ``dataframe`` it has, if one of them."""
        return next((name for name in ("sql", "dataframe") if getattr(self, name)), None)


class OneOf(Section):
    """A section in which exactly one of several kinds is to be given."""

    KINDS: ClassVar[tuple[str, ...]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are given; exactly one once the spec lints."""
        return tuple(name for name in self.KINDS if getattr(self, name) is not None)

    @property
    def kind(self) -> str:
        """The kind that is given."""
        return self.kinds[0]


# --- sources ------------------------------------------------------------------------------------


class Generator(Section):
    """Makes messages up: ``rpu`` of them per ``duration``, for ever or until ``messages``."""

    rpu: fields.Positive = 5
    duration: fields.Millis = 1_000
    msg_size: fields.Count = 8
    key_count: fields.Count = 0
    value: StrictInt | None = None
    value_blob: fields.Base64 | None = None
    jitter: fields.Millis = 0
    messages: fields.Positive | None = None

    @property
    def blob(self) -> bytes | None:
        """The payload that every message is to have, if one was given."""
        return None if self.value_blob is None else base64.b64decode(self.value_blob)


class Source(OneOf):
    """Where messages come from."""

    KINDS = (
        "generator", "udsource", "http", "jetstream", "nats", "kafka", "spark", "pulsar", "sqs",
        "serving",
    )  # fmt: skip
    generator: Generator | None = None
    udsource: UserCode | None = None
    http: HttpSource | None = None
    jetstream: JetStreamSource | None = None
    nats: NatsSource | None = None
    kafka: KafkaSource | None = None
    spark: SparkSource | None = None
    pulsar: Any = None
    sqs: Any = None
    serving: Any = None
    transformer: Transformer | None = None


# --- sinks --------------------------------------------------------------------------------------


class Log(Section):
    """Writes every message to the log. Has no settings."""


class Blackhole(Section):
    """Forgets every message. Has no settings."""


class SinkTarget(OneOf):
    """A place to write messages to."""

    KINDS = (
        "log", "blackhole", "udsink", "http", "file", "jetstream", "nats", "kafka", "spark",
        "pulsar", "sqs", "serve",
    )  # fmt: skip
    log: Log | None = None
    blackhole: Blackhole | None = None
    udsink: UserCode | None = None
    http: HttpSink | None = None
    file: FileSink | None = None
    jetstream: JetStreamSink | None = None
    nats: NatsSink | None = None
    kafka: KafkaSink | None = None
    spark: SparkSink | None = None
    pulsar: Any = None
    sqs: Any = None
    serve: Any = None


class Sink(SinkTarget):
    """Where messages end, and what happens to those that cannot."""

    fallback: SinkTarget | None = None
    on_success: SinkTarget | None = None
    retry_strategy: RetryStrategy | None = None


class NatsStore(Section):
    """Answers in a JetStream key-value bucket, kept for ``ttl``."""

    bucket: fields.Bucket
    ttl: fields.Millis = 2 * 60 * 60 * 1_000


class ServingStore(OneOf):
    """Where the answers that sinks serve are put: NATS, or a class of the user's."""

    KINDS = ("nats", "python")
    nats: NatsStore | None = None
    python: fields.Code | None = None


# --- routing ------------------------------------------------------------------------------------


class TagCondition(Section):
    """Which tags a message must have: all of them, any of them, none of them."""

    operator: words.TagOperator = "or"
    values: tuple[StrictStr, ...] = ()


class Conditions(Section):
    """What a message must be like to go one way."""

    tags: TagCondition | None = None


class Edge(Section):
    """Messages leaving ``from_`` go to ``to`` if the condition, if any, holds."""

    from_: StrictStr = Field(alias="from")
    to: StrictStr
    conditions: Conditions | None = None
    on_full: words.OnFull = "retryUntilSuccess"


class Bypass(Section):
    """Which messages of a MonoVertex skip what is left of it and go straight to one of its sinks.

    The first that matches decides, in the order of the fields.
    """

    sink: Conditions | None = None
    fallback: Conditions | None = None
    on_success: Conditions | None = None


# --- conditions of a run ------------------------------------------------------------------------


class ReadLimits(Section):
    """How much is read and worked on at a time."""

    read_batch_size: fields.Positive | None = None
    read_timeout: fields.Millis | None = None
    concurrency: fields.Positive | None = None
    call_timeout: fields.Wait | None = None
    rate_limit: Any = None


class Limits(ReadLimits):
    """How much is read and stored at a time; of the pipeline, or of one vertex."""

    buffer_max_length: fields.Positive | None = None
    buffer_usage_limit: fields.Percentage | None = None


class Publish(Section):
    """How hard vertices try to write to NATS. Left out, they wait for as long as it takes.

    With a bound, the task that has come to it starts again and publishes the same messages anew:
    nothing is lost, but the vertex is shown as failing. Room in a full buffer is always waited for.
    """

    retry_wait: fields.Wait = 50
    retry_attempts: fields.Attempts = -1
    ack_wait: fields.Wait | None = None


class InterStepBuffer(BufferFields):
    """How the streams of a pipeline are kept and written; Numaflow's compression has no effect.

    ``replicas`` is the number of servers that keep each of them.
    """

    replicas: fields.Replicas = 1
    publish: Publish = Publish()


class Ordered(Section):
    """Whether messages keep their order."""

    enabled: StrictBool = False


class Lifecycle(Section):
    """Whether to run at all."""

    desired_phase: words.Phase = "Running"

    @property
    def paused(self) -> bool:
        """Whether nothing is to be read for now."""
        return self.desired_phase == "Paused"


class PipelineLifecycle(LifecycleFields, Lifecycle):
    """The lifecycle of a pipeline; Kubernetes' grace periods have no effect."""
