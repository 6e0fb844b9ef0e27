"""Pulsar in a spec: the source and the sink, with Numaflow's names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, require_extra, sink, source
from ebbflow.connectors.plans import WHOLE_CHUNK, Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.schema.secrets import SecretRef, Tls
from ebbflow.domain.secrets import Secret

if TYPE_CHECKING:
    from ebbflow.connectors.pulsar.pulsar_client import PulsarAccess

_TLS = "pulsar+ssl://"

Address = Annotated[
    StrictStr,
    fields.matching(
        r"pulsar(\+ssl)?://[^\s@/]+/?",
        "EB104",
        "must be pulsar://HOST:PORT or pulsar+ssl://HOST:PORT, without a login",
    ),
]
"""Brokers, as a Pulsar service URL."""

Topic = Annotated[
    StrictStr,
    fields.matching(
        r"((non-)?persistent://[^\s/]+/[^\s/]+/[^\s/]+|[^\s/:]+(/[^\s/]+/[^\s/]+)?)",
        "EB104",
        "{value} is not a topic: write NAME, TENANT/NAMESPACE/NAME or persistent://…",
    ),
]
"""The name of a topic; a bare name is in ``public/default``."""

Name = Annotated[
    StrictStr, fields.matching(r"[^\x00-\x1f\x7f]{1,255}", "EB104", "{value} is not a name")
]
"""The name of a subscription, a consumer or a producer."""


class PulsarUser(Section):
    """A user and a password, for HTTP basic authentication."""

    username: SecretRef
    password: SecretRef

    def read(self) -> tuple[Secret, Secret]:
        """Reads both now."""
        user = self.username.read("the user for Pulsar")
        return user, self.password.read("the password for Pulsar")


class PulsarAuth(Section):
    """A login: exactly one of the two."""

    token: SecretRef | None = Field(default=None, description="a JSON web token")
    basic_auth: PulsarUser | None = None

    @model_validator(mode="after")
    def _says_one(self) -> PulsarAuth:
        if (self.token is None) == (self.basic_auth is None):
            raise PydanticCustomError("EB104", "write exactly one of token, basicAuth")
        return self

    def read(self) -> tuple[Secret | None, tuple[Secret, Secret] | None]:
        """Reads both now; one of them is ``None``."""
        token = None if self.token is None else self.token.read("the token for Pulsar")
        return token, None if self.basic_auth is None else self.basic_auth.read()


class PulsarDeadLetterPolicy(Section):
    """Where a message is sent that is nacked too often."""

    topic: Topic = Field(description="the topic for such messages")
    max_redelivery: fields.Count = Field(description="how often it is redelivered before that")


class PulsarSection(Section):
    """The brokers, how to log in there, and the topic."""

    server_addr: Address = Field(
        description="brokers, as `pulsar://host:6650` or `pulsar+ssl://host:6651`; several "
        "hosts are separated by commas"
    )
    topic: Topic = Field(
        description="the topic, as `name`, `tenant/namespace/name` or `persistent://…`; it may "
        "have partitions"
    )
    auth: Annotated[PulsarAuth | None, fields.LEFT_OUT_IF_EMPTY] = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _is_protected_if_it_says_so(self) -> PulsarSection:
        if self.tls is not None and not self.server_addr.startswith(_TLS):
            raise PydanticCustomError(
                "EB104", "tls needs a serverAddr that begins with pulsar+ssl://"
            )
        return self

    def access(self) -> PulsarAccess:
        """Returns the brokers and the login, with all secrets read now."""
        require_extra("Pulsar", "pulsar", "pulsar")
        from ebbflow.connectors.pulsar.pulsar_client import PulsarAccess

        token, login = self.auth.read() if self.auth else (None, None)
        contents = self.tls.contents("Pulsar") if self.tls else {}
        tls = tuple((name, Secret(text)) for name, text in contents.items())
        return PulsarAccess(self.server_addr, token, login, tls)


@source("pulsar", returns=True)
class PulsarSourceSpec(PulsarSection, SourceSection):
    """Messages of a topic, read through a subscription that several consumers share."""

    subscription_name: Annotated[Name | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None, description="the subscription; left out, `<pipeline>-<vertex>`"
    )
    subscription_type: Literal["shared", "keyShared"] = Field(
        default="shared",
        description="`keyShared` delivers all messages of a key to one consumer, in order",
    )
    initial_position: Literal["earliest", "latest"] = Field(
        default="earliest", description="where a new subscription begins"
    )
    consumer_name: Annotated[Name | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None, description="what Pulsar's tools call the consumers"
    )
    max_unack: fields.Positive | None = Field(
        default=None,
        description="the most messages in flight, for each partition of the vertex; left out, "
        "40,000",
    )
    dead_letter_policy: PulsarDeadLetterPolicy | None = Field(
        default=None,
        description="send messages that are nacked too often to a Pulsar topic",
    )

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source, with all secrets read; its subscription is named after the vertex."""
        access, policy = self.access(), self.dead_letter_policy
        from ebbflow.connectors.pulsar.source import PulsarSource, PulsarSourceSettings

        settings = self.freeze(
            "Pulsar",
            PulsarSourceSettings,
            access=access,
            subscription_name=self.subscription_name or "-".join(dict.fromkeys((pipeline, vertex))),
            dead_letters=policy and (policy.topic, policy.max_redelivery),
        )
        return Pulled(partial(PulsarSource, settings))


@sink("pulsar")
class PulsarSinkSpec(PulsarSection, SinkSection):
    """Messages for a topic."""

    producer_name: Annotated[Name | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        description="what Pulsar's tools call the producer; further partitions append their number",
    )

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read."""
        access = self.access()
        from ebbflow.connectors.pulsar.sink import PulsarSink, PulsarSinkSettings

        settings = self.freeze("Pulsar", PulsarSinkSettings, access=access)
        return UserSink(partial(PulsarSink, settings), "columnar", WHOLE_CHUNK)
