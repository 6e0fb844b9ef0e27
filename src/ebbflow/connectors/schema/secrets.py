"""Secrets in a spec, and the values that a cluster keeps next to pipelines in its resources.

A spec says where a secret is, never what it is: in a variable of the environment, in a file, or
under a key of a Kubernetes Secret. The certificates for TLS are among them.

Numaflow's specs name keys of Secrets and ConfigMaps as ``{name, key}``. Here such a value comes
from a variable of the environment, from a folder that is laid out as Kubernetes mounts one, or from
a document of that kind in the pipeline's own file: the first of these that has it.

The driver reads all of it when a run begins, and it is carried as a ``Secret``, which shows in no
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
"""Names the folder when no option does."""

ValueKind = Literal["Secret", "ConfigMap"]
"""A kind of resource that holds values under keys."""

_KEY = r"(?!\.\.)[-._a-zA-Z0-9]{1,253}"
_NO_LETTER = re.compile(r"[^A-Z0-9]")
_WAYS = "write env: NAME, file: PATH, or name: SECRET with key: KEY"


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
        """Returns the value as it is now, without a line end behind it; ``None`` if it is nowhere.

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


def _text(file: Path | str, step: str = "Correct the file.") -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise SetupError(f"{file} cannot be read: {why}.", step) from None


# --- references in a spec -----------------------------------------------------------------------


# What is not a name must not become a path that leads out of the folder.
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
        """Returns the value as ``read`` does, but ``None`` if it is optional and nowhere."""
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
    """Where a secret is: in a variable, in a file, or under a key of a Secret; exactly one of them.

    A path that is not absolute begins where the run is started.
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
    def _is_no_secret(cls, ref: Any) -> Any:
        if isinstance(ref, str):
            raise PydanticCustomError("EB109", f"the secret itself does not belong here; {_WAYS}")
        return ref

    @model_validator(mode="after")
    def _says_one(self) -> SecretRef:
        parts = (self.env, self.file, self.name, self.key)
        ways = tuple(part is not None for part in parts)
        if ways not in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 1)):
            raise PydanticCustomError("EB109", f"one secret is in one place; {_WAYS}")
        return self

    def read(self, what: str) -> Secret:
        """Returns the secret, as it is now; ``what`` it is for, as in "the password of kafka".

        ``SetupError`` names the variable or the file if there is nothing in it.
        """
        if self.name is not None and self.key is not None:
            return self.values.read("Secret", self.name, self.key, what)
        return Secret(_in_file(self.file, what) if self.file is not None else self._in_env(what))

    def _in_env(self, what: str) -> str:
        assert self.env is not None
        value = os.environ.get(self.env, "")
        if not value:
            raise SetupError(f"The variable {self.env} is not set.", f"It is to hold {what}.")
        return value


def _in_file(path: str, what: str) -> str:
    """Returns the text of a file, without the line end that editors put behind it."""
    text = _text(path, f"It is to hold {what}.").rstrip("\r\n")
    if not text:
        raise SetupError(f"{path} is empty.", f"It is to hold {what}.")
    return text


class Tls(Section):
    """All in PEM form. Without ``caCertSecret`` those are trusted that this machine trusts."""

    insecure_skip_verify: StrictBool = Field(
        default=False, description="only `false`: certificates are always checked"
    )
    ca_cert_secret: SecretRef | None = Field(
        default=None,
        description="the authorities to trust; left out, those that this machine trusts",
    )
    cert_secret: SecretRef | None = Field(default=None, description="the certificate")
    key_secret: SecretRef | None = Field(default=None, description="its key")

    @model_validator(mode="after")
    def _can_be_relied_on(self) -> Tls:
        if self.insecure_skip_verify:
            raise PydanticCustomError(
                "EB104",
                "certificates are always checked; name that of the authority as caCertSecret "
                "in place of insecureSkipVerify",
            )
        if (self.cert_secret is None) != (self.key_secret is None):
            raise PydanticCustomError(
                "EB104", "certSecret and keySecret belong together; give both or neither"
            )
        return self

    def contents(self, where: str) -> dict[str, str]:
        """Returns what the files hold, of those that are given: ``ca``, ``cert``, ``key``."""
        named = {"ca": self.ca_cert_secret, "cert": self.cert_secret, "key": self.key_secret}
        return {
            name: secret.read(f"the {name} for TLS of {where}").reveal()
            for name, secret in named.items()
            if secret is not None
        }
