"""Containers in a spec: the program in them, its arguments and the variables of its environment.

They mean the same as in Kubernetes. ``command`` is the program and its first arguments, ``args``
has the arguments after those, and ``$(NAME)`` in either, or in a variable's value, refers to
another variable. Values of Secrets and ConfigMaps are read on the driver when a run begins.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section, matching, shown
from ebbflow.connectors.schema.secrets import (
    ClusterSection,
    ConfigMapKeyRef,
    ResourceName,
    SecretKeyRef,
    ValueKind,
)
from ebbflow.domain.code import Variables, literal
from ebbflow.domain.errors import SetupError

POD_FIELDS = {
    "metadata.name": "$(NUMAFLOW_POD)",
    "metadata.namespace": "$(NUMAFLOW_NAMESPACE)",
    "metadata.labels['numaflow.numaproj.io/pipeline-name']": "$(NUMAFLOW_PIPELINE_NAME)",
    "metadata.labels['numaflow.numaproj.io/vertex-name']": "$(NUMAFLOW_VERTEX_NAME)",
}
"""The fields of a pod that a run knows, with the Numaflow variables of the same values."""


def _pod_field(path: str) -> str:
    if path not in POD_FIELDS:
        raise PydanticCustomError(
            "EB104",
            "{path} of a pod is not known here; the known fields are {known}; "
            "write a value: instead",
            {"path": shown(path), "known": ", ".join(POD_FIELDS)},
        )
    return path


VariableName = Annotated[
    StrictStr,
    matching(
        r"[-._a-zA-Z][-._a-zA-Z0-9]*",
        "EB104",
        "{value} is not the name of a variable: use letters, digits, '_', '-' and '.'",
    ),
]
"""The name of a variable of the environment."""


class FieldRef(Section):
    """A field of the pod that Numaflow would run the function in."""

    api_version: Any = None
    field_path: Annotated[StrictStr, AfterValidator(_pod_field)]


class ValueFrom(Section):
    """The place of a variable's value: exactly one of these."""

    secret_key_ref: SecretKeyRef | None = None
    config_map_key_ref: ConfigMapKeyRef | None = None
    field_ref: FieldRef | None = None
    resource_field_ref: Any = None
    file_key_ref: Any = None

    @model_validator(mode="after")
    def _says_one(self) -> ValueFrom:
        known = (self.secret_key_ref, self.config_map_key_ref, self.field_ref)
        if self.resource_field_ref is not None or self.file_key_ref is not None:
            raise PydanticCustomError(
                "EB104", "resources and files of a pod are not known here; write a value: instead"
            )
        if sum(ref is not None for ref in known) != 1:
            raise PydanticCustomError(
                "EB104", "write exactly one of secretKeyRef, configMapKeyRef and fieldRef"
            )
        return self


class Variable(Section):
    """A variable of the environment: its value, or the place of its value."""

    name: VariableName
    value: StrictStr = ""
    value_from: ValueFrom | None = None

    def read(self, owner: str) -> str | None:
        """Returns the value, with its references; ``None`` if it is optional and missing.

        ``SetupError`` says where it was searched for.
        """
        source = self.value_from
        if source is None:
            return self.value
        if source.field_ref is not None:
            return POD_FIELDS[source.field_ref.field_path]
        ref = source.secret_key_ref or source.config_map_key_ref
        assert ref is not None
        secret = ref.find(f"the variable {self.name} of {owner}")
        return None if secret is None else literal(secret.reveal())


class ResourceRef(Section):
    """A Secret or ConfigMap as a whole."""

    name: ResourceName
    optional: StrictBool = False


