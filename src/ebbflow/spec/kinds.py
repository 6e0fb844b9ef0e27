"""The kinds of document that a file may hold, and how to recognise them.

Pipelines, MonoVertices and ServingPipelines can be run. A ServingPipeline is a Pipeline with HTTP
in front of it. Companions hold values for them, or say how a cluster sets up JetStream.
Documents of other systems, such as a Service of Kubernetes, are ignored. ``make_schema`` returns
the JSON schema of the documents that can be run.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticCustomError
from typing_extensions import override

from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import WITHOUT_EFFECT, Section, shown
from ebbflow.connectors.schema.secrets import ResourceKey, ResourceName, ValueKind
from ebbflow.connectors.serving.spec import ServingFields, ServingSourceSpec
from ebbflow.domain.secrets import Secret
from ebbflow.spec.kubernetes import (
    NO_EFFECT,
    BufferServiceFields,
    MetadataFields,
    NoEffect,
    PodTemplateFields,
    ResourceFields,
)
from ebbflow.spec.model import (
    API_VERSION,
    Metadata,
    MonoVertexSpec,
    PipelineBody,
    PipelineSpec,
    Spec,
    Vertex,
)
from ebbflow.spec.sections import ServingStoreSpec
from ebbflow.spec.validate import FieldPath, Finding


class ServiceFields(PodTemplateFields):
    """Settings of the service's pods."""

    service: StrictBool = Field(default=False, description=WITHOUT_EFFECT)
    container_template: NoEffect = None
    replicas: fields.Count | None = Field(default=None, description=WITHOUT_EFFECT)


class ServingService(ServiceFields, ServingFields):
    """The HTTP service in front of the pipeline."""

    store: ServingStoreSpec | None = None


class ServingBody(Section):
    """The ``spec`` of a serving pipeline."""

    serving: ServingService = ServingService()
    pipeline: PipelineBody


class ServingPipelineSpec(ResourceFields):
    """A serving pipeline, as one YAML document holds it."""

    VERSION: ClassVar[str] = API_VERSION

    api_version: Literal["numaflow.numaproj.io/v1alpha1"] = API_VERSION
    kind: Literal["ServingPipeline"] = "ServingPipeline"
    metadata: Metadata
    spec: ServingBody

    @cached_property
    def as_pipeline(self) -> PipelineSpec:
        """The Pipeline of the same name that runs for it."""
        body, service = self.spec.pipeline, self.spec.serving
        changes = {
            "vertices": tuple(_served(vertex, service) for vertex in body.vertices),
            "serving_store": service.store or body.serving_store,
        }
        return PipelineSpec(metadata=self.metadata, spec=body.model_copy(update=changes))

    def place(self, path: FieldPath) -> FieldPath:
        """Returns where a field of that Pipeline is written in this document."""
        match path:
            case ("spec", "servingStore", *rest) if self.spec.serving.store is not None:
                return ("spec", "serving", "store", *rest)
            case ("spec", "vertices", _, "source", "serving", field, *rest):
                return ("spec", "serving", field, *rest)
            case ("spec", *rest):
                return ("spec", "pipeline", *rest)
        return path


def _served(vertex: Vertex, service: ServingService) -> Vertex:
    """Returns the vertex; if it is a serving source, with the settings of the service."""
    if vertex.source is None or "serving" not in vertex.source.kinds:
        return vertex
    settings = {name: getattr(service, name) for name in ServingFields.model_fields}
    section = ServingSourceSpec.model_construct(**settings)
    return vertex.model_copy(
        update={"source": vertex.source.model_copy(update={"serving": section})}
    )


SERVING_NO_EFFECT: dict[str, tuple[str, ...]] = {
    **{place: NO_EFFECT[place] for place in ("", "metadata")},
    "spec.serving": tuple(str(field.alias) for field in ServiceFields.model_fields.values()),
}
"""Where in a ServingPipeline, beyond its pipeline, → the fields without effect there."""


