"""The HTTP source and the HTTP sink in a spec."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, require_extra, sink, source
from ebbflow.connectors.listening.section import ListeningSection, check_header_name
from ebbflow.connectors.plans import WHOLE_CHUNK, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section, shown
from ebbflow.connectors.schema.secrets import SecretRef, Tls
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret

if TYPE_CHECKING:
    from ebbflow.connectors.http.http_client import ClientTls
    from ebbflow.connectors.http.sink import HttpSinkSettings
    from ebbflow.connectors.http.source import HttpSourceSettings
    from ebbflow.streams.feed import FeedPlan

_TEXT = re.compile(r"[\t\x20-\x7e]*")
_ALONE_A_CALL = 500


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PydanticCustomError("EB104", "must begin with http:// or https:// and name a host")
    if parts.username is not None:
        raise PydanticCustomError("EB109", "a login does not belong in the URL; name it in auth")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        check_header_name(name)
        if not _TEXT.fullmatch(text):
            raise PydanticCustomError(
                "EB104", "{name} must be ASCII on one line", {"name": shown(name)}
            )
        if name.lower() == "authorization":
            raise PydanticCustomError("EB109", "a login does not belong here; write it as auth")
    return value


Url = Annotated[StrictStr, AfterValidator(_url)]
"""An http or https URL, without a login."""

Headers = Annotated[dict[StrictStr, StrictStr], AfterValidator(_headers)]
"""Headers of a request that hold no secret."""


class HttpUser(Section):
    """A user with a password."""

    user: SecretRef = Field(description="the user")
    password: SecretRef = Field(description="the password")

    def read(self, where: str) -> tuple[Secret, Secret]:
        """Reads both now."""
        user = self.user.read(f"the user for {where}")
        return user, self.password.read(f"the password for {where}")


class SinkAuth(Section):
    """A login: either a bearer token, or a user and password."""

    token: SecretRef | None = Field(default=None, description="the bearer token")
    basic: HttpUser | None = None

    @model_validator(mode="after")
    def _says_one(self) -> SinkAuth:
        if (self.token is None) == (self.basic is None):
            raise PydanticCustomError("EB104", "write exactly one of token and basic")
        return self


@source("http", feeds=True, remembers=True)
class HttpSourceSpec(ListeningSection):
    """Accepts messages by POST. ``service`` is for Kubernetes only.

    Without ``tls`` the run creates a self-signed certificate when it begins.
    """

    service: Any = Field(default=None, description="without effect")

    def plan(self, pipeline: str, vertex: str) -> FeedPlan:
        """Returns the feed, with all secrets read."""
        require_extra("The http source", "http", "cryptography")
        from ebbflow.connectors.http.source import HttpFeed
        from ebbflow.connectors.listening.feed import check_ports
        from ebbflow.streams.feed import FeedPlan

        settings = self.settings(f"the http source {vertex}")
        check = partial(check_ports, settings.endpoints, f"http source {vertex}")
        return FeedPlan(HttpFeed, settings, check=check)

    def settings(self, where: str) -> HttpSourceSettings:
        """Returns the settings for posts; ``where`` says whose the secrets are."""
        from ebbflow.connectors.http.source import HttpSourceSettings

        return self.freeze(where, HttpSourceSettings, **self.listening(where))


class BatchSpec(Section):
    """Many messages in one request, and one status for each in the answer."""

    format: Literal["ndjson", "json"] = Field(
        default="ndjson", description="write the messages of a request as lines or as an array"
    )
    size: fields.Positive = Field(default=500, description="the most messages in a request")
    max_bytes: fields.Positive = Field(
        default=4 * 1024 * 1024, description="about the most bytes in a request"
    )


@sink("http")
class HttpSinkSpec(SinkSection):
    """Sends messages to a server, one request each, or many in a ``batch``."""

    url: Url = Field(description="where to send messages to")
    method: Literal["POST", "PUT", "PATCH"] = Field(default="POST", description="the HTTP method")
    headers: Headers = Field(default={}, description="headers of each request; no secrets")
    auth: SinkAuth | None = None
    tls: Tls | None = None
    timeout: fields.Wait = Field(default=10_000, description="how long to wait for an answer")
    concurrency: fields.Positive = Field(
        default=32, description="the most requests at the same time"
    )
    batch: BatchSpec | None = None

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read."""
        from ebbflow.connectors.http.sink import HttpSink

        # Without batches a call sends one request per message, so it must not get too many.
        rows = WHOLE_CHUNK if self.batch else _ALONE_A_CALL
        return UserSink(partial(HttpSink, self.settings()), mode="columnar", rows=rows)

    def settings(self) -> HttpSinkSettings:
        """Returns the settings of the sink, with all secrets read."""
        from ebbflow.connectors.http.sink import BatchSettings, HttpSinkSettings

        where = f"the http sink to {self.url}"
        token = self.auth.token if self.auth else None
        basic = self.auth.basic if self.auth else None
        return self.freeze(
            where,
            HttpSinkSettings,
            token=token.read(f"the token for {where}") if token else None,
            login=basic.read(where) if basic else None,
            tls=_read_tls(self.tls, where) if self.tls else None,
            batch=BatchSettings(**self.batch.model_dump()) if self.batch else None,
        )


def _read_tls(section: Tls, where: str) -> ClientTls:
    """Returns the files' contents; ``SetupError`` when they do not fit together."""
    from ebbflow.connectors.http.http_client import ClientTls

    contents = section.contents(where)
    key = Secret(contents["key"]) if "key" in contents else None
    client = ClientTls(contents.get("ca"), contents.get("cert"), key)
    try:
        client.context()
    except ValueError as error:
        raise SetupError(f"The tls of {where}: {error}.", "Correct its files.") from None
    return client
