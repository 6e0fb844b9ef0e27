"""Postgres connections, the meaning of their errors, and table definitions.

A database error counts against a message if the message's data caused it (a wrong type, a violated
constraint, an exception of a trigger). Every other error is a system failure: the vertex waits, and
no message is penalised. No text contains a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.secrets import Secret

# Classes of SQLSTATE: cardinality, data, integrity, view checks, limits, exceptions of triggers.
_ABOUT_THE_ROW = frozenset({"21", "22", "23", "44", "54", "P0"})
_COLUMN = re.compile(r", column ([^:\n]+)")
_SESSION = (
    "SET client_encoding = 'UTF8'",
    "SET timezone = 'UTC'",
    # A process that hangs must not keep the rows that it has locked from its successor.
    "SET idle_in_transaction_session_timeout = '60s'",
    "SET lock_timeout = '20s'",
)


# A peer that vanishes silently is detected within half a minute; the url can override this.
_DEFAULTS = {
    "application_name": "ebbflow",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# A failed login has no SQLSTATE, only a text.
_MISTAKES = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "certificate verify failed",
    "server does not support SSL",
)


@dataclass(frozen=True, slots=True)
class PostgresAccess:
    """A database and its login: a URL without a password, and the password."""

    url: str
    password: Secret | None = None

    def check(self) -> None:
        """Raises ``SetupError`` if libpq cannot read the URL."""
        try:
            self._read_url()
        except psycopg.ProgrammingError as error:
            raise SetupError(
                f"Postgres' client does not understand the url: {first_line(error)}.",
                "Write it as postgresql://user@host:5432/name, with parameters of libpq.",
            ) from None

    def connect(self) -> psycopg.Connection[Any]:
        """Returns a connection; ``Unavailable`` while the server is down.

        ``SetupError`` says why the server refuses the connection.
        """
        known = self._read_url()
        options: dict[str, Any] = {k: v for k, v in _DEFAULTS.items() if k not in known}
        # A separate parameter, so that errors that quote the URL do not show it.
        password = None if self.password is None else self.password.reveal()
        try:
            connection = psycopg.connect(self.url, autocommit=True, password=password, **options)
        except psycopg.Error as error:
            raise self._explain(first_line(error)) from None
        try:
            for command in _SESSION:
                connection.execute(command)
        except BaseException:
            connection.close()
            raise
        return connection

    def _explain(self, why: str) -> SetupError | Unavailable:
        if any(mistake in why for mistake in _MISTAKES):
            return SetupError(
                f"Postgres at {self.place} does not accept the connection: {why}.",
                "Correct the url, the login or what the server allows.",
            )
        return Unavailable(f"Postgres at {self.place}: {why}")

    def describe(self, error: Exception) -> str:
        """Returns the error's text, with the server's address."""
        if isinstance(error, psycopg.Error):
            return f"Postgres at {self.place}: {first_line(error)}"
        return str(error)

    @property
    def place(self) -> str:
        """The server and the database, for display."""
        known = self._read_url()
        host, port = known.get("host") or "this machine", known.get("port") or 5432
        return f"{host}:{port}/{known.get('dbname') or ''}".rstrip("/")

    def _read_url(self) -> dict[str, Any]:
        return psycopg.conninfo.conninfo_to_dict(self.url)


def first_line(error: psycopg.Error) -> str:
    """Returns the message of the database or its client, on one line."""
    text = error.diag.message_primary or str(error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__


def is_about_the_row(error: psycopg.Error) -> bool:
    """Returns whether the row's data caused the error, not the system."""
    return (error.sqlstate or "")[:2] in _ABOUT_THE_ROW


def describe_database_error(error: psycopg.Error) -> str:
    """Returns why the database refuses a row, with the column if it names one."""
    reason, detail = first_line(error), error.diag.message_detail
    column = error.diag.column_name
    if column is None and (found := _COLUMN.search(error.diag.context or "")):
        column = found[1]
    where = f"column {column}: " if column and f'"{column}"' not in reason else ""
    return f"{where}{reason}" + (f": {detail.rstrip('.')}" if detail else "")


# --- the catalogue ------------------------------------------------------------------------------


