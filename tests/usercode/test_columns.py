"""Columnar maps: what each column means, what is rejected, and that they equal maps of messages."""

from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Message, Nack, NackOptions, Unavailable
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.blame import POSTPONED
from ebbflow.engine.frames import SCHEMA
from ebbflow.engine.verdict import EMPTY, Failure, Verdict
from ebbflow.usercode.calling import Handler, call_map, run_columnar
from ebbflow.usercode.columns import COLUMNS, WATERMARK
from tests.engine.sample_rows import NOW, some, verdict_on

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def map_verdict(
    result: Any, *ids: str, size: int = 100, largest: int = 1_000, pandas: bool = False, **columns
) -> Verdict:
    """The verdict of a columnar map that returns this, or calls it with its input."""
    verdict = verdict_on(some(*ids or ("a", "b", "c"), **columns), largest=largest)
    target = result if callable(result) else lambda _batch: result
    run_columnar(Handler(target), verdict, size, pandas)
    return verdict


def rows_of(verdict: Verdict) -> list[dict[str, Any]]:
    return verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()


def ids_and_values(verdict: Verdict) -> list[tuple[str, bytes]]:
    return [(row["id"], row["value"]) for row in rows_of(verdict)]


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_a_columnar_map_receives_every_field_of_a_datum():
    seen: list[pa.RecordBatch] = []

    def target(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    map_verdict(target, *"abcde", size=2)
    assert [batch.num_rows for batch in seen] == [2, 2, 1]
    assert seen[0].schema.names == [*COLUMNS, WATERMARK]


@pytest.mark.parametrize(
    "result",
    [
        pa.record_batch({"value": [b"1", b"2", b"3"]}),
        table(value=[b"1", b"2", b"3"]),
        table(value=pa.array([b"1", b"2", b"3"], pa.large_binary())),
        table(value=["1", "2", "3"]),
        table(value=pa.chunked_array([[b"1"], [b"2", b"3"]])),
        pd.DataFrame({"value": [b"1", b"2", b"3"]}),
        table(value=[b"1", b"2", b"3"], id=["a", "b", "c"]),
        table(value=[b"1", b"2", b"3"], other=[1, 2, 3]),
    ],
    ids=["batch", "table", "large", "text", "chunks", "pandas", "with ids", "more columns"],
)
def test_a_row_for_every_input_is_forwarded_in_order(result):
    verdict = map_verdict(result)
    assert ids_and_values(verdict) == [("a/v", b"1"), ("b/v", b"2"), ("c/v", b"3")]
    assert verdict.outcomes == {}


def test_with_ids_an_input_may_have_any_number_of_rows_and_none_drops_it():
    verdict = map_verdict(table(id=["c", "a", "c", "c"], value=[b"1", b"2", b"3", b"4"]))
    assert ids_and_values(verdict) == [
        ("c/v", b"1"),
        ("a/v", b"2"),
        ("c/v.1", b"3"),
        ("c/v.2", b"4"),
    ]
    assert verdict.outcomes == {1: EMPTY}


def test_ids_must_belong_to_the_batch_of_the_call():
    def target(batch: pa.RecordBatch) -> pa.Table:
        return table(id=batch.column("id"), value=batch.column("id")).slice(1)

    verdict = map_verdict(target, *"abcd", size=2)
    assert ids_and_values(verdict) == [("b/v", b"b"), ("d/v", b"d")]
    assert verdict.outcomes == {0: EMPTY, 2: EMPTY}


def test_an_empty_result_with_ids_drops_everything():
    empty = table(id=pa.array([], pa.string()), value=pa.array([], pa.binary()))
    verdict = map_verdict(empty)
    assert verdict.outcomes == dict.fromkeys(range(3), EMPTY)
    assert rows_of(verdict) == []


def test_a_nack_of_one_row_redelivers_its_whole_input():
    verdict = map_verdict(
        table(
            id=["a", "b", "b", "c", "b"],
            value=[b"1", b"2", b"3", b"4", b"5"],
            nack=[False, None, True, False, True],
            nack_delay=[None, None, 700, None, 900],
            nack_reason=[None, None, "busy", None, "worse"],
        )
    )
    assert verdict.outcomes == {1: Redeliver(700, "busy", 0)}
    assert ids_and_values(verdict) == [("a/v", b"1"), ("c/v", b"4")]


@pytest.mark.parametrize(
    ("columns", "deliveries", "expected"),
    [
        ({}, 1, Redeliver(0, None, 2)),
        ({"nack_delay": [5]}, 1, Redeliver(5, None, 2)),
        ({"nack_delay": [5.0]}, 1, Redeliver(5, None, 2)),
        ({"nack_reason": ["busy"]}, 1, Redeliver(0, "busy", 2)),
        ({"nack_max_deliveries": [1]}, 1, Redeliver(0, None, 2)),
        (
            {"nack_max_deliveries": [1], "nack_reason": ["busy"]},
            2,
            DeadLetter("busy", error="redelivered once, max_deliveries is 1"),
        ),
    ],
)
def test_nack_columns_are_the_nack_options(columns, deliveries, expected):
    given_rows = {"deliveries": [deliveries], "failures": [2]}
    verdict = map_verdict(table(value=[b""], nack=[True], **columns), "a", **given_rows)
    assert verdict.outcomes == {0: expected}
    assert rows_of(verdict) == []


def test_the_event_time_of_a_nacked_row_still_counts():
    times = pa.array([WHEN, WHEN, None], pa.timestamp("us", "UTC"))
    verdict = map_verdict(table(value=[b""] * 3, nack=[True, False, True], event_time=times))
    assert verdict.decisions.event_times == [WHEN]


def test_tags_keys_and_event_time_are_taken_from_their_columns():
    verdict = map_verdict(
        table(
            value=[b""] * 3,
            tags=[["x", "y"], [], None],
            keys=[["k1"], [], ["k2", "k3"]],
            event_time=pa.array([WHEN] * 3, pa.timestamp("ms")),
        ),
        keys=[["old"]] * 3,
    )
    assert verdict.outputs.tags == [["x", "y"], (), ()]
    assert [row["keys"] for row in rows_of(verdict)] == [["k1"], [], ["k2", "k3"]]
    assert [row["event_time"] for row in rows_of(verdict)] == [WHEN] * 3


def test_missing_columns_and_nulls_are_inherited_from_the_input():
    inherited = {
        "keys": [["k"], None, ["l"]],
        "event_time": [NOW, NOW, None],
        "headers": [[("h", "1")], None, None],
    }
    times = pa.array([None, WHEN, None], pa.timestamp("us", "UTC"))
    verdict = map_verdict(
        table(value=[b""] * 3, keys=[None, ["m"], None], event_time=times), **inherited
    )
    found = [(row["keys"], row["event_time"], row["headers"]) for row in rows_of(verdict)]
    assert found == [(["k"], NOW, [("h", "1")]), (["m"], WHEN, None), (["l"], None, None)]


@pytest.mark.parametrize(
    "columns",
    [
        {"value": [b"1", b"x" * 101, b"3"]},
        {"value": [b"1", b"x" * 60, b"3"], "keys": [[], ["k" * 30, "k" * 11], []]},
    ],
    ids=["value", "value and keys"],
)
def test_only_the_input_of_a_row_that_is_too_large_becomes_a_dead_letter(columns):
    verdict = map_verdict(table(**columns), largest=100)
    assert verdict.outcomes.keys() == {1}
    assert verdict.outcomes[1].reason == "message too large"
    assert ids_and_values(verdict) == [("a/v", b"1"), ("c/v", b"3")]


def test_rows_of_exactly_the_size_limit_are_forwarded():
    columns = {"value": [b"x" * 50] * 3, "keys": [["k" * 25, "k" * 25]] * 3}
    assert map_verdict(table(**columns), largest=100).outcomes == {}


FIX = (
    "Return a RecordBatch, Table or DataFrame with a binary column 'value', one row for each input "
    "in order, or with a column 'id' that names the input of each row."
)
NULLS = "returned a column '{}' with nulls in its lists"
ONE, THREE = [b"1"], [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (None, "returned NoneType"),
        ([Message(b"")], "returned list"),
        ({"value": THREE}, "returned dict"),
        (table(values=THREE), "returned no column 'value' without nulls"),
        (table(value=[b"1", None, b"3"]), "returned no column 'value' without nulls"),
        (table(value=ONE), "returned 1 rows for 3 messages"),
        (table(value=THREE * 2), "returned 6 rows for 3 messages"),
        (table(value=THREE, id=["a", "x", "c"]), "returned the unknown id 'x'"),
        (table(value=THREE, id=["a", None, "c"]), "returned the unknown id None"),
        (table(value=THREE, keys=[["k", None], [], []]), NULLS.format("keys")),
        (table(value=THREE, tags=[["t"], [None], []]), NULLS.format("tags")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_result_fails_its_batch_and_the_error_says_what_to_do(result, what):
    verdict = map_verdict(result)
    error = f"ContractViolation: v: {what} from a columnar map. {FIX}"
    assert verdict.outcomes == dict.fromkeys(range(3), Redeliver(1_000, error, 1))
    assert len(verdict.outputs) == 0


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("value", [1, 2, 3]),
        ("keys", ["a", "b", "c"]),
        ("tags", ["a", "b", "c"]),
        ("event_time", ["soon"] * 3),
        ("nack", ["perhaps"] * 3),
        ("nack_delay", [1.5, 2.0, 3.0]),
        ("nack_max_deliveries", ["many"] * 3),
    ],
)
def test_a_column_of_the_wrong_type_is_named(name, column):
    verdict = map_verdict(pa.table({"value": THREE} | {name: column}))
    assert verdict.outcomes.keys() == {0, 1, 2}
    for outcome in verdict.outcomes.values():
        assert outcome.reason.startswith(f"ContractViolation: v: returned a column {name!r}: ")
        assert outcome.reason.endswith(f" from a columnar map. {FIX}")


@pytest.mark.parametrize("wrong", [{"nack_delay": [-1]}, {"nack_max_deliveries": [-1]}], ids=repr)
def test_options_out_of_range_fail_the_batch(wrong):
    verdict = map_verdict(table(value=[b""], nack=[True], **wrong), "a")
    assert verdict.outcomes[0].reason.startswith("ValueError: ")
    assert verdict.outcomes[0].failures == 1


def test_an_exception_of_a_columnar_map_fails_only_its_batch():
    def target(batch: pa.RecordBatch) -> pa.RecordBatch:
        if "c" in batch.column("id").to_pylist():
            raise ValueError("no")
        return batch

    verdict = map_verdict(target, *"abcdef", size=2)
    expected = Redeliver(1_000, "ValueError: no", 1)
    assert verdict.outcomes == {2: expected, 3: expected}
    assert [row["id"] for row in rows_of(verdict)] == ["a/v", "b/v", "e/v", "f/v"]


def test_a_pandas_map_takes_and_returns_data_frames():
    def target(frame: pd.DataFrame) -> pd.DataFrame:
        assert list(frame.columns) == [*COLUMNS, WATERMARK]
        frame = frame[frame["id"] != "b"]
        return frame.assign(
            value=frame["value"] + b"!",
            nack=frame["id"] == "c",
            nack_delay=[None if i == "a" else 5 for i in frame["id"]],
        )

    verdict = map_verdict(target, pandas=True, keys=[["k"], None, []])
    assert verdict.outcomes == {1: EMPTY, 2: Redeliver(5, None, 0)}
    assert [(row["id"], row["value"], row["keys"]) for row in rows_of(verdict)] == [
        ("a/v", b"a!", ["k"])
    ]


def test_an_async_columnar_map_is_awaited():
    async def target(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    assert len(map_verdict(target).outputs) == 3


texts = st.text("kl", max_size=2)
returned = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=4) | st.just(b"x" * 40),
        "keys": st.none() | st.lists(texts, max_size=2),
        "tags": st.lists(texts, max_size=2),
        "event_time": st.none() | st.just(WHEN),
        "nack": st.sampled_from([False, False, False, True]),
        "nack_delay": st.none() | st.integers(0, 9),
        "drop": st.sampled_from([False, False, False, True]),
        "error": st.sampled_from([None, None, None, "no"]),
        "metadata": st.none() | st.dictionaries(texts, st.dictionaries(texts, st.binary())),
    }
)
results = st.lists(st.lists(returned, max_size=3), min_size=1, max_size=6)
TYPES = {
    "keys": pa.list_(pa.string()),
    "tags": pa.list_(pa.string()),
    "event_time": pa.timestamp("us", "UTC"),
    "nack_delay": pa.int64(),
    "nack": pa.bool_(),
    "drop": pa.bool_(),
    "error": pa.string(),
    "metadata": SCHEMA.field("metadata").type,
}
CONTENT = ("value", "keys", "tags", "event_time", "nack", "nack_delay", "drop", "error", "metadata")


