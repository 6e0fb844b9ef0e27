"""A Postgres table as a queue: leases, acks and nacks of rows, on a real server."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from ebbflow.connectors.postgres.postgres_client import PostgresAccess
from ebbflow.connectors.postgres.source import PostgresSource, PostgresSourceSettings
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset
from tests.waiting import until

COLUMNS = "id bigserial PRIMARY KEY, value bytea, due_at timestamptz, tries int, done timestamptz"


@pytest.fixture
def open_source(postgres):
    with ExitStack() as stack:

        def open_source(table, **options):
            access = PostgresAccess(postgres.url)
            source = PostgresSource(PostgresSourceSettings(access, table, **options))
            source.open()
            stack.callback(source.close)
            return source

        yield open_source


@pytest.fixture
def jobs(postgres):
    table = postgres.table(COLUMNS, "jobs")
    postgres.ask(f"INSERT INTO {table} (value) SELECT n::text::bytea FROM generate_series(1, 5) n")
    return table


def read(source, limit=100, timeout=0.0):
    return source.read(limit, timedelta(seconds=timeout)).to_pylist()


@pytest.mark.guarantee("postgres-queue-loses-no-row")
def test_no_two_processes_get_one_row(open_source, jobs):
    one, other = open_source(jobs, value="value"), open_source(jobs, value="value")
    first, second = read(one, 2), read(other)
    assert {row["value"] for row in first + second} == {b"1", b"2", b"3", b"4", b"5"}
    assert len(first) == 2
    assert read(one) == read(other) == []
    assert one.pending() == 3  # those that the other one has

    one.ack([row["offset"] for row in first])
    other.ack([row["offset"] for row in second])
    assert one.exhausted
    assert other.exhausted


def test_a_row_without_a_value_column_is_json_and_may_have_an_event_time(postgres, open_source):
    table = postgres.table("id int PRIMARY KEY, what text, at date, due_at timestamptz", "jobs")
    postgres.ask(f"INSERT INTO {table} VALUES (7, 'é', '2026-01-02')")
    source = open_source(table, event_time="at")
    (row,) = read(source)
    assert row["offset"] == b"7"
    assert row["value"].decode().startswith('{"id":7,"what":"é","at":"2026-01-02","due_at":')
    assert row["event_time"] == datetime(2026, 1, 2, tzinfo=UTC)


def test_settled_rows_may_stay_with_the_time_of_it(postgres, open_source, jobs):
    source = open_source(jobs, value="value", done="done")
    rows = read(source)
    source.ack([row["offset"] for row in rows[:4]])
    assert postgres.ask(f"SELECT count(*), count(done) FROM {jobs}") == [(5, 4)]
    assert not source.exhausted
    source.ack([rows[4]["offset"]])
    assert source.exhausted
    assert read(source) == []


@pytest.mark.guarantee("postgres-queue-loses-no-row")
def test_a_nack_sets_the_due_time_and_the_count(postgres, open_source, jobs):
    source = open_source(jobs, value="value", nacks="tries")
    rows = read(source)
    nacked = [(rows[0]["offset"], 0), (rows[1]["offset"], 3_600_000)]
    source.nack([NackOffset(offset, NackOptions(delay=delay)) for offset, delay in nacked])

    assert [row["offset"] for row in read(source)] == [rows[0]["offset"]]
    late = "SELECT due_at > now() + interval '59 minutes', tries FROM {} WHERE id = {}"
    assert postgres.ask(late.format(jobs, rows[1]["offset"].decode())) == [(True, 1)]


@pytest.mark.parametrize(
    ("type", "key"), [("char(26)", "01J8ZC"), ("bit(3)", "101"), ("varchar(9)", 'a,"b\\')]
)
def test_rows_are_found_by_keys_of_every_type(postgres, open_source, type, key):
    table = postgres.table(f"id {type} PRIMARY KEY, due_at timestamptz", "jobs")
    postgres.ask(f"INSERT INTO {table} VALUES ('{key}')")
    source = open_source(table)
    (row,) = read(source)
    source.nack([NackOffset(row["offset"], NackOptions(delay=0))])
    source.ack([row["offset"] for row in read(source)])
    assert source.exhausted


@pytest.mark.parametrize("type", ["date", "timestamptz", "timestamp"])
def test_times_that_python_does_not_know_are_no_event_times(postgres, open_source, type):
    table = postgres.table(f"id int PRIMARY KEY, at {type}, due_at timestamptz", "jobs")
    times = ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC", "9999-12-31", "0001-01-01"]
    values = ", ".join(f"({number}, '{time}')" for number, time in enumerate(times))
    postgres.ask(f"INSERT INTO {table} VALUES {values}")
    found = {row["offset"]: row["event_time"] for row in read(open_source(table, event_time="at"))}
    years = {int(key): time and time.year for key, time in found.items()}
    assert years == {0: None, 1: None, 2: None, 3: None, 4: 9999, 5: 1}


def test_names_of_columns_may_have_any_sign(postgres, open_source):
    names = ("a %s", "b%%", '{c} "', "d%(e)s")
    key, value, due, nacks = (psycopg.sql.Identifier(name).as_string() for name in names)
    columns = f"{key} int PRIMARY KEY, {value} text, {due} timestamptz, {nacks} int"
    table = "jobs %s"
    postgres.ask(f'CREATE TABLE "{table}" ({columns})')
    postgres.ask(f"INSERT INTO \"{table}\" VALUES (1, 'x')")
    source = open_source(table, key=names[0], value=names[1], due=names[2], nacks=names[3])
    source.nack([NackOffset(row["offset"], NackOptions(delay=0)) for row in read(source)])
    (row,) = read(source)
    assert row["value"] == b"x"
    source.ack([row["offset"]])
    assert source.exhausted


def test_a_table_that_was_altered_is_looked_at_again(postgres, open_source, jobs):
    source = open_source(jobs)
    (first,) = read(source, 1)
    postgres.ask(f"ALTER TABLE {jobs} ALTER COLUMN id TYPE text")
    with pytest.raises(Unavailable):
        source.ack([first["offset"]])
    source.ack([first["offset"]])
    assert postgres.ask(f"SELECT count(*) FROM {jobs}") == [(4,)]


@pytest.mark.guarantee("postgres-queue-loses-no-row")
def test_rows_in_flight_stay_leased_while_their_process_lives(postgres, open_source, jobs):
    source, other = open_source(jobs, lease=0.3), open_source(jobs)
    dues = f"SELECT min(due_at) FROM {jobs}"
    read(source)
    before = postgres.ask(dues)
    until(lambda: postgres.ask(dues) > before)
    assert read(other) == []


@pytest.mark.guarantee("postgres-queue-loses-no-row")
def test_rows_of_a_process_that_is_gone_are_free_when_their_lease_is_over(open_source, jobs):
    killed = open_source(jobs, lease=0.5)
    read(killed)
    killed._leases.stop()  # it does not renew leases any more
    assert len(read(open_source(jobs), timeout=20.0)) == 5


def test_a_source_that_is_closed_frees_its_rows_at_once(open_source, jobs):
    source = open_source(jobs)
    read(source)
    source.close()
    assert len(read(open_source(jobs))) == 5


def test_an_outage_is_one_and_the_next_read_connects_again(postgres, open_source, jobs):
    source = open_source(jobs)
    postgres.stop("immediate")
    try:
        with pytest.raises(Unavailable, match="Postgres at"):
            read(source)
    finally:
        postgres.start()
    assert len(read(source)) == 5


def test_what_does_not_make_a_queue_is_said_when_the_source_opens(postgres, open_source):
    table = postgres.table(
        "id int, other int UNIQUE NOT NULL, due_at timestamp, at timestamptz, note text UNIQUE, "
        "clock time"
    )
    parts = postgres.table("id int PRIMARY KEY, due_at timestamptz")
    postgres.ask(f"CREATE TABLE part_of_{parts} () INHERITS ({parts})")
    cases = {
        f"{parts} has partitions or is a view, and cannot be a queue.": {"table": parts},
        f"The table {table} has no primary key of one column.": {},
        f"The column id of {table} is not unique.": {"key": "id"},
        f"The table {table} has no column value.": {"key": "other", "value": "value"},
        f"The column due_at of {table} is of the type timestamp without time zone, and due needs "
        "timestamp with time zone.": {"key": "other"},
        f"The column note of {table} is of the type text, and nacks needs a number.": {
            "key": "other", "due": "at", "nacks": "note",
        },
        f"The column clock of {table} is of the type time without time zone, and eventTime needs a "
        "date or a time.": {"key": "other", "due": "at", "event_time": "clock"},
        f"The column note of {table} may be NULL, and a row needs a key.": {"key": "note"},
    }  # fmt: skip
    for text, options in cases.items():
        with pytest.raises(SetupError) as raised:
            open_source(**{"table": table} | options)
        assert raised.value.what == text
