"""Replays on a real server that are killed at any moment and resumed long afterwards.

The server forgets ids at once here, so nothing relies on its memory of two minutes. A task reads
and deletes the replayed messages in between, so nothing relies on what is left there either.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ebbflow.deadletters import DeadLetters, LetterFilter
from ebbflow.engine import frames
from ebbflow.nats import api, bulk
from ebbflow.nats.publish import BUFFER
from ebbflow.nats.wire import Publishes
from ebbflow.streams import catalogue, provision
from tests.deadletters.written import LETTER, Written
from tests.waiting import let_time_pass

pytestmark = pytest.mark.slow
PARTITIONS = 2


class Killing:
    """A pipeline with dead letters, replays that are killed, and a task that reads what is sent."""

    def __init__(self, pipeline: Written, state: Path, count: int, rate: float) -> None:
        self.pipeline = pipeline
        self.taken: Counter[str] = Counter()
        self.values: set[bytes] = set()
        self._state = state
        self._count = count
        self._rate = rate
        for partition in range(PARTITIONS):
            config = catalogue.redelivery_config(pipeline.names, "store", partition)
            forgetful = config | {"duplicate_window": 100_000_000}
            pipeline.link.run(provision.ensure(pipeline.link.client, forgetful))
        for start in range(0, count, 10_000):
            self._bury(range(start, min(count, start + 10_000)))

    def _bury(self, numbers: range) -> None:
        subject = self.pipeline.names.dead_letter_subject("store")
        letters = (replace(LETTER, id=f"in-{n}", vertex="store", keys=[str(n)]) for n in numbers)
        rows = Publishes.of((subject, letter.to_headers(), letter.value) for letter in letters)
        link = self.pipeline.link
        assert not link.run(bulk.publish_all(link.client, rows, BUFFER))

    def replay(self, kill_after: float | None) -> bool:
        """Runs a replay; returns whether it has ended before it was killed."""
        args = [str(self._state), self.pipeline.name, str(self._rate), str(self._count)]
        command = [sys.executable, "-m", "tests.deadletters.replay_process", *args]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            try:
                return process.wait(kill_after) == 0
            except subprocess.TimeoutExpired:
                process.kill()
                return False

    def take(self) -> None:
        """Takes the replayed messages, as a task does: they are read, done and purged."""
        link, names = self.pipeline.link, self.pipeline.names
        for partition in range(PARTITIONS):
            stream = names.redelivery("store", partition)
            subject = names.due_subject("store", partition)
            for sent in self.pipeline.due("store", partition):
                batch = frames.decode(sent.payload)
                self.taken.update(batch.column("id").to_pylist())
                self.values |= set(batch.column("value").to_pylist())
                # No further than what was read: what a killed process sent last may come any time.
                link.run(api.purge_subject(link.client, stream, subject, sent.seq))

    def check(self) -> None:
        """Every message came back exactly once, changed, and nothing is left."""
        assert self.taken == Counter({f"in-{n}": 1 for n in range(self._count)})
        assert self.values == {LETTER.value + b"!"}
        assert self.pipeline.letters.counts() == {}
        link, names = self.pipeline.link, self.pipeline.names
        for partition in range(PARTITIONS):
            stream = names.redelivery("store", partition)
            assert link.run(api.read_info(link.client, stream))["messages"] == 0


def kill_and_resume(killing: Killing, random: Random, longest: float) -> int:
    """Replays until one has ended; returns how many were killed."""
    kills = 0
    while not killing.replay(random.uniform(0.0, longest)):
        kills += 1
        longest *= 2  # so that one can end in time on a busy machine as well
        killing.take()
        let_time_pass(0.2)  # longer than the server remembers ids
    killing.take()
    return kills


@pytest.mark.guarantee("replays-are-exact")
def test_a_replay_killed_at_any_moment_and_resumed_sends_every_dead_letter_once(
    pipeline: Written, state: Path
) -> None:
    killing = Killing(pipeline, state, count=4_000, rate=6_000)
    kills = kill_and_resume(killing, Random(5), longest=0.2)
    assert kills >= 2
    killing.check()


@pytest.mark.long
@pytest.mark.guarantee("replays-are-exact")
@pytest.mark.parametrize("rate", [0, 40_000], ids=["no rate", "with a rate"])
def test_100_000_dead_letters_are_replayed_exactly_once_through_kills(
    pipeline: Written, state: Path, rate: float
) -> None:
    killing = Killing(pipeline, state, count=100_000, rate=rate)
    assert kill_and_resume(killing, Random(1), longest=1.0) >= 2
    killing.check()


class Killed(BaseException):
    """Stands in for a process that is gone."""


class KilledBeforeDeleting(DeadLetters):
    """A process that is killed right after the server has stored frames and mark."""

    def __init__(self, pipeline: Written) -> None:
        super().__init__(pipeline.link, pipeline.name)
        self._store.delete = self._store.sweep = self._die  # type: ignore[method-assign]

    def _die(self, *_: object) -> None:
        raise Killed


@pytest.mark.guarantee("replays-are-exact")
def test_a_dead_letter_that_was_sent_but_not_deleted_is_recognised_however_late(
    pipeline: Written, state: Path
) -> None:
    """The server remembers ids for two minutes, and here not at all."""
    killing = Killing(pipeline, state, count=50, rate=0)
    with pytest.raises(Killed):
        KilledBeforeDeleting(pipeline).replay(LetterFilter())
    killing.take()
    assert sum(killing.taken.values()) == 50
    letters = pipeline.letters
    assert letters.counts() == {"store": 50}
    let_time_pass(0.2)
    assert letters.replay(LetterFilter(), dry_run=True).sent == 0
    assert letters.replay(LetterFilter()).sent == 0
    killing.take()
    assert set(killing.taken.values()) == {1}
    assert letters.counts() == {}


def test_the_marks_of_a_killed_replay_do_not_keep_a_run_from_draining(
    pipeline: Written, state: Path
) -> None:
    killing = Killing(pipeline, state, count=10, rate=0)
    with pytest.raises(Killed):
        KilledBeforeDeleting(pipeline).replay(LetterFilter())
    killing.take()
    link, names = pipeline.link, pipeline.names
    aside = names.replayed_subject("*", "*")
    for partition in range(PARTITIONS):
        stream = names.redelivery("store", partition)
        assert link.run(api.read_state(link.client, stream)).messages > 0
        assert link.run(api.read_state(link.client, stream, aside=aside)).messages == 0
