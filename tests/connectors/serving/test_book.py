"""The book of requests on a real server: accepted, followed, answered, and found again."""

from __future__ import annotations

import asyncio

import pytest

from ebbflow.connectors.serving import book as books
from ebbflow.connectors.serving import requests
from ebbflow.engine.answers import Answer, own_answers
from ebbflow.engine.position import Mark
from ebbflow.nats import api
from tests.connectors.serving.desk import Desk, at, make_envelope, payloads, row
from tests.waiting import until


@pytest.fixture
def desk(link, names, tmp_path):
    return Desk(link, tmp_path, names)


# --- accepting ----------------------------------------------------------------------------------


def test_an_accepted_request_is_in_the_buffer_of_the_source_under_its_id(desk):
    with desk.opened() as book:
        desk.submit(book, "mine", b"one")
        made = desk.submit(book, None, b"two")

        ((first,), (second,)) = desk.waiting()
        assert (first["id"], first["value"]) == ("mine", b"one")
        assert first["headers"] == {"x-own": "1", "x-numaflow-id": "mine"}
        assert (second["id"], second["headers"]["x-numaflow-id"]) == (made, made)
        assert desk.run(book.find("mine")).status == "in-progress"
        assert desk.run(book.find("other")) is None


def test_requests_that_arrive_together_share_a_frame(desk):
    async def submit_all(book):
        await asyncio.gather(*(book.submit(make_envelope(None), b"?") for _ in range(50)))

    with desk.opened() as book:
        desk.run(submit_all(book))
        assert sum(map(len, desk.waiting())) == 50
        assert len(desk.waiting()) < 10


@pytest.mark.guarantee("an-id-is-taken-once")
def test_an_id_is_refused_while_its_request_is_open_and_after_it_has_ended(desk, monkeypatch):
    monkeypatch.setattr(requests, "MOST_ENDED", 0)
    with desk.opened() as book:
        desk.submit(book, "once")
        assert desk.refusal(book, "once").status == 409
        desk.serve("once", b"answer")
        desk.wait(book, "once")
        assert desk.refusal(book, "once").status == 409
    with desk.opened() as book:
        assert desk.refusal(book, "once").status == 409
        assert len(desk.waiting()) == 1


@pytest.mark.guarantee("an-id-is-taken-once")
def test_only_one_of_two_simultaneous_requests_with_the_same_id_is_accepted(desk):
    async def submit_both(book):
        ends = (book.submit(make_envelope("same"), b"?") for _ in range(2))
        return await asyncio.gather(*ends, return_exceptions=True)

    with desk.opened() as book:
        first, second = desk.run(submit_both(book))
        assert first is None
        assert second.status == 409
        assert len(desk.waiting()) == 1


def test_an_id_is_free_again_when_its_request_was_refused(desk, link):
    with desk.opened() as book:
        stream = desk.names.buffer("in", 0)
        config = link.run(api.call(link.client, f"STREAM.INFO.{stream}"))["config"]
        for limit, status in ((1, None), (1, 429), (100, None)):
            call = api.call(link.client, f"STREAM.UPDATE.{stream}", config | {"max_msgs": limit})
            link.run(call)
            if status is None:
                desk.submit(book, f"r{limit}")
            else:
                assert desk.refusal(book, "r100").status == status
                assert desk.run(book.find("r100")) is None


def test_a_body_that_is_too_large_is_refused(desk):
    with desk.opened() as book:
        assert desk.refusal(book, "large", b"x" * (desk.context.largest + 1)).status == 413
        assert desk.run(book.find("large")) is None


def test_the_number_of_open_requests_is_limited(desk, monkeypatch):
    monkeypatch.setattr(books, "MOST_OPEN", 2)
    with desk.opened() as book:
        desk.submit(book, "a")
        desk.submit(book, "b")
        assert desk.refusal(book, "c").status == 429
        desk.serve("a", b"1")
        desk.wait(book, "a")
        desk.submit(book, "c")


