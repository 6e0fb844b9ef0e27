"""The part of a spec that sources with a web server share: where they listen, and who may send."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SourceSection
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section, shown
from ebbflow.connectors.schema.secrets import SecretRef
from ebbflow.web.server import Certificate, Endpoint

_HTTPS = 8_443
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

Port = Annotated[StrictInt, Field(ge=0, le=65_535)]
"""A TCP port; 0 for any free port, which the run then logs."""


def check_header_name(value: str) -> str:
    """Returns the name of a header; raises a validation error if it is invalid."""
    if not _NAME.fullmatch(value):
        raise PydanticCustomError("EB104", "{name} is not a header name", {"name": shown(value)})
    return value


HeaderName = Annotated[StrictStr, AfterValidator(check_header_name)]
"""The name of a header."""


class BearerToken(Section):
    """A bearer token."""

    token: SecretRef = Field(description="the bearer token")


class CertificateSpec(Section):
    """The server's certificate chain and its key, in PEM form."""

    cert_secret: SecretRef = Field(description="the certificate")
    key_secret: SecretRef = Field(description="its key")

    def read(self, where: str) -> Certificate:
        """Reads both now."""
        chain = self.cert_secret.read(f"the certificate of {where}").reveal()
        return Certificate(chain, self.key_secret.read(f"the key of {where}"))


class Ports(Section):
    """The ports to listen on, as in Numaflow: always ``https``, and ``http`` if it is set."""

    http: Port | None = Field(
        default=None, description="a port for posts without TLS; left out, there is none"
    )
    https: Port | None = Field(
        default=None,
        description="the port for posts over TLS; left out, 8443, or none where `http` is set and "
        "8443 is taken",
    )

    @model_validator(mode="after")
    def _differ(self) -> Ports:
        if self.http == self.https and self.http:
            raise PydanticCustomError("EB104", "http and https cannot have the same port")
        return self


class ListeningSection(SourceSection):
    """A source that listens. Without ``tls`` it makes a self-signed certificate."""

    host: StrictStr = Field(
        default="127.0.0.1", description="where to listen; beyond this machine a token is needed"
    )
    ports: Ports = Ports()
    auth: Annotated[BearerToken | None, fields.LEFT_OUT_IF_EMPTY] = None
    tls: CertificateSpec | None = None
    read_timeout: fields.Wait = Field(
        default=10_000, description="how long a request may take to arrive"
    )
    ack_wait: fields.Wait = Field(
        default=5_000, description="how long to wait for JetStream to confirm storage"
    )
    max_in_flight: fields.Positive = Field(
        default=1_000, description="the most requests that are read and stored at the same time"
    )

    @model_validator(mode="after")
    def _require_token(self) -> ListeningSection:
        """Requires a token to listen beyond this machine. Host names are checked at the start."""
        if self.auth is None and _is_beyond(self.host):
            raise PydanticCustomError(
                "EB104",
                "anybody who can reach {host} could send; give it auth: {token: {env: NAME}}",
                {"host": self.host},
            )
        return self

    def listening(self, where: str) -> dict[str, Any]:
        """Returns the settings that differ from fields; ``where`` says whose the secrets are."""
        return {
            "endpoints": self.endpoints(where),
            "token": self.auth.token.read(f"the token of {where}") if self.auth else None,
            "in_flight": self.max_in_flight,
        }

    def endpoints(self, where: str) -> tuple[Endpoint, ...]:
        """Returns the hosts and ports to listen on, with the certificate read."""
        certificate = self.tls.read(where) if self.tls else None
        http, https = self.ports.http, self.ports.https
        plain = () if http is None else (Endpoint(self.host, http),)
        secured = Endpoint(
            self.host,
            _HTTPS if https is None else https,
            certificate,
            self_signed=certificate is None,
            # A source with only http set also gets https, but a taken port must not stop it.
            optional=http is not None and https is None and certificate is None,
        )
        return (*plain, secured)


def _is_beyond(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
