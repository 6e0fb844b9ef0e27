"""Secrets in a spec: where they are, never what they are. The certificates for TLS are among them.

A spec names a variable of the environment, a file, or a key of a Kubernetes Secret. They are read
on the driver when a pipeline is started, and what was read is carried as a ``Secret``, which shows
in no text.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.schema.cluster_values import ClusterSection, ResourceKey, ResourceName
from ebbflow.connectors.schema.fields import Section
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret

_WAYS = "write env: NAME, file: PATH, or name: SECRET with key: KEY"


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
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise SetupError(f"{path} cannot be read: {why}.", f"It is to hold {what}.") from None
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
