"""The Postgres sink writes every message once, and refuses bad ones alone, on a real server."""

from __future__ import annotations

import json
from contextlib import ExitStack

import psycopg
import pytest
import trustme

from ebbflow.connectors.postgres import rows
from ebbflow.connectors.postgres import sink as sinks
from ebbflow.connectors.postgres.postgres_client import PostgresAccess
from ebbflow.connectors.postgres.rows import PostgresSinkSettings
from ebbflow.connectors.postgres.sink import PostgresSink
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import Response
from ebbflow.domain.secrets import Secret
from ebbflow.engine import frames
from tests.ports import free_port

COLUMNS = "id integer PRIMARY KEY, name text, amount numeric CHECK (amount >= 0)"


@pytest.fixture
def open_sink(postgres, monkeypatch):
    monkeypatch.setenv("NUMAFLOW_PIPELINE_NAME", "shop")
    monkeypatch.setenv("NUMAFLOW_VERTEX_NAME", "out")
    with ExitStack() as stack:

        def open_sink(table, *, exactly_once=True, access=None, **options):
            marks = f"marks_of_{table}" if exactly_once else None
            access = access or PostgresAccess(postgres.url)
            sink = PostgresSink(PostgresSinkSettings(access, table, marks=marks, **options))
            sink.open()
            stack.callback(sink.close)
            return sink

        yield open_sink


def rows_of(*objects, first=0):
    values = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in objects]
    ids = [f"in-{number}" for number in range(first, first + len(values))]
    return frames.batch_of({"id": ids, "value": values}, len(values))


def orders(*numbers):
    return [{"id": n, "name": f"order {n}", "amount": n} for n in numbers]


def test_fields_become_columns_and_the_rest_is_left_to_the_table(postgres, open_sink):
    table = postgres.table(
        "id bigint PRIMARY KEY, note text, tags text[], doc jsonb, price numeric, paid boolean, "
        "at timestamptz, made text DEFAULT 'by the table', twice bigint GENERATED ALWAYS AS "
        "(id * 2) STORED"
    )
    full = {
        "id": 1, "note": "tab\tline\nback\\slash 'é'", "tags": ['a "b"', None, "c\\d"],
        "doc": {"x": [1, "\n"]}, "price": 19.99, "paid": True, "at": "2026-01-02T03:04:05Z",
        "unknown": 1, "twice": 7,
    }  # fmt: skip
    few = {"id": 2, "note": None, "made": "by the message", "doc": "text"}

    assert not open_sink(table)(rows_of(full, few, {"id": 3}))

    found = postgres.ask(f"SELECT note, tags, doc, price::text, paid, made, twice FROM {table}")
    assert sorted(found, key=lambda row: row[-1]) == [
        (full["note"], full["tags"], full["doc"], "19.99", True, "by the table", 2),
        (None, None, "text", None, None, "by the message", 4),
        (None, None, None, None, None, "by the table", 6),
    ]


@pytest.mark.guarantee("postgres-writes-once")
def test_messages_that_are_delivered_again_are_not_written_twice(postgres, open_sink, monkeypatch):
    table = postgres.table(COLUMNS)
    sink = open_sink(table)
    assert not sink(rows_of(*orders(0, 1, 2)))
    sink(rows_of(*orders(2, 3), first=2))  # cut otherwise, in the same process
    assert not open_sink(table)(rows_of(*orders(1, 2, 3, 4), first=1))  # after a crash
    monkeypatch.setenv("NUMAFLOW_REPLICA", "1")  # and by another partition
    assert not open_sink(table)(rows_of(*orders(4, 5), first=4))
    both = frames.concat([rows_of(*orders(6), first=6)] * 2)
    assert not open_sink(table)(both)  # or twice in one call

    assert postgres.ask(f"SELECT id FROM {table} ORDER BY id") == [(n,) for n in range(7)]


@pytest.mark.guarantee("postgres-writes-once")
def test_a_process_that_was_replaced_learns_what_its_successor_has_written(postgres, open_sink):
    table = postgres.table("id integer")
    replaced = open_sink(table)
    replaced(rows_of({"id": 0}))
    open_sink(table)(rows_of({"id": 1}, {"id": 2}, first=1))

    assert not replaced(rows_of({"id": 1}, {"id": 2}, {"id": 3}, first=1))

    assert postgres.ask(f"SELECT id FROM {table} ORDER BY id") == [(0,), (1,), (2,), (3,)]


