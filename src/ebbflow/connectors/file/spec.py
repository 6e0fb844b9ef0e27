"""The file sink."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, StrictStr
from pydantic_core import PydanticCustomError

from ebbflow.schema import fields
from ebbflow.schema.fields import Section, shown

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


class FileSink(Section):
    """Appends messages to a file: their values as lines, or all of each as a line of JSON."""

    path: Template
    format: Literal["lines", "json"] = "lines"
    max_bytes: fields.Positive | None = None