# --- the end of a request -----------------------------------------------------------------------


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
def test_a_request_ends_with_the_last_of_its_messages(desk):
    with desk.opened() as book:
        desk.submit(book, "r")
        desk.report("in", row("r", "done", "out:r/1", "out:r/2", at=at(1)))
        desk.answer("r", b"second", message="r/2")
        desk.report("out", row("r/2", "served", answers=1, at=at(2)))
        assert desk.run(book.find("r")).status == "in-progress"
        with pytest.raises(TimeoutError):
            desk.wait(book, "r", 0.05)
        desk.report("out", row("r/1", "redelivered", reason="not yet", due=at(9), at=at(3)))
        desk.answer("r", b"first", message="r/1")
        desk.report("out", row("r/1", "served", answers=1, deliveries=2, at=at(9)))

        ended = desk.wait(book, "r")
        assert (ended.status, ended.ended) == ("completed", at(9))
        assert payloads(ended) == [b"first", b"second"]
        assert [(step.vertex, step.message, step.outcome) for step in ended.steps] == [
            ("in", "r", "done"),
            ("out", "r/2", "served"),
            ("out", "r/1", "redelivered"),
            ("out", "r/1", "served"),
        ]
        assert (ended.steps[2].reason, ended.steps[2].due) == ("not yet", at(9))
        assert desk.run(book.find("r")) == ended


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
def test_a_dropped_request_is_completed_without_answers(desk):
    with desk.opened() as book:
        desk.submit(book, "r")
        desk.report("in", row("r", "dropped"))
        ended = desk.wait(book, "r")
        assert (ended.status, payloads(ended)) == ("completed", [])


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
def test_a_dead_letter_fails_a_request_at_once(desk):
    with desk.opened() as book:
        desk.submit(book, "r")
        desk.report("in", row("r", "done", "out:r/1", "out:r/2"))
        desk.report("out", row("r/1", "dead_lettered", reason="failures", error="ValueError: no"))
        failed = desk.wait(book, "r")
        assert failed.status == "failed"
        assert failed.failure is not None
        assert (failed.failure.vertex, failed.failure.reason) == ("out", "failures")
        assert failed.failure.error == "ValueError: no"
        desk.report("out", row("r/2", "served"))  # continues, and changes nothing
        assert desk.run(book.find("r")) == failed


def test_a_caller_gets_the_answers_as_they_were_stored(desk):
    async def ask(book, id):
        return await book.ask(make_envelope(id), b"?", 10)

    with desk.opened() as book:
        asking = [desk.link.submit(ask(book, f"r{n}")) for n in range(3)]
        until(lambda: len(book._register.open) == 3)
        for n in (2, 0, 1):
            desk.serve(f"r{n}", b"%d" % n, b"again")
        assert [payloads(each.result(120)) for each in asking] == [
            [b"0", b"again"], [b"1", b"again"], [b"2", b"again"]
        ]  # fmt: skip
        assert not book._awaited


def test_answers_the_book_missed_are_read_from_the_store(desk):
    async def ask(book):
        return await book.ask(make_envelope("r"), b"?", 10)

    with desk.opened() as book:
        book.answers_within = 0.05
        book._take_answers = lambda answers: None
        desk.run(book._answers.close())
        asking = desk.link.submit(ask(book))
        until(desk.waiting)
        desk.serve("r", b"stored")
        assert payloads(asking.result(120)) == [b"stored"]


@pytest.mark.guarantee("a-request-that-was-taken-is-answered")
def test_a_request_continues_after_its_caller_disconnects(desk):
    async def ask(book):
        await book.ask(make_envelope("r"), b"?", 10)

    with desk.opened() as book:
        asking = desk.link.submit(ask(book))
        until(desk.waiting)
        asking.cancel()
        desk.serve("r", b"answer")
        assert payloads(desk.wait(book, "r")) == [b"answer"]
        assert not book._awaited


