"""Serving in a spec: the source accepts requests over HTTP, the sink stores their answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictStr
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, require_extra, sink, source
from ebbflow.connectors.listening.section import HeaderName, ListeningSection
from ebbflow.connectors.plans import ServeSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import shown

if TYPE_CHECKING:
    from ebbflow.connectors.serving.replies import ServingSettings
    from ebbflow.streams.feed import FeedPlan


def _origin(value: str) -> str:
    parts = urlsplit(value)
    bare = f"{parts.scheme}://{parts.netloc}"
    if value != "*" and (parts.scheme not in ("http", "https") or value != bare):
        raise PydanticCustomError(
            "EB104",
            "{value} is not an origin: write https://HOST, with the port if it has one, or '*'",
            {"value": shown(value)},
        )
    return value


Origin = Annotated[StrictStr, AfterValidator(_origin)]
"""The origin of a page: scheme, host and port; ``*`` for any."""


class ServingFields(ListeningSection):
    """How requests are accepted and answered: in a serving source, and in a ServingPipeline."""

    max_in_flight: fields.Positive = Field(
        default=1_000,
        description="the most requests that are served at the same time, waiting callers included; "
        "more get 429",
    )
    # Camel case would spell it differently.
    msg_id_header_key: HeaderName = Field(
        default="X-Numaflow-Id",
        alias="msgIDHeaderKey",
        description="the header with the id of a request; without it the server generates one",
    )
    request_timeout_seconds: fields.Positive = Field(
        default=120,
        description="how long a caller waits; then it gets 408, and the request continues",
    )
    cors: tuple[Origin, ...] = Field(
        default=(), description="the origins whose pages may send requests; `'*'` for all"
    )


@source("serving", feeds=True, serves=True)
class ServingSourceSpec(ServingFields):
    """Accepts requests over HTTP and returns the answers that sinks serve to the callers."""

    def plan(self, pipeline: str, vertex: str) -> FeedPlan:
        """Returns the feed, with all secrets read."""
        require_extra("The serving source", "http", "cryptography")
        from ebbflow.connectors.listening.feed import check_ports
        from ebbflow.connectors.serving.source import ServingFeed
        from ebbflow.streams.feed import FeedPlan

        settings = self.settings(f"the serving source {vertex}")
        check = partial(check_ports, settings.endpoints, f"serving source {vertex}")
        return FeedPlan(ServingFeed, settings, check=check)

    def settings(self, where: str) -> ServingSettings:
        """Returns how requests are served; ``where`` says whose the secrets are."""
        from ebbflow.connectors.serving.replies import ServingSettings

        return self.freeze(
            where,
            ServingSettings,
            id_header=self.msg_id_header_key,
            request_timeout=self.request_timeout_seconds,
            **self.listening(where),
        )


@sink("serve", answers=True)
class ServeSinkSpec(SinkSection):
    """Stores the value of every message as an answer to its request. Has no settings."""

    def plan(self) -> ServeSink:
        """Returns the plan of a serve sink."""
        return ServeSink()
