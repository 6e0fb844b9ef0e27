"""Rows that do not fit their schema: dead letters with their text and the reason."""

from __future__ import annotations

import pytest

from ebbflow import Message, MonoVertex, Pipeline
from ebbflow.connectors import Spark
from ebbflow.connectors.plans import Format, SparkSourceSettings
from ebbflow.connectors.spark.rows import as_messages, open_source_table
from ebbflow.connectors.spark.vertex_session import clone_session, leaving_active
from ebbflow.deadletters import DeadLetters
from ebbflow.domain.errors import SetupError
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spark import versions

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

SCHEMA = "id STRING, total INT"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    return place


@pytest.fixture
def read(spark, folder):
    """The rows of files as messages: those that were read, and the reason for each other one."""

    def rows(format, *files, schema=SCHEMA, value="id", **options):
        for number, content in enumerate(files):
            (folder / str(number)).write_bytes(content.encode())
        options = tuple(options.items())
        table = Format(format, (("path", str(folder)), *options))
        settings = SparkSourceSettings(table, schema=schema, stream=False, value=value)
        with leaving_active(spark):
            messages = as_messages(
                open_source_table(clone_session(spark, {}), settings, "in"), settings, "in"
            )
            found = messages.collect()
        good = sorted(bytes(row.value or b"").decode() for row in found if not unread_of(row))
        return good, {
            bytes(row.value).decode(): row.unread.error for row in found if unread_of(row)
        }

    def unread_of(row):
        return row.unread if "unread" in row else None

    return rows


def json_in(folder, **fields):
    return {"format": "json", "options": {"path": str(folder)}, "schema": SCHEMA} | fields


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_unreadable_rows_become_dead_letters_with_their_text_and_the_reason(
    run, folder, store, journal, server_letters
):
    broken = {
        b'{"id":"b","total":"x"}': "total cannot be read as INT: x",
        b'{"id":"s","of":{"n":[1]}}': "of.n cannot be read as DATE: [1]",
        b"br\xf6ken": "it is not JSON: 'utf-8' codec can't decode byte 0xf6 in position 2: "
        "invalid start byte",
        b"broken": "it is not JSON: Expecting value: line 1 column 1 (char 0)",
        b'{"id":"t","tot': "it is not JSON: Unterminated string starting at: line 1 column 11 "
        "(char 10)",
        b"42": "it is not a JSON object",
    }
    good = [b'{"id":"a","total":1}', b'{"id":"c"}', b'{"id":"d","total":null}']
    (folder / "one.json").write_bytes(b"\n".join([*good[:2], *broken, good[2]]))
    source = json_in(folder, schema=f"{SCHEMA}, of STRUCT<n: DATE>", value="id", keys="id")
    counts = run(Pipeline("test").source("in", Spark(**source)).sink("out", store)).vertices["in"]

    assert (counts.read, counts.done, counts.dead_lettered) == (9, 3, 6)
    assert sorted(journal.read()) == ["a", "c", "d"]
    letters = server_letters("test")
    assert {letter.value: letter.error for letter in letters} == broken
    assert {(one.vertex, one.reason, one.unread, one.size) for one in letters} == {
        ("in", "unreadable row", True, None)
    }


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_user_code_never_receives_an_unreadable_row_and_its_replay_is_refused(
    run, folder, store, journal, tmp_path
):
    huge = "x" * 9_000_000
    (folder / "one.json").write_text(f'{{"id":"a"}}\n{huge}\n{{"id":"b"}}\n')

    def loud(datum):
        return Message(datum.value.upper())

    pipeline = MonoVertex("test").source(Spark(**json_in(folder, value="id"))).map(loud).sink(store)
    counts = run(pipeline).vertices["test"]

    assert (counts.read, counts.done, counts.dead_lettered) == (3, 2, 1)
    assert sorted(journal.read()) == ["A", "B"]
    with start_embedded(tmp_path / "state") as server, open_link(server) as link:
        letters = DeadLetters(link, "test")
        (one,) = letters.list()
        assert (one.letter.size, one.letter.metadata) == (9_000_000, {})
        (why,) = letters.replay([one]).stayed
        assert "correct the row, or the schema, and have the source read it again" in why
        assert letters.counts() == {"test": 1}


