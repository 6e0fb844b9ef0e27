import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ebbflow import Message
from ebbflow.deadletters import DeadLetters, LetterFilter, ReplayResult, StoredLetter
from ebbflow.deadletters.store import LetterStore
from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import ROWS
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline, start_embedded
from ebbflow.nats.publish import publish
from ebbflow.streams import catalogue, provision
from tests.deadletters.written import LETTER, Written
from tests.nats.securing import address


def numbers(letters: DeadLetters, vertex: str | None = None) -> list[int]:
    return numbers_of(letters.list(LetterFilter(vertex=vertex)))


def numbers_of(letters: Iterable[StoredLetter]) -> list[int]:
    return [stored.number for stored in letters]


def ids_due(pipeline: Written, vertex: str = "enrich", partition: int = 0) -> list[str]:
    """The ids of the messages that were sent back to a partition, in their order."""
    batches = [frames.decode(sent.payload) for sent in pipeline.due(vertex, partition)]
    return [message_id for batch in batches for message_id in batch.column("id").to_pylist()]


def test_dead_letters_are_listed_oldest_first_with_all_their_fields(pipeline: Written) -> None:
    first = pipeline.bury()
    second = pipeline.bury(id="in-8")
    found = list(pipeline.letters.list())
    assert [stored.number for stored in found] == [first, second]
    assert found[0].letter == LETTER
    assert found[1].letter == replace(LETTER, id="in-8")


def test_a_list_continues_over_any_number_of_pages(pipeline: Written) -> None:
    buried = [pipeline.bury(id=f"in-{n}") for n in range(600)]
    assert numbers(pipeline.letters) == buried


def test_large_dead_letters_are_listed_too(pipeline: Written) -> None:
    buried = [pipeline.bury(value=b"x" * 3_000_000) for _ in range(4)]
    assert numbers(pipeline.letters) == buried


def test_a_list_can_be_restricted_to_one_vertex_and_limited(pipeline: Written) -> None:
    pipeline.bury()
    store = [pipeline.bury(vertex="store") for _ in range(3)]
    assert numbers(pipeline.letters, "store") == store
    assert [s.number for s in pipeline.letters.list(LetterFilter(vertex="store"), 2)] == store[:2]
    assert pipeline.letters.counts() == {"enrich": 1, "store": 3}


def test_messages_that_are_dead_lettered_while_a_list_is_read_are_not_in_it(
    pipeline: Written,
) -> None:
    buried = [pipeline.bury() for _ in range(3)]
    seen = []
    for stored in pipeline.letters.list():
        seen.append(stored.number)
        pipeline.bury()
    assert seen == buried


def test_get_finds_one_dead_letter_by_number_and_all_of_a_message_by_id(
    pipeline: Written,
) -> None:
    one, other, again = pipeline.bury(), pipeline.bury(id="in-8"), pipeline.bury(vertex="store")
    get = pipeline.letters.get
    assert [s.number for s in get(other)] == [other]
    assert [s.number for s in get("in-7")] == [one, again]
    assert [s.number for s in get("in-7", one, other)] == [one, other, again]


@pytest.mark.parametrize(
    ("which", "named"), [(99, "with number 99"), (0, "with number 0"), ("x", "of message 'x'")]
)
def test_a_missing_dead_letter_is_named_in_the_error(
    pipeline: Written, which: int | str, named: str
) -> None:
    pipeline.bury()
    with pytest.raises(EbbflowError) as caught:
        pipeline.letters.get(which)
    assert str(caught.value) == (
        f"There is no dead letter {named} in {pipeline.name}. "
        f"See which there are with: ebbflow dlq list {pipeline.name}"
    )


@pytest.mark.guarantee("dead-letters-are-complete")
def test_a_replay_sends_the_message_back_as_on_its_first_delivery(pipeline: Written) -> None:
    pipeline.bury()
    letters = pipeline.letters
    assert letters.replay(letters.list()).sent == 1
    (sent,) = pipeline.due()
    rows = Rows(frames.decode(sent.payload))
    expected = {
        name: getattr(LETTER, name)
        for name in ("id", "keys", "value", "event_time", "metadata", "first_seen")
    }
    expected |= {"deliveries": 1, "failures": 0, "nack_reason": None}
    assert {name: rows.column(name) for name in expected} == {n: [v] for n, v in expected.items()}
    (headers,) = rows.column("headers")
    assert headers.items() > LETTER.headers.items()
    assert headers["Ebbflow-Replays"] == "1"
    assert numbers(letters) == []


