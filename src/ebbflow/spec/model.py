"""A pipeline as data, in Numaflow's own format (``numaflow.numaproj.io/v1alpha1``).

A model is only a well-formed one: types, ranges and required fields hold. That it makes sense
as a pipeline is what ``ebbflow.spec.lint`` checks, so get one from ``lint.load`` or from the
builder in ``ebbflow.pipeline``. Models are frozen and can be pickled. All durations are whole
milliseconds.

Ours, beyond Numaflow: ``python:`` beside each ``container:``, ``onError:`` on a vertex and
``messages:`` of the generator.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from ebbflow.options import DEFAULT_ON_ERROR, Backoff
from ebbflow.spec import fields
from ebbflow.spec.fields import Section
from ebbflow.spec.kubernetes import MetadataFields, PipelineFields, ResourceFields, VertexFields

API_VERSION: Literal["numaflow.numaproj.io/v1alpha1"] = "numaflow.numaproj.io/v1alpha1"


class VertexKind(StrEnum):
    """What a vertex does with messages."""

    SOURCE = "source"
    MAP = "map"
    SINK = "sink"


# --- waiting and retrying -----------------------------------------------------------------------

DEFAULT_RETRY = Backoff(interval=1, steps=65_535)
"""What a ``retryStrategy`` leaves out."""


class BackoffSpec(Section):
    """Waits between retries; what is left out comes from the defaults of where it is used."""

    interval: fields.Millis | None = None
    steps: fields.Positive | None = None
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


class RetryStrategy(Section):
    """What to do about failures that user code reports."""

    backoff: BackoffSpec = BackoffSpec()
    on_failure: Literal["retry", "fallback", "drop"] = "retry"

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


# --- user code ----------------------------------------------------------------------------------


class UserCode(Section):
    """Code of the user's: a Python function or class, or a container."""

    container: Any = None
    python: fields.Code | None = None


class Transformer(UserCode):
    """Changes messages inside the source, before they are first stored."""

    retry_strategy: RetryStrategy | None = None


class Udf(UserCode):
    """A user-defined function: one message in, any number out."""

    group_by: Any = None
    retry_strategy: RetryStrategy | None = None


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


class _OneOf(Section):
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


class Source(_OneOf):
    """Where messages come from."""

    KINDS = (
        "generator", "udsource", "http", "jetstream", "nats", "kafka", "pulsar", "sqs", "serving",
    )  # fmt: skip
    generator: Generator | None = None
    udsource: UserCode | None = None
    http: Any = None
    jetstream: Any = None
    nats: Any = None
    kafka: Any = None
    pulsar: Any = None
    sqs: Any = None
    serving: Any = None
    transformer: Transformer | None = None


# --- sinks --------------------------------------------------------------------------------------


class Log(Section):
    """Writes every message to the log. Has no settings."""


class Blackhole(Section):
    """Forgets every message. Has no settings."""


class SinkTarget(_OneOf):
    """A place to write messages to."""

    KINDS = ("log", "blackhole", "udsink", "kafka", "pulsar", "sqs", "serve")
    log: Log | None = None
    blackhole: Blackhole | None = None
    udsink: UserCode | None = None
    kafka: Any = None
    pulsar: Any = None
    sqs: Any = None
    serve: Any = None


class Sink(SinkTarget):
    """Where messages end, and what happens to those that cannot."""

    fallback: SinkTarget | None = None
    on_success: SinkTarget | None = None
    retry_strategy: RetryStrategy | None = None


# --- the graph ----------------------------------------------------------------------------------


class Limits(Section):
    """How much is read and stored at a time; of the pipeline, or of one vertex."""

    read_batch_size: fields.Positive | None = None
    buffer_max_length: fields.Positive | None = None
    buffer_usage_limit: fields.Percentage | None = None
    read_timeout: fields.Millis | None = None
    concurrency: fields.Positive | None = None
    rate_limit: Any = None


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """The limits that hold for one vertex, with nothing left out. ``read_timeout`` is in ms."""

    read_batch_size: int = 500
    buffer_max_length: int = 30_000
    buffer_usage_limit: int = 80
    read_timeout: int = 1_000
    concurrency: int = 500


