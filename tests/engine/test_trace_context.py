"""The trace context of a message is in its headers; it is found and replaced in columns."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine import frames
from ebbflow.engine.trace_context import (
    find_contexts,
    find_propagated,
    find_recorded,
    with_contexts,
)

HEADERS = frames.SCHEMA.field("headers").type
RECORDED = f"00-{'a' * 32}-{'b' * 16}-01"
NOT_RECORDED = f"00-{'a' * 32}-{'b' * 16}-00"
OTHER = f"00-{'c' * 32}-{'d' * 16}-01"

ROWS = st.lists(
    st.none()
    | st.lists(
        st.tuples(
            st.sampled_from(["traceparent", "Traceparent", "tracestate", "x-other"]),
            st.sampled_from([RECORDED, NOT_RECORDED, "", "00-nonsense-01"]),
        ),
        max_size=3,
        unique_by=lambda pair: pair[0].lower(),
    ),
    min_size=1,
    max_size=12,
)


def column(rows: list[list[tuple[str, str]] | None]) -> pa.MapArray:
    return pa.array(rows, HEADERS)


def contexts_one_by_one(rows: list[list[tuple[str, str]] | None]) -> dict[int, str]:
    return {
        number: text
        for number, row in enumerate(rows)
        for name, text in row or ()
        if name.lower() == "traceparent"
    }


@given(ROWS, st.integers(0, 5))
def test_contexts_are_found_in_every_row_of_a_column_or_a_slice(
    rows: list[list[tuple[str, str]] | None], start: int
) -> None:
    headers = column(rows).slice(start)
    expected = contexts_one_by_one(rows[start:])

    assert find_contexts(headers) == expected
    assert find_recorded(headers) == {n: text for n, text in expected.items() if text == RECORDED}


@given(ROWS, st.data())
def test_only_the_contexts_of_the_chosen_rows_are_replaced(
    rows: list[list[tuple[str, str]] | None], data: st.DataObject
) -> None:
    count = len(rows)
    batch = frames.batch_of(
        {"id": list("x" * count), "value": [b""] * count, "headers": rows}, count
    )
    chosen = data.draw(st.sets(st.integers(0, count - 1)))

    after = with_contexts(batch, dict.fromkeys(chosen, OTHER)).column("headers").to_pylist()

    for number, row in enumerate(rows):
        if number not in chosen:
            assert after[number] == row
        else:
            kept = [pair for pair in row or () if pair[0].lower() != "traceparent"]
            assert after[number] == [*kept, ("traceparent", OTHER)]


def test_contexts_of_other_versions_and_broken_ones_do_not_count_as_recorded() -> None:
    broken = [f"01{RECORDED[2:]}", RECORDED.upper(), f" {RECORDED}", RECORDED[:-1], RECORDED + "-x"]

    assert find_recorded(column([[("traceparent", text)] for text in broken])) == {}


def test_only_well_formed_trace_headers_are_propagated() -> None:
    rows = [
        [("Traceparent", NOT_RECORDED), ("tracestate", "a=b,c=d"), ("authorization", "secret")],
        [("traceparent", f"{RECORDED}\r\nx-injected: yes")],
        [("traceparent", RECORDED), ("tracestate", "a=b\r\nx-injected: yes")],
        None,
        [("tracestate", "a=b")],
    ]

    assert find_propagated(column(rows)) == {
        0: {"traceparent": NOT_RECORDED, "tracestate": "a=b,c=d"},
        2: {"traceparent": RECORDED},
    }