def test_two_concurrent_replays_send_every_message_back_once(
    pipeline: Written, state: Path
) -> None:
    for number in range(600):
        pipeline.bury(id=f"in-{number}")

    def replay_all() -> None:
        with open_link_to_pipeline(state, None) as link:
            letters = DeadLetters(link, pipeline.name)
            letters.replay(LetterFilter())

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(replay_all) for _ in range(2)]:
            done.result()
    assert sorted(ids_due(pipeline)) == sorted(f"in-{number}" for number in range(600))
    assert numbers(pipeline.letters) == []


def test_a_message_that_is_dead_lettered_again_can_be_replayed_again(pipeline: Written) -> None:
    letters = pipeline.letters
    for _ in range(2):
        pipeline.bury()
        assert letters.replay(letters.list()).sent == 1
    assert len(pipeline.due()) == 2


def test_a_replay_skips_messages_that_are_dead_lettered_again_meanwhile(pipeline: Written) -> None:
    pipeline.bury()
    letters = pipeline.letters

    def dies_again(letter: Letter) -> Letter:
        pipeline.bury()
        return letter

    assert letters.replay(LetterFilter(), transform=dies_again).sent == 1
    assert len(numbers(letters)) == 1


@pytest.mark.guarantee("dead-letters-are-complete")
def test_dead_letters_that_cannot_be_replayed_stay_and_the_others_are_replayed(
    pipeline: Written,
) -> None:
    cut = pipeline.bury(id="in-1", size=9_000_000)
    pipeline.bury(id="in-2")
    gone = pipeline.bury(vertex="old")
    unread = pipeline.bury(unread=True)
    letters = pipeline.letters
    for dry_run in (True, False):
        result = letters.replay(LetterFilter(), dry_run=dry_run)
        assert (result.sent, result.kept) == (1, 3)
        assert {why.partition(";")[0]: stayed for why, stayed in result.stayed.items()} == {
            "the value was cut because it was too large to be kept whole": [cut],
            "the pipeline has no vertex 'old' any more": [gone],
            "a source could not read this, so there is no message to send back": [unread],
        }
        assert numbers(letters) == ([1, 2, 3, 4] if dry_run else [cut, gone, unread])
        assert ids_due(pipeline) == ([] if dry_run else ["in-2"])


def test_replayed_messages_are_spread_over_the_partitions_by_their_keys(pipeline: Written) -> None:
    pipeline.add_vertex("store", partitions=3)
    for n in range(60):
        keys = [] if n % 2 else [f"k{n % 10}"]
        pipeline.bury(id=f"in-{n}", vertex="store", keys=keys)
    assert pipeline.letters.replay(LetterFilter()).sent == 60
    sent = [ids_due(pipeline, "store", partition) for partition in range(3)]
    assert sum(map(len, sent)) == 60
    assert min(map(len, sent)) > 5
    for ids in sent:
        order = [int(message_id.removeprefix("in-")) for message_id in ids]
        assert order == sorted(order), "the order of the letters is kept"
        keyed = {n % 10 for n in order if n % 2 == 0}
        assert all(len([n for n in order if n % 10 == k]) == 6 for k in keyed), "a key stays whole"


def test_a_message_that_is_not_a_dead_letter_is_named_with_the_command_that_removes_it(
    pipeline: Written,
) -> None:
    client, subject = pipeline.link.client, pipeline.names.dead_letter_subject("enrich")
    number = pipeline.link.run(publish(client, subject, b"hello")).seq
    letters = pipeline.letters
    with pytest.raises(EbbflowError) as caught:
        numbers(letters)
    assert str(caught.value).endswith(f"Remove it with: ebbflow dlq purge {pipeline.name} {number}")
    assert letters.purge([number]) == 1
    assert numbers(letters) == []


def test_dead_letters_are_purged_by_number_or_by_filter(pipeline: Written) -> None:
    one, other, rest = (pipeline.bury(id=f"in-{n}") for n in range(3))
    letters = pipeline.letters
    assert letters.purge([one]) == 1
    assert letters.purge(LetterFilter(id="in-1")) == 1
    assert numbers(letters) == [rest]
    with pytest.raises(EbbflowError, match=f"no dead letter with number {other}"):
        letters.purge([rest, other])
    assert numbers(letters) == [rest]


CHOICES = {
    "all": LetterFilter(),
    "of a vertex": LetterFilter(vertex="enrich"),
    "by a filter": LetterFilter(text="in-"),
    "by number": None,
}


