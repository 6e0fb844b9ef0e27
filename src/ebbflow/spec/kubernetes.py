"""Fields that only mean something on Kubernetes: accepted, checked for spelling, without effect.

They are here so that a Numaflow pipeline runs unchanged. ``NO_EFFECT`` lists them for a Pipeline,
``MONOVERTEX_NO_EFFECT`` for a MonoVertex.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from ebbflow.connectors.schema.container import Quantity
from ebbflow.connectors.schema.fields import WITHOUT_EFFECT, Section, Text

NoEffect = Annotated[Any, Field(description=WITHOUT_EFFECT)]
"""A field whose value does not matter."""


class ResourceFields(Section):
    """What a cluster adds to a resource beside its spec."""

    status: NoEffect = None


class MetadataFields(Section):
    """Kubernetes' ``metadata``, all but the name."""

    namespace: NoEffect = None
    labels: NoEffect = None
    annotations: NoEffect = None
    generate_name: NoEffect = None
    creation_timestamp: NoEffect = None
    deletion_timestamp: NoEffect = None
    deletion_grace_period_seconds: NoEffect = None
    finalizers: NoEffect = None
    generation: NoEffect = None
    managed_fields: NoEffect = None
    owner_references: NoEffect = None
    resource_version: NoEffect = None
    self_link: NoEffect = None
    uid: NoEffect = None


class PipelineFields(Section):
    """Settings of a whole pipeline."""

    inter_step_buffer_service_name: NoEffect = None
    templates: NoEffect = None
    watermark: NoEffect = None


class BufferFields(Section):
    """Settings of the buffers between vertices."""

    compression: NoEffect = None


class LifecycleFields(Section):
    """How long a pipeline may take to end."""

    deletion_grace_period_seconds: NoEffect = None
    delete_grace_period_seconds: NoEffect = None
    pause_grace_period_seconds: NoEffect = None


class PodTemplateFields(Section):
    """Settings of any pod."""

    metadata: NoEffect = None
    node_selector: NoEffect = None
    tolerations: NoEffect = None
    security_context: NoEffect = None
    image_pull_secrets: NoEffect = None
    priority_class_name: NoEffect = None
    priority: NoEffect = None
    affinity: NoEffect = None
    service_account_name: NoEffect = None
    runtime_class_name: NoEffect = None
    automount_service_account_token: NoEffect = None
    dns_policy: NoEffect = None
    dns_config: NoEffect = None
    resource_claims: NoEffect = None


class PodFields(PodTemplateFields):
    """Settings of the pods that run user code."""

    container_template: NoEffect = None
    init_containers: NoEffect = None
    sidecars: NoEffect = None
    volumes: NoEffect = None
    scale: NoEffect = None
    update_strategy: NoEffect = None


class VertexFields(PodFields):
    """Settings of the pods of a pipeline's vertex."""

    init_container_template: NoEffect = None
    side_inputs_container_template: NoEffect = None


class MonoVertexFields(PodFields):
    """Settings of the pods of a MonoVertex."""

    daemon_template: NoEffect = None


def _not_two(value: int) -> int:
    if value < 1 or value == 2:
        raise PydanticCustomError(
            "EB104",
            "must be 1 or at least 3, not {value}: two servers cannot outvote each other",
            {"value": value},
        )
    return value


class PersistenceFields(Section):
    """The volume of each server of a buffer service."""

    storage_class_name: StrictStr | None = None
    access_mode: StrictStr | None = None
    volume_size: Quantity | None = None


class BufferServiceFields(PodTemplateFields):
    """How Numaflow's controller sets up JetStream; here the run brings or finds a NATS server.

    Values are checked as Numaflow checks them, so that a file that lints here deploys there.
    """

    version: Text
    replicas: Annotated[StrictInt, AfterValidator(_not_two)] | None = None
    container_template: NoEffect = None
    reloader_container_template: NoEffect = None
    metrics_container_template: NoEffect = None
    persistence: PersistenceFields | None = None
    settings: StrictStr | None = None
    start_args: tuple[StrictStr, ...] = ()
    buffer_config: StrictStr | None = None
    encryption: StrictBool = False
    tls: StrictBool = False


def _names(section: type[Section]) -> tuple[str, ...]:
    return tuple(str(field.alias) for field in section.model_fields.values())


NO_EFFECT: dict[str, tuple[str, ...]] = {
    "": _names(ResourceFields),
    "metadata": _names(MetadataFields),
    "spec": _names(PipelineFields),
    "spec.interStepBuffer": _names(BufferFields),
    "spec.lifecycle": _names(LifecycleFields),
    "spec.vertices[]": _names(VertexFields),
}
"""Where in a Pipeline → the names of the fields that are accepted there without effect."""

MONOVERTEX_NO_EFFECT: dict[str, tuple[str, ...]] = {
    "": _names(ResourceFields),
    "metadata": _names(MetadataFields),
    "spec": _names(MonoVertexFields),
    "spec.interStepBuffer": _names(BufferFields),
}
"""The same for a MonoVertex."""
