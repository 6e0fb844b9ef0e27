"""The small connectors in a spec: log, blackhole, generator and file.

What runs is in ``plans``, ``generator`` and ``file``, which workers import without pydantic.
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
"""What a path of the file sink may name in braces."""


@sink("log")
class LogSpec(SinkSection):
    """Writes every message to the log. Has no settings."""

    def plan(self) -> LogSink:
        """Returns the plan of a log sink."""
        return LogSink()


@sink("blackhole")
class BlackholeSpec(SinkSection):
    """Forgets every message. Has no settings."""

    def plan(self) -> BlackholeSink:
        """Returns the plan of a blackhole sink."""
        return BlackholeSink()


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
    key_count: fields.Count = Field(default=0, description="this many different keys; 0 for none")
    value: StrictInt | None = Field(
        default=None, description="the number in every payload, in place of a count from 0"
    )
    value_blob: fields.Base64 | None = Field(
        default=None, description="the whole payload of every message"
    )
    jitter: fields.Millis = Field(
        default=0, description="event times lie up to this many whole seconds back, at random"
    )
    messages: fields.Positive | None = Field(default=None, description="end after this many")

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
                "{name} is not a placeholder; there are {known}",
                {"name": shown(f"{{{name}}}"), "known": known},
            )
    return value


Template = Annotated[StrictStr, AfterValidator(_template)]
"""A path in which ``{pipeline}``, ``{vertex}`` and ``{partition}`` are placeholders."""


@sink("file")
class FileSinkSpec(SinkSection):
    """Appends messages to a file: their values as lines, or all of each as a line of JSON."""

    path: Template = Field(
        description="the file; `{pipeline}`, `{vertex}` and `{partition}` are placeholders"
    )
    format: Literal["lines", "json"] = Field(
        default="lines",
        description="the value of each message as a line, or all of it as a line of JSON",
    )
    max_bytes: fields.Positive | None = Field(
        default=None, description="the size at which a file is set aside and a new one begun"
    )

    def plan(self) -> UserSink:
        """Returns the sink; a path that is not absolute begins where the run is started."""
        from ebbflow.connectors.file import FileSettings, FileSink

        settings = self.freeze("", FileSettings, path=os.path.abspath(self.path))
        return UserSink(partial(FileSink, settings), "columnar", WHOLE_CHUNK)
