"""TLS to an outside system: whom to trust, and the client's own certificate."""

from __future__ import annotations

from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.schema.fields import Section
from ebbflow.schema.secret import SecretRef


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
