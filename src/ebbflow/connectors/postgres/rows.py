r"""Messages as rows of a table: JSON objects are written as lines of COPY's text format.

A field that a message lacks gets the column's default; ``null`` is NULL. Messages with the same
columns share one ``RowShape``, so no line needs a catalogue lookup. A column may also hold a fact
of the message, such as its id. If all columns hold facts, values need not be JSON.

Rows that must be new are copied into the table itself. If conflicts are resolved, rows are copied
into a temporary table and inserted from there in key order, so two processes that update the same
rows do not deadlock.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from ebbflow.connectors.postgres.postgres_client import (
    CatalogueTable,
    PostgresAccess,
    read_catalogue,
    require_columns,
)
from ebbflow.domain.errors import SetupError

FACTS = {
    "$id": "id",
    "$value": "value",
    "$keys": "keys",
    "$headers": "headers",
    "$eventTime": "event_time",
}
"""Facts that a column can hold in place of a field, each with its column in a batch."""

_NULL = r"\N"
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_MOST_SHAPES = 1_000
_AT_ONCE = 512


Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class PostgresSinkSettings:
    """A table, the fields of its columns, and how to treat rows that exist already.

    ``marks`` is the table of the marks; ``None`` writes no marks.
    """

    access: PostgresAccess
    table: str
    columns: tuple[tuple[str, str], ...] = ()
    on_conflict: str = "fail"
    conflict_columns: tuple[str, ...] = ()
    marks: str | None = None


# --- lines --------------------------------------------------------------------------------------


class NotARow(Exception):
    """A message that cannot be a row; its text says why."""


def _escape(text: str) -> str:
    if "\\" in text or not text.isprintable():
        return text.translate(_ESCAPES)
    return text


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except TypeError:  # a decimal number, which json does not write
        return _dump_exactly(value)


def _dump_exactly(value: Any) -> str:
    match value:
        case Decimal():
            return str(value)
        case list():
            return "[" + ",".join(map(_dump_exactly, value)) + "]"
        case dict():
            items = (f"{_dump(key)}:{_dump_exactly(item)}" for key, item in value.items())
            return "{" + ",".join(items) + "}"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _write_plain(value: Any) -> str:
    if type(value) is str:
        return _escape(value)
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "t" if value else "f"
    return _escape(_dump(value)) if isinstance(value, dict | list) else str(value)


def _write_value(value: bytes) -> str:
    # Invalid UTF-8 is kept, so that the database refuses it.
    return _escape(value.decode("utf-8", "surrogateescape"))


def _write_bytes(value: bytes) -> str:
    return r"\\x" + value.hex()


def _write_json(value: Any) -> str:
    return _NULL if value is None else _escape(_dump(value))


def _write_array(value: Any) -> str:
    return _escape(_array(value)) if isinstance(value, list) else _write_plain(value)


def _array(values: list[Any]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case list():
            return _array(value)
        case bool() | int() | float() | Decimal():
            return str(value).lower()
        case _:
            text = value if isinstance(value, str) else _dump(value)
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class JsonObjects:
    """Parses JSON objects many at once, which takes half the time of parsing each alone.

    ``exact`` keeps all digits of numbers with a fraction.
    """

    def __init__(self, exact: bool) -> None:
        self._decode = json.JSONDecoder(parse_float=Decimal if exact else None).decode
        # Random, so that two broken values around a forged separator cannot pass for valid ones.
        self._separator = secrets.token_hex(16)

    def read(self, values: Sequence[bytes]) -> Iterator[dict[str, Any] | NotARow]:
        """Yields each object, or why a value is not an object."""
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE]
            together = self._read_together(some)
            yield from together if together is not None else map(self._read_alone, some)

    def _read_together(self, values: Sequence[bytes]) -> list[dict[str, Any]] | None:
        """Returns the objects; ``None`` if one of the values may not be an object."""
        separator = f',"{self._separator}",'.encode()
        try:
            found = self._decode(f"[{separator.join(values).decode()}]")
        except (ValueError, RecursionError):
            return None
        objects, separators = found[::2], found[1::2]
        whole = len(objects) == len(values) and separators.count(self._separator) == len(separators)
        return objects if whole and all(type(one) is dict for one in objects) else None

    def _read_alone(self, value: bytes) -> dict[str, Any] | NotARow:
        try:
            found = self._decode(value.decode(json.detect_encoding(value), "surrogatepass"))
        except (ValueError, RecursionError) as error:
            return NotARow(f"the value is not JSON: {error}")
        return found if type(found) is dict else NotARow("the value is not a JSON object")


@dataclass(frozen=True, slots=True, eq=False)
class RowShape:
    """The columns that some messages have. A line has a cell for these, or for all columns."""

    columns: tuple[str, ...]
    cells: tuple[tuple[str, Callable[[Any], str]], ...]

    def write(self, message: Mapping[str, Any]) -> str:
        """Returns the line of a message."""
        get = message.get
        return "\t".join([write(get(field)) for field, write in self.cells])


class Row(NamedTuple):
    """The line of a message, with the message's number in its batch and the hash of its id."""

    number: int
    id_hash: bytes
    shape: RowShape
    line: str


