"""From the rows of a table to messages: expressions in SQL, checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType

from ebbflow.errors import SetupError
from ebbflow.sources.spark import SparkSettings
from ebbflow.spark.cause import trouble

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_UNSTREAMED = "does not support streamed reading"
_NO_SCHEMA = "Schema must be specified"


def opened(spark: SparkSession, settings: SparkSettings, vertex: str) -> DataFrame:
    """The table, streamed if it can and should be; ``SetupError`` if it cannot be read at all."""
    settings.format.check(spark, vertex)
    try:
        return _opened(spark, settings)
    except Exception as error:
        why = settings.format.without_secrets(trouble(error).sentence)
        raise SetupError(
            f"{vertex} cannot read {settings.format.name}: {why}", "Correct its source."
        ) from None


def _opened(spark: SparkSession, settings: SparkSettings) -> DataFrame:
    if settings.stream is False:
        return _read(spark, settings)
    try:
        return _streamed(spark, settings, settings.schema)
    except PySparkException as error:
        if _NO_SCHEMA in str(error):
            # Of files that are there the schema can be found out.
            return _streamed(spark, settings, _read(spark, settings).schema.toDDL())
        if settings.stream or _UNSTREAMED not in str(error):
            raise
        return _read(spark, settings)


def _read(spark: SparkSession, settings: SparkSettings) -> DataFrame:
    reader = spark.read.format(settings.format.name).options(**settings.format.revealed())
    return (reader if settings.schema is None else reader.schema(settings.schema)).load()


def _streamed(spark: SparkSession, settings: SparkSettings, schema: str | None) -> DataFrame:
    reader = spark.readStream.format(settings.format.name).options(**settings.format.revealed())
    return (reader if schema is None else reader.schema(schema)).load()


def as_messages(table: DataFrame, settings: SparkSettings, vertex: str) -> DataFrame:
    """The rows as messages; ``SetupError`` names the expression that does not work."""

    def evaluated(field: str, text: str, shape: Callable[[Column], Column]) -> Column:
        try:
            table.select(shape(F.expr(text)))
        except Exception as error:
            raise SetupError(
                f"{field} of {vertex} cannot be {text!r}: {trouble(error).sentence}", "Correct it."
            ) from None
        return shape(F.expr(text))

    columns = [_value(table, settings, evaluated).alias("value")]
    if settings.keys is not None:
        listed = isinstance(_type(table, settings.keys), ArrayType)
        columns.append(evaluated("keys", settings.keys, _keys if listed else _key).alias("keys"))
    if settings.event_time is not None:
        shaped = evaluated("eventTime", settings.event_time, lambda c: c.cast("timestamp"))
        columns.append(shaped.alias("event_time"))
    if settings.id is not None:
        columns.append(evaluated("id", settings.id, lambda c: c.cast("string")).alias("id"))
    if settings.headers:
        parts: list[Column] = []
        for name, text in settings.headers:
            shaped = evaluated(f"header {name}", text, lambda c: c.cast("string"))
            parts += [F.lit(name), shaped]
        present = F.map_filter(F.create_map(*parts), lambda _, value: value.isNotNull())
        columns.append(present.alias("headers"))
    return table.select(*columns)


def _value(
    table: DataFrame,
    settings: SparkSettings,
    evaluated: Callable[[str, str, Callable[[Column], Column]], Column],
) -> Column:
    """As asked for, else the column of that name, else the whole row as JSON."""
    text = settings.value
    if text is None:
        text = "value" if "value" in table.columns else "to_json(struct(*))"
    if isinstance(_type(table, text), BinaryType):
        return evaluated("value", text, lambda c: c)
    return evaluated("value", text, lambda c: c.cast("string").cast("binary"))


def _type(table: DataFrame, text: str) -> object:
    """The type of an expression; ``None`` if it does not work, which is told elsewhere."""
    try:
        return table.select(F.expr(text)).schema[0].dataType
    except Exception:
        return None


def _keys(column: Column) -> Column:
    return F.array_compact(column.cast("array<string>"))


def _key(column: Column) -> Column:
    return F.when(column.isNotNull(), F.array(column.cast("string")))
