"""The HTTP source and the HTTP sink."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.schema import fields
from ebbflow.schema.fields import Section, shown
from ebbflow.schema.secret import SecretRef
from ebbflow.schema.tls import Tls
from ebbflow.secret import Secret

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TEXT = re.compile(r"[\t\x20-\x7e]*")

Port = Annotated[StrictInt, Field(ge=0, le=65_535)]
"""A TCP port; 0 for any that is free, which the run then tells."""


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PydanticCustomError("EB104", "must begin with http:// or https:// and name a host")
    if parts.username is not None:
        raise PydanticCustomError("EB109", "a login does not belong in the URL; name it in auth")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _NAME.fullmatch(name):
            raise PydanticCustomError("EB104", "{name} is no header", {"name": shown(name)})
        if not _TEXT.fullmatch(text):
            raise PydanticCustomError(
                "EB104", "{name} must be ASCII on one line", {"name": shown(name)}
            )
        if name.lower() == "authorization":
            raise PydanticCustomError("EB109", "a login does not belong here; write it as auth")
    return value


Url = Annotated[StrictStr, AfterValidator(_url)]
"""An address of the web, without a login."""

Headers = Annotated[dict[StrictStr, StrictStr], AfterValidator(_headers)]
"""Headers of a request that hold no secret."""


class Token(Section):
    """A bearer token."""

    token: SecretRef


class Basic(Section):
    """A user with a password."""

    user: SecretRef
    password: SecretRef

    def read(self, where: str) -> tuple[Secret, Secret]:
        """Both, as they are now."""
        user = self.user.read(f"the user for {where}")
        return user, self.password.read(f"the password for {where}")


class SinkAuth(Section):
    """How to log in: with a bearer token, or with a user and password; exactly one of both."""

    token: SecretRef | None = None
    basic: Basic | None = None

    @model_validator(mode="after")
    def _says_one(self) -> SinkAuth:
        if (self.token is None) == (self.basic is None):
            raise PydanticCustomError("EB104", "write exactly one of token and basic")
        return self


class Certificate(Section):
    """The server's certificate, with those that vouch for it, and its key, in PEM form."""

    cert_secret: SecretRef
    key_secret: SecretRef


class Ports(Section):
    """Where to listen: on ``https`` (8443) if there is a certificate, else on ``http`` (8080)."""

    http: Port | None = None
    https: Port | None = None


class HttpSource(Section):
    """Takes messages by POST. ``service`` is for Kubernetes only."""

    host: StrictStr = "127.0.0.1"
    ports: Ports = Ports()
    auth: Token | None = None
    tls: Certificate | None = None
    read_timeout: fields.Wait = 10_000
    ack_wait: fields.Wait = 5_000
    max_in_flight: fields.Positive = 1_000
    service: Any = None

    @model_validator(mode="after")
    def _listens_on_one_port(self) -> HttpSource:
        if self.tls is None and self.ports.https is not None:
            raise PydanticCustomError(
                "EB104", "ports.https needs tls, with certSecret and keySecret"
            )
        if self.tls is not None and self.ports.http is not None:
            raise PydanticCustomError("EB104", "with tls there is only ports.https")
        return self

    @property
    def port(self) -> int:
        """Where to listen, with TLS if there is a certificate."""
        given = self.ports.http if self.tls is None else self.ports.https
        return given if given is not None else 8_080 if self.tls is None else 8_443


class Batch(Section):
    """Many messages in one request, and one status for each in the answer."""

    format: Literal["ndjson", "json"] = "ndjson"
    size: fields.Positive = 500
    max_bytes: fields.Positive = 4 * 1024 * 1024


class HttpSink(Section):
    """Sends messages on, one request each, or many in a ``batch``."""

    url: Url
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: Headers = Field(default={})
    auth: SinkAuth | None = None
    tls: Tls | None = None
    timeout: fields.Wait = 10_000
    concurrency: fields.Positive = 32
    batch: Batch | None = None