class RowWriter:
    """Writes messages as lines for ``target``."""

    def __init__(self, target: Target) -> None:
        self._table = target.table
        self._whole = target.is_staged
        columns = self._columns = target.fields
        self._by_fields: dict[tuple[str, ...], RowShape] = {}
        self._by_columns: dict[tuple[str, ...], RowShape] = {}
        self._facts = {field: FACTS[field] for field in columns.values() if field in FACTS}
        self._reads_values = len(self._facts) < len(set(columns.values()))
        self._objects = JsonObjects(exact=any(self._table.columns[c].is_exact for c in columns))

    def messages(self, batch: pa.RecordBatch) -> Iterator[Mapping[str, Any] | NotARow]:
        """Yields each message as its fields and facts, or why it cannot be a row."""
        values = batch.column("value").to_pylist()
        read = self._objects.read(values) if self._reads_values else ({} for _ in values)
        if not self._facts:
            yield from read
            return
        columns = (batch.column(name) for name in self._facts.values())
        for message, *facts in zip(read, *map(_list_facts, columns), strict=True):
            if not isinstance(message, NotARow):
                message |= zip(self._facts, facts, strict=True)
            yield message

    def write(self, message: Mapping[str, Any]) -> tuple[RowShape, str]:
        """Returns the shape and the line of a message; ``NotARow`` if it fills no column."""
        fields = tuple(message)
        shape = self._by_fields.get(fields) or self._find_shape(fields)
        return shape, shape.write(message)

    def _find_shape(self, fields: tuple[str, ...]) -> RowShape:
        there = set(fields)
        columns = tuple(name for name, field in self._columns.items() if field in there)
        if not columns:
            raise NotARow(f"the value has no field for a column of {self._table.name}")
        if len(self._by_fields) >= _MOST_SHAPES:
            self._by_fields.clear()
        written = tuple(self._columns) if self._whole else columns
        cells = tuple((self._columns[name], self._writer(name)) for name in written)
        shape = self._by_columns.setdefault(columns, RowShape(columns, cells))
        self._by_fields[fields] = shape
        return shape

    def _writer(self, name: str) -> Callable[[Any], str]:
        column = self._table.columns[name]
        if self._columns[name] == "$value":
            return _write_bytes if column.type == "bytea" else _write_value
        if column.is_json:
            return _write_json
        return _write_array if column.is_array else _write_plain


def _list_facts(column: pa.Array) -> list[Any]:
    if pa.types.is_map(column.type):
        return [dict(pairs or ()) for pairs in column.to_pylist()]
    if pa.types.is_timestamp(column.type):
        return [time and time.isoformat() for time in column.to_pylist()]
    return [[] if fact is None else fact for fact in column.to_pylist()]


