"""Records as JSON: written records are read back, and so are those of earlier versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.accounts.taps import TapFilter, TapRequest
from ebbflow.domain.records import from_json, from_plain, stored_as, to_json, to_plain
from ebbflow.spec.graph import PipelineShape, ShapeEdge, ShapeVertex
from ebbflow.streams.positions import Pauses

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Part:
    """A record inside another."""

    at: datetime
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, slots=True)
class Whole:
    """A record with every kind of field."""

    name: str
    number: int = 0
    share: float | None = None
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = field(default_factory=dict)
    times: Mapping[str, datetime] = field(default_factory=dict)
    words: frozenset[str] = frozenset()
    numbers: Sequence[int] = ()
    pairs: list[str] = field(default_factory=list)
    frm: str = field(default="", metadata=stored_as("from"))
    revision: int = field(default=0, metadata=stored_as(None))


@dataclass(frozen=True, slots=True)
class Single:
    """A record of one field."""

    numbers: tuple[int, ...]


times = st.datetimes(timezones=st.just(UTC))
part = st.builds(Part, times, st.sampled_from(["a", "b"]))
wholes = st.builds(
    Whole,
    st.text(),
    st.integers(),
    st.none() | st.floats(allow_nan=False),
    st.none() | part,
    st.lists(part, max_size=3).map(tuple),
    st.dictionaries(st.text(), part, max_size=3),
    st.dictionaries(st.text(), times, max_size=3),
    st.frozensets(st.text(), max_size=3),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.lists(st.text(), max_size=3),
    st.text(),
)


@given(wholes)
def test_a_record_is_read_back_as_it_was_written(whole: Whole) -> None:
    assert from_json(Whole, to_json(whole)) == whole


def test_keys_are_the_names_of_fields_unless_a_field_says_otherwise() -> None:
    plain = to_plain(Whole("x", words=frozenset("cab"), frm="in", revision=7))
    assert plain["from"] == "in"
    assert plain["words"] == ["a", "b", "c"]
    assert not {"frm", "revision"} & plain.keys()


def test_times_are_written_in_utc() -> None:
    berlin = timezone(timedelta(hours=2))
    assert to_plain(Part(NOON.astimezone(berlin)))["at"] == "2026-05-17T12:00:00+00:00"


def test_records_of_other_versions_can_be_read() -> None:
    later = {"name": "x", "colour": "blue", "part": {"at": NOON.isoformat(), "kind": "new"}}
    read = from_plain(Whole, later)
    assert (read.name, read.number) == ("x", 0)
    assert read.part is not None
    assert read.part.kind == "new"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        from_plain(Whole, {})


def test_lists_of_records_and_records_of_one_field_are_written_too() -> None:
    assert to_json([Single((1, 2)), Single(())]) == b'[{"numbers":[1,2]},{"numbers":[]}]'
    assert from_json(Single, '{"numbers": [1, 2]}') == Single((1, 2))


SHAPE = PipelineShape(
    "orders", "Pipeline", (ShapeVertex("in", "source"),), (ShapeEdge("in", "out", "any of a"),)
)


@pytest.mark.parametrize(
    ("stored", "record"),
    [
        (
            '{"everything": null, "vertices": {"in": "2026-05-17T12:00:00+00:00"}, '
            '"released": ["out"]}',
            Pauses(vertices={"in": NOON}, released=frozenset({"out"})),
        ),
        (
            '{"token": "t", "vertex": "in", "seconds": 5.0, "filter": {"id": "in-7", "key": null, '
            '"header": null, "tag": null, "text": null, "outcome": null}, "sample": 0.5, '
            '"rate": 200, "longest": 4096}',
            TapRequest("t", "in", 5.0, TapFilter(id="in-7"), 0.5),
        ),
        (
            '{"pipeline": "orders", "kind": "Pipeline", "vertices": [{"name": "in", "kind": '
            '"source", "detail": "", "partitions": 1, "has_buffer": true, "ordered": false, '
            '"batched": false, "serves": false}], "edges": [{"from": "in", "to": "out", '
            '"condition": "any of a"}]}',
            SHAPE,
        ),
    ],
    ids=["pauses", "taps", "shapes"],
)
def test_a_record_stored_by_an_earlier_version_is_read_and_written_unchanged(
    stored: str, record: object
) -> None:
    assert from_json(type(record), stored) == record
    assert json.loads(to_json(record)) == json.loads(stored)
