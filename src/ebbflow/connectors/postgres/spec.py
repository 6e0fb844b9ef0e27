"""Postgres in a spec: a table to write to, and a table as a queue to read from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, require_extra, sink, source
from ebbflow.connectors.plans import WHOLE_CHUNK, Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.schema.secrets import SecretRef

if TYPE_CHECKING:
    from ebbflow.connectors.postgres.postgres_client import PostgresAccess


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("postgresql", "postgres"):
        raise PydanticCustomError("EB104", "must begin with postgresql://")
    if parts.password is not None or "password=" in parts.query:
        raise PydanticCustomError(
            "EB104", "must not hold a password: write passwordSecret, or use libpq's own files"
        )
    return url


Url = Annotated[StrictStr, AfterValidator(_check_url)]
"""A database as a libpq URL, without a password."""

_FACTS = ("$id", "$value", "$keys", "$headers", "$eventTime")


def _check_field(name: str) -> str:
    if name.startswith("$") and name not in _FACTS:
        raise PydanticCustomError(
            "EB104",
            "{name} is not a fact of a message; the facts are {known}",
            {"name": name, "known": ", ".join(_FACTS)},
        )
    return name


FieldName = Annotated[StrictStr, AfterValidator(_check_field)]
"""A field of a JSON object, or a fact of the message."""

Name = Annotated[
    StrictStr, fields.matching(r"[^\x00]{1,127}", "EB104", "{value} is not the name of a table")
]
"""The name of a table or a column; a table's name may begin with its schema and a dot."""


class PostgresSection(Section):
    """The database, how to log in, and the table."""

    url: Url = Field(
        description="the database, as `postgresql://user@host:5432/name`; parameters of libpq, "
        "such as `?sslmode=verify-full`, may follow"
    )
    password_secret: SecretRef | None = Field(
        default=None,
        description="the password; left out, libpq looks at `PGPASSWORD`, its password file and "
        "certificates",
    )
    table: Name = Field(description="the table, with its schema before a dot if need be")

    def access(self) -> PostgresAccess:
        """Returns the database and the login, and reads the password now."""
        require_extra("Postgres", "postgres", "psycopg")
        from ebbflow.connectors.postgres.postgres_client import PostgresAccess

        secret = self.password_secret
        password = secret.read("the password for Postgres") if secret else None
        access = PostgresAccess(self.url, password)
        access.check()
        return access


@sink("postgres")
class PostgresSinkSpec(PostgresSection, SinkSection):
    """Writes each message, a JSON object, as a row of a table, once."""

    columns: dict[Name, FieldName] = Field(
        default={},
        description="the field of each column, as `column: field`; left out, every field that is "
        "a column; `$id`, `$value`, `$keys`, `$headers` and `$eventTime` are facts of the message",
    )
    on_conflict: Literal["fail", "ignore", "update"] = Field(
        default="fail",
        description="what happens to a message whose row exists already: it fails, it is "
        "skipped, or it replaces the columns that it has",
    )
    conflict_columns: tuple[Name, ...] = Field(
        default=(), description="the columns to find conflicts by; left out, the primary key"
    )
    exactly_once: StrictBool = Field(
        default=True,
        description="store a mark of each message with its row, so that no message is written "
        "twice",
    )
    marks_table: Name = Field(
        default="ebbflow_marks", description="the table of the marks, created if it is missing"
    )

    @model_validator(mode="after")
    def _fits(self) -> PostgresSinkSpec:
        if self.conflict_columns and self.on_conflict == "fail":
            raise PydanticCustomError(
                "EB104", "conflictColumns needs onConflict: update or onConflict: ignore"
            )
        return self

    def plan(self) -> UserSink:
        """Returns the sink; ``SetupError`` if the table cannot be written as configured."""
        access = self.access()
        from ebbflow.connectors.postgres.postgres_client import connect_for_checks
        from ebbflow.connectors.postgres.rows import PostgresSinkSettings, Target
        from ebbflow.connectors.postgres.sink import PostgresSink

        marks = self.marks_table if self.exactly_once else None
        settings = self.freeze("Postgres", PostgresSinkSettings, access=access, marks=marks)
        with connect_for_checks(access) as connection:
            if connection is not None:
                Target(connection, settings)
        return UserSink(partial(PostgresSink, settings), "columnar", WHOLE_CHUNK)


@source("postgres", returns=True)
class PostgresSourceSpec(PostgresSection, SourceSection):
    """Rows of a table that is a queue: each is a message, removed when it is settled."""

    key: Name | None = Field(default=None, description="a unique column; left out, the primary key")
    value: Name | None = Field(
        default=None, description="the column with the value; left out, the whole row as JSON"
    )
    event_time: Name | None = Field(default=None, description="the column with the event time")
    due: Name = Field(
        default="due_at",
        description="the column, `timestamptz`, with the time from which a row may be read; the "
        "source sets it for leases and nacks",
    )
    nacks: Name | None = Field(default=None, description="a column that counts nacks, if any")
    done: Name | None = Field(
        default=None,
        description="the column, `timestamptz`, with the time when a row was settled; left out, "
        "settled rows are deleted",
    )
    lease: fields.Millis = Field(
        default=30_000,
        description="how long rows of a killed process stay leased; renewed while it lives",
    )

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source; ``SetupError`` if the table cannot be a queue."""
        access = self.access()
        from ebbflow.connectors.postgres.postgres_client import connect_for_checks
        from ebbflow.connectors.postgres.source import (
            PostgresSource,
            PostgresSourceSettings,
            QueueTable,
        )

        settings: Any = self.freeze("Postgres", PostgresSourceSettings, access=access)
        with connect_for_checks(access) as connection:
            if connection is not None:
                QueueTable(connection, settings)
        return Pulled(partial(PostgresSource, settings))
