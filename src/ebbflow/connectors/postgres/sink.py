"""The Postgres sink: each message is a row, written once; a call is one transaction.

COPY writes the rows (``rows``). The same transaction stores ``Marks`` of the messages, so that a
message that is delivered again is recognised. If the database refuses rows, the call is repeated in
halves until each bad row is alone: a bad row fails with the database's reason, and all other rows
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
"""The marks of at least this many last messages of a partition are kept."""

_SIZE = 16
_MAKE = (
    "CREATE TABLE IF NOT EXISTS {} (writer text, lineage text, partition integer, number bigint, "
    "ids bytea NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (writer, lineage, partition, number))"
)
# Partitions are numbered from 0 without gaps, so reading a few further finds those that were added.
_AHEAD = 16

LOOK_AGAIN = 1.0
"""How many seconds a column that is added stays unknown, as long as no row is refused."""


# --- marks --------------------------------------------------------------------------------------


class Altered(Exception):
    """The table is another one than its rows were made for."""


class Overtaken(Exception):
    """Another process has written for this partition since its marks were read."""


def hash_ids(ids: pa.Array) -> list[bytes]:
    """Returns the hashes to store for ids."""
    texts = ids.cast(pa.binary()).to_pylist()
    return [blake2b(text, digest_size=_SIZE).digest() for text in texts]


@dataclass(slots=True)
class _PartitionMarks:
    """The marks of one partition by transaction, and the number of the last transaction."""

    number: int = 0
    count: int = 0
    marks: deque[tuple[int, Sequence[bytes]]] = field(default_factory=deque)

    def add(self, number: int, hashes: Sequence[bytes]) -> None:
        self.number = number
        self.count += len(hashes)
        self.marks.append((number, hashes))

    def drop_old(self) -> Iterable[tuple[int, Sequence[bytes]]]:
        """Removes and yields marks older than the messages to remember."""
        while self.marks and self.count - len(self.marks[0][1]) >= REMEMBERED:
            oldest = self.marks.popleft()
            self.count -= len(oldest[1])
            yield oldest


class Marks:
    """The ids of the messages that one vertex has written, stored in the same database.

    Each transaction that writes messages also stores hashes of their ids, as one row of a small
    table. A message that is delivered again, because its chunk is replayed after a crash or because
    the reply to its commit was lost, is recognised and not written twice. This holds even if a
    replay splits its chunk differently or a call gets a part of it.

    The rows of the table are numbered per partition. If a replaced process still writes, it and its
    successor insert the same number: the second waits for the first, reads the marks again, and
    then knows what the first has written. New marks of other partitions are read, too, because a
    source may redeliver a message to another partition. At least the last ``REMEMBERED`` messages
    of each partition are known; older marks are deleted.
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
        self._by_partition: defaultdict[int, _PartitionMarks] = defaultdict(_PartitionMarks)
        self._known: set[bytes] = set()

    def open(self, connection: Connection) -> None:
        """Creates the table if it is missing; ``SetupError`` says what to do if that is refused."""
        table = identifier_of(self._name)
        make = sql.SQL(_MAKE).format(table)
        found = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),))
        if (found.fetchone() or (None,))[0] is not None:
            return
        try:
            connection.execute(make)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
            return  # another partition has created it meanwhile
        except psycopg.ProgrammingError as error:
            raise SetupError(
                f"The table {self._name} for the marks of the Postgres sink cannot be made: "
                f"{first_line(error)}.",
                f"Have it made with: {make.as_string(connection)}; or set exactlyOnce: false.",
            ) from None

    def read(self, connection: Connection, again: bool = False) -> None:
        """Reads marks that this process does not know yet; all of them if its partition changed."""
        partition = int(os.environ.get("NUMAFLOW_REPLICA") or 0)
        if partition != self._partition or again:
            self._partition = partition
            self._by_partition.clear()
            self._known.clear()
            self._delete_abandoned(connection)
        reach = max([partition, *self._by_partition]) + _AHEAD
        new = sql.SQL(
            "SELECT m.partition, m.number, m.ids FROM generate_series(0, %s) AS p(partition) "
            "LEFT JOIN unnest(%s::integer[], %s::bigint[]) AS k(partition, number) "
            "USING (partition) CROSS JOIN LATERAL (SELECT * FROM {} AS m WHERE m.writer = %s "
            "AND m.lineage = %s AND m.partition = p.partition "
            "AND m.number > coalesce(k.number, 0)) AS m ORDER BY m.partition, m.number"
        ).format(self._table)
        known = {owner: marks.number for owner, marks in self._by_partition.items()}
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
        """Stores marks as the first step of a transaction; may raise ``Overtaken``."""
        self._forget(connection)
        # A successor may have written so much that it has deleted the row with our next number.
        insert = sql.SQL(
            "INSERT INTO {0} (writer, lineage, partition, number, ids) SELECT %s, %s, %s, %s, %s "
            "WHERE NOT EXISTS (SELECT FROM {0} WHERE writer = %s AND lineage = %s "
            "AND partition = %s AND number > %s) ON CONFLICT DO NOTHING"
        ).format(self._table)
        number = self._own.number
        values = (*self._key, number + 1, b"".join(hashes), *self._key, number)
        if not connection.execute(insert, values).rowcount:
            raise Overtaken

    def correct(self, connection: Connection, hashes: Sequence[bytes]) -> None:
        """Replaces the marks of this transaction by those of the rows that it has written."""
        update = sql.SQL(
            "UPDATE {} SET ids = %s "
            "WHERE writer = %s AND lineage = %s AND partition = %s AND number = %s"
        ).format(self._table)
        connection.execute(update, (b"".join(hashes), *self._key, self._own.number + 1))

    def committed(self, hashes: Sequence[bytes]) -> None:
        """Remembers the marks of a committed transaction."""
        assert self._partition is not None
        self._remember(self._partition, self._own.number + 1, hashes)

    @property
    def _key(self) -> tuple[str, str, int | None]:
        return self._writer, self._lineage, self._partition

    @property
    def _own(self) -> _PartitionMarks:
        assert self._partition is not None
        return self._by_partition[self._partition]

    def _remember(self, partition: int, number: int, hashes: Sequence[bytes]) -> None:
        marks = self._by_partition[partition]
        marks.add(number, hashes)
        self._known.update(hashes)
        if partition != self._partition:
            for _, old in marks.drop_old():
                self._known.difference_update(old)

    def _forget(self, connection: Connection) -> None:
        """Deletes marks of messages that no replay can contain any more."""
        old = [*self._own.drop_old()]
        for _, hashes in old:
            self._known.difference_update(hashes)
        if old:
            delete = sql.SQL(
                "DELETE FROM {} "
                "WHERE writer = %s AND lineage = %s AND partition = %s AND number <= %s"
            ).format(self._table)
            connection.execute(delete, (*self._key, old[-1][0]))

    def _delete_abandoned(self, connection: Connection) -> None:
        """Deletes marks of earlier lineages of the pipeline, whose messages are different ones.

        Only after a week: a pipeline of the same name may run elsewhere.
        """
        delete = sql.SQL(
            "DELETE FROM {} WHERE writer = %s AND lineage <> %s "
            "AND written_at < now() - interval '7 days'"
        ).format(self._table)
        connection.execute(delete, (self._writer, self._lineage))


