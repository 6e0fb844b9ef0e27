"""A ServingPipeline as data: a pipeline behind an HTTP service that returns its answers.

It is run as the Pipeline that it stands for: the settings of the service become those of the
pipeline's serving source, and its store becomes the pipeline's. The rules look at that Pipeline;
``place`` leads what they find back to where it is written.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, StrictBool

from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import WITHOUT_EFFECT, Section
from ebbflow.connectors.serving.spec import ServingFields, ServingSourceSpec
from ebbflow.spec.findings import FieldPath
from ebbflow.spec.kubernetes import NO_EFFECT, NoEffect, PodTemplateFields, ResourceFields
from ebbflow.spec.model import API_VERSION, Metadata, PipelineBody, PipelineSpec, Vertex
from ebbflow.spec.sections import ServingStoreSpec


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
