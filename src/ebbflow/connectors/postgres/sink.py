"""The Postgres sink: each message is a row, written once; a call is one transaction.

COPY writes the rows (``rows``). ``Marks`` of the messages are stored in the same transaction, so
that a message that is delivered again is known. When the database refuses rows, the call is
repeated in halves until each bad row is alone: it fails with the database's reason, and all others
are committed together. While the database is unavailable nothing is written, and the vertex waits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import psycopg
import pyarrow as pa
from psycopg import sql

from ebbflow.connectors.postgres.postgres_client import (
    describe_database_error,
    escape_for_parameters,
    first_line,
    identifier_of,
    is_about_the_row,
)
from ebbflow.connectors.postgres.rows import (
    Connection,
    NotARow,
    PostgresSinkSettings,
    Row,
    RowWriter,
    Target,
)
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import Response
from ebbflow.engine.position import LINEAGE

Answers = dict[int, Response]

REMEMBERED = 100_000
"""How many of the last messages of a partition are known, at least."""

_SIZE = 16
_MAKE = (
    "CREATE TABLE IF NOT EXISTS {} (writer text, lineage text, partition integer, number bigint, "
    "ids bytea NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (writer, lineage, partition, number))"
)
# Partitions are numbered from 0 without gaps: looking a few ahead finds those that were added.
_AHEAD = 16

LOOK_AGAIN = 1.0
"""How many seconds a column that is added stays unknown, as long as no row is refused."""


# --- marks --------------------------------------------------------------------------------------


class Altered(Exception):
    """The table is another one than its rows were made for."""


class Overtaken(Exception):
    """Another process has written for this partition since its marks were read."""


def hash_ids(ids: pa.Array) -> list[bytes]:
    """Returns what is stored of ids."""
    texts = ids.cast(pa.binary()).to_pylist()
    return [blake2b(text, digest_size=_SIZE).digest() for text in texts]


@dataclass(slots=True)
class _Share:
    """The marks of one partition: those of each transaction, and the number of the last one."""

    number: int = 0
    count: int = 0
    marks: deque[tuple[int, Sequence[bytes]]] = field(default_factory=deque)

    def add(self, number: int, hashes: Sequence[bytes]) -> None:
        self.number = number
        self.count += len(hashes)
        self.marks.append((number, hashes))

    def drop_old(self) -> Iterable[tuple[int, Sequence[bytes]]]:
        """Yields what is older than the messages that have to be remembered."""
        while self.marks and self.count - len(self.marks[0][1]) >= REMEMBERED:
            oldest = self.marks.popleft()
            self.count -= len(oldest[1])
            yield oldest


class Marks:
    """The ids of what one vertex has written, stored with the rows themselves.

    Each transaction that writes messages also stores hashes of their ids, as one row of a small
    table. A message that is delivered again, because its chunk is replayed after a crash or because
    the answer to its commit was lost, is known and not written twice. A replay may cut its chunk
    differently, and a call may get a part of it: ids hold for all of that.

    The rows of the table are numbered, for each partition. A process that was replaced and still
    writes meets the number of its successor, or its successor meets its: the second one waits for
    the first, reads the marks again, and then knows what the first has written. The marks of the
    other partitions are read as they are added, for messages that a source delivers again to
    another partition. The last ``REMEMBERED`` messages of each partition are known at least; older
    marks are deleted.
    """

    def __init__(self, table: str, written_to: str) -> None:
        self._name = table
        self._table = identifier_of(escape_for_parameters(table))
        environment = os.environ.get
        vertex = environment("NUMAFLOW_VERTEX_NAME", "")
        pipeline = environment("NUMAFLOW_PIPELINE_NAME", "")
        self._writer = f"{pipeline}/{vertex}/{written_to}"
        self._lineage = environment(LINEAGE, "")
        self._partition: int | None = None
        self._shares: defaultdict[int, _Share] = defaultdict(_Share)
        self._known: set[bytes] = set()

    def open(self, connection: Connection) -> None:
        """Makes the table if it is missing; ``SetupError`` says what to do if that is refused."""
        table = identifier_of(self._name)
        make = sql.SQL(_MAKE).format(table)
        found = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),))
        if (found.fetchone() or (None,))[0] is not None:
            return
        try:
            connection.execute(make)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
            return  # another partition has made it meanwhile
        except psycopg.ProgrammingError as error:
            raise SetupError(
                f"The table {self._name} for the marks of the Postgres sink cannot be made: "
                f"{first_line(error)}.",
                f"Have it made with: {make.as_string(connection)}; or set exactlyOnce: false.",
            ) from None

    def read(self, connection: Connection, anew: bool = False) -> None:
        """Reads the marks that this process does not know; all of them for another partition."""
        partition = int(os.environ.get("NUMAFLOW_REPLICA") or 0)
        if partition != self._partition or anew:
            self._partition = partition
            self._shares.clear()
            self._known.clear()
            self._delete_abandoned(connection)
        reach = max([partition, *self._shares]) + _AHEAD
        new = sql.SQL(
            "SELECT m.partition, m.number, m.ids FROM generate_series(0, %s) AS p(partition) "
            "LEFT JOIN unnest(%s::integer[], %s::bigint[]) AS k(partition, number) "
            "USING (partition) CROSS JOIN LATERAL (SELECT * FROM {} AS m WHERE m.writer = %s "
            "AND m.lineage = %s AND m.partition = p.partition "
            "AND m.number > coalesce(k.number, 0)) AS m ORDER BY m.partition, m.number"
        ).format(self._table)
        known = {owner: share.number for owner, share in self._shares.items()}
        values = (reach, [*known], [*known.values()], self._writer, self._lineage)
        for owner, number, ids in connection.execute(new, values):
            self._remember(
                owner, number, [ids[at : at + _SIZE] for at in range(0, len(ids), _SIZE)]
            )

    def knows(self, hashed: bytes) -> bool:
        """Returns whether the message with this id is written."""
        return hashed in self._known

    def knows_none(self, hashes: set[bytes]) -> bool:
        """Returns whether none of these messages is written."""
        return self._known.isdisjoint(hashes)

    def claim(self, connection: Connection, hashes: Sequence[bytes]) -> None:
        """Stores marks, first of all in a transaction; raises ``Overtaken``."""
        self._forget(connection)
        # A successor may have written so much that it has deleted the number that follows ours.
        insert = sql.SQL(
            "INSERT INTO {0} (writer, lineage, partition, number, ids) SELECT %s, %s, %s, %s, %s "
            "WHERE NOT EXISTS (SELECT FROM {0} WHERE writer = %s AND lineage = %s "
            "AND partition = %s AND number > %s) ON CONFLICT DO NOTHING"
        ).format(self._table)
        number = self._own.number
        values = (*self._whose, number + 1, b"".join(hashes), *self._whose, number)
        if not connection.execute(insert, values).rowcount:
            raise Overtaken

    def correct(self, connection: Connection, hashes: Sequence[bytes]) -> None:
        """Replaces the marks that this transaction has stored by those of what it has written."""
        update = sql.SQL(
            "UPDATE {} SET ids = %s "
            "WHERE writer = %s AND lineage = %s AND partition = %s AND number = %s"
        ).format(self._table)
        connection.execute(update, (b"".join(hashes), *self._whose, self._own.number + 1))

    def committed(self, hashes: Sequence[bytes]) -> None:
        """Remembers the marks of a transaction that is committed."""
        assert self._partition is not None
        self._remember(self._partition, self._own.number + 1, hashes)

    @property
    def _whose(self) -> tuple[str, str, int | None]:
        return self._writer, self._lineage, self._partition

    @property
    def _own(self) -> _Share:
        assert self._partition is not None
        return self._shares[self._partition]

    def _remember(self, partition: int, number: int, hashes: Sequence[bytes]) -> None:
        share = self._shares[partition]
        share.add(number, hashes)
        self._known.update(hashes)
        if partition != self._partition:
            for _, old in share.drop_old():
                self._known.difference_update(old)

    def _forget(self, connection: Connection) -> None:
        """Deletes marks of messages that no replay can bring any more."""
        old = [*self._own.drop_old()]
        for _, hashes in old:
            self._known.difference_update(hashes)
        if old:
            delete = sql.SQL(
                "DELETE FROM {} "
                "WHERE writer = %s AND lineage = %s AND partition = %s AND number <= %s"
            ).format(self._table)
            connection.execute(delete, (*self._whose, old[-1][0]))

    def _delete_abandoned(self, connection: Connection) -> None:
        """Deletes marks of earlier lives of the pipeline, which are about other messages.

        Not at once: a pipeline of the same name may run elsewhere.
        """
        delete = sql.SQL(
            "DELETE FROM {} WHERE writer = %s AND lineage <> %s "
            "AND written_at < now() - interval '7 days'"
        ).format(self._table)
        connection.execute(delete, (self._writer, self._lineage))


# --- the sink -----------------------------------------------------------------------------------


class PostgresSink:
    """Writes messages to one table, on one connection for as long as its worker serves."""

    def __init__(self, settings: PostgresSinkSettings) -> None:
        self._settings = settings
        self._connection: Connection | None = None

    def open(self) -> None:
        """Connects and looks at the table; ``SetupError`` if it cannot be written as asked.

        ``Unavailable`` while the server is down.
        """
        settings = self._settings
        connection = settings.access.connect()
        try:
            self._target = Target(connection, settings)
            self._target.prepare(connection)
            self._rows = RowWriter(self._target)
            self._marks = Marks(settings.marks, settings.table) if settings.marks else None
            if self._marks is not None:
                self._marks.open(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._looked_at = time.monotonic()

    def close(self) -> None:
        """Ends the connection; nothing is in flight."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def __call__(self, messages: pa.RecordBatch) -> Mapping[int, Response] | None:
        """Writes all; returns an answer for each message that the database does not have."""
        try:
            if self._connection is None:  # after an error, when a retry strategy decides
                self.open()
            try:
                return self._write(self._opened(), messages)
            except Altered:
                self.close()
                self.open()
                return self._write(self._opened(), messages)
        except (psycopg.Error, SetupError, Unavailable, Altered) as error:
            self.close()
            why = self._settings.access.describe(error)
            return dict.fromkeys(range(messages.num_rows), Response.unavailable(what=why))

    def _opened(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _write(self, connection: Connection, messages: pa.RecordBatch) -> Answers:
        if time.monotonic() - self._looked_at > LOOK_AGAIN:
            self._look_again(connection)
        anew = False
        while True:
            if self._marks is not None:
                self._marks.read(connection, anew)
            answers: Answers = {}
            rows = self._read(messages, answers)
            try:
                return answers | self._commit(connection, rows)
            except Overtaken:
                anew = True

    def _read(self, messages: pa.RecordBatch, answers: Answers) -> list[Row]:
        """Returns the rows to write: not those that are written, nor those that cannot be."""
        rows: list[Row] = []
        hashes, known = self._find_known(messages)
        for number, message in enumerate(self._rows.messages(messages)):
            if number in known:
                continue
            if isinstance(message, NotARow):
                answers[number] = Response.failure(error=str(message))
                continue
            try:
                shape, line = self._rows.write(message)
            except NotARow as error:
                answers[number] = Response.failure(error=str(error))
            else:
                rows.append(Row(number, hashes[number], shape, line))
        return rows

    def _find_known(self, messages: pa.RecordBatch) -> tuple[Sequence[bytes], Collection[int]]:
        """Returns what is marked of each message, and which are written or here a second time."""
        if self._marks is None:
            return [b""] * messages.num_rows, ()
        hashes = hash_ids(messages.column("id"))
        seen = set(hashes)
        if len(seen) == len(hashes) and self._marks.knows_none(seen):
            return hashes, ()
        first = {hashed: number for number, hashed in reversed([*enumerate(hashes)])}
        known = (n for n, each in enumerate(hashes) if first[each] < n or self._marks.knows(each))
        return hashes, set(known)

    def _commit(self, connection: Connection, rows: Sequence[Row]) -> Answers:
        """Writes the rows in one transaction, all at once or else without the bad ones."""
        if not rows:
            return {}
        try:
            with connection.transaction():
                self._claim(connection, rows)
                self._target.write(connection, rows)
        except psycopg.Error as error:
            if not is_about_the_row(error):
                raise
            self._look_again(connection)
            return self._commit_good(connection, rows)
        self._remember(rows)
        return {}

    def _look_again(self, connection: Connection) -> None:
        """Raises ``Altered`` if the table was altered since the sink has looked at it."""
        if self._target.is_altered(connection):
            raise Altered("the table is being altered")
        self._looked_at = time.monotonic()

    def _commit_good(self, connection: Connection, rows: Sequence[Row]) -> Answers:
        refused: Answers = {}
        with connection.transaction():
            self._claim(connection, ())
            # What is only checked at the end could not be told apart any more then.
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._write_in_halves(connection, rows, refused)
            written = [row for row in rows if row.number not in refused]
            if self._marks is not None:
                self._marks.correct(connection, [row.id_hash for row in written])
        self._remember(written)
        return refused

    def _write_in_halves(
        self, connection: Connection, rows: Sequence[Row], refused: Answers
    ) -> None:
        """Writes rows within a transaction; each that the database refuses is alone in the end."""
        try:
            with connection.transaction():
                self._target.write(connection, rows)
        except psycopg.Error as error:
            if not is_about_the_row(error):
                raise
            if len(rows) == 1:
                refused[rows[0].number] = Response.failure(error=describe_database_error(error))
                return
            half = len(rows) // 2
            self._write_in_halves(connection, rows[:half], refused)
            self._write_in_halves(connection, rows[half:], refused)

    def _claim(self, connection: Connection, rows: Sequence[Row]) -> None:
        if self._marks is not None:
            self._marks.claim(connection, [row.id_hash for row in rows])

    def _remember(self, rows: Sequence[Row]) -> None:
        if self._marks is not None:
            self._marks.committed([row.id_hash for row in rows])
