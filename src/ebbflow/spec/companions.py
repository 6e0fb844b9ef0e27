"""Documents that stand beside a pipeline in its file: Secrets, ConfigMaps, a buffer service.

Secrets and ConfigMaps hold values that the pipeline refers to, for use on one machine. An
InterStepBufferService is for Kubernetes only: it is checked as Numaflow checks it, and has no
effect. No text ever shows a value of a Secret, whatever is wrong with it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from ebbflow.connectors.schema.cluster_values import ResourceKey, ResourceName, ValueKind
from ebbflow.connectors.schema.fields import Section
from ebbflow.domain.secrets import Secret
from ebbflow.spec.kubernetes import BufferServiceFields, MetadataFields, ResourceFields
from ebbflow.spec.model import API_VERSION


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
"""A text in base64, of which nothing is shown."""

Plain = Annotated[Any, BeforeValidator(_plain), AfterValidator(_hidden)]
"""A text of which nothing is shown."""


class CompanionMetadata(MetadataFields):
    """The ``metadata`` of a document beside a pipeline."""

    name: ResourceName


class CompanionDocument(ResourceFields):
    """A document beside a pipeline."""

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
    def values(self) -> dict[str, Secret]:
        """Its values by their keys; as in a cluster, what is in the clear comes first."""
        return {**self.data, **self.string_data}


class ConfigMapDocument(ValuesDocument):
    """A ConfigMap of Kubernetes."""

    KIND = "ConfigMap"

    api_version: Literal["v1"]
    kind: Literal["ConfigMap"]
    data: dict[ResourceKey, Plain] = Field(default={})
    binary_data: dict[ResourceKey, Encoded] = Field(default={})

    @property
    def values(self) -> dict[str, Secret]:
        """Its values by their keys."""
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
"""Every kind of document that may stand beside a pipeline."""


def values_in(companions: Iterable[object]) -> dict[tuple[ValueKind, str], dict[str, Secret]]:
    """Returns the values of all Secrets and ConfigMaps, by kind and name."""
    holders = (companion for companion in companions if isinstance(companion, ValuesDocument))
    return {(holder.KIND, holder.name): holder.values for holder in holders}