class VariablesFrom(ClusterSection):
    """Variables for all keys of a Secret or a ConfigMap; ``prefix`` comes before each."""

    prefix: StrictStr = ""
    secret_ref: ResourceRef | None = None
    config_map_ref: ResourceRef | None = None

    def read(self, owner: str) -> Variables:
        """Returns the variables; ``SetupError`` if there is no such resource."""
        sources: tuple[tuple[ValueKind, ResourceRef | None], ...] = (
            ("ConfigMap", self.config_map_ref),
            ("Secret", self.secret_ref),
        )
        variables: list[tuple[str, str]] = []
        for kind, ref in sources:
            values = None if ref is None else self.values.find_all(kind, ref.name)
            if ref is not None and values is None and not ref.optional:
                raise SetupError(
                    f"The {kind} {ref.name} is not here; {owner} takes variables from it.",
                    f"Name a folder that has a folder {ref.name} in it: --secrets DIR",
                )
            items = (values or {}).items()
            variables += [(self.prefix + key, literal(value.reveal())) for key, value in items]
        return tuple(variables)


# --- resources ----------------------------------------------------------------------------------

_UNITS = {
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTP", 1)},
}
_QUANTITY = rf"(\d+(?:\.\d*)?(?:[eE]-?\d+)?)({'|'.join(_UNITS)})"

Quantity = Annotated[
    StrictStr | StrictInt | StrictFloat,
    matching(_QUANTITY, "EB104", "{value} is not an amount; write for example 500m, 2 or 1Gi"),
    AfterValidator(str),
]
"""An amount as Kubernetes writes it: ``500m``, ``1Gi``."""


class Resources(Section):
    """How much of the machine a container gets. Only passed to the function, not enforced."""

    limits: dict[str, Quantity] = Field(default_factory=dict)
    requests: dict[str, Quantity] = Field(default_factory=dict)
    claims: Any = None

    @property
    def variables(self) -> Variables:
        """Numaflow's variables for them, in whole cores and bytes."""
        amounts = {
            f"NUMAFLOW_{resource.upper()}_{kind}": _amount(values[resource])
            for kind, values in (("LIMIT", self.limits), ("REQUEST", self.requests))
            for resource in ("cpu", "memory")
            if resource in values
        }
        return tuple(amounts.items())


def _amount(quantity: str | int | float) -> str:
    match = re.fullmatch(_QUANTITY, str(quantity))
    assert match is not None
    return str(ceil(Decimal(match[1]) * _UNITS[match[2]]))


# --- containers ---------------------------------------------------------------------------------


class Program(Section):
    """A program to start as a function, or the socket folder of a running one."""

    command: tuple[StrictStr, ...] = Field(
        default=(), description="the program and its arguments; started next to each task"
    )
    args: tuple[StrictStr, ...] = Field(default=(), description="further arguments")
    env: tuple[Variable, ...] = Field(default=(), description="variables of its environment")
    env_from: tuple[VariablesFrom, ...] = Field(
        default=(), description="variables for all keys of a Secret or ConfigMap"
    )
    working_dir: fields.Text | None = Field(
        default=None, description="the folder it starts in; left out, the folder of this file"
    )
    sockets: fields.Text | None = Field(
        default=None, description="the folder of its sockets, if it is running already"
    )

    def read_variables(self, owner: str) -> Variables:
        """Returns the variables, those of ``envFrom`` first; ``SetupError`` if one is missing."""
        named = tuple(pair for source in self.env_from for pair in source.read(owner))
        own = ((variable.name, variable.read(owner)) for variable in self.env)
        return named + tuple((name, value) for name, value in own if value is not None)


class Container(Program):
    """The container of a function, as in Kubernetes."""

    image: fields.Text | None = Field(
        default=None, description="its image: bound to code, a command or a folder of sockets"
    )
    resources: Resources = Field(
        default=Resources(), description="passed to the function, not enforced"
    )
    volume_mounts: Any = Field(default=None, description="without effect")
    security_context: Any = Field(default=None, description="without effect")
    image_pull_policy: Any = Field(default=None, description="without effect")
    readiness_probe: Any = Field(default=None, description="without effect")
    liveness_probe: Any = Field(default=None, description="without effect")
    ports: Any = Field(default=None, description="without effect")

    def read_variables(self, owner: str) -> Variables:
        """Returns the variables, including those about its resources."""
        return self.resources.variables + super().read_variables(owner)