@pytest.mark.guarantee("postgres-writes-once")
def test_a_process_that_slept_while_its_successor_forgot_old_marks_does_not_write(
    postgres, open_sink, monkeypatch
):
    monkeypatch.setattr(sinks, "REMEMBERED", 2)
    table = postgres.table("id integer")
    asleep = open_sink(table)
    asleep(rows_of({"id": 0}))
    successor = open_sink(table)
    for n in range(1, 9):
        successor(rows_of({"id": n}, first=n))
    # It has read the marks before its successor wrote, and wakes up when it is about to commit.
    monkeypatch.setattr(asleep._marks, "read", once_skipped(asleep._marks.read))

    assert not asleep(rows_of({"id": 7}, {"id": 8}, first=7))

    assert postgres.ask(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(9, 9)]


def once_skipped(method):
    calls = []

    def call(*arguments):
        calls.append(arguments)
        return method(*arguments) if len(calls) > 1 else None

    return call


@pytest.mark.guarantee("postgres-writes-once")
def test_partitions_learn_what_others_write_while_they_run(postgres, open_sink, monkeypatch):
    table = postgres.table("id integer")
    first = open_sink(table)
    first(rows_of({"id": 0}))
    monkeypatch.setenv("NUMAFLOW_REPLICA", "3")
    open_sink(table)(rows_of({"id": 1}, first=1))
    monkeypatch.setenv("NUMAFLOW_REPLICA", "0")

    assert not first(rows_of({"id": 1}, {"id": 2}, first=1))

    assert postgres.ask(f"SELECT id FROM {table} ORDER BY id") == [(0,), (1,), (2,)]


@pytest.mark.guarantee("postgres-writes-once")
def test_what_is_refused_is_not_marked_and_may_be_written_later(postgres, open_sink):
    table = postgres.table(COLUMNS)
    sink = open_sink(table)
    batch = rows_of(*orders(1), {"id": 2, "amount": -1})
    assert list(sink(batch)) == [1]
    assert list(open_sink(table)(batch)) == [1]

    postgres.ask(f"ALTER TABLE {table} DROP CONSTRAINT {table}_amount_check")
    assert not open_sink(table)(batch)
    assert postgres.ask(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,)]


def test_without_marks_a_copy_meets_the_primary_key(postgres, open_sink):
    table = postgres.table(COLUMNS)
    sink = open_sink(table, exactly_once=False)
    sink(rows_of(*orders(1)))

    assert sink(rows_of(*orders(1))) == {
        0: Response.failure(
            error=f'duplicate key value violates unique constraint "{table}_pkey": '
            "Key (id)=(1) already exists"
        )
    }


def test_old_marks_are_deleted(postgres, open_sink, monkeypatch):
    monkeypatch.setattr(sinks, "REMEMBERED", 4)
    table = postgres.table("id integer")
    sink = open_sink(table)
    for n in range(10):
        sink(rows_of({"id": n}, first=n))

    numbers = postgres.ask(f"SELECT number FROM marks_of_{table} ORDER BY number")
    assert numbers == [(n,) for n in range(6, 11)]
    assert not open_sink(table)(rows_of({"id": 9}, first=9))
    assert postgres.ask(f"SELECT count(*) FROM {table}") == [(10,)]


