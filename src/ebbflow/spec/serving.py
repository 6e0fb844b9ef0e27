"""A ServingPipeline as data: a pipeline behind an HTTP service that returns its answers.

The model is there so that lint finds every wrong field. Nothing runs it yet: ``rules/support``
refuses the kind as a whole.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, StrictBool

from ebbflow.connectors.http.listening import BearerToken, Ports
from ebbflow.connectors.user_code.spec import CodeSection
from ebbflow.schema import fields
from ebbflow.schema.fields import Section
from ebbflow.spec.kubernetes import PodTemplateFields, ResourceFields
from ebbflow.spec.model import API_VERSION, Metadata, PipelineBody


class ServingService(PodTemplateFields):
    """The HTTP service in front of the pipeline."""

    auth: BearerToken | None = None
    service: StrictBool = False
    ports: Ports = Ports()
    # Not what camel case would make of it.
    msg_id_header_key: fields.Text | None = Field(default=None, alias="msgIDHeaderKey")
    request_timeout_seconds: fields.Positive = 120
    store: CodeSection | None = None
    container_template: Any = None
    replicas: fields.Positive = 1


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