@given(results, st.integers(1, 4), st.integers(0, 6), st.booleans())
def test_columns_and_messages_with_the_same_content_have_the_same_results(
    results, size, end, by_row
):
    """Row for row, outcome for outcome, and also when an ordered vertex cuts them."""
    ids = [f"m{n}" for n in range(len(results))]
    by_id = dict(zip(ids, results, strict=True))

    def columnar(batch: pa.RecordBatch) -> pa.Table:
        given_ids = batch.column("id").to_pylist()
        pairs = [(i, row) for i in given_ids for row in by_id[i]]
        columns = {"id": pa.array([i for i, _ in pairs], pa.string())}
        if by_row:
            columns = {"row": pa.array([given_ids.index(i) for i, _ in pairs], pa.int64())}
        for name in CONTENT:
            values = [row[name] for _, row in pairs]
            if name == "metadata":
                values = [m and [(g, list(kv.items())) for g, kv in m.items()] for m in values]
            columns[name] = pa.array(values, TYPES.get(name, pa.binary()))
        return pa.table(columns)

    def message(row: dict[str, Any]) -> Message:
        if row["nack"]:
            return Message.to_nack(NackOptions(delay=row["nack_delay"]), row["event_time"])
        if row["error"]:
            return Message.to_fail(row["error"], row["event_time"])
        if row["drop"]:
            return Message.to_drop(row["event_time"])
        tagged = (row["value"], row["keys"], row["tags"], row["event_time"])
        return Message(*tagged, metadata=row["metadata"])

    given_rows = some(*ids, keys=[["in"]] * len(ids), event_time=[NOW] * len(ids))
    one, other = verdict_on(given_rows, largest=1_000), verdict_on(given_rows, largest=1_000)
    run_columnar(Handler(columnar), one, size, False)
    call_map(Handler(lambda d: [message(row) for row in by_id[d.id]]), other, 1)
    assert one.outcomes == other.outcomes
    assert rows_of(one) == rows_of(other)
    assert [list(tags) for tags in one.outputs.tags] == [list(tags) for tags in other.outputs.tags]
    assert one.decisions.failed == other.decisions.failed
    assert set(one.decisions.event_times) == set(other.decisions.event_times)
    assert min(one.gather_event_times()) == min(other.gather_event_times())
    cut = [verdict.cut(min(end, len(ids))) for verdict in (one, other)]
    assert rows_of(cut[0]) == rows_of(cut[1])
    assert cut[0].outcomes == cut[1].outcomes