# --- the sink -----------------------------------------------------------------------------------


class PostgresSink:
    """Writes messages to one table, on one connection per worker."""

    def __init__(self, settings: PostgresSinkSettings) -> None:
        self._settings = settings
        self._connection: Connection | None = None

    def open(self) -> None:
        """Connects and checks the table; ``SetupError`` if it cannot be written as configured.

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
        """Closes the connection; nothing is in flight."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def __call__(self, messages: pa.RecordBatch) -> Mapping[int, Response] | None:
        """Writes all messages; returns a response for each that is not written."""
        try:
            if self._connection is None:  # a retry after an error that closed the connection
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
        again = False
        while True:
            if self._marks is not None:
                self._marks.read(connection, again)
            answers: Answers = {}
            rows = self._read(messages, answers)
            try:
                return answers | self._commit(connection, rows)
            except Overtaken:
                again = True

    def _read(self, messages: pa.RecordBatch, answers: Answers) -> list[Row]:
        """Returns the rows to write, without known messages and those that cannot be rows."""
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
        """Returns the hash of each message, and which messages are written or duplicates."""
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
        """Writes the rows in one transaction, all at once, or else without the bad ones."""
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
            # A deferred check would fail at commit, without telling which row is bad.
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
        """Writes rows within a transaction, in halves until each refused row is alone."""
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
