"""JetStream streams of the user's own as a source and a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, sink, source
from ebbflow.connectors.nats.spec import NatsAccess, NatsTarget, Pattern
from ebbflow.connectors.plans import WHOLE_CHUNK, Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import shown

_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")
_POLICY = re.compile(r"all|new|last|last_per_subject|by_start_sequence [1-9]\d*|by_start_time \d+")
# Numaflow writes these two otherwise than the rest.
_SPELLED = {"deliver_policy": "deliverPolicy", "filter_subjects": "filterSubjects"}


def _name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise PydanticCustomError(
            "EB104",
            "{value} is not a name of JetStream: it has no spaces, dots, slashes, * and >",
            {"value": shown(value)},
        )
    return value


def _policy(value: str) -> str:
    if _POLICY.fullmatch(value) is None:
        raise PydanticCustomError(
            "EB104",
            "must be all, new, last, last_per_subject, 'by_start_sequence NUMBER' or "
            "'by_start_time MILLISECONDS', not {value}",
            {"value": shown(value)},
        )
    return value


Name = Annotated[StrictStr, AfterValidator(_name)]
"""The name of a stream or a consumer."""

Policy = Annotated[StrictStr, AfterValidator(_policy)]
"""Where in a stream a consumer begins; a time is in milliseconds since 1970."""


@source("jetstream", returns=True)
class JetStreamSourceSpec(NatsAccess, SourceSection):
    """A stream, read through a durable consumer that is made if it is not there.

    What is left out of ``deliverPolicy``, ``filterSubjects`` and ``ackWait`` is as the consumer has
    it. One that is made begins with the first message, takes all subjects and waits 30 seconds.
    """

    stream: Name = Field(description="the stream to read")
    consumer: Annotated[Name | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        description="its durable consumer, made if it is missing; left out, "
        "`ebbflow-<pipeline>-<vertex>`",
    )
    deliver_policy: Annotated[Policy | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        description="where a consumer begins that is made: `all`, `new`, `last`, "
        "`last_per_subject`, `by_start_sequence NUMBER` or `by_start_time "
        "MILLISECONDS`; left out, `all`, or as the consumer has it",
    )
    filter_subjects: tuple[Pattern, ...] | None = Field(
        default=None, description="read only these subjects; left out, all, or as the consumer does"
    )
    ack_wait: fields.Wait | None = Field(
        default=None,
        description="after what silence a message is given to another process; left out, 30 "
        "s, or as the consumer has it",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_numaflow_spells_it(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {_SPELLED.get(name, name): value for name, value in given.items()}

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source, with all secrets read; its consumer is named after the vertex."""
        from ebbflow.connectors.jetstream.durable import Durable
        from ebbflow.connectors.jetstream.source import JetStreamSettings, JetStreamSource

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
class JetStreamSinkSpec(NatsTarget, SinkSection):
    """Publishes each message to the stream that has the subject, and waits until it is stored."""

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read."""
        from ebbflow.connectors.jetstream.sink import JetStreamSink

        code = partial(JetStreamSink, self.settings())
        return UserSink(code, mode="columnar", rows=WHOLE_CHUNK)
