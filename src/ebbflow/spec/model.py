"""A pipeline as data, in Numaflow's own format (``numaflow.numaproj.io/v1alpha1``).

Two kinds: a ``Pipeline`` is a graph of vertices with buffers between them, a ``MonoVertex`` does
everything in one place. Both are made of the parts in ``sections``.

A model is only well-formed: types, ranges and required fields are valid. ``ebbflow.spec.lint``
checks that it makes sense as a pipeline, so get models from ``lint.load`` or from the builders in
``ebbflow.builders``. Models are frozen and can be pickled. All durations are whole milliseconds.

Fields beyond Numaflow: ``python:`` next to each ``container:``, ``mode:`` of a udf, ``onError:``,
``servingStore:``, ``audit:``, ``partitions:`` of a MonoVertex, ``messages:`` of the generator, and
those of an ``interStepBuffer:`` except its compression; a MonoVertex can have one as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictStr
from typing_extensions import override

from ebbflow.connectors.base import SOURCES
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.spec.kubernetes import (
    MetadataFields,
    MonoVertexFields,
    PipelineFields,
    ResourceFields,
    VertexFields,
)
from ebbflow.spec.sections import (
    AuditSpec,
    BreakerSpec,
    BypassSpec,
    EdgeSpec,
    InterStepBuffer,
    Lifecycle,
    Limits,
    NatsStoreSpec,
    OnError,
    OnUnavailableSpec,
    Ordered,
    PipelineLifecycle,
    ReadLimits,
    ServingStoreSpec,
    SinkSpec,
    SourceSpec,
    Udf,
)
from ebbflow.spec.validate import FieldPath
from ebbflow.streams.names import Names, VertexStreams

API_VERSION: Literal["numaflow.numaproj.io/v1alpha1"] = "numaflow.numaproj.io/v1alpha1"


class VertexKind(StrEnum):
    """What a vertex does with messages."""

    SOURCE = "source"
    MAP = "map"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """The limits of one vertex, including defaults. Times are in ms."""

    read_batch_size: int = 500
    buffer_max_length: int = 30_000
    buffer_usage_limit: int = 80
    read_timeout: int = 1_000
    concurrency: int = 500
    call_timeout: int | None = None

    @classmethod
    def of(cls, *levels: ReadLimits) -> EffectiveLimits:
        """Returns each limit from the first level that sets it, else its default."""
        chosen: dict[str, int] = {}
        for level in levels:
            for name in cls.__dataclass_fields__:
                # The limits of a MonoVertex have no fields for buffers, as it has none.
                value = getattr(level, name, None)
                if value is not None:
                    chosen.setdefault(name, value)
        # By default, all messages of one read may be worked on at once.
        if "read_batch_size" in chosen:
            chosen.setdefault("concurrency", chosen["read_batch_size"])
        return cls(**chosen)

    @property
    def buffer_frames(self) -> int:
        """The number of frames at which a buffer is full."""
        return max(1, self.buffer_max_length * self.buffer_usage_limit // 100)


class Metadata(MetadataFields):
    """The ``metadata`` of a pipeline."""

    name: StrictStr


class ResourceBody(Section):
    """The common fields of the ``spec`` of a pipeline and that of a MonoVertex."""

    inter_step_buffer: InterStepBuffer = InterStepBuffer()
    lifecycle: Lifecycle = Lifecycle()
    serving_store: ServingStoreSpec | None = None
    audit: AuditSpec | None = None


class Resource(ResourceFields):
    """The common fields of a pipeline and a MonoVertex, as YAML documents."""

    VERSION: ClassVar[str] = API_VERSION

    metadata: Metadata
    spec: ResourceBody

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def inter_step_buffer(self) -> InterStepBuffer:
        """How its streams are kept and written."""
        return self.spec.inter_step_buffer

    @property
    def serving_store(self) -> ServingStoreSpec | None:
        """Where answers are stored, if anywhere; by default in NATS if a source serves."""
        if self.spec.serving_store is not None or not any(map(_serves, self.sources)):
            return self.spec.serving_store
        return ServingStoreSpec(nats=NatsStoreSpec())

    @property
    def audit(self) -> AuditSpec | None:
        """The table of the outcomes of its messages, if one is kept."""
        return self.spec.audit

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its vertices; a MonoVertex is one."""
        raise NotImplementedError

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """Where its messages come from, as written."""
        return tuple(step.source for step in self.steps if step.source is not None)

    @property
    def has_tables(self) -> bool:
        """True if Spark's JVM itself works on messages: for a query, a table or the audit."""
        from_table = any("spark" in source.kinds for source in self.sources)
        return from_table or self.audit is not None or any(s.streams.batched for s in self.steps)

    @property
    def nats_store(self) -> NatsStoreSpec | None:
        """The store in NATS, if there is one.

        A serving source always has one, for its records of requests; their answers may be in the
        user's own store.
        """
        store = self.serving_store
        if store is not None and store.nats is not None:
            return store.nats
        return NatsStoreSpec() if any(map(_serves, self.sources)) else None

    @property
    def bucket(self) -> str | None:
        """The bucket of that store."""
        store = self.nats_store
        return None if store is None else store.bucket or Names(self.name).answers

    @property
    def paused(self) -> bool:
        """True if it should do nothing for now."""
        return self.spec.lifecycle.paused