@pytest.mark.guarantee("replays-are-exact")
@pytest.mark.parametrize("chosen", CHOICES.values(), ids=list(CHOICES))
@pytest.mark.parametrize("drops", [False, True])
def test_a_replay_does_not_send_dead_letters_that_are_purged_after_it_has_read_them(
    pipeline: Written, chosen: LetterFilter | None, drops: bool
) -> None:
    numbers = [pipeline.bury(id=f"in-{n}") for n in range(3)]
    purged: list[int] = []

    def purge_first(letter: Letter) -> bytes | Message:
        if not purged:
            purged.append(pipeline.letters.purge(chosen or numbers))
        return Message.to_drop() if drops else letter.value

    result = pipeline.letters.replay(LetterFilter(), transform=purge_first)
    assert (purged, result.sent, result.purged) == ([3], 0, 0)
    assert pipeline.due() == []


@pytest.mark.guarantee("replays-are-exact")
@pytest.mark.parametrize("chosen", CHOICES.values(), ids=list(CHOICES))
def test_a_purge_does_not_count_dead_letters_that_a_replay_has_sent(
    pipeline: Written, monkeypatch: pytest.MonkeyPatch, chosen: LetterFilter | None
) -> None:
    numbers = [pipeline.bury(id=f"in-{n}") for n in range(3)]
    delete, purged = LetterStore.delete, []

    def purge_first(store: LetterStore, sent: Collection[int]) -> int:
        monkeypatch.setattr(LetterStore, "delete", delete)
        purged.append(pipeline.letters.purge(chosen or numbers))
        return delete(store, sent)

    monkeypatch.setattr(LetterStore, "delete", purge_first)
    result = pipeline.letters.replay(LetterFilter(id="in-1"))
    assert (purged, result.sent, len(pipeline.due())) == ([2], 1, 1)


def test_dead_letters_of_a_vertex_that_is_gone_can_be_purged(pipeline: Written) -> None:
    for n in range(3):
        pipeline.bury(id=f"in-{n}", vertex="gone")
    assert pipeline.letters.purge(LetterFilter(id="in-1")) == 1
    assert pipeline.letters.purge(LetterFilter(vertex="gone")) == 2


def test_dead_letters_are_purged_by_vertex_or_all_at_once(pipeline: Written) -> None:
    for vertex in ("enrich", "store", "store"):
        pipeline.bury(vertex=vertex)
    letters = pipeline.letters
    assert letters.purge(LetterFilter(vertex="store")) == 2
    assert letters.counts() == {"enrich": 1}
    assert letters.purge(LetterFilter()) == 1
    assert letters.counts() == {}


def test_an_unknown_pipeline_is_rejected_with_a_list_of_the_known_ones(pipeline: Written) -> None:
    with pytest.raises(SetupError, match="No pipeline 'x y' has run here") as caught:
        DeadLetters(pipeline.link, "x y")
    known = str(caught.value).partition("Known here: ")[2].partition(". ")[0]
    assert pipeline.name in known.split(", ")


