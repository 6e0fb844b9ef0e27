"""Requests have the content of their rows, whichever way they are encoded."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine import frames
from ebbflow.engine.frames import FEW, Rows
from ebbflow.numaflow.encode import encode_requests
from ebbflow.numaflow.services import SERVICES, Service

MAP, TRANSFORM, SINK = (SERVICES[name] for name in ("map", "transformer", "sink"))

TIMES = st.datetimes(datetime(1900, 1, 1), datetime(9999, 1, 1)).map(
    lambda time: time.replace(tzinfo=UTC)
)
OUR_TIMES = st.datetimes(datetime(1970, 1, 1), datetime(3050, 1, 1)).map(
    lambda time: time.replace(tzinfo=UTC)
)
MAPS = st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=3)
GROUPS = st.dictionaries(
    st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.binary(max_size=200), max_size=3)
)


@st.composite
def rows_of(draw: st.DrawFn, times: st.SearchStrategy[datetime]) -> pa.RecordBatch:
    """Some rows, more or fewer than protobuf's own classes are used for, cut out of others."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "value": st.binary(max_size=300),
        "event_time": times | st.none(),
        "keys": st.none() | st.lists(st.text(max_size=150), max_size=3),
        "headers": st.none() | MAPS.map(lambda headers: list(headers.items())),
        "metadata": st.none()
        | GROUPS.map(lambda groups: [(name, list(g.items())) for name, g in groups.items()]),
        "retries": st.sampled_from([0, 0, 0, 1, 200]),
        "deliveries": st.sampled_from([1, 1, 1, 2, 200]),
        "nack_reason": st.none() | st.text(max_size=5),
    }
    absent = draw(st.sets(st.sampled_from(sorted(kinds.keys() - {"value", "event_time"}))))
    count = draw(st.sampled_from([1, 3, FEW + 3]))
    samples = {
        name: draw(st.lists(kind, min_size=1, max_size=8))
        for name, kind in kinds.items()
        if name not in absent
    }
    columns = {
        name: [sample[row % len(sample)] for row in range(count + 4)]
        for name, sample in samples.items()
    }
    columns["id"] = [f"in-{row}/ü" for row in range(count + 4)]
    return frames.batch_of(columns, count + 4).slice(draw(st.integers(0, 4)), count)


def check(rows: pa.RecordBatch, service: Service, watermark: datetime | None) -> None:
    requests = encode_requests(rows, rows.column("id"), service, watermark).to_pylist()
    assert [int.from_bytes(text[:5]) for text in requests] == [len(text) - 5 for text in requests]
    read = Rows(rows)
    for index, text in enumerate(requests):
        message = service.stream.request.FromString(text[5:])
        request = message.request
        assert (message if service is MAP else request).id == read.column("id")[index]
        assert list(request.keys) == read.column("keys")[index]
        assert request.value == read.column("value")[index]
        assert dict(request.headers) == read.column("headers")[index]
        time = read.column("event_time")[index] or datetime(1970, 1, 1, tzinfo=UTC)
        assert request.event_time.ToDatetime(UTC) == time
        unknown = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
        assert request.watermark.ToDatetime(UTC) == (watermark or unknown)
        metadata = request.metadata
        assert {
            name: dict(group.key_value) for name, group in metadata.user_metadata.items()
        } == read.column("metadata")[index]
        system_metadata = {
            name: dict(group.key_value) for name, group in metadata.sys_metadata.items()
        }
        assert system_metadata == history(read, index, service)


def history(rows: Rows, index: int, service: Service) -> dict[str, dict[str, bytes]]:
    """The system metadata about earlier attempts at a message."""
    groups: dict[str, dict[str, bytes]] = {}
    if service is SINK or rows.column("retries")[index]:
        groups["sink"] = {"retry_count": b"%d" % rows.column("retries")[index]}
    if rows.column("deliveries")[index] != 1:
        groups["ebbflow"] = {"deliveries": b"%d" % rows.column("deliveries")[index]}
    if rows.column("nack_reason")[index] is not None:
        reason = rows.column("nack_reason")[index].encode()
        groups.setdefault("ebbflow", {})["nack_reason"] = reason
    return groups


SERVED = pytest.mark.parametrize(
    "service", [MAP, TRANSFORM, SINK], ids=["map", "transform", "sink"]
)


@SERVED
@given(rows=rows_of(OUR_TIMES), watermark=st.none() | OUR_TIMES)
def test_a_request_has_the_content_of_its_row(
    service: Service, rows: pa.RecordBatch, watermark: datetime | None
) -> None:
    check(rows, service, watermark)


@SERVED
@given(rows=rows_of(TIMES), watermark=st.none() | TIMES)
def test_a_request_has_the_content_of_its_row_at_any_event_time(
    service: Service, rows: pa.RecordBatch, watermark: datetime | None
) -> None:
    check(rows, service, watermark)


def test_many_rows_with_present_day_times_are_encoded_in_bulk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ebbflow.numaflow.encode._encode_few", None)
    start = datetime(2026, 11, 16, tzinfo=UTC)
    times = [start + timedelta(microseconds=row) for row in range(FEW + 1)]
    columns = {"id": [str(row) for row in range(FEW + 1)], "value": [b"x"] * (FEW + 1)}
    check(frames.batch_of(columns | {"event_time": times}, FEW + 1), SINK, start)


def test_values_hidden_by_a_null_are_ignored() -> None:
    rows = FEW + 1
    texts = pa.array(["hidden", "seen"] * rows)
    ends, hidden = range(0, 2 * rows + 1, 2), [row % 2 == 0 for row in range(rows)]
    keys = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), texts, mask=pa.array(hidden))
    columns = {"id": [str(row) for row in range(rows)], "value": [b""] * rows, "keys": keys}
    check(frames.batch_of(columns, rows), MAP, None)