def _serves(source: SourceSpec) -> bool:
    """Returns whether the source accepts requests; without a known kind it does not."""
    return any(kind in SOURCES and SOURCES[kind].serves for kind in source.kinds)


@dataclass(frozen=True, slots=True)
class Step:
    """A vertex, or a whole MonoVertex: its name, its place in the document, and its section."""

    name: str
    path: FieldPath
    section: Vertex | MonoVertexBody

    @property
    def source(self) -> SourceSpec | None:
        """Where its messages come from, if from outside."""
        return self.section.source

    @property
    def udf(self) -> Udf | None:
        """What it does with messages, if it is a map."""
        return self.section.udf

    @property
    def sink(self) -> SinkSpec | None:
        """Where its messages go, if out of the pipeline."""
        return self.section.sink

    @property
    def streams(self) -> VertexStreams:
        """Its streams, as the registry defines them for its kinds of source and sink.

        They come from the spec and not from the plans of a run, which need connectors' secrets.
        """
        source = None if self.source is None else SOURCES[self.source.kind]
        queried = self.udf is not None and self.udf.query is not None
        return VertexStreams(
            self.name,
            self.section.tasks,
            has_buffer=source is None or source.feeds,
            returns=source is not None and source.returns,
            remembers=source is not None and source.remembers,
            batched=queried or (self.sink is not None and self.sink.batched is not None),
            serves=source is not None and source.serves,
        )


# --- Pipeline -----------------------------------------------------------------------------------


class Vertex(VertexFields):
    """One step of the pipeline."""

    name: StrictStr
    source: SourceSpec | None = None
    udf: Udf | None = None
    sink: SinkSpec | None = None
    partitions: fields.Partitions = 1
    limits: Limits | None = None
    ordered: Ordered | None = None
    side_inputs: Annotated[Any, fields.LEFT_OUT_IF_EMPTY] = None
    on_error: OnError = OnError()
    on_unavailable: OnUnavailableSpec = OnUnavailableSpec()
    breaker: BreakerSpec = BreakerSpec()
    inline: StrictBool = Field(
        default=True,
        description="whether it may share the tasks of the vertex before it: "
        "[inline edges](../guides/running.md#inline-edges)",
    )

    @property
    def roles(self) -> tuple[str, ...]:
        """Which of source, udf and sink are set; exactly one once the spec lints."""
        return tuple(role for role in ("source", "udf", "sink") if getattr(self, role) is not None)

    @property
    def kind(self) -> VertexKind:
        """Source, map or sink."""
        if self.source is not None:
            return VertexKind.SOURCE
        return VertexKind.SINK if self.sink is not None else VertexKind.MAP

    @property
    def tasks(self) -> int:
        """The number of its tasks."""
        return self.partitions


