"""Messages as JSON: columns give the same result as single messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.file import json_record, json_records
from ebbflow.engine import frames

TEXT = st.text(max_size=8)
MESSAGES = st.lists(
    st.tuples(
        TEXT,
        st.binary(max_size=20) | TEXT.map(str.encode),
        st.none() | st.lists(TEXT, max_size=3),
        st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
        st.none()
        | st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    ),
    max_size=5,
)


@given(MESSAGES)
def test_a_batch_is_written_like_its_single_messages(messages):
    ids, values, keys, headers, times = zip(*messages, strict=True) if messages else ([],) * 5
    columns = {"id": ids, "value": values, "keys": keys, "event_time": times}
    columns["headers"] = [None if pairs is None else list(pairs.items()) for pairs in headers]
    rows = frames.batch_of({name: list(column) for name, column in columns.items()}, len(messages))

    lines = json_records(rows)

    assert [json.loads(line) for line in lines] == [
        json.loads(json_record(datum)) for datum in frames.Rows(rows).data()
    ]
    assert all(line.isascii() and b"\n" not in line for line in lines)
