"""Converts rows of a table to messages, by SQL expressions that are checked before reading.

``Unread`` finds the rows that the format could not parse with its schema: they become dead letters
and are never taken for messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ebbflow.connectors.plans import SparkSourceSettings
from ebbflow.connectors.spark.vertex_session import find_format, root_cause
from ebbflow.domain.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ebbflow.connectors.plans import Format

COLUMN = "_ebbflow_unread"
_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_MODE, _CORRUPT, _ONE_VARIANT = "mode", "columnnameofcorruptrecord", "singlevariantcolumn"
# These apply to files only: the text that Spark keeps of a row is decoded already.
_OF_FILES = ("encoding", "charset")
# The most bytes of a text that several rows share, such as a whole XML file: each row gets it.
_SHARED_LENGTH = 4096
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Unread:
    """Finds the rows of one table that cannot be parsed; all columns are for its rows.

    ``fields`` are the expected fields of a row, without the column that is added here.
    """

    kind: str
    fields: StructType
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The schema for Spark to read with."""
        return StructType([*self.fields, StructField(COLUMN, StringType())]).toDDL()

    @property
    def _text(self) -> Column:
        return F.col(COLUMN)

    @property
    def _is_shared(self) -> Column:
        """True for a text that several rows share."""
        if self.kind == "json":
            return F.regexp_like(F.substring(self._text, 1, 64), F.lit(r"^\s*\["))
        return F.lit(self.kind == "xml")

    @property
    def is_broken(self) -> Column:
        """True for a row that could not be parsed.

        For a JSON array Spark reports only that something in it is broken. A row of it without
        nulls has been parsed.
        """
        broken = self._text.isNotNull()
        if self.kind != "json":
            return broken
        whole = [_is_whole(_column(field.name), field.dataType) for field in self.fields]
        return broken & ~(self._is_shared & _all(whole))

    @property
    def value(self) -> Column:
        """The text of the row in the file."""
        cut = F.substring(self._text, 1, _SHARED_LENGTH)
        return F.when(self._is_shared, cut).otherwise(self._text).cast("binary")

    @property
    def why(self) -> Column:
        """The faults of the row, as far as they can be found, and the length of its text.

        It refers to every column, because Spark does not parse unused columns and misses their
        faults.
        """
        own = F.concat_ws("; ", *self._faults())
        error = F.when(self._is_shared, self._missing()).otherwise(own)
        size = F.octet_length(self._text).cast("bigint")
        return F.struct(error.alias("error"), size.alias("size"))

    def _missing(self) -> Column:
        names = [F.when(_column(field.name).isNull(), F.lit(field.name)) for field in self.fields]
        return F.concat(
            F.lit("Spark could not read all of it; null columns: "), F.concat_ws(", ", *names)
        )

    def _faults(self) -> Iterator[Column]:
        """Returns a text for each field that is not empty but could not be parsed."""
        if self.kind == "xml":
            return
        as_texts = _texts(self.fields, nested=self.kind == "json")
        if self.kind == "csv":
            texts = F.from_csv(self._text, as_texts.toDDL(), dict(self.options))
        else:
            texts = F.from_json(self._text, as_texts, dict(self.options))
        faults = [
            fault
            for field in self.fields
            for fault in _compare(
                field, _column(field.name), texts.getField(field.name), field.name
            )
        ]
        yield from faults
        if self.kind == "csv":
            none = F.concat_ws("", *faults) == ""
            yield F.when(none, f"it does not have the {len(self.fields)} columns of the schema")


def looks_for_unread(format: Format, kind: str | None, schema: str | None, usual: str) -> bool:
    """Returns whether Ebbflow has to find rows that cannot be parsed.

    ``SetupError`` if the options contradict each other. ``usual`` is the name of Spark's default
    column for such rows.
    """
    options = {name.lower(): value for name, value in format.options}
    if kind is None or _ONE_VARIANT in options:
        return False
    mode, column = options.get(_MODE), options.get(_CORRUPT)
    if mode is not None and mode.upper() not in _MODES:
        raise SetupError(
            f"the mode {mode!r} is not one of {', '.join(_MODES)}.",
            "Correct it, or leave it out: rows that cannot be read are then dead letters.",
        )
    names = [] if schema is None else fields_of(schema).names
    if column is not None and schema is not None and column not in names:
        raise SetupError(
            f"columnNameOfCorruptRecord is {column!r}, which the schema does not have.",
            f"Add `{column}` STRING to the schema, or leave the option out: rows that cannot be "
            "read are then dead letters.",
        )
    return mode is None and column is None and usual not in names


