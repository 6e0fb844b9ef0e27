import pickle
from datetime import UTC, datetime
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.engine import frames
from ebbflow.engine.frames import Rows, fingerprint
from tests.engine import sample_rows
from tests.engine.sample_rows import batch, rows
from tests.thorough import examples

MAGIC = frames.encode(frames.empty())[:8]


def contents(batches: list[pa.RecordBatch]) -> list[dict]:
    return [row for one in batches for row in one.to_pylist()]


@given(st.lists(rows, max_size=8))
def test_decoded_rows_equal_the_encoded_rows(given_rows):
    original = batch(given_rows)
    decoded = frames.decode(frames.encode(original))
    assert decoded.equals(original)
    assert decoded.schema.equals(frames.SCHEMA)
    assert decoded.to_pylist() == original.to_pylist()


@given(st.lists(rows, min_size=2, max_size=8), st.data())
def test_encoding_a_slice_encodes_exactly_its_rows(given_rows, data):
    start = data.draw(st.integers(0, len(given_rows)))
    piece = batch(given_rows).slice(start, data.draw(st.integers(0, len(given_rows))))
    assert frames.decode(frames.encode(piece)).to_pylist() == piece.to_pylist()


@pytest.mark.parametrize("size", [0, 1, 1024, 5 * 1024 * 1024])
def test_values_of_any_size_survive(size):
    payload = frames.encode(
        batch([{"id": "a", "value": b"v" * size, "deliveries": 1, "failures": 0}])
    )
    assert frames.decode(payload).column("value").to_pylist() == [b"v" * size]


def test_small_frames_are_sent_uncompressed_and_large_ones_compressed():
    small, large = (
        frames.encode(frames.batch_of({"id": ["a"], "value": [b"v" * size]}, 1))
        for size in (200, 100_000)
    )
    assert b"v" * 200 in small
    assert len(large) < 10_000


def test_values_that_do_not_compress_are_sent_uncompressed():
    original = frames.batch_of({"id": ["a"], "value": [Random(1).randbytes(100_000)]}, 1)
    payload = frames.encode(original)
    assert original.column("value")[0].as_py() in payload
    assert frames.decode(memoryview(payload)).equals(original)


def test_a_compressed_frame_is_decoded_however_small_it_is():
    """Earlier versions compressed from 1 KB on and did not mark such frames."""
    original = frames.batch_of({"id": ["a"], "value": [b"v" * 100_000]}, 1)
    packed = frames.encode(original)
    assert len(packed) < frames._WORTH_COMPRESSING
    assert packed[:8] != MAGIC
    assert frames.decode(MAGIC + packed[8:]).equals(original)


def test_missing_columns_are_null_or_those_of_a_first_delivery():
    assert frames.batch_of({"id": ["a"], "value": [b"1"]}, 1).to_pylist() == [
        {
            "id": "a",
            "value": b"1",
            "deliveries": 1,
            "failures": 0,
            "retries": 0,
            **dict.fromkeys(
                ("keys", "event_time", "headers", "metadata", "first_seen", "nack_reason")
            ),
        }
    ]


@pytest.mark.parametrize(
    "foreign", [b"", b"{}", b"EBBF", b"EBBF\x02\x00\x00\x00rest", b"hello, world"], ids=repr
)
def test_foreign_bytes_are_rejected_by_their_first_bytes(foreign):
    with pytest.raises(
        ValueError, match="not an Ebbflow frame of version 1: starts with"
    ) as refusal:
        frames.decode(foreign)
    assert repr(foreign[:8]) in str(refusal.value)


@given(st.binary(max_size=64))
def test_a_damaged_frame_raises_a_value_error(junk):
    with pytest.raises(ValueError, match="damaged Ebbflow frame"):
        frames.decode(MAGIC + junk)


def test_a_truncated_frame_raises_a_value_error():
    whole = frames.encode(batch([{"id": "a", "value": b"v" * 99, "deliveries": 1, "failures": 0}]))
    for length in range(8, len(whole) - 8, 16):
        with pytest.raises(ValueError, match="damaged Ebbflow frame"):
            frames.decode(whole[:length])


def sized(*sizes: int) -> pa.RecordBatch:
    return frames.batch_of(
        {"id": [str(i) for i in range(len(sizes))], "value": [b"x" * size for size in sizes]},
        len(sizes),
    )


KB = 1024
sizes = st.lists(
    st.sampled_from([0, 1, 100, 10 * KB, 60 * KB, 300 * KB]), max_size=40
) | st.integers(900, 2_500).map(lambda rows: [10] * rows)


@given(sizes)
def test_split_keeps_rows_and_order_within_bounds(given_sizes):
    whole = sized(*given_sizes)
    pieces = list(frames.split(whole))
    assert contents(pieces) == whole.to_pylist()
    for piece in pieces:
        assert 1 <= piece.num_rows <= frames.MAX_ROWS
        assert piece.num_rows == 1 or piece.nbytes <= 2 * frames.MAX_BYTES