@pytest.mark.parametrize("mode", ["fail", "update"])
def test_each_bad_row_fails_alone_with_the_reason_of_the_database(postgres, open_sink, mode):
    postgres.ask("CREATE TABLE IF NOT EXISTS known (id integer PRIMARY KEY)")
    deferred = "parent integer REFERENCES known DEFERRABLE INITIALLY DEFERRED"
    table = postgres.table(f"{COLUMNS}, {deferred}")
    batch = orders(*range(100))
    batch[7]["amount"] = -1
    batch[20] = b"[1]"
    batch[21] = b"{"
    batch[33]["amount"] = "much"
    batch[50]["name"] = "nul \0"
    batch[60]["name"] = "half \ud800"
    batch[70]["parent"] = 5
    batch[99]["id"] = None

    answers = open_sink(table, on_conflict=mode)(rows_of(*batch))

    reasons = {row: answer.error for row, answer in answers.items()}
    assert sorted(reasons) == [7, 20, 21, 33, 50, 60, 70, 99]
    assert reasons[7].startswith(
        f'new row for relation "{table}" violates check constraint "{table}_amount_check"'
    )
    assert reasons[20] == "the value is not a JSON object"
    assert reasons[21].startswith("the value is not JSON: ")
    assert reasons[33] == 'column amount: invalid input syntax for type numeric: "much"'
    assert 'invalid byte sequence for encoding "UTF8": 0x00' in reasons[50]
    assert 'invalid byte sequence for encoding "UTF8"' in reasons[60]
    assert 'Key (parent)=(5) is not present in table "known"' in reasons[70]
    assert reasons[99].startswith('null value in column "id"')
    assert postgres.ask(f"SELECT count(*) FROM {table}") == [(92,)]


def test_conflicts_are_updated_or_ignored_in_order(postgres, open_sink):
    table = postgres.table("a integer, b integer, x text, y text, UNIQUE (a, b)")
    postgres.ask(f"INSERT INTO {table} VALUES (1, 1, 'old', 'kept')")
    new = {"a": 1, "b": 1, "x": "new"}
    twice = [{"a": 2, "b": 2, "x": "first"}, {"a": 2, "b": 2, "x": "last"}]
    nulls = [{"a": 3, "b": None, "x": "n"}, {"a": 3, "b": None, "x": "n"}]
    keys = ("a", "b")

    update = open_sink(table, on_conflict="update", conflict_columns=keys)
    assert not update(rows_of(new, *twice, *nulls, {"a": 2, "b": 2, "y": "why"}))
    ignore = open_sink(table, on_conflict="ignore", conflict_columns=keys)
    assert not ignore(rows_of({"a": 1, "b": 1, "x": "late"}, {"a": 4, "b": 4}, first=50))

    assert postgres.ask(f"SELECT a, x, y FROM {table} ORDER BY a, x") == [
        (1, "new", "kept"), (2, "last", "why"), (3, "n", None), (3, "n", None), (4, None, None),
    ]  # fmt: skip


def test_numbers_keep_all_their_digits(postgres, open_sink):
    table = postgres.table("id integer, amount numeric, few numeric[]")
    value = b'{"id": 1, "amount": 12345678901234567.890123456789, "few": [0.10000000000000000001]}'

    assert not open_sink(table)(rows_of(value))

    assert postgres.ask(f"SELECT amount::text, few::text FROM {table}") == [
        ("12345678901234567.890123456789", "{0.10000000000000000001}")
    ]


def test_numbers_in_documents_keep_all_their_digits(postgres, open_sink):
    table = postgres.table("doc jsonb, docs jsonb[], note text")
    document = '{"a": [0.10000000000000000001, null, true], "é\\"": {"b": "\\t"}}'
    value = f'{{"doc": {document}, "docs": [{document}], "note": {document}}}'

    assert not open_sink(table)(rows_of(value.encode()))

    found = postgres.ask(f"SELECT doc::text, docs[1]::text, note::jsonb::text FROM {table}")
    assert found == [(document, document, document)]


def test_values_that_are_broken_do_not_pass_for_whole_ones_together(postgres, open_sink):
    table = postgres.table("id integer, note jsonb")
    halves = [b'{"id": 1, "note": [1', b"2]}", b'{"id": 3}, "x", {"id": 4}', b'{"id": 5}']

    answers = open_sink(table)(rows_of(*halves))

    assert sorted(answers) == [0, 1, 2]
    assert postgres.ask(f"SELECT id, note FROM {table}") == [(5, None)]


def test_rows_of_many_shapes_are_updated_in_few_statements(postgres, open_sink, monkeypatch):
    table = postgres.table("id integer PRIMARY KEY, x text, y text")
    sink = open_sink(table, on_conflict="update")
    copies = []
    copy = rows._copy
    monkeypatch.setattr(rows, "_copy", lambda *call: copies.append(call) or copy(*call))
    mixed = [{"id": n, "xy"[n % 2]: str(n)} for n in range(1_000)]

    assert not sink(rows_of(*mixed))

    assert len(copies) == 1
    assert postgres.ask(f"SELECT count(x), count(y) FROM {table}") == [(500, 500)]


