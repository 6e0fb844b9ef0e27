"""NATS and JetStream in a spec: sources, sinks and logins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import ConnectorSection, SinkSection, SourceSection, sink, source
from ebbflow.connectors.plans import WHOLE_CHUNK, Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section, shown
from ebbflow.connectors.schema.secrets import SecretRef, Tls
from ebbflow.domain.errors import SetupError

if TYPE_CHECKING:
    from ebbflow.connectors.nats.messages import PublishSettings
    from ebbflow.nats.login import Addresses
    from ebbflow.streams.feed import FeedPlan

_ANY_NAME = re.compile(r"(?:(?<=\.)|^)\*(?=\.|$)|(?:(?<=\.)|^)>$")
_KINDS = ("basic", "token", "nkey", "creds")


def _url(value: str) -> str:
    # Imported here, so that reading a spec without a NATS connector needs no client.
    from ebbflow.nats.login import Addresses

    try:
        addresses = Addresses.of(value)
    except ValueError as error:
        raise PydanticCustomError("EB104", "{why}", {"why": str(error)}) from None
    if addresses.login.kind is not None:
        raise PydanticCustomError("EB109", "a login does not belong in the URL; name it in auth")
    return value


def _subject(value: str) -> str:
    return _checked(value, value, "subject to publish to")


def _pattern(value: str) -> str:
    return _checked(value, _ANY_NAME.sub("any", value), "subject")


def _checked(value: str, names: str, what: str) -> str:
    from ebbflow.nats.publish import check_subject

    try:
        check_subject(names)
    except ValueError:
        raise PydanticCustomError(
            "EB104", "{value} is not a {what}", {"value": shown(value), "what": what}
        ) from None
    return value


Url = Annotated[StrictStr, AfterValidator(_url)]
"""A NATS URL, or several separated by commas."""

Subject = Annotated[StrictStr, AfterValidator(_subject)]
"""A subject that messages can be published to."""

Pattern = Annotated[StrictStr, AfterValidator(_pattern)]
"""A subject to subscribe to, perhaps with ``*`` and ``>``."""

HeaderName = Annotated[
    StrictStr,
    fields.matching(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", "EB104", "{value} is not a header"),
]
"""The name of a header."""


class NatsUser(Section):
    """A user and a password."""

    user: SecretRef
    password: SecretRef


class NatsAuth(Section):
    """A login, in one of four ways; ``creds`` is the text of a .creds file."""

    basic: NatsUser | None = None
    token: SecretRef | None = None
    nkey: SecretRef | None = None
    creds: SecretRef | None = None

    @model_validator(mode="after")
    def _says_one(self) -> NatsAuth:
        if sum(getattr(self, kind) is not None for kind in _KINDS) != 1:
            raise PydanticCustomError("EB104", f"write exactly one of {', '.join(_KINDS)}")
        return self

    def contents(self, where: str) -> dict[str, str]:
        """Reads the login, as ``Login`` takes it."""
        if self.basic is not None:
            named = {"user": self.basic.user, "password": self.basic.password}
        else:
            named = {kind: getattr(self, kind) for kind in _KINDS[1:]}
        return {
            name: secret.read(f"the {name} for {where}").reveal()
            for name, secret in named.items()
            if secret is not None
        }


class NatsAccess(ConnectorSection):
    """A user's NATS server and the login; the pipeline's own server only if ``url`` names it."""

    url: Url = Field(
        description="the NATS server, or several separated by commas; the pipeline's own server"
        " is used only if it is named here"
    )
    auth: Annotated[NatsAuth | None, fields.LEFT_OUT_IF_EMPTY] = None
    tls: Tls | None = None

    def addresses(self, where: str) -> Addresses:
        """Returns the server and login, with all secrets read; ``where`` says whose they are."""
        from ebbflow.nats.login import Addresses, Login, LoginError

        secrets: dict[str, Any] = self.auth.contents(where) if self.auth else {}
        url = self.url
        if self.tls is not None:
            secrets |= self.tls.contents(where)
            url = ",".join(_with_tls(part) for part in url.split(","))
        try:
            return Addresses.of(url, Login(**secrets))
        except LoginError as error:
            raise SetupError(
                f"The login for {where} cannot work: {error}.", "Correct it."
            ) from None


def _with_tls(url: str) -> str:
    """Returns the URL with a scheme that requires TLS."""
    return f"tls://{url.strip().removeprefix('nats://').removeprefix('tls://')}"


@source("nats", feeds=True)
class NatsSourceSpec(NatsAccess, SourceSection):
    """Messages published on a subject; each goes to one of the subscribers with the same ``queue``.

    Core NATS stores nothing: messages published while the source is not subscribed are lost.
    """

    subject: Pattern = Field(description="the subject to read, perhaps with `*` and `>`")
    queue: Annotated[Pattern | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None, description="the queue group; left out, the source gets every message"
    )

    def plan(self, pipeline: str, vertex: str) -> FeedPlan:
        """Returns the feed, with all secrets read."""
        from ebbflow.connectors.nats.source import NatsFeed, NatsSettings
        from ebbflow.streams.feed import FeedPlan

        where = f"source {vertex}"
        settings = self.freeze(where, NatsSettings, server=self.addresses(where))
        return FeedPlan(NatsFeed, settings)


class NatsTarget(NatsAccess, SinkSection):
    """Publishes to the subject in a message's header ``subjectHeader``, else to ``subject``.

    ``ackWait`` is how long to wait at most until the server has it.
    """

    SINK: ClassVar[str]

    subject: Subject | None = Field(default=None, description="the subject to publish to")
    subject_header: HeaderName | None = Field(
        default=None, description="a header with the subject, for messages that have it"
    )
    ack_wait: fields.Wait = Field(
        default=5_000, description="how long to wait until the server has it"
    )

    @model_validator(mode="after")
    def _says_where(self) -> NatsTarget:
        if self.subject is None and self.subject_header is None:
            raise PydanticCustomError("EB102", "write subject, subjectHeader or both")
        return self

    def settings(self) -> PublishSettings:
        """Returns the target, with all secrets read."""
        from ebbflow.connectors.nats.messages import PublishSettings

        where = "a NATS sink"
        return self.freeze(where, PublishSettings, server=self.addresses(where))

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read."""
        from ebbflow.connectors.nats import sink

        code = partial(getattr(sink, self.SINK), self.settings())
        return UserSink(code, mode="columnar", rows=WHOLE_CHUNK)


