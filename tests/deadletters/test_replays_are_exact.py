"""No dead letter is lost or sent twice, whatever is killed, lost or late at any step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebbflow.deadletters.chain import Chain
from ebbflow.streams.replays import PackedFrame, ReplayMark, ReplayTarget, StoredMark
from tests.deadletters.replay_model import Scenario
from tests.thorough import examples


@pytest.mark.guarantee("replays-are-exact")
def test_killed_and_concurrent_replays_send_every_dead_letter_once() -> None:
    wrong = {
        (seed, mapped): faults
        for seed in range(examples(150))
        for mapped in (True, False)
        if (faults := Scenario(seed, with_transform=mapped).find_faults())
    }
    assert wrong == {}


@pytest.mark.guarantee("replays-are-exact")
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_no_dead_letter_is_both_sent_back_and_purged(mapped: bool, whole: bool) -> None:
    for seed in range(examples(150)):
        purges = "everything" if whole else "some"
        scenario = Scenario(seed, with_transform=mapped, purges=purges)
        server = scenario.run()
        sent = [number for _, number in server.delivered]
        assert (len({*sent}), scenario.counts["sent"]) == (len(sent), len(sent)), seed
        counted = scenario.counts.total() + len(server.letters)
        # What a purge of everything has not deleted yet, a replay that ends deletes uncounted.
        assert counted == scenario.letters or (whole and counted < scenario.letters), seed


def test_an_undisturbed_replay_keeps_the_order_of_the_dead_letters() -> None:
    scenario = Scenario(1, letters=40)
    server = scenario.run()
    by_target: dict[ReplayTarget, list[int]] = {}
    for target, number in server.delivered:
        by_target.setdefault(target, []).append(number)
    assert len(by_target) == 3
    assert all(numbers == sorted(numbers) for numbers in by_target.values())


class WithoutClaim(Chain):
    """Begins at an empty chain without a claim: it looks like any other empty chain."""

    def _claim(self, target: ReplayTarget) -> None:
        last = self._store.read_last(target)
        self._finish(last)
        self._last[target] = last.seq if last else 0


class WithoutLooking(Chain):
    """Continues behind the last mark without deleting what it names."""

    def _finish(self, last: StoredMark | None) -> None:
        return


class WithoutReadingAgain(Chain):
    """Sends refused frames again, behind whatever mark is now the last one."""

    def _join(self, target: ReplayTarget, mark: ReplayMark) -> bool:
        last = self._store.read_last(target)
        self._last[target] = last.seq if last else 0
        return self._store.store(target, _frames(mark), mark, self._last[target]) is not None


class ReleasesEarly(Chain):
    """Deletes its marks before the dead letters that they name."""

    def send(self, parcels, swept):  # type: ignore[no-untyped-def]
        delete = self._store.delete
        try:
            self._store.delete = lambda numbers: (self.release(), delete(numbers))
            return super().send(parcels, {})
        finally:
            self._store.delete = delete


def _frames(mark: ReplayMark) -> Iterator[PackedFrame]:
    return (PackedFrame(1, b"%d" % number) for number in mark.numbers)


# Only a few of hundreds of seeds cause what a rule prevents; these are the first that do.
@pytest.mark.parametrize(
    ("broken", "seed"),
    [(WithoutClaim, 1069), (WithoutLooking, 0), (WithoutReadingAgain, 1), (ReleasesEarly, 1)],
    ids=["claim", "look", "read again", "release last"],
)
def test_without_any_one_of_the_rules_dead_letters_are_sent_twice(
    broken: type[Chain], seed: int
) -> None:
    faults = Scenario(seed, chain=broken, with_transform=False).find_faults()
    assert any("twice" in fault for fault in faults)
    assert Scenario(seed, with_transform=False).find_faults() == []