@pytest.mark.parametrize("mode", ["fail", "ignore", "update"])
def test_names_of_columns_may_have_any_sign(postgres, open_sink, mode):
    names = ("a %s", "b%%", '{c} "', "d%(e)s")
    columns = ", ".join(f"{psycopg.sql.Identifier(name).as_string()} int" for name in names)
    table = f"orders %s {mode}"
    postgres.ask(f'CREATE TABLE "{table}" ({columns}, PRIMARY KEY ("a %s"))')
    row = dict.fromkeys(names, 1)

    assert not open_sink(table, on_conflict=mode)(rows_of(row, {"a %s": 2}))

    assert postgres.ask(f'SELECT * FROM "{table}" ORDER BY 1') == [
        (1, 1, 1, 1),
        (2, None, None, None),
    ]


@pytest.mark.parametrize("mode", ["fail", "update"])
def test_a_table_that_was_altered_is_looked_at_again(postgres, open_sink, monkeypatch, mode):
    table = postgres.table("id integer PRIMARY KEY, x varchar(3)")
    sink = open_sink(table, on_conflict=mode)
    assert not sink(rows_of({"id": 0, "x": "abc"}))

    postgres.ask(f"ALTER TABLE {table} ALTER COLUMN x TYPE varchar(9)")
    assert not sink(rows_of({"id": 1, "x": "abcdef"}, first=1))
    postgres.ask(f"ALTER TABLE {table} ADD COLUMN y integer NOT NULL DEFAULT 0")
    postgres.ask(f"ALTER TABLE {table} ALTER COLUMN y DROP DEFAULT")
    answers = sink(rows_of({"id": 2, "y": 2}, {"id": 3}, first=2))
    assert [(row, answer.status.name) for row, answer in answers.items()] == [(1, "FAILURE")]
    postgres.ask(f"ALTER TABLE {table} ADD COLUMN z integer")
    monkeypatch.setattr(sinks, "LOOK_AGAIN", 0)  # it refuses no row, so it is seen a bit later
    assert not sink(rows_of({"id": 4, "y": 4, "z": 4}, first=4))

    found = postgres.ask(f"SELECT * FROM {table} ORDER BY id")
    assert found == [
        (0, "abc", 0, None),
        (1, "abcdef", 0, None),
        (2, None, 2, None),
        (4, None, 4, 4),
    ]


def test_what_does_not_fit_the_table_is_said_when_the_sink_opens(postgres, open_sink):
    table = postgres.table("id integer NOT NULL, n integer GENERATED ALWAYS AS IDENTITY, x text")
    keyed = postgres.table("n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x text")
    late = postgres.table("id integer PRIMARY KEY DEFERRABLE")
    postgres.ask(f"CREATE VIEW view_of_{table} AS SELECT id FROM {table}")
    cases = {
        "Postgres has no table nowhere that this login can see.": {"table": "nowhere"},
        f"The table {table} has no column y.": {"columns": (("y", "y"),)},
        f"Postgres itself makes the values of the column n of {table}.": {"columns": (("n", "n"),)},
        f"The column id of {table} needs a value, and columns does not name it.": {
            "columns": (("x", "x"),)
        },
        f"The table {table} has no primary key to find conflicts by.": {"on_conflict": "update"},
        f"There is no unique index on x of {table}.": {
            "on_conflict": "ignore", "conflict_columns": ("x",),
        },
        f"There is no unique index on id of {late}.": {"table": late, "on_conflict": "update"},
        f"The column id of {table} is of the type integer, which cannot hold $id.": {
            "columns": (("id", "$id"),)
        },
        f"No message has the column n of {keyed}, so none can conflict by it.": {
            "table": keyed, "on_conflict": "update",
        },
        f"view_of_{table} is a view, and Postgres copies no rows into it.": {
            "table": f"view_of_{table}"
        },
    }  # fmt: skip
    for text, options in cases.items():
        with pytest.raises(SetupError) as raised:
            open_sink(**{"table": table} | options)
        assert raised.value.what == text


