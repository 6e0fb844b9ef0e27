"""Rows of a table made messages, by expressions in SQL that are checked before any is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType

from ebbflow.connectors.spark.errors import trouble
from ebbflow.connectors.spark.session import find_format
from ebbflow.connectors.spark.settings import SparkSourceSettings
from ebbflow.connectors.spark.unread import (
    COLUMN,
    Unread,
    fields_of,
    looks_for_unread,
    options_for_unread,
    unread_of,
)
from ebbflow.domain.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_UNSTREAMED = "does not support streamed reading"
_NO_SCHEMA = "Schema must be specified"
_PARSED = re.compile(r"org\.apache\.spark\.sql\.execution\.datasources\.(?:v2\.)?(json|csv|xml)\.")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that a source reads. ``unread`` finds those that Spark could not read."""

    rows: DataFrame
    unread: Unread | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that the format or the user gave it."""
        return [name for name in self.rows.columns if name != COLUMN]


def open_table(spark: SparkSession, settings: SparkSourceSettings, vertex: str) -> Table:
    """Returns the table, streamed if it can and should be; ``SetupError`` if nobody can read it."""
    known = _PARSED.match(find_format(spark, settings.format, vertex))
    cannot = f"{vertex} cannot read {settings.format.name}"
    try:
        return _Opening(spark, settings, known[1] if known else None).table()
    except SetupError as error:
        raise SetupError(f"{cannot}: {error.what}", error.next_step) from None
    except Exception as error:
        why = settings.format.without_secrets(trouble(error).sentence)
        raise SetupError(f"{cannot}: {why}", "Correct its source.") from None


class _Opening:
    """Ways to open a table. ``kind`` is how its records are parsed, if that can go wrong."""

    def __init__(
        self, spark: SparkSession, settings: SparkSourceSettings, kind: str | None
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._kind = kind
        self._options = settings.format.reveal_options()

    def table(self) -> Table:
        """With an eye on rows that cannot be read, where Spark tells of them."""
        settings = self._settings
        usual = str(self._spark.conf.get("spark.sql.columnNameOfCorruptRecord"))
        if not looks_for_unread(settings.format, self._kind, settings.schema, usual):
            return Table(self._open(settings.schema))
        assert self._kind is not None
        fields = fields_of(settings.schema) if settings.schema else self._read(None).schema
        unread = unread_of(self._kind, fields, usual, dict(settings.format.options))
        self._options |= options_for_unread()
        return Table(self._open(unread.schema), unread)

    def _open(self, schema: str | None) -> DataFrame:
        settings = self._settings
        if settings.stream is False:
            return self._read(schema)
        try:
            return self._read_stream(schema)
        except PySparkException as error:
            if _NO_SCHEMA in str(error):
                # Of files that are there the schema can be found out.
                return self._read_stream(self._read(None).schema.toDDL())
            if settings.stream or _UNSTREAMED not in str(error):
                raise
            return self._read(schema)

    def _read(self, schema: str | None) -> DataFrame:
        reader = self._spark.read.format(self._settings.format.name).options(**self._options)
        return (reader if schema is None else reader.schema(schema)).load()

    def _read_stream(self, schema: str | None) -> DataFrame:
        reader = self._spark.readStream.format(self._settings.format.name).options(**self._options)
        return (reader if schema is None else reader.schema(schema)).load()


def as_messages(table: Table, settings: SparkSourceSettings, vertex: str) -> DataFrame:
    """Returns the rows as messages; ``SetupError`` names the expression that does not work.

    A row that could not be read has only its text for a value, and ``unread`` says why.
    """
    columns = _columns(table, settings, vertex)
    unread = table.unread
    if unread is not None:
        broken = unread.is_broken
        columns = {name: F.when(~broken, column) for name, column in columns.items()}
        columns["value"] = F.when(broken, unread.value).otherwise(columns["value"])
        columns["unread"] = F.when(broken, unread.why)
    return table.rows.select(*(column.alias(name) for name, column in columns.items()))


def _columns(table: Table, settings: SparkSourceSettings, vertex: str) -> dict[str, Column]:
    rows = table.rows

    def evaluate(field: str, text: str, shape: Callable[[Column], Column]) -> Column:
        try:
            rows.select(shape(F.expr(text)))
        except Exception as error:
            raise SetupError(
                f"{field} of {vertex} cannot be {text!r}: {trouble(error).sentence}", "Correct it."
            ) from None
        return shape(F.expr(text))

    columns = {"value": _value(table, settings, evaluate)}
    if settings.keys is not None:
        listed = isinstance(_type(rows, settings.keys), ArrayType)
        columns["keys"] = evaluate("keys", settings.keys, _keys if listed else _key)
    if settings.event_time is not None:
        columns["event_time"] = evaluate(
            "eventTime", settings.event_time, lambda c: c.cast("timestamp")
        )
    if settings.id is not None:
        columns["id"] = evaluate("id", settings.id, lambda c: c.cast("string"))
    if settings.headers:
        parts: list[Column] = []
        for name, text in settings.headers:
            shaped = evaluate(f"header {name}", text, lambda c: c.cast("string"))
            parts += [F.lit(name), shaped]
        columns["headers"] = F.map_filter(F.create_map(*parts), lambda _, value: value.isNotNull())
    return columns


def _value(
    table: Table,
    settings: SparkSourceSettings,
    evaluate: Callable[[str, str, Callable[[Column], Column]], Column],
) -> Column:
    """Returns the value as asked for, else the column of that name, else the row as JSON."""
    text = settings.value
    if text is None:
        text = "value" if "value" in table.columns else _whole(table.columns)
    if isinstance(_type(table.rows, text), BinaryType):
        return evaluate("value", text, lambda c: c)
    return evaluate("value", text, lambda c: c.cast("string").cast("binary"))


def _whole(columns: Sequence[str]) -> str:
    quoted = ("`" + name.replace("`", "``") + "`" for name in columns)
    return f"to_json(struct({', '.join(quoted)}))"


def _type(table: DataFrame, text: str) -> object:
    """Returns the type of an expression; ``None`` if it does not work, which is told elsewhere."""
    try:
        return table.select(F.expr(text)).schema[0].dataType
    except Exception:
        return None


def _keys(column: Column) -> Column:
    return F.array_compact(column.cast("array<string>"))


def _key(column: Column) -> Column:
    return F.when(column.isNotNull(), F.array(column.cast("string")))
