"""A Postgres table as a queue: each row is a message, deleted or marked when it is settled.

A row is free once its due time has passed. Reading it moves its due time ahead by a lease, with
``FOR UPDATE SKIP LOCKED``, so no two processes get the same row. The lease is renewed while the
message is in flight. If the process is killed, the lease expires and the row is free again, so none
is lost. A nack sets the due time to the end of its delay, by Postgres' clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql
from typing_extensions import override

from ebbflow.connectors.leases import Leases
from ebbflow.connectors.postgres.postgres_client import (
    CatalogueTable,
    PostgresAccess,
    escape_for_parameters,
    identifier_of,
    is_about_the_row,
    read_catalogue,
    require_columns,
)
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.user_source import NackOffset, Source
from ebbflow.engine import frames

_POLL = 0.05
# Counting more rows than this every second would take the database too long.
_MANY = 100_000
_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("event_time", frames.TIME),
        pa.field("partition", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class PostgresSourceSettings:
    """A table and the roles of its columns; ``lease`` is in seconds."""

    access: PostgresAccess
    table: str
    key: str | None = None
    value: str | None = None
    event_time: str | None = None
    due: str = "due_at"
    nacks: str | None = None
    done: str | None = None
    lease: float = 30.0


class QueueTable:
    """Checks one table and builds the statements for it."""

    def __init__(self, connection: psycopg.Connection[Any], settings: PostgresSourceSettings):
        self._settings = settings
        take_off = "UPDATE" if settings.done else "DELETE"
        privileges = dict.fromkeys(("SELECT", "UPDATE", take_off))
        table = self._table = read_catalogue(connection, settings.table, *privileges)
        if not table.is_plain:  # a ctid would mean a different row in each partition
            raise SetupError(
                f"{table.name} has partitions or is a view, and cannot be a queue.",
                "Use a table without partitions, such as a single partition.",
            )
        self._key = _find_key(table, settings.key)
        require_columns(table, [settings.value] if settings.value else [])
        _require_type(table, settings.due, "due", "T", "timestamp with time zone")
        _require_type(table, settings.done, "done", "T", "timestamp with time zone")
        _require_type(table, settings.event_time, "eventTime", "D", "a date or a time")
        _require_type(table, settings.nacks, "nacks", "N", "a number")
        is_open: sql.Composable = sql.SQL("TRUE")
        if settings.done:
            is_open = sql.SQL("t.{} IS NULL").format(_name(settings.done))
        self._names: dict[str, sql.Composable] = {
            "table": identifier_of(escape_for_parameters(table.name)),
            "key": _name(self._key),
            "due": _name(settings.due),
            "done": _name(settings.done or ""),
            "nacks": _name(settings.nacks or ""),
            "keys": sql.SQL("%s::{}[]").format(_type_of(table, self._key)),
            "open": is_open,
        }

    def _format(self, text: LiteralString, **more: sql.Composable) -> sql.Composed:
        return sql.SQL(text).format(**self._names, **more)

    @cached_property
    def take(self) -> sql.Composed:
        """Leases rows; parameters are the seconds of the lease and the most rows."""
        settings = self._settings
        value: sql.Composable = sql.SQL("convert_to(row_to_json(t)::text, 'UTF8')")
        if settings.value is not None:
            is_bytes = self._table.columns[settings.value].type == "bytea"
            text = "t.{value}" if is_bytes else "convert_to(t.{value}::text, 'UTF8')"
            value = sql.SQL(text).format(value=_name(settings.value))
        event_time: sql.Composable = sql.SQL("NULL::timestamptz")
        if settings.event_time is not None:
            # Postgres knows times that Python does not, such as infinity.
            event_time = sql.SQL(
                "CASE WHEN t.{0} >= '0001-01-01' AND t.{0} < '10000-01-01' "
                "THEN t.{0}::timestamptz END"
            ).format(_name(settings.event_time))
        return self._format(
            # By ctid, which is stable for locked rows: no second index lookup is needed.
            "UPDATE {table} t SET {due} = now() + make_interval(secs => %s) WHERE t.ctid = ANY "
            "(ARRAY(SELECT t.ctid FROM {table} t WHERE {open} AND (t.{due} IS NULL OR t.{due} <= "
            "now()) ORDER BY t.{due} NULLS FIRST LIMIT %s FOR UPDATE SKIP LOCKED)) "
            "RETURNING t.{key}::text, {value}, {event_time}",
            value=value,
            event_time=event_time,
        )

    @cached_property
    def keep(self) -> sql.Composed:
        """Sets the due time of rows in flight; parameters are seconds and the keys."""
        return self._format(
            "UPDATE {table} t SET {due} = now() + make_interval(secs => %s) "
            "WHERE t.{key} = ANY ({keys}) AND {open}"
        )

    @cached_property
    def settle(self) -> sql.Composed:
        """Takes settled rows off the queue; the parameter is the keys."""
        if self._settings.done:
            return self._format("UPDATE {table} t SET {done} = now() WHERE t.{key} = ANY ({keys})")
        return self._format("DELETE FROM {table} t WHERE t.{key} = ANY ({keys})")

    @cached_property
    def give_back(self) -> sql.Composed:
        """Sets due times; parameters are the keys and the seconds of each."""
        count = self._format(", {nacks} = coalesce(t.{nacks}, 0) + 1")
        return self._format(
            "UPDATE {table} t SET {due} = now() + make_interval(secs => n.delay){count} FROM "
            "unnest({keys}, %s::float8[]) AS n(key, delay) WHERE t.{key} = n.key AND {open}",
            count=count if self._settings.nacks else sql.SQL(""),
        )

    @cached_property
    def left(self) -> sql.Composed:
        """Counts the rows that are not settled, up to the parameter."""
        return self._format(
            "SELECT count(*) FROM (SELECT FROM {table} t WHERE {open} LIMIT %s) AS unsettled"
        )


def _name(column: str) -> sql.Identifier:
    return sql.Identifier(escape_for_parameters(column))


def _require_type(
    table: CatalogueTable, name: str | None, field: str, category: str, wanted: str
) -> None:
    """Raises ``SetupError`` if a configured column is missing or has another type.

    The category is Postgres' own, or ``T`` for times with a time zone.
    """
    if name is None:
        return
    require_columns(table, (name,))
    column = table.columns[name]
    fits = column.type == wanted if category == "T" else column.category == category
    if category == "D":  # the time of a day is none
        fits = fits and not column.type.startswith("time ")
    if not fits:
        raise SetupError(
            f"The column {name} of {table.name} is of the type {column.type}, and {field} needs "
            f"{wanted}.",
            f"Change its type, or name another column as {field}.",
        )


def _type_of(table: CatalogueTable, column: str) -> sql.SQL:
    return sql.SQL(table.columns[column].type)  # safe: it comes from the catalogue


def _find_key(table: CatalogueTable, named: str | None) -> str:
    if named is not None:
        require_columns(table, (named,))
        if (named,) not in (table.primary_key, *table.unique):
            raise SetupError(
                f"The column {named} of {table.name} is not unique.",
                "Name a column with a unique index as key.",
            )
        if table.columns[named].nullable:
            raise SetupError(
                f"The column {named} of {table.name} may be NULL, and a row needs a key.",
                f"Run in Postgres: ALTER TABLE {table.name} ALTER COLUMN {named} SET NOT NULL",
            )
        return named
    if len(table.primary_key) != 1:
        raise SetupError(
            f"The table {table.name} has no primary key of one column.",
            "Name a column with a unique index as key.",
        )
    return table.primary_key[0]


class PostgresSource(Source):
    """Reads rows of one table, in the process of its partition."""

    def __init__(self, settings: PostgresSourceSettings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None
        self._leases: Leases[str] = Leases("postgres", self._renew)

    def open(self) -> None:
        """Connects and checks the table; ``SetupError`` if it cannot be a queue.

        ``Unavailable`` while the server is down.
        """
        self._connect()
        self._leases.start(self._settings.lease)

    def _connect(self) -> psycopg.Connection[Any]:
        connection = self._settings.access.connect()
        try:
            self._queue = QueueTable(connection, self._settings)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    @override
    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Leases up to ``limit`` rows; polls while there are none."""
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            leased = self._run(lambda queue: queue.take, (self._settings.lease, limit), binary=True)
            rows = leased.fetchall()
            if rows or (left := deadline - time.monotonic()) <= 0:
                break
            time.sleep(min(_POLL, left))
        offsets = [key.encode() for key, _, _ in rows]
        self._leases.take(dict(zip(offsets, _texts(offsets), strict=True)))
        columns = [offsets, [row[1] or b"" for row in rows], [row[2] for row in rows]]
        # The same in all processes: a queue has no partitions.
        return pa.RecordBatch.from_pydict(
            dict(zip(_SCHEMA.names, [*columns, [0] * len(rows)], strict=True)), _SCHEMA
        )

    @override
    def ack(self, offsets: Sequence[bytes]) -> None:
        """Deletes rows, or marks them as done."""
        self._run(lambda queue: queue.settle, (_texts(offsets),))
        self._leases.remove(offsets)

    @override
    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Frees rows when their delays are over."""
        offsets = [nack.offset for nack in nacks]
        delays = [(nack.options.delay or 0) / 1000 for nack in nacks]
        # First, so that a renewed lease does not replace the delay.
        self._leases.remove(offsets, after_renewal=True)
        self._run(lambda queue: queue.give_back, (_texts(offsets), delays))

    @override
    def pending(self) -> int | None:
        """Returns how many rows are neither settled nor in flight here, counting up to a limit."""
        return max(0, self._count(_MANY) - len(self._leases))

    @property
    @override
    def exhausted(self) -> bool:
        """``True`` if all rows of the table are settled."""
        return not self._leases and not self._count(1)

    def close(self) -> None:
        """Frees the rows in flight at once."""
        in_flight = self._leases.stop()
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error, Unavailable):
                self._run(lambda queue: queue.keep, (0.0, list(in_flight.values())))
            self._disconnect()

    def _count(self, most: int) -> int:
        row = self._run(lambda queue: queue.left, (most,)).fetchone()
        return int(row[0]) if row else 0

    def _run(
        self,
        command: Callable[[QueueTable], sql.Composed],
        values: Sequence[Any] = (),
        *,
        binary: bool = False,
    ) -> psycopg.Cursor[Any]:
        """Runs one statement, on a new connection if the last one broke."""
        try:
            connection = self._connection or self._connect()
            return connection.execute(command(self._queue), values, binary=binary)
        except (psycopg.Error, SetupError) as error:
            self._disconnect()  # the table is looked at again: it may have been altered
            if isinstance(error, psycopg.Error) and is_about_the_row(error):
                raise
            raise Unavailable(self._settings.access.describe(error)) from None

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _renew(self, keys: Sequence[str]) -> None:
        if (connection := self._connection) is not None:
            connection.execute(self._queue.keep, (self._settings.lease, list(keys)))


def _texts(offsets: Sequence[bytes]) -> list[str]:
    return [offset.decode() for offset in offsets]
