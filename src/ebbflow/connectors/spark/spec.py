"""Any Spark format as a source and a sink, in a spec."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, sink, source
from ebbflow.connectors.plans import Format, SparkSink, SparkSinkSettings, SparkSourceSettings
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section, shown
from ebbflow.connectors.schema.secrets import SecretRef

if TYPE_CHECKING:
    from ebbflow.streams.feed import FeedPlan

_SECRET_NAME = re.compile(
    r"(password|passwd|secret|token|credentials?|(access|api|secret)[._]?key)$"
)
_SECRET_VALUE = re.compile(r"(password|passwd|secret|token)\s*=", re.IGNORECASE)


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise PydanticCustomError(
        "EB103", "must be text, a number or true or false, not {value}", {"value": shown(value)}
    )


def _without_secrets(options: dict[str, str]) -> dict[str, str]:
    for name, value in options.items():
        if _SECRET_NAME.search(name.lower()) or _SECRET_VALUE.search(value):
            raise PydanticCustomError(
                "EB109",
                "{name} is a secret; name its place in secretOptions: {ref}",
                {"name": shown(name), "ref": f"{{{name}: {{env: NAME}}}}"},
            )
    return options


Option = Annotated[str, PlainValidator(_option, json_schema_input_type=str)]
"""The value of a Spark option; numbers and booleans become text."""

Options = Annotated[dict[StrictStr, Option], AfterValidator(_without_secrets)]
"""Options of a format, without secrets."""


class FormatSection(Section):
    """A Spark format with its options, as after ``spark.read.format(...)``."""

    format: fields.Text = Field(description="the format, as in `spark.read.format(...)`")
    options: Options = Field(default={}, description="its options; no secrets")
    secret_options: dict[StrictStr, SecretRef] = Field(
        default={}, description="more options, each with a [secret](#secrets)"
    )

    def read_format(self, where: str) -> Format:
        """Returns the format, with the secrets read now; ``where`` says whose they are."""
        secrets = {
            name: secret.read(f"the option {name} of {where}")
            for name, secret in self.secret_options.items()
        }
        return Format(self.format, tuple(self.options.items()), tuple(secrets.items()))


class SparkSection(FormatSection):
    """A Spark format, and the schema of its rows or of the values of messages."""

    schema_: fields.Text | None = Field(
        default=None,
        alias="schema",
        description="of a source, its columns; of a sink, the fields that values have as JSON",
    )


class Trigger(Section):
    """When a query looks for new rows; exactly one of the two fields."""

    processing_time: fields.Wait | None = Field(
        default=None, description="look for new rows this often; left out, all the time"
    )
    available_now: StrictBool = Field(
        default=False, description="end when everything that exists at the start is read"
    )

    @model_validator(mode="after")
    def _says_one(self) -> Trigger:
        if (self.processing_time is not None) == self.available_now:
            raise PydanticCustomError(
                "EB104", "write exactly one of processingTime and availableNow"
            )
        return self


@source("spark", feeds=True)
class SparkSourceSpec(SparkSection, SourceSection):
    """Rows of any format; each is a message. ``stream: false`` reads them once, as they are now."""

    stream: StrictBool | None = Field(
        default=None,
        description="`false`: read the existing rows once; left out: stream if the format can",
    )
    trigger: Trigger | None = None
    value: fields.Text | None = Field(
        default=None,
        description="SQL for the value; left out, the column `value`, or else the row as JSON",
    )
    keys: fields.Text | None = Field(
        default=None, description="SQL for the keys: a text or a list of texts"
    )
    event_time: fields.Text | None = Field(
        default=None, description="SQL for the event time; left out, when the row was read"
    )
    id: fields.Text | None = Field(
        default=None, description="SQL for the beginning of the message's id"
    )
    headers: dict[StrictStr, fields.Text] = Field(
        default={}, description="names of headers, each with SQL for its text"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> SparkSourceSpec:
        if self.stream is False and self.trigger is not None:
            raise PydanticCustomError("EB104", "a trigger is for streams; leave it or stream out")
        return self

    def plan(self, pipeline: str, vertex: str) -> FeedPlan:
        """Returns the feed, with all secrets read."""
        from ebbflow.connectors.spark.source import SparkFeed
        from ebbflow.streams.feed import FeedPlan

        return FeedPlan(SparkFeed, self.settings(f"the source {vertex}"))

    def settings(self, where: str) -> SparkSourceSettings:
        """Returns the settings of the source; ``where`` says whose the secrets are."""
        every = self.trigger.processing_time if self.trigger else None
        return self.freeze(
            where,
            SparkSourceSettings,
            format=self.read_format(where),
            schema=self.schema_,
            every=None if every is None else every / 1000,
            available_now=self.trigger is not None and self.trigger.available_now,
        )


@sink("spark", batched=True)
class SparkSinkSpec(SparkSection, SinkSection):
    """Messages as rows of any format, appended in batches."""

    mode: Literal["append"] = Field(default="append", description="only `append`")
    columns: dict[StrictStr, fields.Text] = Field(
        default={},
        description="names of columns, each with SQL over `messages` and `data`; left out, "
        "the fields of `schema`, or else `value` as text",
    )
    partition_by: tuple[fields.Text, ...] = Field(
        default=(), description="columns that partition the files into folders"
    )

    def plan(self) -> SparkSink:
        """Returns the target of batches, with all secrets read."""
        where = "the Spark sink"
        format = self.read_format(where)
        return SparkSink(self.freeze(where, SparkSinkSettings, format=format, schema=self.schema_))
