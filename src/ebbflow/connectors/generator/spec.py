"""The generator source in a spec."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pydantic import Field, StrictInt

from ebbflow.connectors.base import SourceSection, source
from ebbflow.connectors.schema import fields

if TYPE_CHECKING:
    from ebbflow.connectors.generator.source import GeneratorPlan


@source("generator")
class GeneratorSpec(SourceSection):
    """Makes messages up: ``rpu`` of them per ``duration``, for ever or until ``messages``."""

    rpu: fields.Positive = Field(
        default=5,
        description="messages per `duration`, of each partition; without it and with `messages`: "
        "as fast as it goes",
    )
    duration: fields.Millis = Field(default=1_000, description="the time that `rpu` is about")
    msg_size: fields.Count = Field(
        default=8, description="8, and the bytes of padding in the payload"
    )
    key_count: fields.Count = Field(default=0, description="so many different keys; 0 for none")
    value: StrictInt | None = Field(
        default=None, description="the number in every payload, in place of a count from 0"
    )
    value_blob: fields.Base64 | None = Field(
        default=None, description="the whole payload of every message"
    )
    jitter: fields.Millis = Field(
        default=0, description="event times lie up to so many whole seconds back, at random"
    )
    messages: fields.Positive | None = Field(default=None, description="end after so many")

    @property
    def blob(self) -> bytes | None:
        """The payload that every message is to have, if one was given."""
        return None if self.value_blob is None else base64.b64decode(self.value_blob)

    @property
    def rate(self) -> float | None:
        """Messages a second; ``None`` for as many as the buffers take.

        A fixed number of messages without a rate is made as fast as it goes.
        """
        unlimited = self.messages is not None and "rpu" not in self.model_fields_set
        return None if unlimited else self.rpu * 1000 / max(1, self.duration)

    def plan(self, pipeline: str, vertex: str) -> GeneratorPlan:
        """Returns the generator's settings."""
        from ebbflow.connectors.generator.source import GeneratorPlan

        return GeneratorPlan(
            rate=self.rate,
            messages=self.messages,
            size=self.msg_size,
            key_count=self.key_count,
            value=self.value,
            blob=self.blob,
            jitter=self.jitter // 1000,
        )
