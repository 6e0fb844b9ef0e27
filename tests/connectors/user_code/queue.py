"""A queue in a SQLite file, as a user's source: it returns what is due and not acknowledged.

The file outlives every process, so a test can see which acks and nacks the source received.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from ebbflow import NackOffset, Source, SourceMessage

_SCHEMA = """
create table messages (
    id integer primary key, value blob, due real default 0, state text default 'ready',
    delivered integer default 0
);
create index by_state on messages(state, due);
create table reported (id integer, what text, delay integer, max_deliveries integer, reason text,
    at real);
"""


class QueueFile:
    """The file, as the test sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self.connect()) as db, db:
            db.execute("pragma journal_mode = wal")
            db.executescript(_SCHEMA)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=120)

    def fill(self, values):
        with closing(self.connect()) as db, db:
            db.executemany("insert into messages(value) values (?)", [(v,) for v in values])

    def ask(self, query, *values):
        with closing(self.connect()) as db:
            return db.execute(query, values).fetchall()


class Queue(Source):
    """Delivers each message until it is acknowledged; those of a dead process are redelivered."""

    path = ""
    ends = True

    def open(self) -> None:
        self._db = sqlite3.connect(self.path, timeout=120, isolation_level=None)
        self._db.execute("update messages set state = 'ready' where state = 'delivered'")

    def read(self, limit, timeout):
        deadline = time.monotonic() + timeout.total_seconds()
        while not (found := self._due(limit)):
            if time.monotonic() > deadline:
                return []
            time.sleep(0.005)
        numbers = ",".join(str(row[0]) for row in found)
        self._db.execute(
            "update messages set state = 'delivered', delivered = delivered + 1"
            f" where id in ({numbers})"
        )
        now = datetime.now(UTC)
        return [
            SourceMessage(value, b"%d" % number, now, keys=[f"k{number % 3}"], headers={"a": "b"})
            for number, value in found
        ]

    def _due(self, limit):
        query = "select id, value from messages where state = 'ready' and due <= ? limit ?"
        return self._db.execute(query, (time.time(), limit)).fetchall()

    def ack(self, offsets):
        self._report([(int(one), "ack", None, None, None) for one in offsets])
        numbers = ",".join(one.decode() for one in offsets)
        self._db.execute(f"update messages set state = 'done' where id in ({numbers})")

    def _report(self, rows):
        now = time.time()
        self._db.execute("begin")
        self._db.executemany("insert into reported values (?,?,?,?,?,?)", [(*r, now) for r in rows])
        self._db.execute("commit")

    def pending(self):
        return self._db.execute("select count(*) from messages where state = 'ready'").fetchone()[0]

    def close(self) -> None:
        self._db.close()

    @property
    def exhausted(self) -> bool:
        left = self._db.execute("select count(*) from messages where state != 'done'").fetchone()
        return self.ends and left[0] == 0


class RedeliveringQueue(Queue):
    """Takes nacked messages back."""

    def nack(self, nacks: list[NackOffset]) -> None:
        self._report(
            [
                (int(n.offset), "nack", n.options.delay, n.options.max_deliveries, n.options.reason)
                for n in nacks
            ]
        )
        due = [(time.time() + (n.options.delay or 0) / 1000, int(n.offset)) for n in nacks]
        self._db.execute("begin")
        self._db.executemany("update messages set state = 'ready', due = ? where id = ?", due)
        self._db.execute("commit")