@given(sizes, st.integers(1, 7), st.data())
def test_split_cuts_the_same_rows_at_the_same_places(given_sizes, before, data):
    """However they got here: fresh, decoded from a frame, or put together from pieces of frames."""
    whole = sized(*given_sizes)
    cut = data.draw(st.integers(0, len(given_sizes)))
    twins = [
        frames.decode(frames.encode(whole)),
        frames.concat([sized(*[5] * before), whole]).slice(before),
        frames.concat([whole.slice(0, cut), whole.slice(cut)]),
    ]
    cuts = [piece.num_rows for piece in frames.split(whole)]
    for twin in twins:
        assert [piece.num_rows for piece in frames.split(twin)] == cuts


def test_huge_rows_do_not_share_a_frame():
    huge = frames.MAX_BYTES * 2
    pieces = list(frames.split(sized(*[1] * 50, huge, huge, *[1] * 50)))
    big = [piece for piece in pieces if piece.nbytes > 2 * frames.MAX_BYTES]
    assert [piece.column("id").to_pylist() for piece in big] == [["50"], ["51"]]


def test_splitting_an_empty_frame_returns_no_pieces():
    assert list(frames.split(frames.empty())) == []
    assert frames.concat([]).num_rows == 0


ids = st.lists(sample_rows.texts, max_size=5)


@given(ids, ids)
def test_fingerprints_are_equal_only_for_equal_lists_of_ids(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (one == other)


@given(ids.filter(lambda i: len(i) > 1))
def test_moving_a_boundary_or_an_id_changes_the_fingerprint(given_ids):
    joined = ["".join(given_ids[:2]), *given_ids[2:]]
    turned = given_ids[::-1]
    assert fingerprint(joined) != fingerprint(given_ids)
    assert (fingerprint(turned) == fingerprint(given_ids)) == (turned == given_ids)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["a", "b"], ["b", "a"]),
        ([], [""]),
        (["", ""], [""]),
        (["1:a"], ["1", "a"]),
        (["a1:b"], ["a", "b"]),
        (["é"], ["e\u0301"]),
    ],
)
def test_neighbouring_lists_do_not_collide(one, other):
    assert fingerprint(one) != fingerprint(other)


@given(st.lists(sample_rows.texts, min_size=2, max_size=9, unique=True))
def test_no_prefix_of_a_list_has_the_fingerprint_of_another(given_ids):
    prefixes = [fingerprint(given_ids[:end]) for end in range(len(given_ids) + 1)]
    assert len(set(prefixes)) == len(prefixes)


@given(st.lists(sample_rows.texts, min_size=1, max_size=9))
def test_the_fingerprint_of_few_ids_is_computed_like_that_of_many(given_ids):
    """They are hashed in different ways; a limit that moves must not change the ids of frames."""
    many = given_ids * frames.FEW
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(frames, "FEW", len(many))
        few = fingerprint(many)
    assert few == fingerprint(many)


@given(ids, ids, ids)
def test_a_slice_of_a_column_has_the_fingerprint_of_its_ids(before, given_ids, after):
    column = pa.array([*before, *given_ids, *after], pa.string())
    part = column.slice(len(before), len(given_ids))
    assert fingerprint(part) == fingerprint(given_ids)


@given(st.lists(rows, max_size=5))
def test_the_datums_that_user_code_receives_equal_the_columns(given_rows):
    view = Rows(batch(given_rows), watermark=sample_rows.NOW)
    data = view.data()
    assert len(view) == len(data) == len(given_rows)
    for row, datum in zip(given_rows, data, strict=True):
        assert datum.id == row["id"]
        assert datum.value == row["value"]
        assert datum.keys == tuple(row["keys"] or ())
        assert datum.event_time == (row["event_time"] or datetime(1970, 1, 1, tzinfo=UTC))
        assert datum.headers == dict(row["headers"] or ())
        assert datum.metadata == {g: dict(entries) for g, entries in row["metadata"] or ()}
        assert datum.deliveries == row["deliveries"]
        assert datum.nack_reason == row["nack_reason"]
        assert datum.watermark == sample_rows.NOW


@given(rows)
def test_a_datum_survives_pickling_without_its_frame(row):
    datum = Rows(batch([row, row])).data()[1]
    copy = pickle.loads(pickle.dumps(datum))
    names = ["id", "value", "keys", "event_time", "watermark", "headers", "metadata"]
    names += ["deliveries", "nack_reason"]
    assert [getattr(copy, n) for n in names] == [getattr(datum, n) for n in names]
    assert repr(copy) == repr(datum)
    assert row["event_time"] is None or copy == datum


def test_a_column_is_converted_once():
    view = sample_rows.some("a", "b")
    assert view.column("id") is view.column("id")


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(20))
@given(st.integers(2_000, 8_000), st.sets(st.integers(0, 100)))
def test_cuts_do_not_depend_on_which_messages_are_traced(size, traced):
    """A replay may trace others: how many are traced depends on the time."""
    count = 2 * frames.MAX_BYTES // size
    own = ("h", "x")
    trace = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")
    ids, values = [f"m{n}" for n in range(count)], [b"v" * size] * count

    def cut(chosen: set[int]) -> list[int]:
        headers = [[own, trace] if n in chosen else [own] for n in range(count)]
        batch = frames.batch_of({"id": ids, "value": values, "headers": headers}, count)
        return [frame.num_rows for frame in frames.split(batch)]

    assert cut(traced) == cut(set()) == cut(set(range(count)))