@sink("nats")
class NatsSinkSpec(NatsTarget):
    """Publishes each message to current subscribers; there may be none."""

    SINK = "NatsSink"


# Numaflow spells these two in snake case, unlike all other fields.
_SPELLED = {"deliver_policy": "deliverPolicy", "filter_subjects": "filterSubjects"}


Name = Annotated[
    StrictStr,
    fields.matching(
        r"[^\s.*>/\\\x00-\x1f\x7f]+",
        "EB104",
        "{value} is not a JetStream name: it has no spaces, dots, slashes, * and >",
    ),
]
"""The name of a stream or a consumer."""

Policy = Annotated[
    StrictStr,
    fields.matching(
        r"all|new|last|last_per_subject|by_start_sequence [1-9]\d*|by_start_time \d+",
        "EB104",
        "must be all, new, last, last_per_subject, 'by_start_sequence NUMBER' or "
        "'by_start_time MILLISECONDS', not {value}",
    ),
]
"""Where in a stream a consumer begins; a time is in milliseconds since 1970."""


@source("jetstream", returns=True)
class JetStreamSourceSpec(NatsAccess, SourceSection):
    """A stream, read through a durable consumer that is created if it is missing.

    ``deliverPolicy``, ``filterSubjects`` and ``ackWait``, if left out, are as the consumer has
    them. A new consumer begins with the first message, takes all subjects and waits 30 seconds.
    """

    stream: Name = Field(description="the stream to read")
    consumer: Annotated[Name | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        description="its durable consumer, made if it is missing; left out, "
        "`ebbflow-<pipeline>-<vertex>`",
    )
    deliver_policy: Annotated[Policy | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        description="where a new consumer begins: `all`, `new`, `last`, "
        "`last_per_subject`, `by_start_sequence NUMBER` or `by_start_time "
        "MILLISECONDS`; left out, `all`, or as the consumer has it",
    )
    filter_subjects: tuple[Pattern, ...] | None = Field(
        default=None, description="read only these subjects; left out, all, or as the consumer does"
    )
    ack_wait: fields.Wait | None = Field(
        default=None,
        description="the silence after which another process gets a message; left out, 30 s, or "
        "as the consumer has it",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_numaflow_spells_it(cls, section: Any) -> Any:
        if not isinstance(section, Mapping):
            return section
        return {_SPELLED.get(name, name): value for name, value in section.items()}

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source, with all secrets read; its consumer is named after the vertex."""
        from ebbflow.connectors.nats.durable import Durable
        from ebbflow.connectors.nats.jetstream_source import JetStreamSettings, JetStreamSource

        durable = Durable(
            self.stream,
            self.consumer or "-".join(dict.fromkeys(("ebbflow", pipeline, vertex))),
            self.deliver_policy,
            self.filter_subjects,
            None if self.ack_wait is None else self.ack_wait / 1000,
        )
        settings = JetStreamSettings(self.addresses(f"source {vertex}"), durable)
        return Pulled(partial(JetStreamSource, settings))


@sink("jetstream")
class JetStreamSinkSpec(NatsTarget):
    """Publishes each message to the stream that has the subject, and waits until it is stored."""

    SINK = "JetStreamSink"