def test_a_cut_keeps_the_rows_of_the_inputs_before_it_wherever_they_are():
    verdict = map_verdict(table(id=["c", "a", "b", "a"], value=[b"1", b"2", b"3", b"4"]))
    assert ids_and_values(verdict.cut(1)) == [("a/v", b"2"), ("a/v.1", b"4")]
    assert ids_and_values(verdict.cut(0)) == []
    assert ids_and_values(verdict.cut(3)) == ids_and_values(verdict)


def test_an_ordered_columnar_map_stops_after_a_batch_with_a_redelivered_input():
    verdict = verdict_on(some(*"abcd", keys=[["k"], ["l"], ["k"], ["l"]]), ordered=True)
    calls: list[list[str]] = []

    def target(batch: pa.RecordBatch) -> pa.Table:
        calls.append(batch.column("id").to_pylist())
        return table(value=[b""] * batch.num_rows, nack=[i == "b" for i in calls[-1]])

    run_columnar(Handler(target), verdict, 10, False)
    assert calls == [["a", "b"]]
    assert (verdict.decisions.unreached, verdict.first_held()) == (2, 1)
    assert ids_and_values(verdict.cut(1)) == [("a/v", b"")]


# --- what else rows can express -------------------------------------------------------------------


def test_an_error_in_one_row_fails_its_whole_input():
    verdict = map_verdict(
        table(row=[0, 1, 1], value=[b"1", b"2", b"3"], error=[None, None, "no"]), "a", "b"
    )
    assert verdict.decisions.failed == {1: Failure("no", 0)}
    assert ids_and_values(verdict) == [("a/v", b"1")]


