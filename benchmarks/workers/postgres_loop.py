"""Bare psycopg loops: COPY of JSON objects into a table, and a queue with SKIP LOCKED.

python -m benchmarks.workers.postgres_loop URL TABLE MESSAGES SIZE SEED copy|queue

``copy`` reads each object, copies its fields and commits every 8,192. ``queue`` locks 1,000 rows,
fetches them, deletes them and commits.
"""

from __future__ import annotations

import json
import sys
from itertools import islice

import psycopg

from benchmarks.work import objects

_MANY = 8_192
_TAKEN = "SELECT id, value FROM {} ORDER BY due_at NULLS FIRST LIMIT 1000 FOR UPDATE SKIP LOCKED"


def copy(url: str, table: str, messages: int, size: int, seed: int) -> None:
    """Writes all."""
    values = objects(messages, size, seed)
    with psycopg.connect(url) as connection:
        while batch := list(islice(values, _MANY)):
            with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} (id, name, amount) FROM STDIN".encode()) as rows,
            ):
                for value in batch:
                    one = json.loads(value)
                    rows.write_row((one["id"], one["name"], one["amount"]))


def take(url: str, table: str) -> None:
    """Takes rows until killed."""
    with psycopg.connect(url) as connection:
        while True:
            with connection.transaction():
                rows = connection.execute(_TAKEN.format(table).encode(), binary=True).fetchall()
                ids = [row[0] for row in rows]
                connection.execute(f"DELETE FROM {table} WHERE id = ANY(%s)".encode(), (ids,))


if __name__ == "__main__":
    url, table, messages, size, seed, job = sys.argv[1:]
    if job == "copy":
        copy(url, table, int(messages), int(size), int(seed))
        sys.stdin.read()  # until killed
    else:
        take(url, table)