def test_a_state_folder_without_runs_says_how_to_name_another(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (
        start_embedded(state),
        open_link_to_pipeline(state, None) as link,
        pytest.raises(SetupError) as caught,
    ):
        DeadLetters(link, "orders")
    assert str(caught.value) == (
        "No pipeline 'orders' has run here. Name another place with --state DIR or --nats URL."
    )


def test_dead_letters_can_be_reached_by_url_too(pipeline: Written, link: Link) -> None:
    pipeline.bury()
    with open_link_to_pipeline(Path("/nowhere"), address(link.server)) as other:
        assert numbers(DeadLetters(other, pipeline.name)) == [1]


def test_a_search_returns_page_after_page_and_the_total(pipeline: Written) -> None:
    for n in range(30):
        pipeline.bury(id=f"in-{n}", reason="odd" if n % 2 else "even", error=None)
    letters = pipeline.letters
    first = letters.search(limit=20)
    assert ([one.number for one in first.letters], first.next, first.total) == (
        [*range(1, 21)],
        20,
        30,
    )
    rest = letters.search(after=first.next or 0, limit=20)
    assert ([one.number for one in rest.letters], rest.next) == ([*range(21, 31)], None)
    newest = letters.search(limit=20, newest=True)
    assert ([one.number for one in newest.letters], newest.next) == ([*range(30, 10, -1)], 11)
    rest = letters.search(after=newest.next or 0, limit=20, newest=True)
    assert ([one.number for one in rest.letters], rest.next) == ([*range(10, 0, -1)], None)
    odd = letters.search(LetterFilter(reason="odd"), limit=10)
    assert (len(odd.letters), odd.next, odd.total) == (10, 20, None)
    assert letters.causes() == {("enrich", "even"): 15, ("enrich", "odd"): 15}
    assert letters.search(LetterFilter(cause="odd")).total == 15
    letters.purge(range(1, 11))
    pipeline.bury(vertex="store")
    assert letters.causes() == {
        ("enrich", "even"): 10,
        ("enrich", "odd"): 10,
        ("store", "ValueError: no customer"): 1,
    }


def test_replayed_frames_say_how_many_messages_they_hold(pipeline: Written) -> None:
    for n in range(7):
        pipeline.bury(id=f"in-{n}")
    pipeline.letters.replay(LetterFilter())
    assert sum(int(message.headers[ROWS]) for message in pipeline.due()) == 7


def test_the_newest_dead_letters_are_found_across_gaps_and_by_vertex(pipeline: Written) -> None:
    for n in range(40):
        pipeline.bury(id=f"in-{n}", vertex="store" if n < 3 else "enrich")
    letters = pipeline.letters
    letters.purge(range(10, 36))
    assert numbers_of(letters.list(limit=7, newest=True)) == [40, 39, 38, 37, 36, 9, 8]
    assert numbers_of(letters.list(LetterFilter(vertex="store"), newest=True)) == [3, 2, 1]
    assert numbers_of(letters.list(LetterFilter(up_to=37), 3, newest=True)) == [37, 36, 9]


def test_dead_letters_of_one_cause_match_whatever_numbers_their_reasons_contain(
    pipeline: Written,
) -> None:
    for n in range(6):
        pipeline.bury(id=f"in-{n}", reason=f"customer x{n} is not known", error="nacked")
    pipeline.bury(reason="closed", error="nacked")
    letters = pipeline.letters
    (cause, count), _ = letters.causes().items()
    assert (cause, count) == (("enrich", "customer … is not known: nacked"), 6)
    alike = LetterFilter(cause=cause[1])
    assert numbers_of(letters.list(alike)) == [*range(1, 7)]
    assert letters.search(alike).total == 6


def test_a_search_that_finds_little_returns_its_matches_and_where_to_continue(
    pipeline: Written,
) -> None:
    for n in range(20):
        pipeline.bury(id=f"in-{n}")
    letters = pipeline.letters
    letters.search_time, letters.page_size = 0.0, 8
    after, seen = 0, []
    for _ in range(3):
        page = letters.search(LetterFilter(id="in-19"), after)
        seen += [one.letter.id for one in page.letters]
        after = page.next or 0
    assert seen == ["in-19"]


def test_a_replay_keeps_to_its_rate_and_can_be_stopped_between_steps(pipeline: Written) -> None:
    for n in range(60):
        pipeline.bury(id=f"in-{n}")
    letters = pipeline.letters
    began = time.monotonic()
    steps: list[int] = []

    def stop(result: ReplayResult) -> None:
        steps.append(result.sent)
        if result.sent == 40:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        letters.replay(LetterFilter(), rate=80, progress=stop)
    assert time.monotonic() - began >= 0.5
    assert steps == [20, 40]
    assert len(ids_due(pipeline)) == 40
    assert letters.replay(LetterFilter()).sent == 20
    stream = pipeline.names.redelivery("enrich", 0)
    state = pipeline.link.run(api.read_info(pipeline.link.client, stream, subjects_filter=">"))
    assert [*state["subjects"]] == [pipeline.names.due_subject("enrich", 0)], "no mark is left"


def test_streams_of_an_earlier_version_are_updated_to_store_replay_marks(pipeline: Written) -> None:
    config = catalogue.redelivery_config(pipeline.names, "store", 0)
    old = config | {"subjects": config["subjects"][:2], "allow_atomic": False}
    pipeline.link.run(provision.ensure(pipeline.link.client, old))
    pipeline.bury(vertex="store")
    assert pipeline.letters.replay(LetterFilter()).sent == 1
    assert len(pipeline.due("store")) == 1


def test_requested_dead_letters_that_do_not_exist_are_reported(pipeline: Written) -> None:
    number = pipeline.bury()
    result = pipeline.letters.replay([number, 0, 99])
    assert (result.sent, dict(result.stayed)) == (
        1,
        {"it does not exist or was deleted": [0, 99]},
    )
