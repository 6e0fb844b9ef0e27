"""Fields that only mean something on Kubernetes: accepted, checked for spelling, without effect.

They are here so that a Numaflow pipeline runs unchanged. ``NO_EFFECT`` lists them for a Pipeline,
``MONOVERTEX_NO_EFFECT`` for a MonoVertex.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, create_model
from pydantic_core import PydanticCustomError

from ebbflow.connectors.schema.container import Quantity
from ebbflow.connectors.schema.fields import WITHOUT_EFFECT, Section, Text

NoEffect = Annotated[Any, Field(description=WITHOUT_EFFECT)]
"""A field whose value does not matter."""


S = TypeVar("S", bound=Section)


def without_effect(*names: str) -> Callable[[type[S]], type[S]]:
    """Gives a section fields whose values do not matter."""

    def add(section: type[S]) -> type[S]:
        fields: dict[str, Any] = dict.fromkeys(names, (NoEffect, None))
        name, module, about = section.__name__, section.__module__, section.__doc__
        return create_model(name, __base__=section, __module__=module, __doc__=about, **fields)

    return add


@without_effect("status")
class ResourceFields(Section):
    """What a cluster adds to a resource besides its spec."""


@without_effect(
    "labels", "annotations", "generate_name", "creation_timestamp", "deletion_timestamp",
    "deletion_grace_period_seconds", "finalizers", "generation", "managed_fields",
    "owner_references", "resource_version", "self_link", "uid",
)  # fmt: skip
class MetadataFields(Section):
    """Kubernetes' ``metadata``, all but the name."""

    namespace: NoEffect = None


@without_effect("inter_step_buffer_service_name", "templates", "watermark")
class PipelineFields(Section):
    """Settings of a whole pipeline."""


@without_effect("compression")
class BufferFields(Section):
    """Settings of the buffers between vertices."""


@without_effect(
    "deletion_grace_period_seconds", "delete_grace_period_seconds", "pause_grace_period_seconds"
)
class LifecycleFields(Section):
    """How long a pipeline may take to end."""


@without_effect(
    "metadata", "node_selector", "tolerations", "security_context", "image_pull_secrets",
    "priority_class_name", "priority", "affinity", "service_account_name", "runtime_class_name",
    "automount_service_account_token", "dns_policy", "dns_config", "resource_claims",
)  # fmt: skip
class PodTemplateFields(Section):
    """Settings of any pod."""


@without_effect(
    "container_template", "init_containers", "sidecars", "volumes", "scale", "update_strategy"
)
class PodFields(PodTemplateFields):
    """Settings of the pods that run user code."""


@without_effect("init_container_template", "side_inputs_container_template")
class VertexFields(PodFields):
    """Settings of the pods of a pipeline's vertex."""


@without_effect("daemon_template")
class MonoVertexFields(PodFields):
    """Settings of the pods of a MonoVertex."""


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
    """How Numaflow's controller sets up JetStream; here the run starts or finds a NATS server.

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