class Ordered(Section):
    """Whether messages keep their order."""

    enabled: StrictBool = False


class Vertex(VertexFields):
    """One step of the pipeline."""

    name: StrictStr
    source: Source | None = None
    udf: Udf | None = None
    sink: Sink | None = None
    partitions: fields.Positive = 1
    limits: Limits | None = None
    ordered: Ordered | None = None
    side_inputs: Any = None
    on_error: OnError = OnError()

    @property
    def roles(self) -> tuple[str, ...]:
        """Which of source, udf and sink are given; exactly one once the spec lints."""
        return tuple(role for role in ("source", "udf", "sink") if getattr(self, role) is not None)

    @property
    def kind(self) -> VertexKind:
        """Source, map or sink."""
        if self.source is not None:
            return VertexKind.SOURCE
        return VertexKind.SINK if self.sink is not None else VertexKind.MAP


class TagCondition(Section):
    """Which tags a message must have: all of them, any of them, none of them."""

    operator: Literal["and", "or", "not"] = "or"
    values: tuple[StrictStr, ...] = ()


class Conditions(Section):
    """What a message must be like to follow an edge."""

    tags: TagCondition | None = None


class Edge(Section):
    """Messages leaving ``from_`` go to ``to`` if the condition, if any, holds."""

    from_: StrictStr = Field(alias="from")
    to: StrictStr
    conditions: Conditions | None = None
    on_full: Literal["retryUntilSuccess", "discardLatest"] = "retryUntilSuccess"


class PipelineBody(PipelineFields):
    """The ``spec`` of a pipeline."""

    vertices: tuple[Vertex, ...] = ()
    edges: tuple[Edge, ...] = ()
    limits: Limits = Limits()
    ordered: Ordered | None = None
    side_inputs: Any = None


class Metadata(MetadataFields):
    """The ``metadata`` of a pipeline."""

    name: StrictStr


class PipelineSpec(ResourceFields):
    """A whole pipeline, as one YAML document holds it."""

    api_version: Literal["numaflow.numaproj.io/v1alpha1"] = API_VERSION
    kind: Literal["Pipeline"] = "Pipeline"
    metadata: Metadata
    spec: PipelineBody

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.metadata.name

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """All vertices, as written."""
        return self.spec.vertices

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, as written."""
        return self.spec.edges

    def vertex(self, name: str) -> Vertex:
        """The vertex of that name; ``KeyError`` if there is none."""
        for vertex in self.vertices:
            if vertex.name == name:
                return vertex
        raise KeyError(name)

    def edges_from(self, name: str) -> tuple[Edge, ...]:
        """The edges that leave a vertex."""
        return tuple(edge for edge in self.edges if edge.from_ == name)

    def edges_into(self, name: str) -> tuple[Edge, ...]:
        """The edges that lead to a vertex."""
        return tuple(edge for edge in self.edges if edge.to == name)

    def limits_of(self, vertex: Vertex | str) -> EffectiveLimits:
        """The vertex's own limits, else the pipeline's, else the defaults."""
        own = (self.vertex(vertex) if isinstance(vertex, str) else vertex).limits or Limits()
        chosen: dict[str, int] = {}
        for name in EffectiveLimits.__dataclass_fields__:
            for value in (getattr(own, name), getattr(self.spec.limits, name)):
                if value is not None:
                    chosen.setdefault(name, value)
        # One read's worth of messages may be worked on at once unless something else is said.
        if "read_batch_size" in chosen:
            chosen.setdefault("concurrency", chosen["read_batch_size"])
        return EffectiveLimits(**chosen)