def test_answers_can_be_watched_as_they_arrive(desk):
    async def watch(book, id, watched):
        async for each in book.watch(id):
            watched.append(each)

    with desk.opened() as book:
        desk.submit(book, "r")
        desk.answer("r", b"early", message="r/2")
        watched: list = []
        watching = desk.link.submit(watch(book, "r", watched))
        until(lambda: len(watched) == 1)
        desk.answer("r", b"late", message="r/1")
        until(lambda: len(watched) == 2)
        desk.report("in", row("r", "done", "out:r/1", "out:r/2"))
        desk.report("out", row("r/1", "served", answers=1), row("r/2", "served", answers=1))
        watching.result(120)
        assert [each.payload for each in watched[:2]] == [b"early", b"late"]
        assert payloads(watched[2]) == [b"late", b"early"]

        again: list = []
        desk.run(watch(book, "r", again))
        assert [each.payload for each in again[:2]] == [b"early", b"late"]
        with pytest.raises(KeyError):
            desk.run(watch(book, "unknown", []))


class OwnAnswers:
    """A store of the user's own."""

    def __init__(self):
        self.stored = {}

    async def follow(self, take, fail):
        pass

    async def get(self, request) -> list[Answer]:
        return own_answers(request, self.stored[request])

    async def close(self):
        pass


def test_a_custom_answer_store_is_read_when_the_request_has_ended(desk):
    desk.answers = OwnAnswers()
    with desk.opened() as book:
        book._is_followed = False

        async def ask(id):
            return await book.ask(make_envelope(id), b"?", 10)

        asking = [desk.link.submit(ask(id)) for id in ("r", "lost")]
        until(lambda: len(book._register.open) == 2)
        desk.answers.stored["r"] = [b"one", b"two"]
        for id in ("r", "lost"):
            desk.report("in", row(id, "served", answers=1))
        assert payloads(asking[0].result(120)) == [b"one", b"two"]
        with pytest.raises(books.Refusal) as refused:
            asking[1].result(120)
        assert refused.value.status == 503
        assert "lost is completed" in refused.value.reason


# --- after a crash ------------------------------------------------------------------------------


def kill(desk, book):
    """End a book as a crash does: it writes nothing more."""

    async def end():
        for task in (book._checkpoints, book._records._writing):
            if task is not None:
                task.cancel()
        await book._trail.close()

    desk.run(end())


def write_checkpoint(desk, book):
    async def write():
        await book._records.flush()
        await book._write_checkpoint()

    desk.run(write())


@pytest.mark.guarantee("a-request-that-was-taken-is-answered")
def test_requests_survive_a_crash_at_every_stage(desk):
    book = desk.open()
    for id in ("waiting", "begun", "sent", "nacked", "done", "failed", "overtaken"):
        desk.submit(book, id)
    kill(desk, book)
    # Meanwhile the pipeline continues; an output may be in the trail before its message is.
    desk.report("out", row("sent/1", "redelivered", reason="busy"), row("overtaken/1"))
    desk.report("in", row("overtaken", "done", "out:overtaken/1"))
    desk.report("in", row("sent", "done", "out:sent/1"), row("nacked", "redelivered"))
    desk.report("in", row("begun", "done", "out:begun"))
    desk.serve("done", b"answer")
    desk.report("in", row("failed", "dead_lettered", reason="poison"))
    desk.settle(Mark(7))

    with desk.opened() as book:
        assert desk.run(book.find("overtaken")).status == "completed"
        assert payloads(desk.run(book.find("done"))) == [b"answer"]
        assert desk.run(book.find("failed")).failure.reason == "poison"
        # Its row is before the position now, so it was never accepted.
        assert desk.run(book.find("waiting")) is None
        for id in ("begun", "sent", "nacked"):
            assert desk.run(book.find(id)).status == "in-progress"
        desk.report("out", row("sent/1", "done", deliveries=2), row("begun"))
        desk.report("in", row("nacked", deliveries=2))
        for id in ("begun", "sent", "nacked"):
            assert desk.wait(book, id).status == "completed"


@pytest.mark.guarantee("a-request-that-was-taken-is-answered")
def test_a_request_that_no_task_has_read_yet_survives_a_crash(desk):
    book = desk.open()
    for n in range(5):
        desk.submit(book, f"r{n}")
    kill(desk, book)
    desk.report("in", *(row(f"r{n}") for n in range(3)))
    desk.settle(Mark(3))

    with desk.opened() as book:
        assert [desk.run(book.find(f"r{n}")).status for n in range(5)] == [
            *["completed"] * 3,
            *["in-progress"] * 2,
        ]
        assert [desk.refusal(book, f"r{n}").status for n in range(5)] == [409] * 5
        assert desk.run(book.find("r4")).accepted.timestamp() == 1_800_000_000


