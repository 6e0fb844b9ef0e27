"""Pub/Sub in a spec: a subscription to read from and a topic to publish to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, StrictBool, StrictStr
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, require_extra, sink, source
from ebbflow.connectors.plans import Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.schema.secrets import SecretRef

if TYPE_CHECKING:
    from ebbflow.connectors.pubsub.pubsub_client import PubsubAccess

ResourceId = Annotated[
    StrictStr,
    fields.matching(
        r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}",
        "EB104",
        "{value} is not the name of a topic or a subscription",
    ),
]
"""The name of a topic or a subscription, without its project."""


def _is_ack_deadline(lease: int) -> int:
    if not 10_000 <= lease <= 600_000:
        raise PydanticCustomError("EB104", "must be from 10s to 600s, as ack deadlines are")
    return lease


AckDeadline = Annotated[fields.Millis, AfterValidator(_is_ack_deadline)]
"""A duration that an ack deadline can have."""


class PubsubSection(Section):
    """The project, and how to log in."""

    project: fields.Text = Field(description="the project's id")
    endpoint: Annotated[StrictStr | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        description="another address of the service, as `host:port`; an emulator, as "
        "`http://host:port`; left out, `PUBSUB_EMULATOR_HOST` or Google's",
    )
    credentials_secret: SecretRef | None = Field(
        default=None,
        description="the key of a service account, as JSON; left out, the Google client looks at "
        "`GOOGLE_APPLICATION_CREDENTIALS`, its files and the service account of the machine",
    )

    def access(self, kind: str, name: str) -> PubsubAccess:
        """Returns the topic or subscription and the login, with all secrets read now."""
        require_extra("Pub/Sub", "pubsub", "google.pubsub_v1")
        from ebbflow.connectors.pubsub.pubsub_client import PubsubAccess

        secret = self.credentials_secret
        credentials = secret.read("the credentials for Pub/Sub") if secret else None
        return PubsubAccess(self.project, kind, name, self.endpoint, credentials)


@source("pubsub", returns=True)
class PubsubSourceSpec(PubsubSection, SourceSection):
    """Messages of a subscription; each is acknowledged when it is settled."""

    subscription: ResourceId = Field(description="the subscription, which must exist")
    lease: AckDeadline = Field(
        default=60_000,
        description="how long messages of a killed process stay leased, as their ack deadline; "
        "renewed while it lives",
    )

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source, with all secrets read; workers create its client."""
        access = self.access("subscription", self.subscription)
        from ebbflow.connectors.pubsub.source import PubsubSource, PubsubSourceSettings

        settings = self.freeze("Pub/Sub", PubsubSourceSettings, access=access)
        return Pulled(partial(PubsubSource, settings))


@sink("pubsub")
class PubsubSinkSpec(PubsubSection, SinkSection):
    """Publishes each message to a topic."""

    topic: ResourceId = Field(description="the topic, which must exist")
    set_ordering_key: StrictBool = Field(
        default=False,
        description="use a message's keys, joined with `:`, as its ordering key",
    )

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read; workers create its client."""
        access = self.access("topic", self.topic)
        from ebbflow.connectors.pubsub.sink import PubsubSink, PubsubSinkSettings

        settings = self.freeze("Pub/Sub", PubsubSinkSettings, access=access)
        return UserSink(partial(PubsubSink, settings))
