"""The types of field values: durations, base64, user code, numbers.

Types are strict, as in Numaflow: ``"5"`` is not a number and ``yes`` is not a text. An error whose
type is one of Ebbflow's codes (``EB105``) is reported under that code.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, LiteralString, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ebbflow.domain import code as words
from ebbflow.domain.durations import milliseconds
from ebbflow.usercode.targets import is_code

MOST_PARTITIONS = 1_000
"""The most partitions: each is a Spark task, a Python process and a set of streams."""


class Section(BaseModel):
    """A mapping of the spec: unknown fields are refused, and it is immutable.

    An optional field without a value counts as left out.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nothings(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or None not in data.values():
            return data
        optional = {
            key
            for name, field in cls.model_fields.items()
            if not field.is_required()
            for key in (name, field.alias)
        }
        return {
            key: value for key, value in data.items() if not (value is None and key in optional)
        }


WITHOUT_EFFECT = "without effect"
"""The beginning of the description of a field that is accepted but has no effect."""


def shown(value: Any) -> str:
    """Returns the value as an error message quotes it: in YAML's terms, and shortened."""
    if value is None or value is True or value is False:
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def matching(pattern: str, code: LiteralString, why: LiteralString) -> AfterValidator:
    """Returns a check that a whole text matches; ``why`` is the error and may quote ``{value}``."""
    fits = re.compile(pattern).fullmatch

    def check(value: Any) -> Any:
        if fits(str(value)) is None:
            raise PydanticCustomError(code, why, {"value": shown(value)})
        return value

    return AfterValidator(check)


def _duration(value: Any, info: ValidationInfo) -> int:
    if info.context is not None and not isinstance(value, str | timedelta):
        # Read from YAML, where only text is a duration.
        raise PydanticCustomError(
            "EB105", "{value} has no unit; write for example 1s", {"value": shown(value)}
        )
    try:
        return milliseconds(value)
    except ValueError as error:
        raise PydanticCustomError("EB105", "{why}", {"why": str(error)}) from None


def _some_time(value: int) -> int:
    if value == 0:
        raise PydanticCustomError("EB105", "must be longer than 0; write for example 250ms")
    return value


def _base64(value: str) -> str:
    try:
        # Line breaks are allowed, as in a YAML block.
        base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PydanticCustomError("EB106", "not base64: {why}", {"why": str(error)}) from None
    return value


def _one_at_least(value: int) -> int:
    return max(1, value)


def _some_text(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("EB104", "must not be empty")
    return value


def _leave_out_empty(value: Any) -> Any:
    if isinstance(value, Mapping) and all(item is None for item in value.values()):
        return None
    return None if value in ("", []) else value


def _code(value: Any) -> words.Code:
    if isinstance(value, str):
        return value
    if is_code(value):
        return cast("Callable[..., Any]", value)
    raise PydanticCustomError(
        "EB401", "{value} is not of the form module:attribute", {"value": shown(value)}
    )


Millis = Annotated[
    int,
    PlainValidator(_duration, json_schema_input_type=str),
    # Written in a form that can be read, so that a dumped spec can be read again.
    PlainSerializer(lambda value: f"{value}ms", return_type=str, when_used="unless-none"),
]
"""A duration such as ``"5s"``, kept as whole milliseconds."""

DURATION = Millis.__metadata__[0]  # type: ignore[attr-defined]


def takes_duration(field: Any) -> bool:
    """Returns whether a field of a model, or a type, is a duration in milliseconds."""
    if any(each is DURATION for each in getattr(field, "metadata", ())):
        return True
    annotation = getattr(field, "annotation", field)
    if any(each is DURATION for each in getattr(annotation, "__metadata__", ())):
        return True
    return any(map(takes_duration, get_args(annotation)))


Wait = Annotated[Millis, AfterValidator(_some_time)]
"""A duration above 0."""

Base64 = Annotated[StrictStr, AfterValidator(_base64)]
"""Bytes written as base64."""

LEFT_OUT_IF_EMPTY = BeforeValidator(_leave_out_empty)
"""For fields that, as in Numaflow, count as left out if the text, list or mapping is empty."""

Bucket = Annotated[
    StrictStr,
    matching(
        r"[A-Za-z0-9_-]+",
        "EB108",
        "{value} is not a bucket's name: use letters, digits, '_' and '-'",
    ),
]
"""The name of a key-value bucket in NATS."""

Code = Annotated[words.Code, PlainValidator(_code, json_schema_input_type=str)]
"""User code: ``module:attribute``, or the function or class itself."""

ErrorClass = Annotated[
    StrictStr,
    matching(
        r"[A-Za-z_][\w.]*:[A-Za-z_][\w.<>]*",
        "EB108",
        "{value} is not the name of an exception; write for example psycopg:OperationalError",
    ),
]
"""The name of an exception, as ``module:Class``; it is never imported."""

Text = Annotated[StrictStr, AfterValidator(_some_text)]
"""A text that is not blank."""

Positive = Annotated[StrictInt, Field(ge=1)]
"""A whole number from 1 up."""

Partitions = Annotated[StrictInt, Field(ge=0, le=MOST_PARTITIONS), AfterValidator(_one_at_least)]
"""How many tasks read a vertex's messages in parallel; 0 counts as 1, as in Numaflow."""

Count = Annotated[StrictInt, Field(ge=0)]
"""A whole number from 0 up."""

Attempts = Annotated[StrictInt, Field(ge=-1)]
"""How often to retry; -1 for no limit."""

Replicas = Annotated[StrictInt, Field(ge=1, le=5)]
"""The number of servers that keep a stream; JetStream's limit is 5."""

Percentage = Annotated[StrictInt, Field(ge=1, le=100)]
"""A whole number from 1 to 100."""

Share = Annotated[StrictFloat, Field(gt=0, le=1)]
"""A part of a whole: above 0, at most 1."""

Factor = Annotated[StrictFloat, Field(ge=1, allow_inf_nan=False)]
"""The factor by which each wait is longer than the one before."""

Jitter = Annotated[StrictFloat, Field(ge=0, lt=1)]
"""The share by which a wait may be longer or shorter."""
