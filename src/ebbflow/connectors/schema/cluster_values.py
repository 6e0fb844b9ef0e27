"""Values that a cluster keeps beside pipelines: the keys of its Secrets and ConfigMaps.

Numaflow's specs name them as ``{name, key}``. Here a value comes from a variable of the
environment, from a folder that is laid out as Kubernetes mounts one, or from a document of that
kind in the pipeline's own file: the first of these that has it. The driver reads it when a run
begins, and it is carried as a ``Secret``, which shows in no text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import PrivateAttr, StrictBool, StrictStr, ValidationInfo, model_validator

from ebbflow.connectors.schema.fields import Section, matching
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret

FOLDER_VARIABLE = "EBBFLOW_SECRETS"
"""Names the folder when no option does."""

ValueKind = Literal["Secret", "ConfigMap"]
"""A kind of resource that holds values under keys."""

_KEY = r"(?!\.\.)[-._a-zA-Z0-9]{1,253}"
_NO_LETTER = re.compile(r"[^A-Z0-9]")


@dataclass(frozen=True, slots=True)
class ClusterValues:
    """The places where values are looked for: variables, ``folder`` and ``documents``.

    ``documents`` has the values of the pipeline's own file, by kind and name.
    """

    folder: Path | None = None
    documents: Mapping[tuple[ValueKind, str], Mapping[str, Secret]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folder: Path | None = None,
        documents: Mapping[tuple[ValueKind, str], Mapping[str, Secret]] | None = None,
    ) -> ClusterValues:
        """Returns these places; without a folder that of the environment, if it names one."""
        named = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(named) if folder is None and named else folder, documents or {})

    def find(self, kind: ValueKind, name: str, key: str) -> Secret | None:
        """Returns the value as it is now, without a line end behind it; ``None`` if nobody has it.

        Raises ``SetupError`` if its file is there and cannot be read.
        """
        text = os.environ.get(variable_of(kind, name, key))
        if text is None:
            text = next((_text(file) for file in self._files(name, key) if file.exists()), None)
        if text is not None:
            return Secret(text.rstrip("\r\n"))
        return self.documents.get((kind, name), {}).get(key)

    def find_all(self, kind: ValueKind, name: str) -> dict[str, Secret] | None:
        """Returns all values of one resource by their keys; ``None`` if there is no such resource.

        Its keys are those in the folder, else those of the document; a variable may replace the
        value of a key but brings no new one.
        """
        inside = None if self.folder is None else self.folder / name
        if inside is not None and inside.is_dir():
            keys = sorted(
                entry.name for entry in inside.iterdir() if re.fullmatch(_KEY, entry.name)
            )
        elif (kind, name) in self.documents:
            keys = list(self.documents[kind, name])
        else:
            return None
        values = {key: self.find(kind, name, key) for key in keys}
        return {key: value for key, value in values.items() if value is not None}

    def read(self, kind: ValueKind, name: str, key: str, what: str) -> Secret:
        """Returns the value; ``SetupError`` names all places that were tried if there is none."""
        value = self.find(kind, name, key)
        if value is None or not value.reveal():
            state = "is not here" if value is None else "is empty"
            raise SetupError(
                f"The {kind} {name} with the key {key} {state}; it is to hold {what}.",
                f"Looked at {self._tried(kind, name, key)}.",
            )
        return value

    def _files(self, name: str, key: str) -> tuple[Path, ...]:
        if self.folder is None:
            return ()
        return self.folder / name / key, self.folder / f"{name}.{key}"

    def _tried(self, kind: ValueKind, name: str, key: str) -> str:
        files = " and ".join(map(str, self._files(name, key)))
        return ", ".join(
            (
                f"the variable {variable_of(kind, name, key)}",
                f"the files {files}" if files else "no folder (name one with --secrets DIR)",
                f"the {kind} documents of the pipeline's file",
            )
        )


def variable_of(kind: ValueKind, name: str, key: str) -> str:
    """Returns the variable that may hold a value: ``EBBFLOW_SECRET_KAFKA_LOGIN__PASSWORD``."""
    parts = (_NO_LETTER.sub("_", part.upper()) for part in (name, key))
    return f"EBBFLOW_{kind.upper()}_{'__'.join(parts)}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise SetupError(f"{file} cannot be read: {why}.", "Correct the file.") from None


# --- references in a spec -----------------------------------------------------------------------


# What is no name must not become a path that leads out of the folder.
ResourceName = Annotated[
    StrictStr,
    matching(
        r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "EB107", "{value} is not the name of a resource"
    ),
]
"""The name of a Secret or ConfigMap."""

ResourceKey = Annotated[
    StrictStr,
    matching(_KEY, "EB107", "{value} is not a key: use letters, digits, '-', '_' and '.'"),
]
"""A key in a Secret or ConfigMap."""


class ClusterSection(Section):
    """A section that refers to values of a cluster, and knows where they are looked for."""

    _values: ClusterValues | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _remember_values(self, info: ValidationInfo) -> ClusterSection:
        if isinstance(info.context, ClusterValues):
            self._values = info.context
        return self

    @property
    def values(self) -> ClusterValues:
        """The places to look at: those that the spec was read with, else the environment's."""
        return self._values or ClusterValues.of()


class KeyRef(ClusterSection):
    """One value, as Kubernetes refers to it."""

    KIND: ClassVar[ValueKind]

    name: ResourceName
    key: ResourceKey
    optional: StrictBool = False

    def read(self, what: str) -> Secret:
        """Returns the value, as it is now; ``what`` it is for. ``SetupError`` if there is none."""
        return self.values.read(self.KIND, self.name, self.key, what)

    def find(self, what: str) -> Secret | None:
        """Returns the value as ``read`` does, but ``None`` if it is optional and nobody has it."""
        value = self.values.find(self.KIND, self.name, self.key)
        return value if value is not None or self.optional else self.read(what)


class SecretKeyRef(KeyRef):
    """A key of a Secret."""

    KIND = "Secret"


class ConfigMapKeyRef(KeyRef):
    """A key of a ConfigMap."""

    KIND = "ConfigMap"