# --- the table ----------------------------------------------------------------------------------

_STAGING = sql.Identifier("ebbflow_staging")
_ORDER, _SHAPE = "ebbflow_row", "ebbflow_shape"


class Target:
    """The table in the catalogue, checked against the settings; writes rows into it."""

    def __init__(self, connection: Connection, settings: PostgresSinkSettings) -> None:
        self._on_conflict = settings.on_conflict
        reads = ("SELECT",) if self.is_staged else ()
        updates = ("UPDATE",) if self._on_conflict == "update" else ()
        self._privileges = ("INSERT", *updates, *reads)
        self.table = read_catalogue(connection, settings.table, *self._privileges)
        if not self.table.takes_rows:
            raise SetupError(
                f"{self.table.name} is a view, and Postgres copies no rows into it.",
                "Name the table behind it, or give the view an INSTEAD OF INSERT trigger.",
            )
        self._keys = settings.conflict_columns or self.table.primary_key
        self.fields = dict(settings.columns) or {
            name: name for name, column in self.table.columns.items() if not column.generated
        }
        _check_columns(self.table, self.fields, bool(settings.columns))
        if self.is_staged:
            _check_keys(self.table, self._keys, self.fields)

    @property
    def is_staged(self) -> bool:
        """Whether rows pass through a temporary table, with a cell for every column."""
        return self._on_conflict != "fail"

    def is_altered(self, connection: Connection) -> bool:
        """Returns whether the catalogue describes the table differently by now."""
        return self.table != read_catalogue(connection, self.table.name, *self._privileges)

    def prepare(self, connection: Connection) -> None:
        """Creates the temporary table outside of any transaction: a rollback would drop it."""
        if self.is_staged:
            make = (
                "CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS "
                "AS SELECT 0 AS {}, 0 AS {}, {} FROM {} WITH NO DATA"
            )
            places = map(sql.Identifier, (_ORDER, _SHAPE))
            table = self.table.identifier
            connection.execute(sql.SQL(make).format(_STAGING, *places, _list(self.fields), table))

    def write(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Writes rows in the caller's transaction."""
        if self.is_staged:
            self._write_staged(connection, rows)
            return
        lines: dict[RowShape, list[str]] = {}
        for row in rows:
            lines.setdefault(row.shape, []).append(row.line)
        for shape, same in lines.items():
            _copy(connection, self.table.identifier, _list(shape.columns), same)

    def _write_staged(self, connection: Connection, rows: Sequence[Row]) -> None:
        shapes = {row.shape: 0 for row in rows}
        for number, shape in enumerate(shapes):
            shapes[shape] = number
        connection.execute(sql.SQL("DELETE FROM {}").format(_STAGING))
        lines = (f"{number}\t{shapes[row.shape]}\t{row.line}" for number, row in enumerate(rows))
        _copy(connection, _STAGING, _list((_ORDER, _SHAPE, *self.fields)), lines)
        if len(shapes) > 1 and self._have_common_keys(connection):
            half = len(rows) // 2
            self._write_staged(connection, rows[:half])
            self._write_staged(connection, rows[half:])
            return
        for shape, number in shapes.items():
            connection.execute(self._insert(shape, number))

    def _have_common_keys(self, connection: Connection) -> bool:
        """Returns whether rows of different shapes share a key, so that their order matters."""
        query = sql.SQL(
            "SELECT EXISTS (SELECT FROM {} WHERE ({keys}) IS NOT NULL GROUP BY {keys} "
            "HAVING min({shape}) < max({shape}))"
        ).format(_STAGING, keys=_list(self._keys), shape=sql.Identifier(_SHAPE))
        return bool((connection.execute(query).fetchone() or (False,))[0])

    def _insert(self, shape: RowShape, number: int) -> sql.Composed:
        """Returns the statement for staged rows of one shape, which has this number."""
        return sql.SQL("INSERT INTO {} ({}) {} ON CONFLICT ({}) {}").format(
            self.table.identifier,
            _list(shape.columns),
            self._select(shape, number),
            _list(self._keys),
            self._resolve(shape),
        )

    def _select(self, shape: RowShape, number: int) -> sql.Composed:
        """Returns the query for the rows to insert: the last, or the first, row of each key."""
        columns, order = _list(shape.columns), sql.Identifier(_ORDER)
        wanted = sql.SQL("{} = {}").format(sql.Identifier(_SHAPE), sql.Literal(number))
        if not set(self._keys) <= set(shape.columns):
            return sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {}").format(
                columns, _STAGING, wanted, order
            )
        keys = [sql.Identifier(name) for name in self._keys]
        # NULL conflicts with nothing.
        absent = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(key) for key in keys)
        alone = sql.SQL("CASE WHEN {} THEN {} END").format(absent, order)
        same = sql.SQL(", ").join([*keys, alone])
        last = sql.SQL("DESC" if self._on_conflict == "update" else "ASC")
        return sql.SQL(
            "SELECT DISTINCT ON ({same}) {} FROM {} WHERE {} ORDER BY {same}, {} {}"
        ).format(columns, _STAGING, wanted, order, last, same=same)

    def _resolve(self, shape: RowShape) -> sql.Composable:
        others = [name for name in shape.columns if name not in self._keys]
        if self._on_conflict == "ignore" or not others:
            return sql.SQL("DO NOTHING")
        new = (sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
        return sql.SQL("DO UPDATE SET {}").format(sql.SQL(", ").join(new))


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _copy(
    connection: Connection, into: sql.Identifier, columns: sql.Composed, lines: Iterable[str]
) -> None:
    command = sql.SQL("COPY {} ({}) FROM STDIN").format(into, columns)
    # Invalid characters are kept, so that the database refuses their row.
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        copy.write(text)
        copy.write(b"\n")


# --- checks against the catalogue ---------------------------------------------------------------

_FIT = {"$id": "S", "$keys": "AS", "$headers": "S", "$eventTime": "DS"}
"""The categories of types that can hold a fact: arrays, texts, times."""


def _check_columns(table: CatalogueTable, fields: Mapping[str, str], chosen: bool) -> None:
    require_columns(table, tuple(fields))
    for name, field in fields.items():
        column = table.columns[name]
        if column.generated:
            raise SetupError(
                f"Postgres itself makes the values of the column {name} of {table.name}.",
                "Leave it out of columns.",
            )
        holds_json = column.is_json and field in ("$keys", "$headers")
        if field in _FIT and column.category not in _FIT[field] and not holds_json:
            raise SetupError(
                f"The column {name} of {table.name} is of the type {column.type}, which cannot "
                f"hold {field}.",
                "Name another column, or another field for it.",
            )
    missing = [c.name for c in table.columns.values() if c.required and c.name not in fields]
    if chosen and missing:
        raise SetupError(
            f"The column {missing[0]} of {table.name} needs a value, and columns does not name it.",
            "Add it to columns, or give it a default in Postgres.",
        )


def _check_keys(table: CatalogueTable, keys: Sequence[str], fields: Mapping[str, str]) -> None:
    require_columns(table, keys)
    if not keys:
        raise SetupError(
            f"The table {table.name} has no primary key to find conflicts by.",
            "Name the columns of a unique index as conflictColumns.",
        )
    if set(keys) not in [set(unique) for unique in table.unique]:
        raise SetupError(
            f"There is no unique index on {', '.join(keys)} of {table.name}.",
            "Postgres finds conflicts only by the columns of a unique index that is not "
            "deferrable; name those.",
        )
    if absent := [name for name in keys if name not in fields]:
        raise SetupError(
            f"No message has the column {absent[0]} of {table.name}, so none can conflict by it.",
            "Add it to columns, or name the columns of another unique index as conflictColumns.",
        )
