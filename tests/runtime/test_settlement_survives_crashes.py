"""Whatever crashes where, and however user code decides on the next attempt: nothing is lost.

First the guarantee, by hypothesis over long runs and by enumerating every short one. Then why
each rule is needed: with the rule broken, the same enumeration finds a lost message.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ebbflow.domain.errors import Fenced
from ebbflow.engine import frames, position
from ebbflow.engine.position import Mark, Position
from ebbflow.engine.publications import Stage
from ebbflow.engine.settlement import Settlement
from tests.runtime.crash_model import DECISIONS, Chances, Crash, Rules, UserCode
from tests.runtime.crash_run import ModelTask, inlet_of, run_to_the_end
from tests.runtime.following import Follower, Forgetful, Hasty
from tests.runtime.memory_server import Server
from tests.thorough import examples

crashes = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        crash_after=st.integers(0, 25),
        zombie=st.sampled_from([0, 0, 1, 99]),
    ),
    max_size=6,
)
inlets = st.lists(st.integers(1, 4), min_size=1, max_size=5)
scripts = st.lists(st.sampled_from(DECISIONS), max_size=40)


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(120))
@given(inlets, scripts, crashes)
def test_every_message_is_finally_done_dead_lettered_or_dropped(sizes, script, given_crashes):
    server = Server(inlet_of(*sizes))
    event(f"{len(given_crashes)} crashes")
    assert run_to_the_end(server, UserCode(script), given_crashes) == set()


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(60))
@given(inlets, scripts, crashes)
def test_when_a_chunk_is_done_all_its_publications_are_on_the_server(sizes, script, given_crashes):
    """The reason for the guarantee: a frame that was dropped as a copy held the same rows."""
    server = Server(inlet_of(*sizes))

    def honoured(settlement: Settlement) -> None:
        held = {
            Stage.REDELIVER: server.coming_back(),
            Stage.DEAD_LETTER: set(server.letters),
            Stage.ANSWER: set(server.answers),
            Stage.OUTPUT: set(server.outputs),
        }
        for publication in settlement.publications:
            if publication.stage is Stage.DEAD_LETTER:
                ids = [publication.headers["Ebbflow-Id"].strip('"')]
            elif publication.stage is Stage.ANSWER:
                ids = [publication.key.partition(".")[0]]
            else:
                ids = frames.decode(publication.payload).column("id").to_pylist()
            assert set(ids) <= held[publication.stage]

    run_to_the_end(server, UserCode(script), given_crashes, on_settled=honoured)


@pytest.mark.guarantee("counts-are-exact")
@settings(max_examples=examples(60))
@given(inlets, scripts, crashes)
def test_the_counts_are_exact_across_crashes(sizes, script, given_crashes):
    server = Server(inlet_of(*sizes))
    run_to_the_end(server, UserCode(script), given_crashes)
    position = Position.from_json(server.stored)
    assert not position.replays
    assert position.done.inlet == Mark(len(sizes))
    assert position.counts.read == position.counts.ended
    # Not more, though more may be due: a replay that decides differently leaves redeliveries of
    # the first attempt behind, which are not awaited.
    assert position.counts.read == sum(sizes) + position.counts.redelivered


@pytest.mark.guarantee("at-least-once")
@given(inlets, st.lists(st.sampled_from(["forward", "two"])), crashes)
def test_no_copies_are_left_if_code_always_decides_the_same(sizes, script, given_crashes):
    """A replay is cut like the first attempt and so makes frames with the same ids."""
    kind = script[0] if script else "forward"
    server = Server(inlet_of(*sizes))
    run_to_the_end(server, UserCode([kind] * 1_000), given_crashes)
    assert len(set(server.outputs)) == len(server.outputs) or kind == "two"
    per_edge = 1 if kind == "forward" else 3
    assert len(server.outputs) == per_edge * sum(sizes)


class Settled(UserCode):
    """Decides only by the message, so the same on every attempt: a mix of all decisions."""

    def __call__(self, datum):
        kinds = ("nack later", "nack later", "nack later", "fail", "forward", "two", "dead", "drop")
        kinds += ("nack", "nack later", "nack later", "fail", "too large", "break")
        kind = kinds[int(datum.id[1:]) % len(kinds)]
        if datum.deliveries > 2 and kind.startswith("nack"):
            kind = "forward"
        self._script = [kind]
        return super().__call__(datum)


chances = st.randoms(use_true_random=False)


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(50))
@given(inlets, crashes, chances)
def test_the_next_vertices_read_no_copy_however_soon_the_server_forgets_ids(
    sizes, given_crashes, chance
):
    """Not even if a task that was presumed dead publishes later, or if readers crash."""
    server = Server(inlet_of(*sizes), chance)
    assert run_to_the_end(server, UserCode(["two"] * 1_000), given_crashes) == set()
    read = Counter(server.read())
    assert read == {f"m{n}/v": 1 for n in range(sum(sizes))} | {
        f"m{n}/v.1": 2 for n in range(sum(sizes))
    }, "the second output goes to both edges"


live = st.lists(
    st.builds(Chances, random=chances, crash_after=st.integers(0, 25)),
    max_size=6,
)


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(50))
@given(inlets, live, chances)
def test_dead_letters_and_redeliveries_are_stored_once_however_soon_ids_are_forgotten(
    sizes, given_crashes, chance
):
    server = Server(inlet_of(*sizes), chance)
    assert run_to_the_end(server, Settled(()), given_crashes) == set()
    counts = Position.from_json(server.stored).counts
    assert len(set(server.letters)) == len(server.letters) == counts.dead_lettered
    due = sum(batch.num_rows for batch in server.due)
    assert counts.redelivered == due - server.moved_twice
    assert counts.written == len(server.read())
    assert counts.read == counts.ended == sum(sizes) + counts.redelivered


@pytest.mark.guarantee("at-least-once")
@settings(max_examples=examples(50))
@given(inlets, scripts, crashes, chances)
def test_nothing_is_lost_when_the_server_forgets_and_code_decides_differently(
    sizes, script, given_crashes, chance
):
    """Frames that are skipped as copies, or not written again, held nothing that was not stored."""
    server = Server(inlet_of(*sizes), chance)
    assert run_to_the_end(server, UserCode(script), given_crashes) == set()


def forgotten_after_each_crash(rules: Rules, reader: type[Follower] = Follower) -> Iterator[Server]:
    """All runs of one chunk with one crash, after which the server has forgotten all ids."""
    for crash_after in range(20):
        server = Server(inlet_of(7), reader=reader)
        crash = Chances(OneChunk(), crash_after)
        with suppress(Crash):
            ModelTask(server, Settled(()), rules, crash).run()
        server.forget_ids()
        for follower in server.followers.values():
            follower.finish()
            follower.restart()
        run_to_the_end(server, Settled(()), rules=rules)
        yield server


def lost_by_reader(reader: type[Follower]) -> set[tuple]:
    """Returns the runs that lose a message when a reader has read everything before the crash.

    The second attempt decides independently of the first one.
    """
    losing = set()
    for first, second in product(product(("forward", "drop"), repeat=3), repeat=2):
        for crash_after in range(6):
            server = Server(inlet_of(3), reader=reader)
            code = UserCode([*first, *second])
            with suppress(Crash):
                ModelTask(server, code, Rules(), Chances(OneChunk(), crash_after)).run()
            for follower in server.followers.values():
                follower.finish()
            if run_to_the_end(server, code):
                losing.add((first, second))
    return losing


@pytest.mark.guarantee("at-least-once")
def test_a_frame_is_recognised_by_its_rows_and_not_only_by_its_chunk():
    """A replay may forward rows that the first attempt dropped, among others that it forwarded."""
    assert lost_by_reader(Hasty)
    assert lost_by_reader(Follower) == set()


def test_a_reader_that_does_not_recognise_copies_reads_frames_twice():
    rows = [server.read() for server in forgotten_after_each_crash(Rules(), Forgetful)]
    assert any(len(set(read)) < len(read) - 1 for read in rows), "one is on two edges anyway"
    rows = [server.read() for server in forgotten_after_each_crash(Rules())]
    assert all(len(set(read)) == len(read) - 1 for read in rows)


def test_a_replay_without_a_lookup_writes_dead_letters_and_redeliveries_twice():
    def doubled(rules: Rules) -> set[str]:
        found = set()
        for server in forgotten_after_each_crash(rules):
            counts = Position.from_json(server.stored).counts
            found |= {"letters"} if len(server.letters) > counts.dead_lettered else set()
            again = sum(batch.num_rows for batch in server.due)
            found |= {"redeliveries"} if again > counts.redelivered else set()
        return found

    assert doubled(Rules(looks_up_before_repeating=False)) == {"letters", "redeliveries"}
    assert doubled(Rules()) == set()


def test_messages_that_are_sent_again_without_a_lookup_are_stored_twice():
    """A killed server knows no ids of messages it has moved: it stores a redelivery again."""

    def doubled(rules: Rules) -> set[str]:
        found = set()
        for seed in range(20):
            server = Server(inlet_of(7), Random(seed), dies=0.3)
            assert run_to_the_end(server, Settled(()), rules=rules) == set()
            counts = Position.from_json(server.stored).counts
            found |= {"letters"} if len(server.letters) > len(set(server.letters)) else set()
            again = sum(batch.num_rows for batch in server.due) - server.moved_twice
            found |= {"redeliveries"} if again > counts.redelivered else set()
        return found

    assert doubled(Rules(looks_up_before_sending_again=False)) == {"letters", "redeliveries"}
    assert doubled(Rules()) == set()


def moved_long_after(count: int) -> Iterator[Server]:
    """Runs on servers that move redeliveries again minutes after they were read."""
    for seed in range(count):
        server = Server(inlet_of(7), dies=0)
        run_to_the_end(server, Settled(()))
        server.pass_time(300_000)
        server.inlet += inlet_of(7, 7)[1:]
        run_to_the_end(server, Settled(()))
        chance = Random(seed)
        for _ in range(5):
            server.move_again(chance)
        run_to_the_end(server, Settled(()))
        yield server


@pytest.mark.guarantee("counts-are-exact")
def test_a_redelivery_that_is_moved_again_much_later_is_recognised_as_not_awaited(monkeypatch):
    def doubled() -> bool:
        read = [(Position.from_json(s.stored).counts, s) for s in moved_long_after(3)]
        assert all(server.moved_twice for _, server in read)
        return any(counts.read != 14 + counts.redelivered for counts, _ in read)

    assert not doubled()
    monkeypatch.setattr(position, "MOST_AWAITED", 0)
    assert doubled(), "it is recognised only by the time of its move, for less than a minute"


@pytest.mark.guarantee("at-least-once")
def test_a_task_that_was_replaced_can_no_longer_write():
    server = Server(inlet_of(3))
    old = ModelTask(server, UserCode(()), Rules(), Chances())
    new = ModelTask(server, UserCode(()), Rules(), Chances())
    with pytest.raises(Fenced):
        old.run()
    assert server.outputs == []
    new.run()
    assert sorted(server.outputs) == ["m0/v", "m1/v", "m2/v"]


class OneChunk(Random):
    """Takes everything as one chunk, keeps every order, and records at the end."""

    def randint(self, a: int, b: int) -> int:
        return 100

    def sample(self, population, k, *, counts=None):
        return list(population)

    def random(self) -> float:
        return 1.0

    def choice(self, seq):
        return seq[0]


def every_short_run(
    rules: Rules, only_improving: bool = False, rows: int = 2
) -> Iterator[tuple[tuple, tuple, int, set[str]]]:
    """All runs of one chunk with one crash: first decisions, second ones, the step, the lost."""
    for first, second in product(product(("forward", "nack", "dead"), repeat=rows), repeat=2):
        improves = all(
            a == b or (a, b) == ("nack", "forward") for a, b in zip(first, second, strict=True)
        )
        if only_improving and not improves:
            continue
        for crash_after in range(8):
            server = Server(inlet_of(rows))
            crash = Chances(OneChunk(), crash_after)
            lost = run_to_the_end(server, UserCode([*first, *second]), [crash], rules)
            yield first, second, crash_after, lost


def lost_by(rules: Rules, **which: bool) -> list[tuple]:
    return [
        (first, second, step)
        for first, second, step, lost in every_short_run(rules, **which)
        if lost
    ]


OUTPUTS_FIRST = (
    *(Stage.OUTPUT, Stage.ANSWER, Stage.DEAD_LETTER, Stage.HAND_OVER, Stage.REDELIVER),
    *(Stage.TRAIL, Stage.AUDIT),
)


def test_the_rules_under_test_contain_every_stage():
    assert set(OUTPUTS_FIRST) == set(Rules().order) == set(Stage)


def test_no_short_run_loses_anything():
    assert lost_by(Rules()) == []


@pytest.mark.guarantee("at-least-once")
def test_an_id_without_the_content_hash_loses_messages():
    """The second attempt's redelivery is taken for a copy of the first one's, with other rows."""
    losing = lost_by(Rules(content_hash=False))
    assert (("forward", "nack"), ("nack", "forward"), 3) in losing


def test_recording_done_before_everything_is_confirmed_loses_messages():
    losing = lost_by(Rules(done_after_publishing=False))
    assert any(set(first) == {"forward"} for first, _, _ in losing), "even the simplest case"


@pytest.mark.guarantee("at-least-once")
def test_outputs_before_redeliveries_lose_messages_without_the_content_hash(
    monkeypatch,
):
    """Even for code that only ever turns from "not yet" to "done".

    Such code is safe without a content hash as long as redeliveries come first: a frame that is
    wrongly dropped as a copy holds nothing that is not redelivered anyway. In reverse order, the
    output of a message that was nacked at first is taken for a copy, and it is not redelivered.
    That holds for redeliveries that are not listed. Those that are listed are only delivered if
    they are awaited: then the content hash is the only line of defence.
    """
    redeliveries_first = Rules(content_hash=False)
    outputs_first = Rules(content_hash=False, order=OUTPUTS_FIRST)
    assert lost_by(redeliveries_first, only_improving=True)
    monkeypatch.setattr(position, "_is_tracked", lambda known, stamp: False)
    assert lost_by(redeliveries_first, only_improving=True) == []
    losing = lost_by(outputs_first, only_improving=True)
    assert (("forward", "nack"), ("forward", "forward"), 3) in losing


@pytest.mark.guarantee("at-least-once")
def test_with_the_content_hash_a_changed_order_of_the_stages_loses_nothing():
    """So the order is a second line of defence, not the first; see the test above."""
    assert lost_by(Rules(order=OUTPUTS_FIRST)) == []


@settings(max_examples=examples(60))
@given(inlets, scripts, crashes)
def test_with_the_content_hash_a_changed_order_loses_nothing_in_long_runs(
    sizes, script, given_crashes
):
    server = Server(inlet_of(*sizes))
    rules = Rules(order=OUTPUTS_FIRST)
    assert run_to_the_end(server, UserCode(script), given_crashes, rules) == set()
