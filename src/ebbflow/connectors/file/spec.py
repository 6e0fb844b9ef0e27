"""The file sink in a spec."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictStr
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, sink
from ebbflow.connectors.plans import WHOLE_CHUNK, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import shown

PLACES = ("pipeline", "vertex", "partition")


def _template(value: str) -> str:
    if not value.strip() or value.endswith("/"):
        raise PydanticCustomError("EB104", "must be the path of a file")
    for name in re.findall(r"\{(.*?)\}", value):
        if name not in PLACES:
            known = ", ".join(f"{{{place}}}" for place in PLACES)
            raise PydanticCustomError(
                "EB104",
                "{name} stands for nothing; there are {known}",
                {"name": shown(f"{{{name}}}"), "known": known},
            )
    return value


Template = Annotated[StrictStr, AfterValidator(_template)]
"""A path in which ``{pipeline}``, ``{vertex}`` and ``{partition}`` stand for what they name."""


@sink("file")
class FileSinkSpec(SinkSection):
    """Appends messages to a file: their values as lines, or all of each as a line of JSON."""

    path: Template = Field(
        description="the file; `{pipeline}`, `{vertex}` and `{partition}` stand for what they name"
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
        from ebbflow.connectors.file.sink import FileSettings, FileSink

        path = os.path.abspath(self.path)
        settings = FileSettings(path, self.format, self.max_bytes)
        return UserSink(partial(FileSink, settings), "columnar", WHOLE_CHUNK)
