"""Rows that Spark cannot read as their schema says: found, kept as they came, and explained.

If nobody says otherwise, Spark makes nulls of whatever it cannot read in JSON, CSV and XML, and
goes on. It keeps the text of such a record only in a column that one has to ask for, which is done
here; and it never says why, so what was to be read is compared with what is there.

A ``mode`` or a column of the user's own is the user's decision about such rows, and stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ebbflow.domain.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from ebbflow.connectors.spark.settings import Format

COLUMN = "_ebbflow_unread"
_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_MODE, _CORRUPT, _ONE_VARIANT = "mode", "columnnameofcorruptrecord", "singlevariantcolumn"
# Spark has decoded what it keeps; what it is decoded from is another matter.
_OF_FILES = ("encoding", "charset")
# Of a record that several rows share, as a whole file of XML: each of them would have all of it.
_SHARED_LENGTH = 4096
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Unread:
    """Finds the rows of one table that cannot be read; all columns are for its rows.

    ``fields`` are what a row is to have, without what is added here.
    """

    kind: str
    fields: StructType
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The schema that Spark is to read."""
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
        """True for a row that could not be read.

        Of a JSON array Spark tells only that something in it is broken. A row of it that misses
        nothing has been read.
        """
        broken = self._text.isNotNull()
        if self.kind != "json":
            return broken
        whole = [_is_whole(_column(field.name), field.dataType) for field in self.fields]
        return broken & ~(self._is_shared & _all(whole))

    @property
    def value(self) -> Column:
        """The text that the file has in place of the row."""
        cut = F.substring(self._text, 1, _SHARED_LENGTH)
        return F.when(self._is_shared, cut).otherwise(self._text).cast("binary")

    @property
    def why(self) -> Column:
        """The fault of the row, as far as that shows, and the length of its text.

        Every column is looked at: one that is not, Spark does not read, and finds nothing wrong.
        """
        own = F.concat_ws("; ", *self._faults())
        error = F.when(self._is_shared, self._missing()).otherwise(own)
        size = F.octet_length(self._text).cast("bigint")
        return F.struct(error.alias("error"), size.alias("size"))

    def _missing(self) -> Column:
        names = [F.when(_column(field.name).isNull(), F.lit(field.name)) for field in self.fields]
        return F.concat(
            F.lit("Spark could not read all of it; null is: "), F.concat_ws(", ", *names)
        )

    def _faults(self) -> Iterator[Column]:
        """Returns a text for each field that has something in it and was not read."""
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
    """Returns whether rows that cannot be read are ours to find; ``SetupError`` if that is unclear.

    ``usual`` is the name of the column for them that Spark knows without being told.
    """
    options = {name.lower(): value for name, value in format.options}
    if kind is None or _ONE_VARIANT in options:
        return False
    mode, column = options.get(_MODE), options.get(_CORRUPT)
    if mode is not None and mode.upper() not in _MODES:
        raise SetupError(
            f"the mode {mode!r} is none of {', '.join(_MODES)}.",
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
    """Returns the fields of a schema as it is written."""
    parsed = StructType.fromDDL(schema)
    if not isinstance(parsed, StructType):
        raise SetupError(f"the schema {schema!r} names no columns.", "Write name TYPE, …")
    return parsed


def unread_of(kind: str, fields: StructType, usual: str, options: Mapping[str, str]) -> Unread:
    """For rows with these fields; what Spark has added to them for such rows is left out."""
    own = [field for field in fields if field.name != usual]
    if not own:
        raise SetupError(
            "no row that is there can be read, so that nothing tells which columns there are.",
            "Write a schema.",
        )
    chosen = {name: value for name, value in options.items() if name.lower() not in _OF_FILES}
    return Unread(kind, StructType(own), chosen)


def options_for_unread() -> dict[str, str]:
    """Returns the options by which Spark keeps what it cannot read."""
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
    """Returns whether nothing in the value is null, at any depth."""
    inside = F.lit(True)
    if isinstance(kind, StructType):
        inside = _all([_is_whole(value.getField(inner.name), inner.dataType) for inner in kind])
    elif isinstance(kind, ArrayType):
        inside = F.forall(value, lambda inner: _is_whole(inner, kind.elementType))
    elif isinstance(kind, MapType):
        inside = F.forall(F.map_values(value), lambda inner: _is_whole(inner, kind.valueType))
    return value.isNotNull() & inside


def _texts(fields: StructType, nested: bool) -> StructType:
    """Returns the same fields, each of them as text."""

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
