"""The small connectors in a spec: log, blackhole, generator and file.

The code that runs is in ``plans``, ``generator`` and ``file``, which workers import without
pydantic.
"""

from __future__ import annotations

import base64
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, sink, source
from ebbflow.connectors.plans import WHOLE_CHUNK, BlackholeSink, LogSink, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import shown

if TYPE_CHECKING:
    from ebbflow.connectors.generator import GeneratorPlan


PLACES = ("pipeline", "vertex", "partition")
"""The placeholders in a path of the file sink."""


@sink("log")
class LogSpec(SinkSection):
    """Writes every message to the log. Has no settings."""

    def plan(self) -> LogSink:
        """Returns the plan of a log sink."""
        return LogSink()


@sink("blackhole")
class BlackholeSpec(SinkSection):
    """Discards every message. Has no settings."""

    def plan(self) -> BlackholeSink:
        """Returns the plan of a blackhole sink."""
        return BlackholeSink()


@source("generator")
class GeneratorSpec(SourceSection):
    """Generates ``rpu`` messages per ``duration``, forever or until there are ``messages``."""

    rpu: fields.Positive = Field(
        default=5,
        description="messages per `duration`, of each partition; left out next to `messages`: as "
        "fast as possible",
    )
    duration: fields.Millis = Field(default=1_000, description="the time that `rpu` refers to")
    msg_size: fields.Count = Field(
        default=8, description="8 plus the bytes of padding in the payload"
    )
    key_count: fields.Count = Field(default=0, description="this many different keys; 0 for none")
    value: StrictInt | None = Field(
        default=None, description="the number in every payload, in place of a count from 0"
    )
    value_blob: fields.Base64 | None = Field(
        default=None, description="the whole payload of every message"
    )
    jitter: fields.Millis = Field(
        default=0, description="event times are up to this many whole seconds back, at random"
    )
    messages: fields.Positive | None = Field(default=None, description="end after this many")

    @property
    def blob(self) -> bytes | None:
        """The payload of every message, if one is configured."""
        return None if self.value_blob is None else base64.b64decode(self.value_blob)

    @property
    def rate(self) -> float | None:
        """Messages a second; ``None`` for as many as the buffers take.

        A fixed number of messages without a rate is generated as fast as possible.
        """
        unlimited = self.messages is not None and "rpu" not in self.model_fields_set
        return None if unlimited else self.rpu * 1000 / max(1, self.duration)

    def plan(self, pipeline: str, vertex: str) -> GeneratorPlan:
        """Returns the generator's settings."""
        from ebbflow.connectors.generator import GeneratorPlan

        return GeneratorPlan(
            rate=self.rate,
            messages=self.messages,
            size=self.msg_size,
            key_count=self.key_count,
            value=self.value,
            blob=self.blob,
            jitter=self.jitter // 1000,
        )


def _template(value: str) -> str:
    if not value.strip() or value.endswith("/"):
        raise PydanticCustomError("EB104", "must be the path of a file")
    for name in re.findall(r"\{(.*?)\}", value):
        if name not in PLACES:
            known = ", ".join(f"{{{place}}}" for place in PLACES)
            raise PydanticCustomError(
                "EB104",
                "{name} is not a placeholder; the placeholders are {known}",
                {"name": shown(f"{{{name}}}"), "known": known},
            )
    return value


Template = Annotated[StrictStr, AfterValidator(_template)]
"""A path in which ``{pipeline}``, ``{vertex}`` and ``{partition}`` are placeholders."""


@sink("file")
class FileSinkSpec(SinkSection):
    """Appends messages to a file: their values as lines, or whole messages as lines of JSON."""

    path: Template = Field(
        description="the file; `{pipeline}`, `{vertex}` and `{partition}` are placeholders"
    )
    format: Literal["lines", "json"] = Field(
        default="lines",
        description="each message's value as a line, or the whole message as a line of JSON",
    )
    max_bytes: fields.Positive | None = Field(
        default=None, description="the size at which the file is rotated"
    )

    def plan(self) -> UserSink:
        """Returns the sink; a relative path is relative to the folder where the run starts."""
        from ebbflow.connectors.file import FileSettings, FileSink

        settings = self.freeze("", FileSettings, path=os.path.abspath(self.path))
        return UserSink(partial(FileSink, settings), "columnar", WHOLE_CHUNK)
