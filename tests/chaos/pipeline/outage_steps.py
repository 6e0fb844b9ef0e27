"""User code that needs a system, as in the guides, with no handling of outages."""

import json
import os
import time
import urllib.request

import psycopg

from ebbflow import Response, Source, SourceMessage


def number_of(datum):
    return json.loads(datum.value)["value"]


class Table:
    """Writes to a table."""

    def open(self):
        self.connection = psycopg.connect(os.environ["DATABASE"])

    def close(self):
        self.connection.close()

    def __call__(self, data):
        rows = [(number_of(datum),) for datum in data]
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany("insert into stored values (%s)", rows)
        return [Response.ok(datum.id) for datum in data]


def post(data):
    """Posts to an API."""
    body = json.dumps([number_of(datum) for datum in data]).encode()
    urllib.request.urlopen(os.environ["API"], body, timeout=5).close()
    return [Response.ok(datum.id) for datum in data]


class Jobs(Source):
    """Returns the rows of a table at a steady rate."""

    def open(self):
        self.connection = psycopg.connect(os.environ["DATABASE"], autocommit=True)
        self.last = -1
        self.due = time.monotonic()

    def close(self):
        self.connection.close()

    def read(self, limit, timeout):
        time.sleep(max(0.0, self.due - time.monotonic()))
        self.due = time.monotonic() + 0.1
        most = min(limit, int(os.environ["RATE"]) // 10)
        rows = self.connection.execute(
            "select number from jobs where not given and number > %s order by number limit %s",
            (self.last, most),
        ).fetchall()
        self.last = rows[-1][0] if rows else self.last
        return [SourceMessage(b'{"value": %d}' % number, b"%d" % number) for (number,) in rows]

    def ack(self, offsets):
        numbers = [int(offset) for offset in offsets]
        self.connection.execute("update jobs set given = true where number = any(%s)", (numbers,))
