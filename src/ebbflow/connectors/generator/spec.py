"""The generator source in a spec."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pydantic import StrictInt

from ebbflow.connectors.section import SourceSection
from ebbflow.schema import fields

if TYPE_CHECKING:
    from ebbflow.connectors.generator.source import GeneratorPlan


class GeneratorSpec(SourceSection):
    """Makes messages up: ``rpu`` of them per ``duration``, for ever or until ``messages``."""

    rpu: fields.Positive = 5
    duration: fields.Millis = 1_000
    msg_size: fields.Count = 8
    key_count: fields.Count = 0
    value: StrictInt | None = None
    value_blob: fields.Base64 | None = None
    jitter: fields.Millis = 0
    messages: fields.Positive | None = None

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
        """Return the generator's settings."""
        from ebbflow.connectors.generator.source import GeneratorPlan

        return GeneratorPlan(
            rate=self.rate,
            messages=self.messages,
            size=self.msg_size,
            key_count=self.key_count,
            value=self.value,
            blob=self.blob,
        )