def test_a_view_with_a_trigger_is_written(postgres, open_sink):
    table = postgres.table("id integer")
    postgres.ask(f"CREATE VIEW view_of_{table} AS SELECT id FROM {table}")
    postgres.ask(
        f"CREATE FUNCTION write_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ "
        f"BEGIN INSERT INTO {table} VALUES (NEW.id); RETURN NEW; END $$"
    )
    postgres.ask(
        f"CREATE TRIGGER writes INSTEAD OF INSERT ON view_of_{table} "
        f"FOR EACH ROW EXECUTE FUNCTION write_{table}()"
    )
    assert not open_sink(f"view_of_{table}")(rows_of({"id": 1}, {"id": 2}))
    assert postgres.ask(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,)]


def test_an_outage_penalises_no_message_and_the_next_call_continues(postgres, open_sink):
    table = postgres.table(COLUMNS)
    sink = open_sink(table)
    batch = rows_of(*orders(1, 2))
    postgres.stop("immediate")
    try:
        answers = sink(batch)
    finally:
        postgres.start()
    assert {answer.status.name for answer in answers.values()} == {"UNAVAILABLE"}
    assert list(answers) == [0, 1]

    postgres.ask(f"ALTER TABLE {table} RENAME TO {table}_gone")
    gone = sink(batch)
    assert "has no table" in gone[0].error
    assert gone[0].status.name == "UNAVAILABLE"
    postgres.ask(f"ALTER TABLE {table}_gone RENAME TO {table}")
    assert not sink(batch)


@pytest.mark.guarantee("postgres-writes-once")
def test_a_commit_whose_answer_is_lost_is_not_repeated(postgres, open_sink, monkeypatch):
    table = postgres.table("id integer")
    sink = open_sink(table)
    batch = rows_of({"id": 1}, {"id": 2})

    def lose(hashes):
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(sink._marks, "committed", lose)
    assert len(sink(batch)) == 2

    assert not sink(batch)
    assert postgres.ask(f"SELECT count(*) FROM {table}") == [(2,)]


# --- logging in ---------------------------------------------------------------------------------


def test_the_server_is_known_by_its_certificate(postgres, open_sink, tmp_path):
    table = postgres.table("id integer")
    postgres.authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    url = f"{postgres.url}?sslmode=verify-full&sslrootcert={tmp_path}"

    assert not open_sink(table, access=PostgresAccess(f"{url}/ca.pem"))(rows_of({"id": 1}))

    with pytest.raises(SetupError, match="certificate verify failed"):
        open_sink(table, access=PostgresAccess(f"{url}/other.pem"))


def test_a_password_is_a_secret_in_every_text(postgres, open_sink):
    table = postgres.table("id integer")
    postgres.ask("DROP ROLE IF EXISTS guarded")
    postgres.ask("CREATE ROLE guarded LOGIN PASSWORD 'sesame'")
    url = postgres.url.replace("shop@", "guarded@")
    postgres.ask(f"GRANT INSERT ON {table} TO guarded")
    access = PostgresAccess(url, Secret("sesame"))
    assert "sesame" not in repr(access)
    assert not open_sink(table, exactly_once=False, access=access)(rows_of({"id": 1}))

    with pytest.raises(SetupError) as refused:
        open_sink(table, access=PostgresAccess(url, Secret("open sesame")))
    assert 'password authentication failed for user "guarded"' in str(refused.value)
    assert "sesame" not in str(refused.value)

    with pytest.raises(SetupError) as forbidden:
        open_sink(table, access=access)
    assert forbidden.value.what == (
        f"The table marks_of_{table} for the marks of the Postgres sink cannot be made: "
        "permission denied for schema public."
    )
    assert "CREATE TABLE IF NOT EXISTS" in forbidden.value.next_step


def test_a_server_that_is_down_is_not_a_mistake(postgres):
    nobody = PostgresAccess(f"postgresql://shop@127.0.0.1:{free_port()}/postgres")
    with pytest.raises(Unavailable, match=r"Postgres at 127\.0\.0\.1:\d+/postgres: .*refused"):
        nobody.connect()


def test_a_url_that_libpq_does_not_take_is_a_mistake():
    with pytest.raises(SetupError, match='invalid URI query parameter: "sslmod"'):
        PostgresAccess("postgresql://h/db?sslmod=require").check()