def test_a_nack_next_to_an_error_redelivers_the_input():
    verdict = map_verdict(
        table(row=[0, 0], value=[b"", b""], error=["no", None], nack=[None, True]), "a"
    )
    assert verdict.outcomes == {0: Redeliver(0, None, 0)}
    assert verdict.decisions.failed == {}


def test_a_dropped_row_is_left_out_and_an_input_without_other_rows_is_dropped():
    times = pa.array([WHEN, None, None], pa.timestamp("us", "UTC"))
    verdict = map_verdict(
        table(row=[0, 1, 1], value=[b"1", b"2", b"3"], drop=[True, True, None], event_time=times),
        "a",
        "b",
    )
    assert verdict.outcomes == {0: EMPTY}
    assert ids_and_values(verdict) == [("b/v", b"3")]
    assert verdict.decisions.event_times == [WHEN]


def test_metadata_replaces_that_of_the_input_and_a_null_keeps_it():
    kind = SCHEMA.field("metadata").type
    old, new = [("old", [("k", b"1")])], [("new", [("k", b"2")])]
    verdict = map_verdict(
        table(value=[b""] * 3, metadata=pa.array([new, None, []], kind)), metadata=[old] * 3
    )
    assert [row["metadata"] for row in rows_of(verdict)] == [new, old, []]


