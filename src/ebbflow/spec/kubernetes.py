"""Fields that only mean something on Kubernetes: accepted, checked for spelling, without effect.

They are here so that a Numaflow pipeline runs unchanged. ``NO_EFFECT`` lists them for a Pipeline,
``MONOVERTEX_NO_EFFECT`` for a MonoVertex.
"""

from __future__ import annotations

from typing import Any

from ebbflow.schema.fields import Section


class ResourceFields(Section):
    """What a cluster adds to a resource beside its spec."""

    status: Any = None


class MetadataFields(Section):
    """Kubernetes' ``metadata``, all but the name."""

    namespace: Any = None
    labels: Any = None
    annotations: Any = None
    generate_name: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    finalizers: Any = None
    generation: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    resource_version: Any = None
    self_link: Any = None
    uid: Any = None


class PipelineFields(Section):
    """Settings of a whole pipeline."""

    inter_step_buffer_service_name: Any = None
    templates: Any = None
    watermark: Any = None


class BufferFields(Section):
    """Settings of the buffers between vertices."""

    compression: Any = None


class LifecycleFields(Section):
    """How long a pipeline may take to end."""

    deletion_grace_period_seconds: Any = None
    delete_grace_period_seconds: Any = None
    pause_grace_period_seconds: Any = None


class PodTemplateFields(Section):
    """Settings of any pod."""

    metadata: Any = None
    node_selector: Any = None
    tolerations: Any = None
    security_context: Any = None
    image_pull_secrets: Any = None
    priority_class_name: Any = None
    priority: Any = None
    affinity: Any = None
    service_account_name: Any = None
    runtime_class_name: Any = None
    automount_service_account_token: Any = None
    dns_policy: Any = None
    dns_config: Any = None
    resource_claims: Any = None


class PodFields(PodTemplateFields):
    """Settings of the pods that run user code."""

    container_template: Any = None
    init_containers: Any = None
    sidecars: Any = None
    volumes: Any = None
    scale: Any = None
    update_strategy: Any = None


class VertexFields(PodFields):
    """Settings of the pods of a pipeline's vertex."""

    init_container_template: Any = None
    side_inputs_container_template: Any = None


class MonoVertexFields(PodFields):
    """Settings of the pods of a MonoVertex."""

    daemon_template: Any = None


class BufferServiceFields(PodTemplateFields):
    """How Numaflow's controller is to set up JetStream; here the run has a NATS server anyway."""

    version: Any = None
    replicas: Any = None
    container_template: Any = None
    reloader_container_template: Any = None
    metrics_container_template: Any = None
    persistence: Any = None
    settings: Any = None
    start_args: Any = None
    buffer_config: Any = None
    encryption: Any = None
    tls: Any = None


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
