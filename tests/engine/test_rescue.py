"""A row on which Ebbflow itself fails is dead-lettered; its neighbours keep their outcomes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack
from ebbflow.accounts import audit, trail
from ebbflow.accounts.audit import AuditObserver
from ebbflow.accounts.trail import TrailObserver
from ebbflow.domain.outcome import DeadLetter, Redeliver
from ebbflow.engine import frames, outputs, publications, rescue
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import Chunk, ChunkNumber, Place, Stage
from ebbflow.engine.rescue import decide_in_pieces, settle_or_refuse
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.calling import Handler, call_map, run_columnar
from tests.engine.sample_rows import NOW, some, verdict_on
from tests.thorough import examples

LIMIT = 1_000_000
PLACE = Place("v", 0, [Edge("x", 2)], LIMIT)
OBSERVERS = [TrailObserver(), AuditObserver()]
NUMBER = ChunkNumber(1, 1)


class Broken(Exception):
    """Raised by some step of Ebbflow because of a row."""


def settled(verdict: Verdict, place: Place = PLACE, inline: Sequence[str] = ()) -> Settlement:
    chunk = Chunk("k", verdict.rows, NUMBER)
    return settle_or_refuse(chunk, verdict, place, NOW, observers=OBSERVERS, inline=inline)


def letters(settlement: Settlement) -> dict[str, Letter]:
    found = [p for p in settlement.publications if p.stage is Stage.DEAD_LETTER]
    read = [Letter.from_message(p.payload, p.headers) for p in found]
    return {letter.id: letter for letter in read}


def ids_of(settlement: Settlement, stage: Stage) -> list[str]:
    found = [p for p in settlement.publications if p.stage is stage]
    return sorted(i for p in found for i in frames.decode(p.payload).column("id").to_pylist())


def mapped(rows: Rows, function: Callable[[Datum], Any]) -> Verdict:
    verdict = verdict_on(rows, largest=LIMIT)
    call_map(Handler(function), verdict, concurrency=1)
    return verdict


def noise(size: int) -> bytes:
    return Random(1).randbytes(size)


# --- what is published, not what user code has set, must fit ------------------------------------


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("inherited", ["metadata", "headers", "keys"])
def test_an_output_that_is_too_large_with_its_inherited_fields_is_a_dead_letter(inherited):
    large = noise(400_000)
    facts = {
        "metadata": [("g", [("k", large)])],
        "headers": [("h", large.hex())],
        "keys": [large.hex()],
    }
    column = [facts[inherited] if n == 1 else None for n in range(4)]
    rows = some("a", "b", "c", "d", **{inherited: column})
    settlement = settled(mapped(rows, lambda datum: Message(noise(900_000))))
    assert list(letters(settlement)) == ["b"]
    letter = letters(settlement)["b"]
    assert letter.reason == "message too large"
    assert "is over the limit" in (letter.error or "")
    assert ids_of(settlement, Stage.OUTPUT) == ["a/v", "c/v", "d/v"]
    assert settlement.counts.done == 3
    assert settlement.counts.dead_lettered == 1


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("size", [5_000, 300_000, 900_000])
def test_an_output_that_no_frame_can_hold_is_a_dead_letter_on_an_inline_edge_too(size):
    """Next to outputs of any size that a frame can hold."""

    def grow(datum: Datum) -> Message:
        return Message(
            noise(size), metadata={"g": {"k": noise(400_000)}} if datum.id == "b" else {}
        )

    rows = some("a", "b", "c", "d")
    buffered, inline = (settled(mapped(rows, grow), inline=to) for to in ((), ("x",)))
    assert (
        letters(buffered).keys() == letters(inline).keys() == ({"b"} if size > 800_000 else set())
    )
    assert inline.account is not None
    (edge,) = inline.account.parts[0].routed.edges
    assert edge.batch.column("id").to_pylist() == ids_of(buffered, Stage.OUTPUT)
    assert buffered.counts == inline.counts


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_row_too_large_to_be_redelivered_becomes_a_dead_letter_that_says_so():
    rows = some("a", "b", value=[b"small", noise(2_000_000)])
    verdict = verdict_on(rows)
    for index in (0, 1):
        verdict.decisions.finish(index, Redeliver(5_000, "busy", 0))
    settlement = settled(verdict)
    assert ids_of(settlement, Stage.REDELIVER) == ["a"]
    letter = letters(settlement)["b"]
    assert letter.size == 2_000_000
    assert letter.reason == "message too large"
    assert (letter.error or "").endswith("it was to be redelivered: busy")


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_server_with_a_small_message_limit_receives_small_frames():
    rows = some(*(f"m{n}" for n in range(400)))
    place = Place("v", 0, [Edge("x")], 200_000)
    settlement = settled(mapped(rows, lambda datum: Message(noise(1_000))), place)
    assert not letters(settlement)
    assert len(ids_of(settlement, Stage.OUTPUT)) == 400
    assert max(len(p.payload) for p in settlement.publications) < 150_000


def unreadable_keys() -> pa.Array:
    """Keys of four rows; those of the second are invalid text, as another program may store it."""
    texts = pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    broken = pa.StringArray.from_buffers(1, *texts)
    return pa.ListArray.from_arrays(pa.array([0, 0, 1, 1, 1], pa.int32()), broken)


# --- columnar maps -------------------------------------------------------------------------------


def columnar(rows: Rows, **columns: pa.Array) -> Verdict:
    verdict = verdict_on(rows, largest=LIMIT)

    def answer(batch: pa.RecordBatch) -> pa.RecordBatch:
        chosen = [int(i) for i in batch.column("id").to_pylist()]
        returned = {name: column.take(pa.array(chosen)) for name, column in columns.items()}
        return pa.RecordBatch.from_pydict({"value": batch.column("value")} | returned)

    run_columnar(Handler(answer), verdict, batch_size=100, pandas=False)
    return verdict


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_the_metadata_that_a_columnar_map_returns_counts_as_part_of_its_row():
    kind = frames.SCHEMA.field("metadata").type
    metadata = pa.array([None, [("g", [("k", noise(2_000_000))])], None], kind)
    verdict = columnar(some("0", "1", "2"), metadata=metadata)
    assert isinstance(verdict.outcomes[1], DeadLetter)
    settlement = settled(verdict)
    assert letters(settlement)["1"].reason == "message too large"
    assert ids_of(settlement, Stage.OUTPUT) == ["0/v", "2/v"]


@pytest.mark.parametrize("time", [2**62, -(2**62)], ids=["after 9999", "before 1"])
@pytest.mark.parametrize("flag", [None, "drop", "nack"])
def test_a_time_that_no_message_can_have_fails_only_its_row(time, flag):
    times = pa.array([0, time, None, 5], frames.TIME)
    flags = {} if flag is None else {flag: pa.array([False, True, False, False])}
    verdict = columnar(some("0", "1", "2", "3"), event_time=times, **flags)
    assert {i for i, o in verdict.outcomes.items() if isinstance(o, Redeliver)} == {1}
    reason = verdict.outcomes[1].reason or ""
    assert "years 1 to 9999" in reason
    assert ids_of(settled(verdict), Stage.OUTPUT) == ["0/v", "2/v", "3/v"]
    assert min(verdict.gather_event_times()) == datetime(1970, 1, 1, tzinfo=UTC)


def test_invalid_texts_are_rejected_before_they_are_stored():
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    )
    keys = pa.ListArray.from_arrays(pa.array([0, 0, 1, 1], pa.int32()), broken)
    verdict = columnar(some("0", "1", "2"), keys=keys)
    assert all(isinstance(outcome, Redeliver) for outcome in verdict.outcomes.values())
    assert "returned a column 'keys'" in (verdict.outcomes[1].reason or "")


# --- rows that were stored before they were checked ---------------------------------------------


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_stored_time_that_python_cannot_represent_does_not_stop_rows_from_being_read():
    times = pa.array([0, 2**62, -(2**62), None], frames.TIME)
    rows = Rows(frames.with_columns(some("a", "b", "c", "d").batch, event_time=times))

    def function(datum: Datum) -> Message | None:
        year = None if datum.event_time is None else datum.event_time.year
        if year in (1, 9999):
            raise Nack(max_deliveries=0, reason=str(year))
        return Message(str(year).encode(), event_time=datum.event_time)

    verdict = mapped(rows, function)
    settlement = settled(verdict)
    assert {i: letter.reason for i, letter in letters(settlement).items()} == {
        "b": "9999",
        "c": "1",
    }
    assert ids_of(settlement, Stage.OUTPUT) == ["a/v", "d/v"]


# --- whatever is raised, at whichever step ------------------------------------------------------

STEPS = {
    "make": (outputs.Outputs, "batch", lambda self, rows, *_, **__: self.values),
    "route": (publications, "route", lambda edges, tags: [tag for own in tags for tag in own]),
    "encode": (frames, "encode", lambda batch: batch.column("value").to_pylist()),
    "trail": (trail, "request_id", lambda rows, index: rows.batch.column("headers")[index].as_py()),
    "audit": (
        audit,
        "build_audit",
        lambda part, *_: [h for row in part.rows.column("headers") for h in row.values()],
    ),
}


@contextmanager
def breaking(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """With a step that raises when it processes a certain row."""
    owner, name, look = STEPS[step]
    shipped = getattr(owner, name)

    def breaks(*args: Any, **more: Any) -> Any:
        if "poison" in str(look(*args, **more)):
            raise Broken("the row that breaks it")
        return shipped(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, breaks)
        yield


def make_rows(count: int, bad: int) -> Rows:
    ids = [f"m{n}" for n in range(count)]
    values = [b"poison" if n == bad else b"well" for n in range(count)]
    headers = [[("h", value.decode())] for value in values]
    return some(*ids, value=values, headers=headers)


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("count", "bad"), [(1, 0), (2, 1), (9, 0), (9, 8), (100, 37)])
def test_a_row_that_makes_any_step_raise_fails_alone(monkeypatch, step, count, bad):
    def function(datum: Datum) -> Message:
        return Message(datum.value, tags=[datum.value.decode()])

    verdict = mapped(make_rows(count, bad), function)
    with breaking(monkeypatch, step):
        settlement = settled(verdict)
    assert list(letters(settlement)) == [f"m{bad}"]
    letter = letters(settlement)[f"m{bad}"]
    assert (letter.reason, letter.error) == ("Broken", "Broken: the row that breaks it")
    assert "the row that breaks it" in {raised.text for raised in verdict.decisions.raised}
    assert ids_of(settlement, Stage.OUTPUT) == sorted(f"m{n}/v" for n in range(count) if n != bad)
    assert settlement.counts.read == settlement.counts.ended == count


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("nacks", [True, False])
def test_the_dead_letter_of_an_unreadable_row_says_what_is_missing(nacks):
    well = some("a", "b", "c", "d", headers=[[("h", "1")]] * 4)
    rows = Rows(frames.with_columns(well.batch, keys=unreadable_keys()))

    def function(datum: Datum) -> Message:
        if nacks:
            raise Nack(max_deliveries=0, reason="never")
        return Message(datum.value)

    place = Place("v", 0, [Edge("x", 2, keyed=True)], LIMIT)
    settlement = settled(mapped(rows, function), place)
    letter = letters(settlement)["b"]
    assert (letter.value, letter.headers, letter.keys) == (b"b", {"h": "1"}, [])
    assert (letter.error or "").endswith("incomplete, as it cannot be read: keys")
    assert list(letters(settlement)) == (["a", "b", "c", "d"] if nacks else ["b"])
    assert ids_of(settlement, Stage.OUTPUT) == ([] if nacks else ["a/v", "c/v", "d/v"])


def test_a_failure_that_is_unrelated_to_rows_is_raised_unchanged(monkeypatch):
    verdict = mapped(some("a", "b"), lambda datum: Message(b"1"))

    def breaks(*args: Any, **more: Any) -> Any:
        raise Broken("always")

    monkeypatch.setattr(rescue, "settle", breaks)
    with pytest.raises(Broken, match="always"):
        settled(verdict)
    assert not verdict.outcomes


# --- while outcomes are decided ----------------------------------------------------------------


def fails_on(bad: set[str], seen: list[list[str]]) -> Callable[[Verdict], None]:
    def operator(verdict: Verdict) -> None:
        ids = verdict.rows.column("id")
        seen.append(ids)
        call_map(Handler(lambda datum: Message(datum.value)), verdict, concurrency=1)
        if bad.intersection(ids):
            raise Broken(f"because of {min(bad.intersection(ids))}")

    return operator


@pytest.mark.guarantee("failures-stay-with-their-message")
@settings(max_examples=examples(40))
@given(st.integers(1, 30), st.sets(st.integers(0, 29)))
def test_rows_that_make_the_operator_raise_count_as_failed_and_the_others_are_done(count, bad):
    bad = {n for n in bad if n < count} or {0}
    names = {f"m{n}" for n in bad}
    verdict = verdict_on(some(*(f"m{n}" for n in range(count))))
    decide_in_pieces(verdict, fails_on(names, []), Broken("first"))
    for n in bad:
        assert isinstance(verdict.outcomes[n], Redeliver)
        assert verdict.outcomes[n].reason == f"Broken: because of m{n}"
        assert verdict.outcomes[n].failures == 1
    expected = sorted(f"m{n}/v" for n in range(count) if n not in bad)
    assert ids_of(settled(verdict), Stage.OUTPUT) == expected


def test_an_ordered_vertex_sees_no_row_behind_one_that_makes_the_operator_raise():
    verdict = verdict_on(some("a", "b", "c", "d"), ordered=True)
    seen: list[list[str]] = []
    decide_in_pieces(verdict, fails_on({"b"}, seen), Broken("first"))
    assert verdict.first_held() == 1
    assert not any(ids == ["c"] or ids == ["c", "d"] for ids in seen)


def test_code_that_fails_without_any_row_fails_the_task_instead_of_the_rows():
    verdict = verdict_on(some("a", "b"))

    def operator(_verdict: Verdict) -> None:
        raise Broken("cannot be opened")

    with pytest.raises(Broken, match="first"):
        decide_in_pieces(verdict, operator, Broken("first"))
    assert not verdict.outcomes