def _encoded(value: Any) -> str:
    # Errors name the key and never the value, which is the secret.
    if not isinstance(value, str):
        raise PydanticCustomError("EB103", "must be text in base64")
    try:
        return base64.b64decode("".join(value.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        raise PydanticCustomError("EB106", "not base64 of a text") from None


def _plain(value: Any) -> str:
    if not isinstance(value, str):
        raise PydanticCustomError("EB103", "must be text; put it in quotes")
    return value


def _hidden(text: str) -> Secret:
    return Secret(text.rstrip("\r\n"))


Encoded = Annotated[Any, BeforeValidator(_encoded), AfterValidator(_hidden)]
"""A text in base64 that is never shown."""

Plain = Annotated[Any, BeforeValidator(_plain), AfterValidator(_hidden)]
"""A text that is never shown."""


class CompanionMetadata(MetadataFields):
    """The ``metadata`` of a document next to a pipeline."""

    name: ResourceName


class CompanionDocument(ResourceFields):
    """A document next to a pipeline."""

    VERSION: ClassVar[str] = "v1"

    metadata: CompanionMetadata

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name


class ValuesDocument(CompanionDocument):
    """A document that holds values."""

    KIND: ClassVar[ValueKind]

    immutable: Any = None

    @property
    def values(self) -> dict[str, Secret]:
        """Its values by their keys."""
        raise NotImplementedError


class SecretDocument(ValuesDocument):
    """A Secret of Kubernetes."""

    KIND = "Secret"

    api_version: Literal["v1"]
    kind: Literal["Secret"]
    type: Any = None
    data: dict[ResourceKey, Encoded] = Field(default={})
    string_data: dict[ResourceKey, Plain] = Field(default={})

    @property
    @override
    def values(self) -> dict[str, Secret]:
        """Its values by their keys; as in a cluster, ``stringData`` takes precedence."""
        return {**self.data, **self.string_data}


class ConfigMapDocument(ValuesDocument):
    """A ConfigMap of Kubernetes."""

    KIND = "ConfigMap"

    api_version: Literal["v1"]
    kind: Literal["ConfigMap"]
    data: dict[ResourceKey, Plain] = Field(default={})
    binary_data: dict[ResourceKey, Encoded] = Field(default={})

    @property
    @override
    def values(self) -> dict[str, Secret]:
        return {**self.binary_data, **self.data}


class BufferServiceBody(Section):
    """The ``spec`` of a buffer service."""

    jetstream: BufferServiceFields


class BufferServiceDocument(CompanionDocument):
    """An InterStepBufferService of Numaflow: how its controller is to set up JetStream."""

    VERSION = API_VERSION

    api_version: Literal["numaflow.numaproj.io/v1alpha1"]
    kind: Literal["InterStepBufferService"]
    spec: BufferServiceBody


COMPANIONS: dict[str, type[CompanionDocument]] = {
    "Secret": SecretDocument,
    "ConfigMap": ConfigMapDocument,
    "InterStepBufferService": BufferServiceDocument,
}
"""Every kind of companion."""


def values_in(companions: Iterable[object]) -> dict[tuple[ValueKind, str], dict[str, Secret]]:
    """Returns the values of all Secrets and ConfigMaps, by kind and name."""
    holders = (companion for companion in companions if isinstance(companion, ValuesDocument))
    return {(holder.KIND, holder.name): holder.values for holder in holders}


Runnable = Spec | ServingPipelineSpec
"""The documents that can be run."""

RUNNABLE: dict[str, type[Runnable]] = {
    "Pipeline": PipelineSpec,
    "MonoVertex": MonoVertexSpec,
    "ServingPipeline": ServingPipelineSpec,
}

Readable = Runnable | CompanionDocument
"""What a document can hold."""

KINDS: dict[str, type[Readable]] = {**RUNNABLE, **COMPANIONS}
"""Every kind of document that is read."""

_GROUP = API_VERSION.partition("/")[0]
_FIELDS = ("apiVersion", "kind", "metadata", "spec")


def model_of(data: Mapping[str, Any]) -> type[Readable] | None:
    """Returns the model of the document's kind, or the likely model if it names no kind."""
    if "kind" in data:
        return KINDS.get(str(data["kind"]))
    spec = data.get("spec")
    return MonoVertexSpec if isinstance(spec, dict) and "source" in spec else PipelineSpec


def spec_of(resource: Readable) -> Spec | None:
    """Returns the spec that runs for a resource; ``None`` for a companion."""
    if isinstance(resource, ServingPipelineSpec):
        return resource.as_pipeline
    return resource if isinstance(resource, Spec) else None


def is_companion(data: Any) -> bool:
    """Returns whether the document's kind is that of a companion."""
    return isinstance(data, Mapping) and data.get("kind") in tuple(COMPANIONS)


def is_of_another_system(data: Any) -> bool:
    """Returns whether the document's kind belongs to another system."""
    if not isinstance(data, Mapping):
        return False
    kind, version = data.get("kind"), str(data.get("apiVersion", API_VERSION))
    return kind not in (None, *KINDS) and not version.startswith(_GROUP)


def check_header(data: Any) -> Iterator[Finding]:
    """Reports an ``apiVersion`` or ``kind`` that is missing or wrong."""
    if not isinstance(data, Mapping):
        message = f"a pipeline is a mapping of {', '.join(_FIELDS)}, not {shown(data)}"
        yield Finding("EB103", message, ())
        return
    kind = data.get("kind")
    model = model_of(data)
    version = API_VERSION if model is None else model.VERSION
    if data.get("apiVersion") != version:
        yield from _wrong("apiVersion", data, version)
    if kind not in tuple(KINDS):
        *first, last = RUNNABLE
        yield from _wrong("kind", data, f"{', '.join(first)} or {last}")


def _wrong(field: str, data: Mapping[str, Any], expected: str) -> Iterator[Finding]:
    if field in data:
        message = f"unknown {field} {shown(data[field])}; expected {expected}"
        yield Finding("EB005", message, (field,))
    else:
        yield Finding("EB102", f"{field!r} is missing; write {field}: {expected}", (field,))


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_HEADER = ("apiVersion", "kind")


def make_schema() -> dict[str, Any]:
    """Returns the schema of a document of any kind that can be run."""
    models = [(model, "validation") for model in RUNNABLE.values()]
    refs, schema = models_json_schema(models, by_alias=True)  # type: ignore[arg-type]
    definitions: dict[str, Any] = schema["$defs"]
    kinds = {kind: refs[model, "validation"] for kind, model in RUNNABLE.items()}
    for ref in kinds.values():
        _require_header(definitions[ref["$ref"].rpartition("/")[2]])
    return {
        "$schema": _DIALECT,
        "title": "A pipeline of Ebbflow",
        "type": "object",
        "required": list(_HEADER),
        "properties": {"kind": {"enum": list(kinds)}},
        # By kind, so that an editor shows what is wrong for this kind, and not only that none of
        # the three matches.
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": ref}
            for kind, ref in kinds.items()
        ],
        "$defs": definitions,
    }


def _require_header(definition: dict[str, Any]) -> None:
    """Requires the fields whose defaults are only for specs made in Python."""
    required = definition.setdefault("required", [])
    required += [name for name in _HEADER if name not in required]
