"""Dead letters during elections and on lagging nodes: none is lost, none is duplicated."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest

from ebbflow.deadletters import DeadLetters, LetterFilter
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_one, read_subject
from ebbflow.streams import catalogue
from tests.cluster.lagging import READS, lagging
from tests.deadletters.written import LETTER

pytestmark = [pytest.mark.slow, pytest.mark.long]


class DeadLetterFixture:
    """A pipeline with dead letters, on three replicas."""

    def __init__(self, cluster, names):
        self._cluster = cluster
        self._names = names
        self.stream = cluster.make(catalogue.dead_letter_config(names, replicas=3))
        self.redelivery = cluster.make(catalogue.redelivery_config(names, "enrich", 0, replicas=3))

    def add(self, link, *ids):
        for one in ids:
            letter = replace(LETTER, id=one)
            subject, headers = self._names.dead_letter_subject("enrich"), letter.to_headers()
            link.run(publish(link.client, subject, letter.value, headers, retry=BUFFER))

    def letters(self, link):
        return DeadLetters(link, self._names.pipeline)

    def due(self):
        """How often each id was replayed."""
        link, subject = self._cluster.link, self._names.due_subject("enrich", 0)
        found = link.run(read_subject(link.client, self.redelivery, subject))
        batches = [frames.decode(message.payload) for message in found]
        return Counter(one for batch in batches for one in batch.column("id").to_pylist())


@pytest.fixture
def dead_lettered(cluster, names):
    return DeadLetterFixture(cluster, names)


def ids(letters):
    return [stored.letter.id for stored in letters.list()]


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_dead_letters_are_listed_shown_and_replayed_during_an_election(cluster, dead_lettered):
    made = [f"in-{number}" for number in range(300)]
    dead_lettered.add(cluster.link, *made)
    cluster.hand_over(dead_lettered.redelivery, cluster.leader_of(dead_lettered.stream))
    with cluster.linked(cluster.followers_of(dead_lettered.stream)[0]) as link:
        letters = dead_lettered.letters(link)
        cluster.kill(cluster.leader_of(dead_lettered.stream))
        found = list(letters.list())
        assert [stored.letter.id for stored in found] == made
        assert letters.get(7)[0].letter.id == "in-6"
        assert letters.counts() == {"enrich": 300}
        assert letters.replay(found).sent == 300

        assert ids(letters) == []
    assert dead_lettered.due() == Counter(dict.fromkeys(made, 1))


def test_dead_letters_are_replayed_and_purged_once_while_leaders_step_down(cluster, dead_lettered):
    made = [f"in-{number}" for number in range(600)]
    dead_lettered.add(cluster.link, *made)
    over = threading.Event()

    def change_leaders():
        while not over.wait(0.1):
            cluster.step_down(dead_lettered.stream)
            cluster.step_down(dead_lettered.redelivery)

    changing = threading.Thread(target=change_leaders)
    changing.start()
    try:
        with cluster.linked() as link:
            letters = dead_lettered.letters(link)
            assert letters.replay(list(letters.list())[:400]).sent == 400
            assert letters.purge(range(401, 501)) == 100
            assert letters.purge(LetterFilter()) == 100
            assert letters.purge(LetterFilter()) == 0
    finally:
        over.set()
        changing.join()

    assert ids(dead_lettered.letters(cluster.link)) == []
    assert dead_lettered.due() == Counter(dict.fromkeys(made[:400], 1))


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_dead_letters_read_through_a_lagging_follower_are_up_to_date(cluster, dead_lettered, names):
    """New ones are listed; deleted ones are not, and so are not replayed a second time."""
    kept = [f"old-{number}" for number in range(50)]
    dead_lettered.add(cluster.link, *kept)
    with lagging(cluster, dead_lettered.stream) as late:
        writing, reading = dead_lettered.letters(late.acting), dead_lettered.letters(late.reading)

        def change(turn):
            writing.purge(LetterFilter(vertex="large"))
            gone = list(writing.list())[10 : 10 + turn]
            writing.purge(gone)
            for stored in gone:
                kept.remove(stored.letter.id)
            dead_lettered.add(late.acting, f"new-{turn}")
            kept.append(f"new-{turn}")

        async def listed():
            subject = names.dead_letter_subject("enrich")
            found = await read_subject(late.reading.client, dead_lettered.stream, subject)
            return [Letter.from_message(one.payload, one.headers).id for one in found]

        for turn in late.rounds(least=4):
            backlog = names.dead_letter_subject("large")
            found = late.after(lambda turn=turn: change(turn + 1), listed, backlog)
            assert found == [kept] * READS
            assert ids(reading) == kept


def test_a_purged_dead_letter_is_not_found_through_a_lagging_follower(
    cluster, dead_lettered, names
):
    dead_lettered.add(cluster.link, *[f"in-{number}" for number in range(20)])
    with lagging(cluster, dead_lettered.stream) as late:
        writing, reading = dead_lettered.letters(late.acting), dead_lettered.letters(late.reading)
        for turn in late.rounds():
            number = turn + 1
            found = late.after(
                lambda number=number: writing.purge([number]),
                lambda number=number: read_one(
                    late.reading.client, dead_lettered.stream, seq=number
                ),
                backlog=names.dead_letter_subject("large"),
            )
            assert found == [None] * READS
            with pytest.raises(EbbflowError, match=f"no dead letter with number {number} in"):
                reading.get(number)