def test_rows_are_numbered_from_the_start_of_their_batch():
    def target(batch: pa.RecordBatch) -> pa.Table:
        return table(row=[1, 0], value=[b"second", b"first"])

    verdict = map_verdict(target, *"abcd", size=2)
    assert ids_and_values(verdict) == [
        ("b/v", b"second"),
        ("a/v", b"first"),
        ("d/v", b"second"),
        ("c/v", b"first"),
    ]


@pytest.mark.parametrize("rows", [[3], [-1], [None]], ids=str)
def test_a_row_number_out_of_range_is_rejected(rows):
    verdict = map_verdict(table(row=pa.array(rows, pa.int64()), value=[b""]))
    expected = "ContractViolation: v: returned a column 'row' with a number that is not below 3"
    assert {
        outcome.reason.split(" from a columnar map")[0] for outcome in verdict.outcomes.values()
    } == {expected}


def test_every_row_carries_the_watermark():
    seen: list[Any] = []

    def target(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(batch.column(WATERMARK).to_pylist())
        return batch

    verdict = verdict_on(some("a", "b"))
    verdict.rows.watermark = WHEN
    run_columnar(Handler(target), verdict, 10, False)
    assert seen == [WHEN, WHEN]


# --- inputs on which a map failed ---------------------------------------------------------------


def test_inputs_reported_as_failed_count_as_if_the_map_had_raised_on_them_alone():
    failed = {1: ValueError("bad"), 2: Nack("busy", delay="700ms"), 3: None}
    verdict = map_verdict((table(value=[b"1", b"2", b"3", b"4", b"5"]), failed), *"abcde")
    assert verdict.outcomes == {
        1: Redeliver(1_000, "ValueError: bad", 1),
        2: Redeliver(700, "busy", 0, NackOptions(700, None, "busy")),
        3: Retry(POSTPONED, "not tried: others failed before it", 0, 0),
    }
    assert ids_and_values(verdict) == [("a/v", b"1"), ("e/v", b"5")]


def test_an_input_whose_system_is_unavailable_is_not_penalised():
    verdict = verdict_on(some("a", "b"))
    handler = Handler(lambda _: (table(row=[0], value=[b"1"]), {1: Unavailable("the database")}))
    run_columnar(handler, verdict, 10, False)
    assert verdict.outcomes == {1: Retry(POSTPONED, "Unavailable: the database", 0, 0)}


def test_failed_inputs_need_no_rows_and_are_not_dropped():
    nothing = table(row=pa.array([], pa.int64()), value=pa.array([], pa.binary()))
    verdict = map_verdict((nothing, {0: ValueError("bad")}), "a", "b")
    assert verdict.outcomes == {0: Redeliver(1_000, "ValueError: bad", 1), 1: EMPTY}


@pytest.mark.parametrize(
    ("failed", "what"),
    [
        ({3: None}, "returned an error for row 3 of 3"),
        ({"a": None}, "returned an error for row 'a' of 3"),
        ({True: None}, "returned an error for row True of 3"),
        ({0: "bad"}, "returned 'bad' as the error of a row"),
        ("bad", "returned a tuple that is not a pair of outputs and failed rows"),
    ],
    ids=str,
)
def test_errors_that_belong_to_no_row_are_rejected(failed, what):
    verdict = map_verdict((table(value=[b""] * 3), failed))
    assert verdict.outcomes.keys() == {0, 1, 2}
    for outcome in verdict.outcomes.values():
        assert outcome.reason.startswith(f"ContractViolation: v: {what} from a columnar map")