def test_csv_rows_that_do_not_match_the_schema_are_reported(read):
    text = 'id,total\na,1\nb,x\nc\nd,4,5\n"ö,1\ne,5\n'
    other = "it does not have the 2 columns of the schema"
    broken = {"b,x": "total cannot be read as INT: x", "c": other, "d,4,5": other, '"ö,1': other}
    assert read("csv", text, header="true") == (["a", "e"], broken)


def test_an_unused_column_can_make_its_row_unreadable(read):
    broken = {"a,x": "total cannot be read as INT: x"}
    assert read("csv", "a,x\n", value="'fixed'") == ([], broken)


def test_multi_line_records_and_unusual_column_names_are_reported_too(read):
    schema = "`a.b` STRING, `ö ``x` INT"
    text = 'one;1\n"two\nlines";x\n'
    good, broken = read("csv", text, schema=schema, value=None, sep=";", multiLine="true")
    assert good == ['{"a.b":"one","ö `x":1}']
    assert broken == {'"two\nlines";x': "ö `x cannot be read as INT: x"}


def test_an_unreadable_file_of_one_record_is_reported_unchanged(read):
    one, other = '{\n "id": "a",\n "total": 1}\n', '{"id": "b",\n "total": "x"}\n'
    broken = {other: "total cannot be read as INT: x"}
    assert read("json", one, other, multiLine="true") == (["a"], broken)


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_a_json_array_with_a_broken_row_yields_only_its_complete_rows(read):
    text = '[{"id":"a","total":1},{"id":"b","total":"x"},{"id":"c"},{"id":"d","total":2}]'
    good, broken = read("json", text)
    assert good == ["a", "d"]
    assert broken == {text: "Spark could not read all of it; null columns: total"}


def test_an_unreadable_xml_file_is_reported_up_to_a_limit(read):
    rows = [f"<row><id>{n}</id><total>{n if n else 'x'}</total></row>" for n in range(500)]
    text = f"<rows>{''.join(rows)}</rows>"
    good, broken = read("xml", text, rowTag="row")
    assert good == sorted(str(n) for n in range(1, 500))
    # Spark 4.0 still knows which row it was.
    shown = text[:4096] if versions.installed() >= (4, 1) else rows[0]
    assert broken == {shown: "Spark could not read all of it; null columns: total"}


def test_an_inferred_schema_has_no_column_for_unreadable_rows(read):
    text = '{"id":"a","total":1}\nbroken\n'
    good, broken = read("json", text, schema=None, value=None)
    assert good == ['{"id":"a","total":1}']
    assert list(broken) == ["broken"]


TWO = '{"id":"a","total":1}\n{"id":"b","total":"x"}\n'


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"mode": "permissive"}, ["a", "b"]),
        ({"mode": "DROPMALFORMED"}, ["a"]),
        ({"columnNameOfCorruptRecord": "bad", "schema": f"{SCHEMA}, bad STRING"}, ["a", "b"]),
        ({"schema": f"{SCHEMA}, _corrupt_record STRING"}, ["a", "b"]),
    ],
)
def test_the_users_own_settings_for_unreadable_rows_apply(read, fields, good):
    # All columns, because Spark finds nothing wrong with those that it does not read.
    value = "CASE WHEN to_json(struct(*)) IS NOT NULL THEN id END"
    assert read("json", TWO, value=value, **fields) == (good, {})


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        (
            {"mode": "FAILSLOW"},
            "in cannot read json: the mode 'FAILSLOW' is not one of PERMISSIVE, DROPMALFORMED, "
            "FAILFAST. Correct it, or leave it out",
        ),
        (
            {"columnNameOfCorruptRecord": "bad"},
            "in cannot read json: columnNameOfCorruptRecord is 'bad', which the schema does not "
            "have. Add `bad` STRING to the schema, or leave the option out",
        ),
        (
            {"schema": None},
            "in cannot read json: none of its rows can be read, so its columns "
            "are unknown. Write a schema.",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(read, fields, reported):
    with pytest.raises(SetupError) as refused:
        read("json", "broken\n", **fields)
    assert str(refused.value).startswith(reported)