class PipelineBody(PipelineFields, ResourceBody):
    """The ``spec`` of a pipeline."""

    vertices: tuple[Vertex, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    limits: Limits = Limits()
    ordered: Ordered = Ordered()
    lifecycle: PipelineLifecycle = PipelineLifecycle()
    side_inputs: Annotated[Any, fields.LEFT_OUT_IF_EMPTY] = None
    inline: StrictBool = Field(
        default=True,
        description="whether vertices may share tasks, which then run them inline: "
        "[inline edges](../guides/running.md#inline-edges)",
    )


class PipelineSpec(Resource):
    """A whole pipeline, as one YAML document holds it."""

    NOUN: ClassVar[str] = "pipeline"

    api_version: Literal["numaflow.numaproj.io/v1alpha1"] = API_VERSION
    kind: Literal["Pipeline"] = "Pipeline"
    spec: PipelineBody

    @property
    @override
    def steps(self) -> tuple[Step, ...]:
        """Its vertices, each with its place in the document."""
        each = enumerate(self.spec.vertices)
        return tuple(Step(vertex.name, ("spec", "vertices", at), vertex) for at, vertex in each)

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """All vertices, as written."""
        return self.spec.vertices

    @property
    def edges(self) -> tuple[EdgeSpec, ...]:
        """All edges, as written."""
        return self.spec.edges

    def vertex(self, name: str) -> Vertex:
        """Returns the vertex of that name; ``KeyError`` if there is none."""
        for vertex in self.vertices:
            if vertex.name == name:
                return vertex
        raise KeyError(name)

    def edges_from(self, name: str) -> tuple[EdgeSpec, ...]:
        """Returns the edges that leave a vertex."""
        return tuple(edge for edge in self.edges if edge.from_ == name)

    def edges_into(self, name: str) -> tuple[EdgeSpec, ...]:
        """Returns the edges that lead to a vertex."""
        return tuple(edge for edge in self.edges if edge.to == name)

    def limits_of(self, vertex: Vertex | str) -> EffectiveLimits:
        """Returns the vertex's own limits, else the pipeline's, else the defaults."""
        own = self._vertex(vertex).limits or Limits()
        return EffectiveLimits.of(own, self.spec.limits)

    def is_ordered(self, vertex: Vertex | str) -> bool:
        """Returns whether the vertex keeps messages in order, by its own or the pipeline's setting.

        A source never does: order begins there.
        """
        step = self._vertex(vertex)
        return step.kind is not VertexKind.SOURCE and (step.ordered or self.spec.ordered).enabled

    def _vertex(self, vertex: Vertex | str) -> Vertex:
        return self.vertex(vertex) if isinstance(vertex, str) else vertex


# --- MonoVertex ---------------------------------------------------------------------------------


class MonoVertexBody(MonoVertexFields, ResourceBody):
    """The ``spec`` of a MonoVertex."""

    source: SourceSpec | None = None
    udf: Udf | None = None
    sink: SinkSpec | None = None
    bypass: BypassSpec = BypassSpec()
    replicas: fields.Partitions | None = None
    partitions: fields.Partitions | None = None
    limits: ReadLimits = ReadLimits()
    streaming: StrictBool = Field(
        default=False, description="without effect: messages are settled in chunks"
    )
    on_error: OnError = OnError()
    on_unavailable: OnUnavailableSpec = OnUnavailableSpec()
    breaker: BreakerSpec = BreakerSpec()

    @property
    def tasks(self) -> int:
        """The number of its tasks: ``partitions``, else ``replicas``, else 1."""
        return self.partitions or self.replicas or 1


class MonoVertexSpec(Resource):
    """Source, transformer, map and sinks in one, as one YAML document holds them."""

    NOUN: ClassVar[str] = "MonoVertex"

    api_version: Literal["numaflow.numaproj.io/v1alpha1"] = API_VERSION
    kind: Literal["MonoVertex"] = "MonoVertex"
    spec: MonoVertexBody

    @property
    @override
    def steps(self) -> tuple[Step, ...]:
        """Its one step: itself."""
        return (Step(self.name, ("spec",), self.spec),)

    @property
    def source(self) -> SourceSpec:
        """Where its messages come from."""
        assert self.spec.source is not None, "lint refuses a MonoVertex without source"
        return self.spec.source

    @property
    def udf(self) -> Udf | None:
        """Its map, if it has one."""
        return self.spec.udf

    @property
    def sink(self) -> SinkSpec:
        """Where its messages are written."""
        assert self.spec.sink is not None, "lint refuses a MonoVertex without sink"
        return self.spec.sink

    @property
    def bypass(self) -> BypassSpec:
        """Which messages skip some of its steps."""
        return self.spec.bypass

    @property
    def limits(self) -> EffectiveLimits:
        """Its limits, with nothing left out."""
        return EffectiveLimits.of(self.spec.limits)

    @property
    def on_error(self) -> OnError:
        """What to do about unexpected exceptions in user code."""
        return self.spec.on_error


Spec = PipelineSpec | MonoVertexSpec
"""What a YAML document can hold."""
