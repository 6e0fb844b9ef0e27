"""Rows that the server refuses permanently: their dead letters, counts and audit rows."""

from dataclasses import replace

import pytest

from ebbflow import Message
from ebbflow.accounts.audit import AuditObserver
from ebbflow.domain.errors import MessageTooLarge, PermanentPublishError
from ebbflow.domain.outcome import Counts, Redeliver, Served
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import NO_PARENT
from ebbflow.engine.position import with_awaited, without_awaited
from ebbflow.engine.publications import (
    LATE,
    REDELIVERED_BY,
    ROWS,
    Chunk,
    ChunkNumber,
    Place,
    Stage,
    build_parked,
    with_due,
)
from ebbflow.engine.refused import REASON, divide, explain_refusal
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.spark.batch.settling import Aggregates
from ebbflow.streams.audit_rows import read_audit
from tests.engine.sample_rows import NOW, decide, some, verdict_on

X, Y = Edge("x"), Edge("y")
CHUNK = "life:v:0:0-9:0-0"


def settled(verdict, *edges, observers=(), bucket=None) -> Settlement:
    place = Place("v", 0, edges, 10**6, bucket)
    chunk = Chunk(CHUNK, verdict.rows, ChunkNumber(7, 2))
    return settle(chunk, verdict, place, NOW, observers=observers)


def refused(settlement, *ids):
    """The publications of these rows, as the server refuses them one by one."""
    todo, found = [p for p in settlement.publications if p.stage not in LATE], []
    while todo:
        publication = todo.pop(0)
        if pieces := divide(publication):
            todo += pieces
        elif ids_of(publication) in [[i] for i in ids]:
            found.append(replace(publication, refusal="the stream refused it"))
    return found


def ids_of(publication):
    return frames.decode(publication.payload).column("id").to_pylist()


def letters_of(settlement) -> list[Letter]:
    dead = settlement.of_stage(Stage.DEAD_LETTER)
    return [Letter.from_message(one.payload, one.headers) for one in dead]


def forwarded(outputs, *edges, **options) -> Settlement:
    verdict = verdict_on(some(*(f"m{n}" for n in range(len(outputs)))))
    for index, values in enumerate(outputs):
        for number, value in enumerate(values):
            verdict.decisions.forward(index, number, Message(value))
    return settled(verdict, *edges, **options)


@pytest.mark.parametrize("code", [10054, 10097])
def test_a_size_that_the_stream_rejects_is_the_fault_of_the_message(code):
    error = PermanentPublishError("subject", 1, 0.0, "too much", code)
    assert explain_refusal(error, "EBB") == f"the stream EBB refused it: too much ({code})"
    assert "over the limit" in str(explain_refusal(MessageTooLarge(9, 5), "EBB"))


@pytest.mark.parametrize("code", [0, 10109, 10060])
def test_other_refusals_are_not_the_fault_of_the_message(code):
    error = PermanentPublishError("subject", 1, 0.0, "sealed", code)
    assert explain_refusal(error, "EBB") is None


def test_halves_keep_rows_parents_and_partition_of_the_frame_and_have_their_own_ids():
    (whole,) = forwarded([[b"1"], [b"2"], [b"3"]], X).publications
    first, second = divide(whole)
    assert (ids_of(first), [*first.parents]) == (["m0/v"], [0])
    assert (ids_of(second), [*second.parents]) == (["m1/v", "m2/v"], [1, 2])
    assert [piece.headers[ROWS] for piece in (first, second)] == ["1", "2"]
    assert {piece.partition for piece in (first, second)} == {whole.partition}
    assert len({whole.msg_id, first.msg_id, second.msg_id}) == 3
    assert divide(first) == ()
    assert divide(whole)[1].msg_id == second.msg_id, "a replay makes the same"
    (alone,) = settled(verdict_of("m0", [b"1"]), X).publications
    assert alone.msg_id == first.msg_id, "as if it had been a frame of its own"


def verdict_of(row_id, values):
    verdict = verdict_on(some(row_id))
    for number, value in enumerate(values):
        verdict.decisions.forward(0, number, Message(value))
    return verdict


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_message_with_several_refused_outputs_is_one_dead_letter_and_counted_once():
    settlement = forwarded([[b"1", b"2", b"3"], [b"4"]], X, Y)
    gone = refused(settlement, "m0/v", "m0/v.2")
    assert len(gone) == 4, "two outputs on two edges"
    counts = settlement.counts_without(gone)
    assert counts == Counts(read=2, written=4, done=1, dead_lettered=1)
    (letter,) = letters_of(settlement.amended(gone, ()))
    assert (letter.id, letter.reason, letter.error) == ("m0", REASON, "the stream refused it")


