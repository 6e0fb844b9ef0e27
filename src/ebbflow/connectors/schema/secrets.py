"""Secrets in a spec, and values that a Kubernetes cluster keeps in Secrets and ConfigMaps.

A spec says where a secret is, never what it is: in an environment variable, in a file, or under a
key of a Kubernetes Secret. Certificates for TLS are secrets, too.

Numaflow's specs refer to keys of Secrets and ConfigMaps as ``{name, key}``. Here such a value comes
from the first place that has it: an environment variable, a folder with the layout of a Kubernetes
mount, or a document of that kind in the pipeline's own file.

The driver reads all values when a run begins and passes them on as ``Secret``, which shows in no
text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, StrictBool, StrictStr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.schema.fields import Section, matching
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret

FOLDER_VARIABLE = "EBBFLOW_SECRETS"
"""The variable that names the folder if no option does."""

ValueKind = Literal["Secret", "ConfigMap"]
"""A kind of resource with values under keys."""

_KEY = r"(?!\.\.)[-._a-zA-Z0-9]{1,253}"
_NO_LETTER = re.compile(r"[^A-Z0-9]")
_FORMS = "write env: NAME, file: PATH, or name: SECRET with key: KEY"


@dataclass(frozen=True, slots=True)
class ClusterValues:
    """The places to search for values: variables, ``folder`` and ``documents``.

    ``documents`` has the values in the pipeline's own file, by kind and name.
    """

    folder: Path | None = None
    documents: Mapping[tuple[ValueKind, str], Mapping[str, Secret]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folder: Path | None = None,
        documents: Mapping[tuple[ValueKind, str], Mapping[str, Secret]] | None = None,
    ) -> ClusterValues:
        """Returns these places; the default folder is the one in the environment, if any."""
        named = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(named) if folder is None and named else folder, documents or {})

    def find(self, kind: ValueKind, name: str, key: str) -> Secret | None:
        """Returns the current value, without a trailing line end; ``None`` if there is none.

        Raises ``SetupError`` if its file exists but cannot be read.
        """
        text = os.environ.get(variable_of(kind, name, key))
        if text is None:
            text = next((_text(file) for file in self._files(name, key) if file.exists()), None)
        if text is not None:
            return Secret(text.rstrip("\r\n"))
        return self.documents.get((kind, name), {}).get(key)

    def find_all(self, kind: ValueKind, name: str) -> dict[str, Secret] | None:
        """Returns all values of one resource by their keys; ``None`` if there is no such resource.

        Its keys are those in the folder, else those of the document. A variable may replace the
        value of a key, but adds no new key.
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
        """Returns the value; ``SetupError`` names all places tried if there is none."""
        value = self.find(kind, name, key)
        if value is None or not value.reveal():
            state = "is not here" if value is None else "is empty"
            raise SetupError(
                f"The {kind} {name} with the key {key} {state}; it must hold {what}.",
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


def _text(file: Path | str, step: str = "Correct the file.") -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise SetupError(f"{file} cannot be read: {why}.", step) from None


# --- references in a spec -----------------------------------------------------------------------


# Checked, so that a name cannot become a path out of the folder.
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
    """A section that refers to values of a cluster, and knows the places to search."""

    _values: ClusterValues | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _remember_values(self, info: ValidationInfo) -> ClusterSection:
        if isinstance(info.context, ClusterValues):
            self._values = info.context
        return self

    @property
    def values(self) -> ClusterValues:
        """The places to search: those that the spec was read with, else the environment's."""
        return self._values or ClusterValues.of()


class KeyRef(ClusterSection):
    """One value, as Kubernetes refers to it."""

    KIND: ClassVar[ValueKind]

    name: ResourceName
    key: ResourceKey
    optional: StrictBool = False

    def read(self, what: str) -> Secret:
        """Returns the current value; ``what`` describes it. ``SetupError`` if there is none."""
        return self.values.read(self.KIND, self.name, self.key, what)

    def find(self, what: str) -> Secret | None:
        """Returns the value as ``read`` does, but ``None`` if it is optional and missing."""
        value = self.values.find(self.KIND, self.name, self.key)
        return value if value is not None or self.optional else self.read(what)


class SecretKeyRef(KeyRef):
    """A key of a Secret."""

    KIND = "Secret"


class ConfigMapKeyRef(KeyRef):
    """A key of a ConfigMap."""

    KIND = "ConfigMap"


# --- secrets ------------------------------------------------------------------------------------


class SecretRef(ClusterSection):
    """The place of a secret: exactly one of a variable, a file, or a key of a Secret.

    A relative path is relative to the folder where the run starts.
    """

    env: StrictStr | None = Field(
        default=None, description="the variable of the environment that holds it"
    )
    file: StrictStr | None = Field(default=None, description="the file that holds it")
    name: ResourceName | None = Field(
        default=None, description="the Secret that has it, with `key`"
    )
    key: ResourceKey | None = Field(default=None, description="its key in that Secret")
    optional: Any = Field(default=None, description="without effect")

    @model_validator(mode="before")
    @classmethod
    def _refuse_secret_itself(cls, ref: Any) -> Any:
        if isinstance(ref, str):
            raise PydanticCustomError("EB109", f"the secret itself does not belong here; {_FORMS}")
        return ref

    @model_validator(mode="after")
    def _says_one(self) -> SecretRef:
        parts = (self.env, self.file, self.name, self.key)
        are_set = tuple(part is not None for part in parts)
        if are_set not in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 1)):
            raise PydanticCustomError("EB109", f"one secret is in one place; {_FORMS}")
        return self

    def read(self, what: str) -> Secret:
        """Returns the current secret; ``what`` describes it, as in "the password of kafka".

        ``SetupError`` names the variable or the file if it is missing or empty.
        """
        if self.name is not None and self.key is not None:
            return self.values.read("Secret", self.name, self.key, what)
        return Secret(_in_file(self.file, what) if self.file is not None else self._in_env(what))

    def _in_env(self, what: str) -> str:
        assert self.env is not None
        value = os.environ.get(self.env, "")
        if not value:
            raise SetupError(f"The variable {self.env} is not set.", f"It must hold {what}.")
        return value