_INEXACT = frozenset({"smallint", "integer", "bigint", "real", "double precision", "text[]"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as the catalogue describes it."""

    name: str
    type: str
    category: str
    required: bool
    generated: bool
    nullable: bool
    modifier: int

    @property
    def is_json(self) -> bool:
        """Whether it holds JSON documents."""
        return self.type in ("json", "jsonb")

    @property
    def is_exact(self) -> bool:
        """Whether it may hold numbers with more digits than a float."""
        return self.is_json or (self.category in ("N", "A") and self.type not in _INEXACT)

    @property
    def is_array(self) -> bool:
        """Whether it holds arrays."""
        return self.category == "A"


@dataclass(frozen=True, slots=True)
class CatalogueTable:
    """A table: its columns by name, its primary key, and all sets of columns that are unique.

    A set that may be violated until a transaction ends is not in ``unique``. ``is_plain`` is true
    if it has no partitions and is not a view, ``takes_rows`` if COPY can write to it.
    """

    name: str
    columns: dict[str, Column]
    primary_key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...]
    is_plain: bool
    takes_rows: bool

    @property
    def identifier(self) -> sql.Identifier:
        """Its name, quoted."""
        return identifier_of(self.name)


def identifier_of(table: str) -> sql.Identifier:
    """Returns the quoted name of a table; a part before a dot is its schema."""
    return sql.Identifier(*table.split(".", 1))


def escape_for_parameters(name: str) -> str:
    """Returns a name as it has to be in a statement that has parameters."""
    return name.replace("%", "%%")


# With a modifier of -1: a type such as character, by its name alone, has a length of 1.
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, -1), t.typcategory,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a', NOT a.attnotnull, a.atttypmod
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT i.indisprimary, i.indimmediate, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary, i.indimmediate
"""


# COPY writes to a view only if a trigger with the bits INSTEAD (64) and INSERT (4) does the work.
_KIND = """
SELECT relkind = 'r' AND NOT relhassubclass,
       relkind IN ('r', 'p', 'f')
       OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = pg_class.oid AND tgtype & 68 = 68)
FROM pg_class WHERE oid = %s
"""


def read_catalogue(
    connection: psycopg.Connection[Any], name: str, *privileges: str
) -> CatalogueTable:
    """Returns a table from the catalogue; ``SetupError`` if it is missing or may not be used."""
    quoted = identifier_of(name).as_string(connection)
    row = connection.execute("SELECT to_regclass(%s)::oid", (quoted,)).fetchone()
    if row is None or row[0] is None:
        raise SetupError(
            f"Postgres has no table {name} that this login can see.",
            "Create the table, or correct its name; write a schema before a dot.",
        )
    oid = row[0]
    for privilege in privileges:
        allowed = connection.execute("SELECT has_table_privilege(%s, %s)", (oid, privilege))
        if not (allowed.fetchone() or (False,))[0]:
            raise SetupError(
                f"The login may not {privilege} in the table {name}.",
                f"Run in Postgres: GRANT {privilege} ON {quoted} TO …",
            )
    columns = [Column(*facts) for facts in connection.execute(_COLUMNS, (oid,))]
    keys = connection.execute(_UNIQUE, (oid,)).fetchall()
    primary_key = next((tuple(names) for primary, _, names in keys if primary), ())
    unique = tuple(tuple(names) for _, immediate, names in keys if immediate)
    is_plain, takes_rows = connection.execute(_KIND, (oid,)).fetchone() or (False, False)
    by_name = {each.name: each for each in columns}
    return CatalogueTable(name, by_name, primary_key, unique, is_plain, takes_rows)


def require_columns(table: CatalogueTable, names: Sequence[str]) -> None:
    """Raises ``SetupError`` if the table lacks one of these columns."""
    for name in names:
        if name not in table.columns:
            known = ", ".join(table.columns) or "none"
            raise SetupError(
                f"The table {table.name} has no column {name}.", f"Its columns are: {known}."
            )


@contextmanager
def connect_for_checks(access: PostgresAccess) -> Iterator[psycopg.Connection[Any] | None]:
    """Connects to check the catalogue when a run begins; yields ``None`` while the server is down.

    The vertex waits for a server that is down. A wrong login or table ends the run: ``SetupError``.
    """
    try:
        connection = access.connect()
    except (Unavailable, psycopg.OperationalError):
        yield None
        return
    with connection:
        yield connection