def test_the_dead_letter_of_a_refused_row_has_the_usual_id():
    settlement = forwarded([[b"1"]], X)
    (letter,) = settlement.amended(refused(settlement, "m0/v"), ()).publications
    assert letter.msg_id == f"{CHUNK}:dead:{frames.fingerprint(['m0'])}"


def test_the_dead_letter_of_a_refused_redelivery_says_why_it_was_to_be_redelivered():
    verdict = decide(
        verdict_on(some("m0", "m1")), {0: Redeliver(0, "busy", 0), 1: Redeliver(0, None, 0)}
    )
    settlement = settled(verdict)
    pieces = divide(settlement.publications[0])
    assert not any(REDELIVERED_BY in piece.headers for piece in pieces), "they are not listed"
    gone = refused(settlement, "m0")
    counts = settlement.counts_without(gone)
    assert (counts.read, counts.redelivered, counts.dead_lettered) == (2, 1, 1)
    (letter,) = letters_of(settlement.amended(gone, ()))
    assert letter.error == "the stream refused it; it was to be redelivered: busy"


def test_a_message_whose_answer_is_refused_is_a_dead_letter():
    verdict = decide(verdict_on(some("m0", "m1")), {0: Served(), 1: Served()})
    for index in range(2):
        verdict.decisions.answer(index, [b"a", b"b"])
    settlement = settled(verdict, bucket="answers")
    gone = [replace(p, refusal="no") for p in settlement.publications if p.parents == (1,)]
    counts = settlement.counts_without(gone)
    assert (counts.done, counts.served, counts.dead_lettered) == (1, 1, 1)
    assert [letter.id for letter in letters_of(settlement.amended(gone, ()))] == ["m1"]


def test_a_refused_message_is_not_counted_as_dropped_by_a_full_buffer():
    settlement = forwarded([[b"1", b"2"], [b"3"]], Edge("x", discards=True))
    halves = divide(settlement.publications[0])
    first, rest = halves[0], halves[1]
    unstored = [replace(settlement.publications[0], parents=()), replace(first, refusal="no"), rest]
    counts = settlement.counts_without(unstored)
    assert counts == Counts(read=2, dead_lettered=1, dropped=1)


def test_the_audit_table_shows_the_outcome_of_a_refused_message():
    settlement = forwarded([[b"1"], [b"2"]], X, observers=[AuditObserver()])
    amended = settlement.amended(refused(settlement, "m1/v"), [AuditObserver()])
    (published,) = amended.of_stage(Stage.AUDIT)
    rows = read_audit(published.payload)
    assert rows.varied["outcome"].to_pylist() == ["done", "dead_lettered"]
    assert rows.varied["error"].to_pylist() == [None, "the stream refused it"]


@pytest.mark.guarantee("nothing-is-lost")
def test_a_refused_row_of_the_whole_chunk_is_one_dead_letter_that_is_never_replayed():
    verdict = verdict_on(some("m0", "m1"))
    outputs = Aggregates(["sum-1", "sum-2"], NOW)
    values = frames.batch_of({"id": ["a", "b"], "value": [b"1", b"2"]}, 2).column("value")
    outputs.add([NO_PARENT] * 2, [0] * 2, [()] * 2, {"value": values})
    verdict.decisions.forward_outputs(outputs)
    settlement = settled(verdict, X, Y)
    gone = refused(settlement, "sum-2")
    assert len(gone) == 2, "one on each edge"
    # Written by the vertex, and ended there as one message more.
    counts = settlement.counts_without(gone)
    assert counts == Counts(read=3, written=3, done=2, dead_lettered=1)
    (letter,) = letters_of(settlement.amended(gone, ()))
    assert (letter.id, letter.value, letter.unread) == ("sum-2", b"2", True)


@pytest.mark.guarantee("nothing-is-lost")
def test_a_refused_parked_row_counts_as_read_and_is_dead_lettered():
    frame = with_due(frames.take_rows(some("p0", "p1", "p2").batch, range(3)), 10**15)
    empty = Chunk(CHUNK, Rows(frames.empty()), ChunkNumber(7, 2))
    parked = build_parked(empty, [frame], Place("v", 0, (), 10**6, None), NOW)
    settlement = forwarded([[b"1"]], X).with_parked(parked)
    gone = refused(settlement, "p1")
    assert settlement.counts_without(gone) == Counts(read=2, written=1, done=1, dead_lettered=1)
    assert [letter.id for letter in letters_of(settlement.amended(gone, ()))] == ["p1"]


def test_a_redelivery_that_was_not_stored_is_no_longer_awaited():
    known = with_awaited({}, "life", 3, ["a" * 32, "b" * 32])
    known = with_awaited(known, "life", 4, ["c" * 32])
    assert without_awaited(known, ["a" * 32])["awaited 3"].rows == ("b" * 16,)
    assert without_awaited(known, ["c" * 32]).keys() == {"awaited", "awaited 3"}
    assert without_awaited(known, []) == known