def test_trail_rows_repeated_after_a_crash_reopen_no_request(desk):
    with desk.opened() as book:
        desk.submit(book, "r")
        desk.serve("r", b"answer")
        ended = desk.wait(book, "r")
        write_checkpoint(desk, book)
    # The source's task was killed after its trail: it repeats the message with another outcome.
    desk.report("in", row("r", "done", "out:r", "out:r/other"))
    desk.report("out", row("x", "served", request="of another source"))
    with desk.opened() as book:
        assert not book._register.open
        assert desk.run(book.find("r")) == ended


def test_a_checkpoint_covers_only_requests_that_have_ended_and_are_recorded(desk):
    with desk.opened() as book:
        desk.submit(book, "open")
        desk.submit(book, "done")
        desk.report("in", row("open", "done", "out:open"))
        desk.serve("done", b"1")
        desk.wait(book, "done")
        desk.run(book._records.flush())
        assert (book._register.checkpoint.begin, book._register.checkpoint.written) == (0, 3)
        desk.serve("open", b"2")
        desk.wait(book, "open")
        desk.run(book._records.flush())
        assert (book._register.checkpoint.begin, book._register.checkpoint.written) == (5, 5)


def test_rows_far_back_in_the_trail_are_repeated_at_its_end(desk):
    with desk.opened() as book:
        book.far_behind = 3
        desk.submit(book, "slow")
        desk.report("in", row("slow", "done", "out:slow/1", "out:slow/2"))
        desk.report("out", row("slow/1", "served", answers=1))
        for n in range(5):
            desk.report("in", row(f"other{n}"))
        desk.run(book._rewrite_old_rows(book._trail))
        assert book._register.checkpoint.begin == 7
        write_checkpoint(desk, book)
    with desk.opened() as book:
        desk.answer("slow", b"answer", message="slow/1")
        desk.report("out", row("slow/2", "redelivered"), row("slow/2", deliveries=2))
        ended = desk.wait(book, "slow")
        assert payloads(ended) == [b"answer"]
        assert [step.message for step in ended.steps] == ["slow", "slow/1", "slow/2", "slow/2"]


def test_a_checkpoint_of_a_deleted_trail_is_not_used(desk, link):
    with desk.opened() as book:
        desk.submit(book, "r")
        desk.serve("r", b"1")
        desk.wait(book, "r")
        write_checkpoint(desk, book)
    link.run(api.delete(link.client, [desk.names.trail, desk.names.buffer("in", 0)]))
    fresh = Desk(link, desk.context.memory, desk.names)
    with fresh.opened() as book:
        fresh.submit(book, "other")
        fresh.serve("other", b"2")
        assert payloads(fresh.wait(book, "other")) == [b"2"]


def test_memory_holds_a_bounded_number_of_ended_requests(desk, monkeypatch):
    monkeypatch.setattr(requests, "MOST_ENDED", 20)
    with desk.opened() as book:
        ids = [desk.submit(book, None) for _ in range(100)]
        desk.report("in", *(row(id, "served", request=id) for id in ids))
        desk.wait(book, ids[-1])
        desk.run(book._records.flush())
        assert len(book._register._ended) == 20
        assert not book._register.open
        assert not book._register._begun
        assert desk.run(book.find(ids[0])).status == "completed"


def test_waiting_callers_are_refused_when_the_run_stops(desk):
    async def ask(book):
        return await book.ask(make_envelope("r"), b"?", 10)

    with desk.opened() as book:
        asking = desk.link.submit(ask(book))
        until(desk.waiting)
    with pytest.raises(books.Refusal) as refused:
        asking.result(120)
    assert refused.value.status == 503
    assert "fetch request r" in refused.value.reason
    with desk.opened() as book:
        assert desk.run(book.find("r")).status == "in-progress"