def fields_of(schema: str) -> StructType:
    """Returns the fields of a written schema."""
    parsed = StructType.fromDDL(schema)
    if not isinstance(parsed, StructType):
        raise SetupError(f"the schema {schema!r} names no columns.", "Write name TYPE, …")
    return parsed


def unread_of(kind: str, fields: StructType, usual: str, options: Mapping[str, str]) -> Unread:
    """Returns the finder for rows with these fields, without Spark's own column for such rows."""
    own = [field for field in fields if field.name != usual]
    if not own:
        raise SetupError(
            "none of its rows can be read, so its columns are unknown.",
            "Write a schema.",
        )
    chosen = {name: value for name, value in options.items() if name.lower() not in _OF_FILES}
    return Unread(kind, StructType(own), chosen)


def options_for_unread() -> dict[str, str]:
    """Returns the options that make Spark keep the text of rows that it cannot parse."""
    return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": COLUMN}


def _column(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _all(conditions: Sequence[Column]) -> Column:
    all_hold = F.lit(True)
    for condition in conditions:
        all_hold = all_hold & condition
    return all_hold


def _is_whole(value: Column, kind: DataType) -> Column:
    """Returns whether the value has no nulls, at any depth."""
    inside = F.lit(True)
    if isinstance(kind, StructType):
        inside = _all([_is_whole(value.getField(inner.name), inner.dataType) for inner in kind])
    elif isinstance(kind, ArrayType):
        inside = F.forall(value, lambda inner: _is_whole(inner, kind.elementType))
    elif isinstance(kind, MapType):
        inside = F.forall(F.map_values(value), lambda inner: _is_whole(inner, kind.valueType))
    return value.isNotNull() & inside


def _texts(fields: StructType, nested: bool) -> StructType:
    """Returns the same fields, all as text."""

    def as_text(kind: DataType) -> DataType:
        return _texts(kind, nested) if nested and isinstance(kind, StructType) else StringType()

    return StructType([StructField(field.name, as_text(field.dataType)) for field in fields])


def _compare(field: StructField, read: Column, text: Column, path: str) -> Iterator[Column]:
    if isinstance(field.dataType, StructType):
        for inner in field.dataType:
            name = inner.name
            yield from _compare(inner, read.getField(name), text.getField(name), f"{path}.{name}")
        return
    kind = field.dataType.simpleString().upper()
    fault = F.concat(F.lit(f"{path} cannot be read as {kind}: "), F.substring(text, 1, _SHOWN))
    yield F.when(read.isNull() & text.isNotNull(), fault)


_UNSTREAMED = "does not support streamed reading"
_NO_SCHEMA = "Schema must be specified"
_PARSED = re.compile(r"org\.apache\.spark\.sql\.execution\.datasources\.(?:v2\.)?(json|csv|xml)\.")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that a source reads. ``unread`` finds those that Spark could not parse."""

    rows: DataFrame
    unread: Unread | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of the format or of the user's schema."""
        return [name for name in self.rows.columns if name != COLUMN]


def open_source_table(spark: SparkSession, settings: SparkSourceSettings, vertex: str) -> Table:
    """Returns the table, streamed if possible and wanted; ``SetupError`` if it cannot be read."""
    known = _PARSED.match(find_format(spark, settings.format, vertex))
    cannot = f"{vertex} cannot read {settings.format.name}"
    try:
        return _Opening(spark, settings, known[1] if known else None).table()
    except SetupError as error:
        raise SetupError(f"{cannot}: {error.what}", error.next_step) from None
    except Exception as error:
        why = settings.format.without_secrets(root_cause(error).sentence)
        raise SetupError(f"{cannot}: {why}", "Correct its source.") from None


class _Opening:
    """Opens a table. ``kind`` is the format that its records are parsed as, if that can fail."""

    def __init__(
        self, spark: SparkSession, settings: SparkSourceSettings, kind: str | None
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._kind = kind
        self._options = settings.format.reveal_options()

    def table(self) -> Table:
        """Returns the table, with a finder for bad rows if Spark reports them."""
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
                # The schema can be inferred from existing files.
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

    A row that could not be parsed has only a value, its text, and ``unread`` says why.
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
                f"{field} of {vertex} cannot be {text!r}: {root_cause(error).sentence}",
                "Correct it.",
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
    """Returns the configured value, else the column ``value``, else the row as JSON."""
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
    """Returns the type of an expression; ``None`` if it fails, which ``evaluate`` reports."""
    try:
        return table.select(F.expr(text)).schema[0].dataType
    except Exception:
        return None


def _keys(column: Column) -> Column:
    return F.array_compact(column.cast("array<string>"))


def _key(column: Column) -> Column:
    return F.when(column.isNotNull(), F.array(column.cast("string")))
