"""The ledger on a real server: entries are there for the next task until their message ends."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pyarrow as pa
import pytest

from ebbflow.engine import frames
from ebbflow.nats import api
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.nats.publish import BUFFER, Tally
from ebbflow.streams import catalogue, provision
from ebbflow.streams.ledger import History, Ledger

SEEN = datetime(2026, 8, 1, 12, tzinfo=UTC)


def rows(deliveries, *ids, reason="busy"):
    columns = {
        "id": list(ids),
        "value": [b"not kept"] * len(ids),
        "deliveries": [deliveries] * len(ids),
        "failures": [1] * len(ids),
        "retries": [2] * len(ids),
        "first_seen": [SEEN] * len(ids),
        "nack_reason": [reason] * len(ids),
    }
    return frames.batch_of(columns, len(ids))


class Task:
    """One task's ledger, used from a test's own thread."""

    def __init__(self, link, names, partition=0, partitions=1, vertex="in"):
        self._link = link
        self.ledger = Ledger(link, names, vertex, partition, partitions, BUFFER)
        link.run(self.ledger.load())

    def write(self, deliveries, *ids, **facts):
        self._link.run(self.ledger.write(rows(deliveries, *ids, **facts), Tally()))

    def end(self, *ids):
        self._link.run(self.ledger.end(pa.array(ids, pa.string()), Tally()))

    def deliveries(self, message_id):
        self.ledger.catch_up()
        history = self.history(message_id)
        return history.deliveries if history else None

    def history(self, message_id):
        return self.ledger.histories(pa.array([message_id], pa.string())).get(0)


@pytest.fixture
def stored(link, names, ensure):
    """How many frames the server holds."""
    ensure(catalogue.ledger_config(names))

    def count():
        state = link.run(api.read_state(link.client, names.ledger))
        return state.messages

    return count


@pytest.fixture
def task(link, names, stored):
    def made(**where):
        return Task(link, names, **where)

    return made


def test_the_next_task_knows_everything_about_a_nacked_message(task):
    task().write(2, "a", "b")

    again = task().ledger
    ids = pa.array(["c", "a", "d", "b"], pa.string())
    assert again.histories(ids) == dict.fromkeys((1, 3), History(2, 1, 2, SEEN, "busy"))


def test_only_the_history_is_stored_and_not_the_value(link, names, task):
    task().write(2, "a")
    message = link.run(api.read_state(link.client, names.ledger))
    assert message.messages == 1
    task().write(2, *(f"{number:050}" for number in range(2_000)))
    assert task().deliveries(f"{1_999:050}") == 2


def test_a_later_entry_replaces_an_earlier_one_for_the_next_task_too(task, stored):
    first = task()
    first.write(2, "a", "b")
    first.write(3, "a", reason="still busy")

    for one in (first, task()):
        assert one.history("a") == History(3, 1, 2, SEEN, "still busy")
        assert one.deliveries("b") == 2


def test_messages_that_have_ended_are_deleted_locally_and_on_the_server(task, stored):
    first = task()
    first.write(2, "a", "b")
    first.write(3, "a")
    first.end("b")
    assert stored() == 1, "the first frame held nothing any more"
    first.end("a")

    assert stored() == 0
    assert first.deliveries("a") is task().deliveries("a") is None


def test_a_frame_stays_as_long_as_one_of_its_messages_may_be_redelivered(task, stored):
    first = task()
    first.write(2, "a", "b", "c")
    first.end("a", "c")

    assert stored() == 2, "the frame, and a note of what is void in it"
    assert [task().deliveries(one) for one in "abc"] == [None, 2, None]


def test_ending_an_unknown_message_changes_nothing(task, stored):
    first = task()
    first.end("nobody")
    first.write(2, "a")
    first.end("nobody")

    assert stored() == 1
    assert task().deliveries("a") == 2


def test_vertices_and_partitions_do_not_interfere_with_each_other(task, stored):
    one, two, other = (
        task(partition=0, partitions=2),
        task(partition=1, partitions=2),
        task(vertex="other"),
    )
    one.write(2, "a")
    two.write(3, "b")
    other.write(4, "a")
    one.end("a")

    assert stored() == 2
    assert task(partition=1, partitions=2).deliveries("b") == 3
    assert task(vertex="other").deliveries("a") == 4


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_a_message_that_moves_to_another_partition_keeps_its_history(task, stored):
    one, two = task(partition=0, partitions=2), task(partition=1, partitions=2)
    one.write(2, "a")

    assert two.deliveries("a") == 2
    two.write(3, "a")
    assert one.deliveries("a") == 3
    one.end("a")
    assert two.deliveries("a") is None
    assert [task(partition=p, partitions=2).deliveries("a") for p in (0, 1)] == [None, None]


def test_entries_survive_a_restart_of_the_server(tmp_path, names):
    with start_embedded(tmp_path / "state") as server, open_link(server) as link:
        link.run(provision.ensure(link.client, catalogue.ledger_config(names)))
        Task(link, names).write(2, "a", "b")
        Task(link, names).end("b")
    with start_embedded(tmp_path / "state") as server, open_link(server) as link:
        task = Task(link, names)
        assert task.deliveries("a") == 2


def test_a_frame_is_deleted_when_its_messages_have_ended_under_different_tasks(task, stored):
    """A task runs for one epoch only; messages it has ended must not reappear in the next one."""
    first = task()
    first.write(2, "a", "b")
    first.end("a")
    second = task()
    assert (second.deliveries("a"), second.deliveries("b")) == (None, 2)
    second.end("b")

    assert stored() == 0


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_message_that_waits_for_a_long_time_does_not_make_the_ledger_grow(task, stored):
    long_lived = task()
    long_lived.write(2, "waits", reason="for long")
    most = 0
    for number in range(300):
        long_lived.write(2, f"m{number}", f"n{number}")
        long_lived.end(f"m{number}", f"n{number}")
        most = max(most, stored())

    assert most < 200, "each round writes a frame and a note"
    assert task().history("waits") == History(2, 1, 2, SEEN, "for long")
    long_lived.end("waits")
    assert stored() == 0


def test_moving_an_entry_up_keeps_what_other_tasks_have_written_since(task, stored):
    one, two = task(partition=0, partitions=2), task(partition=1, partitions=2)
    one.write(2, "a", "b")
    two.deliveries("a")
    two.write(3, "a")
    for number in range(150):
        one.write(2, f"m{number}")
        one.end(f"m{number}")

    for each in (one, two, task(partition=0, partitions=2), task(partition=1, partitions=2)):
        assert (each.deliveries("a"), each.deliveries("b")) == (3, 2)


def test_an_older_history_does_not_count_even_if_it_is_written_later(task):
    """As when an entry is rewritten while another partition has just nacked its message."""
    one, two = task(partition=0, partitions=2), task(partition=1, partitions=2)
    one.write(2, "a")
    two.deliveries("a")
    two.write(3, "a")
    one.write(2, "a")

    for each in (one, two, task(partition=0, partitions=2), task(partition=1, partitions=2)):
        assert each.deliveries("a") == 3


@pytest.mark.guarantee("sources-are-acknowledged-last")
@pytest.mark.parametrize("seed", range(6))
def test_every_task_knows_the_same_as_a_plain_dictionary(task, stored, seed, monkeypatch):
    """Random nacks and ends in two partitions, with tasks that are replaced at any time."""
    print(f"seed {seed}")
    monkeypatch.setattr("ebbflow.streams.ledger._MOST_FRAMES", 4)
    random, fresh_ids = Random(seed), iter(range(10**6))
    tasks = [task(partition=p, partitions=2) for p in (0, 1)]
    waiting: dict[str, int] = {}
    ended: set[str] = set()
    for _ in range(40):
        partition = random.randrange(2)
        some = random.sample(sorted(waiting), min(len(waiting), random.randint(0, 3)))
        one = tasks[partition]
        one.ledger.catch_up()  # as when a message arrives
        match random.choice(["nack", "nack", "end", "replace"]):
            case "nack":
                some += [f"m{next(fresh_ids)}" for _ in range(random.randint(1, 2))]
                deliveries = max(waiting.get(i, 1) for i in some) + 1
                one.write(deliveries, *some)
                waiting |= dict.fromkeys(some, deliveries)
            case "end":
                one.end(*some)
                waiting = {i: n for i, n in waiting.items() if i not in some}
                ended |= set(some)
            case "replace":
                tasks[partition] = task(partition=partition, partitions=2)
        new = task(partition=random.randrange(2), partitions=2)
        for each in (*tasks, new):
            assert {i: each.deliveries(i) for i in waiting} == waiting
        assert {i: new.deliveries(i) for i in ended} == dict.fromkeys(ended)
    tasks[0].end(*waiting)
    for one in tasks:
        one.ledger.catch_up()
        one.end()
    assert stored() == 0, "what is void is deleted when its partition looks at it"
