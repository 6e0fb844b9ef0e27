"""Whether a failure is the fault of its message: the results of other messages decide."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Message, Nack, NackOptions, Response, Unavailable
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.blame import ENOUGH, Blame, SystemOutage
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows, concat
from ebbflow.engine.publications import redelivered_rows
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.call_watch import RUNNING
from ebbflow.usercode.calling import Handler, call_map, call_sink, run_batch_map
from tests.engine.sample_rows import some, verdict_on
from tests.thorough import examples

DOWN = ConnectionError("away")


def kinds(verdict: Verdict) -> str:
    """A character for each row: d(one), r(edelivered and counted), w(aits), (dead) l(etter)."""
    letters = {Redeliver: "r", Retry: "w", DeadLetter: "l"}
    outcomes = (verdict.outcomes.get(index) for index in range(len(verdict.rows)))
    return "".join("d" if outcome is None else letters[type(outcome)] for outcome in outcomes)


def mapped(code, *ids: str, blame: Blame, **columns) -> str:
    verdict = verdict_on(some(*ids, **columns))
    call_map(Handler(code, blame), verdict, 10)
    return kinds(verdict)


def failing(*bad: str, error: Exception = DOWN):
    def code(datum):
        if datum.id in bad or not bad:
            raise error
        return Message(datum.value)

    return code


def test_a_message_that_meets_an_outage_waits_and_no_failure_is_counted():
    blame = Blame()
    verdict = verdict_on(some("a", deliveries=[3], failures=[0], retries=[2]))
    call_map(Handler(failing(), blame), verdict, 1)
    (outcome,) = verdict.outcomes.values()
    assert outcome == Retry(500, "ConnectionError: away", retries=2, failures=0)
    assert blame.outage is not None


def test_after_three_failed_calls_in_a_row_the_rest_is_not_tried():
    called = []

    def code(datum):
        called.append(datum.id)
        raise DOWN

    assert mapped(code, *"abcdefg", blame=Blame()) == "wwwwwww"
    assert called == ["a", "b", "c"]


def test_rows_that_succeeded_before_an_outage_are_done():
    blame = Blame()
    assert mapped(failing("c", "d"), *"abcd", blame=blame) == "ddww"
    assert blame.outage is not None


@pytest.mark.guarantee("outages-blame-no-message")
def test_a_message_that_fails_again_although_others_succeeded_is_penalised():
    blame = Blame()
    assert mapped(failing("b"), *"abc", blame=blame) == "dwd"
    assert blame.outage is None, "others passed, so nothing is waited for"
    assert mapped(failing("b"), "b", blame=blame) == "r"


def test_a_penalised_message_is_penalised_again_unless_others_fail_as_well():
    alone, among = Blame(), Blame()
    assert mapped(failing(), "a", blame=alone, failures=[1]) == "r"
    assert mapped(failing(), "x", blame=among) == "w"
    assert mapped(failing(), "a", blame=among, failures=[1]) == "w"


def test_async_messages_that_fail_next_to_successful_ones_start_no_outage():
    async def code(datum):
        return failing("b", "d")(datum)

    blame = Blame()
    assert mapped(code, *"abcde", blame=blame) == "dwdwd"
    assert blame.outage is None
    assert mapped(code, *"fbd", blame=blame) == "drr"


@pytest.mark.parametrize("limit", [None, 10.0])
def test_an_async_map_that_exits_fails_only_its_message(monkeypatch, limit):
    async def code(datum):
        if datum.id == "b":
            raise SystemExit(3)
        return Message(datum.value)

    monkeypatch.setattr(RUNNING, "limit", limit)
    verdict = verdict_on(some(*"abc"))
    call_map(Handler(code), verdict, 10)
    assert kinds(verdict) == "drd"
    assert verdict.outcomes[1].reason == "SystemExit: 3"


def test_an_unclear_error_penalises_its_message_until_enough_messages_have_failed():
    ids = [f"m{number}" for number in range(ENOUGH + 5)]
    bug = failing(error=KeyError("customer"))
    assert mapped(bug, *ids[: ENOUGH - 1], blame=Blame()) == "r" * (ENOUGH - 1)
    blame = Blame()
    assert mapped(bug, *ids, blame=blame) == "w" * len(ids), "the first ones as well"
    assert blame.outage is not None
    assert not blame.outage.certain


def test_many_bad_messages_in_a_row_are_penalised_once_others_have_succeeded():
    blame = Blame()
    bad = [f"bad{number}" for number in range(50)]
    code = failing(*bad, error=ValueError("no number"))
    assert set(mapped(code, *bad, "good", blame=blame)) == {"w"}
    assert mapped(code, "good", blame=blame) == "d"
    assert mapped(code, *bad, blame=blame) == "r" * 10 + "w" * 40, "those that were tried before"
    assert mapped(code, "good", blame=blame) == "d"
    assert mapped(code, *bad, blame=blame) == "r" * 50, "it takes more to suspect a system again"


def test_a_failed_batch_is_tried_one_by_one_before_any_message_is_penalised():
    calls = []

    def sink(data):
        calls.append(len(data))
        if len(data) > 1 or data[0].id == "m1":
            raise ValueError("one of them is bad")
        return [Response.ok(datum.id) for datum in data]

    verdict = verdict_on(some(*(f"m{number}" for number in range(12))))
    call_sink(Handler(sink), verdict, 100)
    assert kinds(verdict) == "d" + "r" * 11, "the first succeeded alone: the messages are at fault"
    assert calls == [12, 1]


def test_no_message_of_a_batch_whose_messages_all_fail_alone_is_penalised():
    def broken(data):
        raise ValueError("whatever you give me")

    blame = Blame()
    verdict = verdict_on(some(*(f"m{number}" for number in range(40))))
    run_batch_map(Handler(broken, blame), verdict, 100)
    assert kinds(verdict) == "w" * 40
    assert blame.outage is not None


def test_a_sink_can_report_for_single_messages_that_their_system_is_down():
    def sink(data):
        down = Response.unavailable("b", "the archive")
        return [down if datum.id == "b" else Response.ok(datum.id) for datum in data]

    blame, verdict = Blame(), verdict_on(some(*"abc"))
    call_sink(Handler(sink, blame), verdict, 10)
    assert kinds(verdict) == "dwd"
    assert blame.outage is None


def test_a_message_that_meets_several_outages_is_not_penalised_while_others_fail():
    blame = Blame()
    assert blame.is_outage(DOWN, ["a"], blamed=False)
    blame.passed()
    assert blame.is_outage(DOWN, ["b"], blamed=False)
    assert blame.is_outage(DOWN, ["a"], blamed=False), "b fails as well"
    blame.passed()
    assert not blame.is_outage(DOWN, ["a"], blamed=False), "now it fails alone"


@pytest.mark.parametrize("answer", ["nack", "raise Nack", "nacked too often", "failure"])
def test_any_response_for_another_message_shows_that_the_system_works(answer):
    def code(datum):
        if datum.id == "a":
            raise DOWN
        if answer == "raise Nack":
            raise Nack()
        options = NackOptions(max_deliveries=0 if answer == "nacked too often" else None)
        return Message.to_fail("no") if answer == "failure" else Message.to_nack(options)

    blame, verdict = Blame(), verdict_on(some(*"ab"))
    call_map(Handler(code, blame), verdict, 1)
    assert blame.outage is None
    assert mapped(failing("a"), "a", blame=blame) == "r"


def test_a_vertex_stopped_by_mistake_is_not_stopped_as_easily_again():
    blame = Blame()
    for stops_after in (1, 2, 4):
        ids = [f"x{stops_after}{number}" for number in range(stops_after)]
        for one in ids:
            assert blame.outage is None
            assert mapped(failing(), one, blame=blame) == "w"
        assert blame.outage is not None
        assert mapped(failing("x"), "good", blame=blame) == "d", "the first probe is answered"


def test_errors_of_many_kinds_show_an_outage_and_none_is_counted_during_it():
    errors = iter([KeyError("x"), ValueError("y"), TypeError("z")] * 10)

    def code(datum):
        raise next(errors)

    blame = Blame()
    ids = [f"m{number}" for number in range(ENOUGH)]
    assert mapped(code, *ids, blame=blame) == "w" * ENOUGH
    assert mapped(code, "late", blame=blame, failures=[2]) == "w"


def test_consecutive_failures_of_small_batches_are_an_outage():
    def broken(data):
        raise ValueError("whatever you give me")

    blame = Blame()
    for number in range(0, ENOUGH, 2):
        assert blame.outage is None
        call_sink(Handler(broken, blame), verdict_on(some(f"m{number}", f"m{number + 1}")), 100)
    assert blame.outage is not None


# --- in the long run --------------------------------------------------------------------------

POLICY = Backoff("10ms", steps=3)


class World:
    """A vertex with messages, some of them bad, whose system is down now and then."""

    def __init__(self, bad: list[bool], outages: list[int], error: Exception, chance: Random):
        ids = [f"m{number}" for number in range(len(bad))]
        self.bad = {one for one, is_bad in zip(ids, bad, strict=True) if is_bad}
        # For how many chunks the system is down, each time followed by six chunks of uptime.
        self._outages = deque(down for length in outages for down in [True] * length + [False] * 6)
        self._down = False
        self._error = error
        self._chance = chance
        self._waiting = deque(some(one).batch for one in ids)
        self._handler = Handler(self, Blame())
        self.done: set[str] = set()
        self.dead: set[str] = set()

    def __call__(self, datum):
        if self._down or datum.id in self.bad:
            raise self._error
        return Message(datum.value)

    def run(self, chunks: int = 5_000) -> None:
        """Chunk after chunk, a single message during an outage, until all have ended."""
        for _ in range(chunks):
            if not self._waiting:
                return
            self._down = self._outages.popleft() if self._outages else False
            probing = self._handler.blame.outage is not None
            size = 1 if probing else self._chance.randint(1, 12)
            self._chance.shuffle(self._waiting)
            taken = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            self._settle(Rows(concat(taken)))
        raise AssertionError(f"{len(self._waiting)} messages never end")

    def _settle(self, rows: Rows) -> None:
        verdict = Verdict(rows, Rules("v", POLICY, 10**6))
        call_map(self._handler, verdict, 1)
        for index, one in enumerate(rows.column("id")):
            outcome = verdict.outcomes.get(index)
            if isinstance(outcome, Redeliver | Retry):
                self._waiting.append(redelivered_rows(rows.batch, [index], [outcome]))
            else:
                (self.dead if isinstance(outcome, DeadLetter) else self.done).add(one)


@pytest.mark.guarantee("outages-blame-no-message")
@settings(max_examples=examples(15), deadline=None)
@given(
    bad=st.lists(st.booleans(), min_size=2, max_size=30).filter(lambda bad: not all(bad)),
    outages=st.lists(st.integers(1, 6), max_size=12),
    error=st.sampled_from([DOWN, TimeoutError("slow")]),
    seed=st.integers(0, 2**16),
)
def test_no_good_message_is_dead_lettered_by_outages_and_every_message_ends(
    bad, outages, error, seed
):
    """Bad ones may have to wait for a good one to succeed; enough of these are added here."""
    world = World(bad, outages, error, Random(seed))
    good = {f"m{number}" for number, is_bad in enumerate(bad) if not is_bad}
    fresh = deque(f"more{number}" for number in range(150))
    before = world._settle

    def settle(rows):
        before(rows)
        if fresh:
            world._waiting.append(some(fresh.popleft()).batch)

    world._settle = settle
    world.run()
    assert world.dead == world.bad
    assert good <= world.done


@pytest.mark.parametrize("error", [DOWN, KeyError("bug")])
def test_no_message_ends_while_every_message_fails(error):
    world = World([True] * 30, [], error, Random(1))
    with pytest.raises(AssertionError, match="never end"):
        world.run(chunks=300)
    assert world.dead == set()


def test_a_message_that_was_not_tried_is_never_penalised():
    down = Unavailable("the function")
    down.tried = False
    blame = Blame()
    for _ in range(3):
        assert blame.is_outage(down, ["a"], blamed=True)
        assert blame.outage == SystemOutage("the function", named=True)
        blame.passed()
    down.tried = True
    assert blame.is_outage(down, ["a"], blamed=False)  # it was not a suspect before
    blame.passed()
    assert not blame.is_outage(down, ["a"], blamed=False)