def _in_file(path: str, what: str) -> str:
    """Returns the text of a file, without the trailing line end that editors add."""
    text = _text(path, f"It must hold {what}.").rstrip("\r\n")
    if not text:
        raise SetupError(f"{path} is empty.", f"It must hold {what}.")
    return text


class Tls(Section):
    """Certificates in PEM form. Without ``caCertSecret`` this machine's authorities are trusted."""

    insecure_skip_verify: StrictBool = Field(
        default=False, description="only `false`: certificates are always checked"
    )
    ca_cert_secret: SecretRef | None = Field(
        default=None,
        description="the authorities to trust; left out, those of this machine",
    )
    cert_secret: SecretRef | None = Field(default=None, description="the certificate")
    key_secret: SecretRef | None = Field(default=None, description="its key")

    @model_validator(mode="after")
    def _can_be_relied_on(self) -> Tls:
        if self.insecure_skip_verify:
            raise PydanticCustomError(
                "EB104",
                "certificates are always checked; name the authority's certificate as "
                "caCertSecret in place of insecureSkipVerify",
            )
        if (self.cert_secret is None) != (self.key_secret is None):
            raise PydanticCustomError(
                "EB104", "certSecret and keySecret belong together; give both or neither"
            )
        return self

    def contents(self, where: str) -> dict[str, str]:
        """Returns the contents of the configured files: ``ca``, ``cert``, ``key``."""
        named = {"ca": self.ca_cert_secret, "cert": self.cert_secret, "key": self.key_secret}
        return {
            name: secret.read(f"the {name} for TLS of {where}").reveal()
            for name, secret in named.items()
            if secret is not None
        }
